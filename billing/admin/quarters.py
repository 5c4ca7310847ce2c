"""Attempts by quarter of an hour, and operators' tests of providers: what a provider's bill is compared with."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.admin.display import ago, code, figure, moment, money, number
from billing.models import AttemptQuarter, ProviderTest
from billing.money import NANO_PLACES


@admin.register(AttemptQuarter)
class AttemptQuarterAdmin(EndlessAdmin[AttemptQuarter]):
    list_display = (
        "ended", "provider", "upstream_model", "key", "use", "attempts_figure", "input_figure", "output_figure",
        "billed_figure",
    )  # fmt: skip
    list_select_related = ("api_key__account",)
    ordering = ("-id",)
    empty_text = gettext_lazy("No roll-up yet. One is made for each quarter of an hour with attempts.")
    list_note = gettext_lazy("Quarters of an hour in UTC, which any time zone's days are made of.")

    @admin.display(description=gettext_lazy("ended in"))
    def ended(self, row: AttemptQuarter) -> str:
        return moment(row.ended_quarter)

    @admin.display(description=gettext_lazy("key"))
    def key(self, row: AttemptQuarter) -> str:
        return str(row.api_key)

    @admin.display(description=gettext_lazy("attempts"))
    def attempts_figure(self, row: AttemptQuarter) -> SafeString:
        return figure(number(row.attempts))

    @admin.display(description=gettext_lazy("input"))
    def input_figure(self, row: AttemptQuarter) -> SafeString:
        return figure(number(row.input))

    @admin.display(description=gettext_lazy("output"))
    def output_figure(self, row: AttemptQuarter) -> SafeString:
        return figure(number(row.output))

    @admin.display(description=gettext_lazy("billed"))
    def billed_figure(self, row: AttemptQuarter) -> SafeString:
        return figure(money(row.billed_nanos, row.currency, NANO_PLACES))


@admin.register(ProviderTest)
class ProviderTestAdmin(EndlessAdmin[ProviderTest]):
    list_display = ("ended", "provider", "upstream", "wire_format", "tested_by", "input_figure", "output_figure")
    ordering = ("-id",)
    empty_text = gettext_lazy("No test yet. A provider's page has a button that makes one.")
    list_note = gettext_lazy("Real calls that no account pays for; the provider's bill has them all the same.")

    @admin.display(description=gettext_lazy("ended"))
    def ended(self, test: ProviderTest) -> SafeString | str:
        return ago(test.ended_at)

    @admin.display(description=gettext_lazy("upstream model"))
    def upstream(self, test: ProviderTest) -> SafeString:
        return code(test.upstream_model)

    @admin.display(description=gettext_lazy("input"))
    def input_figure(self, test: ProviderTest) -> SafeString:
        return figure(number(test.input))

    @admin.display(description=gettext_lazy("output"))
    def output_figure(self, test: ProviderTest) -> SafeString:
        return figure(number(test.output))
