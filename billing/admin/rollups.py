"""Hourly sums and the days whose sums are due: for looking under the bonnet."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.admin.display import figure, moment, money, number
from billing.admin.filters import AccountFilter, MeteringFilter, ModelFilter
from billing.models import RollupDue, UsageDay, UsageRollup
from billing.money import NANO_PLACES


@admin.register(UsageRollup)
class UsageRollupAdmin(EndlessAdmin[UsageRollup]):
    list_display = (
        "hour",
        "key",
        "model",
        "provider",
        "service_tier",
        "metering",
        "requests_figure",
        "input_figure",
        "output_figure",
        "cost_figure",
    )
    list_filter = (AccountFilter, ModelFilter, MeteringFilter)
    list_select_related = ("account", "api_key")
    ordering = ("-day", "-id")
    empty_text = gettext_lazy("No roll-up yet. One is made for each hour with requests.")
    list_note = gettext_lazy("Hours in each account's own zone. Made again whenever a day's records change.")

    @admin.display(description=gettext_lazy("hour"))
    def hour(self, rollup: UsageRollup) -> str:
        return moment(rollup.hour_start, rollup.account.timezone)

    @admin.display(description=gettext_lazy("key"))
    def key(self, rollup: UsageRollup) -> str:
        return f"{rollup.account.name}/{rollup.api_key.name}"

    @admin.display(description=gettext_lazy("requests"))
    def requests_figure(self, rollup: UsageRollup) -> SafeString:
        return figure(number(rollup.requests))

    @admin.display(description=gettext_lazy("input"))
    def input_figure(self, rollup: UsageRollup) -> SafeString:
        return figure(number(rollup.input))

    @admin.display(description=gettext_lazy("output"))
    def output_figure(self, rollup: UsageRollup) -> SafeString:
        return figure(number(rollup.output))

    @admin.display(description=gettext_lazy("cost"))
    def cost_figure(self, rollup: UsageRollup) -> SafeString:
        return figure(money(rollup.cost_nanos, rollup.currency, NANO_PLACES))


@admin.register(UsageDay)
class UsageDayAdmin(EndlessAdmin[UsageDay]):
    list_display = (
        "day",
        "key",
        "model",
        "provider",
        "requests_figure",
        "input_figure",
        "output_figure",
        "cost_figure",
    )
    list_filter = (AccountFilter, ModelFilter)
    list_select_related = ("account", "api_key")
    ordering = ("-day", "-id")
    empty_text = gettext_lazy("No daily roll-up yet. One is made for each day with requests.")
    list_note = gettext_lazy("Days in each account's own zone: sums of the hourly roll-ups, which reports read.")

    @admin.display(description=gettext_lazy("key"))
    def key(self, sums: UsageDay) -> str:
        return f"{sums.account.name}/{sums.api_key.name}"

    @admin.display(description=gettext_lazy("requests"))
    def requests_figure(self, sums: UsageDay) -> SafeString:
        return figure(number(sums.requests))

    @admin.display(description=gettext_lazy("input"))
    def input_figure(self, sums: UsageDay) -> SafeString:
        return figure(number(sums.input))

    @admin.display(description=gettext_lazy("output"))
    def output_figure(self, sums: UsageDay) -> SafeString:
        return figure(number(sums.output))

    @admin.display(description=gettext_lazy("cost"))
    def cost_figure(self, sums: UsageDay) -> SafeString:
        return figure(money(sums.cost_nanos, sums.currency, NANO_PLACES))


@admin.register(RollupDue)
class RollupDueAdmin(EndlessAdmin[RollupDue]):
    list_display = ("day", "key")
    list_select_related = ("api_key__account",)
    ordering = ("-id",)
    empty_text = gettext_lazy("No roll-up is due: all figures are up to date.")

    @admin.display(description=gettext_lazy("key"))
    def key(self, due: RollupDue) -> str:
        return str(due.api_key)
