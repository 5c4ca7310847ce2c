"""Adjustments: what issued invoices billed too little, or too much, for streams that were taken for lost."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.admin.display import ago, change_url, figure, link, money
from billing.admin.filters import AccountFilter
from billing.models import Adjustment
from billing.money import NANO_PLACES


@admin.register(Adjustment)
class AdjustmentAdmin(EndlessAdmin[Adjustment]):
    list_display = ("created", "request_link", "key", "kind", "amount_figure", "reason")
    list_filter = (AccountFilter,)
    list_select_related = ("record", "account", "api_key")
    ordering = ("-id",)
    empty_text = gettext_lazy("No adjustment: no invoice billed a stream that was taken for lost and lived.")
    list_note = gettext_lazy("What a request should have cost, less what its invoice billed. For the next invoice.")
    fields = ("request_link", "key", "kind", "amount_figure", "reason", "created", "invoice")

    @admin.display(description=gettext_lazy("created"))
    def created(self, adjustment: Adjustment) -> SafeString | str:
        return ago(adjustment.created_at, adjustment.account.timezone)

    @admin.display(description=gettext_lazy("request"))
    def request_link(self, adjustment: Adjustment) -> SafeString:
        return link(change_url(adjustment.record), adjustment.record.request_name)

    @admin.display(description=gettext_lazy("key"))
    def key(self, adjustment: Adjustment) -> str:
        return f"{adjustment.account.name}/{adjustment.api_key.name}"

    @admin.display(description=gettext_lazy("amount"))
    def amount_figure(self, adjustment: Adjustment) -> SafeString:
        return figure(money(adjustment.amount_nanos, adjustment.currency, NANO_PLACES))
