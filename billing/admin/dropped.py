"""Months of requests that were dropped, with the files that they are in."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.admin.display import figure, money
from billing.models import DroppedInvoice, DroppedMonth, DroppedRecord
from billing.money import NANO_PLACES

NONE_YET = gettext_lazy("No request was dropped: all of them are here.")


@admin.register(DroppedMonth)
class DroppedMonthAdmin(EndlessAdmin[DroppedMonth]):
    list_display = ("file_name", "records", "cost", "start", "end", "dropped_at", "sha256")
    ordering = ("-end",)
    empty_text = NONE_YET

    @admin.display(description=gettext_lazy("cost"))
    def cost(self, month: DroppedMonth) -> SafeString:
        costs = sorted(month.costs.items())
        return figure(" · ".join(money(nanos, currency, NANO_PLACES) for currency, nanos in costs))


@admin.register(DroppedInvoice)
class DroppedInvoiceAdmin(EndlessAdmin[DroppedInvoice]):
    list_display = ("invoice", "month", "records", "cost")
    list_select_related = ("invoice", "month")
    ordering = ("-id",)
    empty_text = NONE_YET

    @admin.display(description=gettext_lazy("cost"))
    def cost(self, part: DroppedInvoice) -> SafeString:
        return figure(money(part.cost_nanos, part.invoice.currency, NANO_PLACES))


@admin.register(DroppedRecord)
class DroppedRecordAdmin(EndlessAdmin[DroppedRecord]):
    list_display = ("id",)
    ordering = ("-id",)
    empty_text = NONE_YET
