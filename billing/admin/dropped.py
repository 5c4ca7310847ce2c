"""Months of requests that were dropped, with the files that they are in."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.models import DroppedInvoice, DroppedMonth, DroppedRecord

NONE_YET = gettext_lazy("No request was dropped: all of them are here.")


@admin.register(DroppedMonth)
class DroppedMonthAdmin(EndlessAdmin[DroppedMonth]):
    list_display = ("file_name", "sha256", "records", "start", "end", "dropped_at")
    ordering = ("-end",)
    empty_text = NONE_YET


@admin.register(DroppedInvoice)
class DroppedInvoiceAdmin(EndlessAdmin[DroppedInvoice]):
    list_display = ("invoice", "month", "records", "cost_nanos")
    list_select_related = ("invoice", "month")
    ordering = ("-id",)
    empty_text = NONE_YET


@admin.register(DroppedRecord)
class DroppedRecordAdmin(EndlessAdmin[DroppedRecord]):
    list_display = ("id",)
    ordering = ("-id",)
    empty_text = NONE_YET
