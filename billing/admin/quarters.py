"""Attempts by quarter of an hour, and operators' tests of providers: what a provider's bill is compared with."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.admin.display import ago, code, moment, money_column, number_column
from billing.admin.filters import WIRE_FORMATS
from billing.models import AttemptQuarter, ProviderTest


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

    attempts_figure = number_column("attempts", gettext_lazy("attempts"))
    input_figure = number_column("input", gettext_lazy("input"))
    output_figure = number_column("output", gettext_lazy("output"))
    billed_figure = money_column("billed_nanos", gettext_lazy("billed"))


@admin.register(ProviderTest)
class ProviderTestAdmin(EndlessAdmin[ProviderTest]):
    list_display = ("ended", "provider", "upstream", "wire", "tested_by", "input_figure", "output_figure")
    ordering = ("-id",)
    empty_text = gettext_lazy("No test yet. A provider's page has a button that makes one.")
    list_note = gettext_lazy("Real calls that no account pays for; the provider's bill has them all the same.")

    @admin.display(description=gettext_lazy("ended"))
    def ended(self, test: ProviderTest) -> SafeString | str:
        return ago(test.ended_at)

    @admin.display(description=gettext_lazy("upstream model"))
    def upstream(self, test: ProviderTest) -> SafeString:
        return code(test.upstream_model)

    @admin.display(description=gettext_lazy("wire format"))
    def wire(self, test: ProviderTest) -> str:
        return WIRE_FORMATS.get(test.wire_format, test.wire_format)

    input_figure = number_column("input", gettext_lazy("input"))
    output_figure = number_column("output", gettext_lazy("output"))
