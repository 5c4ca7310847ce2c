"""Hourly sums and the days whose sums are due: for looking under the bonnet."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.admin.display import UNKNOWN, moment, money_column, number_column
from billing.admin.filters import METERING_WORDS, AccountFilter, MeteringFilter, ModelFilter
from billing.models import RollupDue, UsageDay, UsageRollup


@admin.register(UsageRollup)
class UsageRollupAdmin(EndlessAdmin[UsageRollup]):
    list_display = (
        "hour",
        "key",
        "model",
        "provider",
        "tier",
        "metering_word",
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

    @admin.display(description=gettext_lazy("service tier"))
    def tier(self, rollup: UsageRollup) -> str:
        return rollup.service_tier or UNKNOWN

    @admin.display(description=gettext_lazy("metering"))
    def metering_word(self, rollup: UsageRollup) -> str:
        return str(METERING_WORDS.get(rollup.metering, rollup.metering))

    requests_figure = number_column("requests", gettext_lazy("requests"))
    input_figure = number_column("input", gettext_lazy("input"))
    output_figure = number_column("output", gettext_lazy("output"))
    cost_figure = money_column("cost_nanos", gettext_lazy("cost"))


@admin.register(UsageDay)
class UsageDayAdmin(EndlessAdmin[UsageDay]):
    list_display = (
        "day_shown",
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

    @admin.display(description=gettext_lazy("day"), ordering="day")
    def day_shown(self, sums: UsageDay) -> str:
        return str(sums.day)

    @admin.display(description=gettext_lazy("key"))
    def key(self, sums: UsageDay) -> str:
        return f"{sums.account.name}/{sums.api_key.name}"

    requests_figure = number_column("requests", gettext_lazy("requests"))
    input_figure = number_column("input", gettext_lazy("input"))
    output_figure = number_column("output", gettext_lazy("output"))
    cost_figure = money_column("cost_nanos", gettext_lazy("cost"))


@admin.register(RollupDue)
class RollupDueAdmin(EndlessAdmin[RollupDue]):
    list_display = ("day_shown", "key")
    list_select_related = ("api_key__account",)
    ordering = ("-id",)
    empty_text = gettext_lazy("No roll-up is due: all figures are up to date.")

    @admin.display(description=gettext_lazy("day"))
    def day_shown(self, due: RollupDue) -> str:
        return str(due.day)

    @admin.display(description=gettext_lazy("key"))
    def key(self, due: RollupDue) -> str:
        return str(due.api_key)
