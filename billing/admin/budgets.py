"""What each key has spent in each month, beside its budget."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.admin.display import UNKNOWN, badge, change_url, figure, link, money
from billing.models import BudgetMonth
from billing.money import NANO_PLACES

NEARLY_SPENT, SPENT = 80, 100
"""Per cent of the budget at which the gateway sounds its alarms."""


@admin.register(BudgetMonth)
class BudgetMonthAdmin(EndlessAdmin[BudgetMonth]):
    list_display = ("month_name", "key_link", "spent_figure", "budget_figure", "share_figure")
    list_select_related = ("api_key__account",)
    ordering = ("-id",)
    empty_text = gettext_lazy("No spending yet: the first request that costs something begins a month.")
    list_note = gettext_lazy("The sum of each month's records, in the account's zone, and the key's budget of today.")
    fields = ("month_name", "key_link", "spent_figure", "budget_figure", "share_figure")

    @admin.display(description=gettext_lazy("month"))
    def month_name(self, month: BudgetMonth) -> str:
        return f"{month.month:%Y-%m}"

    @admin.display(description=gettext_lazy("key"))
    def key_link(self, month: BudgetMonth) -> SafeString:
        return link(change_url(month.api_key), month.api_key)

    @admin.display(description=gettext_lazy("spent"))
    def spent_figure(self, month: BudgetMonth) -> SafeString:
        return figure(money(month.spent_nanos, month.api_key.account.currency, NANO_PLACES))

    @admin.display(description=gettext_lazy("monthly budget"))
    def budget_figure(self, month: BudgetMonth) -> SafeString:
        return figure(money(month.api_key.monthly_budget_nanos, month.api_key.account.currency))

    @admin.display(description=gettext_lazy("of it spent"))
    def share_figure(self, month: BudgetMonth) -> SafeString | str:
        budget = month.api_key.monthly_budget_nanos
        if not budget:
            return UNKNOWN
        percent = month.spent_nanos * 100 // budget
        text = f"{percent:,} %"
        if percent >= SPENT:
            return badge(text, "bad", "block")
        return badge(text, "warn", "warning") if percent >= NEARLY_SPENT else figure(text)
