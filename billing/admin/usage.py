"""Requests: to be found and read, never written here."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing import seals
from billing.admin.access import EndlessAdmin
from billing.admin.display import (
    UNKNOWN,
    ago,
    badge,
    change_url,
    clipped,
    code,
    figure,
    link,
    list_url,
    money,
    number,
    number_column,
    stacked,
)
from billing.admin.filters import (
    ENDING_WORDS,
    METERING_WORDS,
    WIRE_FORMATS,
    AccountFilter,
    EndingFilter,
    MeteringFilter,
    ModelFilter,
    UnpricedFilter,
    WireFormatFilter,
)
from billing.admin.record_filters import NARROWED_BY, KeyFilter, LineFilter, MomentFilter, PeriodFilter
from billing.admin.request_page import breakdown
from billing.models import ApiKey, Attempt, OpenStream, UsageRecord
from billing.money import NANO_PLACES
from billing.words import stored_words

ENDING_LOOKS = {
    "complete": ("good", "check_circle"),
    "incomplete": ("info", "rule"),
    "client_left": ("calm", "logout"),
    "refused": ("warn", "front_hand"),
    "stopped": ("warn", "stop_circle"),
    "shutdown": ("warn", "power_settings_new"),
}
METERING_LOOKS = {
    "reported": ("good", "verified"),
    "estimated": ("warn", "calculate"),
    "checkpoint": ("warn", "save"),
    "none": ("calm", "block"),
}


@admin.register(UsageRecord)
class UsageRecordAdmin(EndlessAdmin[UsageRecord]):
    list_display = (
        "ended",
        "request_clipped",
        "key_and_model",
        "ending_badge",
        "metering_badge",
        "input_figure",
        "output_figure",
        "cost_figure",
    )
    list_display_links = ("ended", "request_clipped")
    list_filter = (
        PeriodFilter,
        KeyFilter,
        MomentFilter,
        EndingFilter,
        MeteringFilter,
        UnpricedFilter,
        AccountFilter,
        ModelFilter,
        WireFormatFilter,
        LineFilter,
    )
    list_select_related = ("account",)
    looks_back = True
    ordering = ("-ended_at",)
    search_fields = ("request_name",)
    search_help_text = gettext_lazy("Request id, ours or the provider's")
    empty_text = gettext_lazy("No record. Refusals (401, 402, 429) leave none; see also Live streams.")
    nothing_found = empty_text
    see_also = OpenStream._meta
    list_note = gettext_lazy(
        "Times are in each account's own zone; costs have 9 decimal places, so that they add up. "
        "Below the input: tokens read from the cache and written to it."
    )
    list_before_template = "admin/billing/usagerecord/list_before.html"
    change_form_outer_before_template = "admin/billing/usagerecord/cards.html"
    change_form_outer_after_template = "admin/billing/usagerecord/detail.html"
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("request_id", "billing_id"),
                    ("account_link", "key_page"),
                    ("model", "wire"),
                    ("provider", "upstream_model"),
                    ("tiers", "invoice_link"),
                    ("started", "ended"),
                    ("day_shown", "retry_count"),
                    "flagged",
                )
            },
        ),
    )

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        return lookup in (
            "api_key",
            "invoice",
            "invoice__isnull",
            "day",
            "day__gte",
            "day__lte",
            "provider",
            "currency",
            "metering__in",
            "ending__in",
        ) or super().lookup_allowed(lookup, value, request)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[UsageRecord], search_term: str
    ) -> tuple[QuerySet[UsageRecord], bool]:
        """Exact ids only, each by its index: the client's, ours, or a provider's of any attempt."""
        if not (term := search_term.strip()):
            return queryset, False
        found = {*UsageRecord.objects.filter(request_name=term).values_list("pk", flat=True)[:100]}
        found |= {*Attempt.objects.filter(provider_request_id=term).values_list("record_id", flat=True)[:100]}
        if identity := _uuid(term):
            found.add(identity)
        return queryset.filter(pk__in=found), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = {**(extra_context or {}), "dropped_until": _dropped_until(request)}
        return super().changelist_view(request, context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        record = None
        if (identity := _uuid(object_id)) is not None and self.has_view_permission(request):
            record = UsageRecord.objects.select_related("account", "invoice").filter(pk=identity).first()
        context = {**(extra_context or {}), **({} if record is None else self._parts(record))}
        return super().change_view(request, object_id, form_url, context)

    def _parts(self, record: UsageRecord) -> dict[str, Any]:
        badges = {"ending": self.ending_badge(record), "metering": self.metering_badge(record)}
        return {**breakdown(record), **badges, "cost": self.cost_figure(record)}

    @admin.display(description=gettext_lazy("ended"))
    def ended(self, record: UsageRecord) -> SafeString | str:
        return ago(record.ended_at, record.account.timezone)

    @admin.display(description=gettext_lazy("started"))
    def started(self, record: UsageRecord) -> SafeString | str:
        return ago(record.started_at, record.account.timezone)

    @admin.display(description=gettext_lazy("billing id"))
    def billing_id(self, record: UsageRecord) -> SafeString:
        return code(str(record.pk))

    @admin.display(description=gettext_lazy("day of the bill"))
    def day_shown(self, record: UsageRecord) -> str:
        return f"{record.day:%Y-%m-%d} {record.account.timezone}"

    @admin.display(description=gettext_lazy("request id"))
    def request_id(self, record: UsageRecord) -> SafeString:
        return code(record.request_name)

    @admin.display(description=gettext_lazy("request id"))
    def request_clipped(self, record: UsageRecord) -> SafeString:
        return clipped(record.request_name)

    @admin.display(description=gettext_lazy("key · model"))
    def key_and_model(self, record: UsageRecord) -> SafeString:
        key = link(list_url(UsageRecord, api_key=record.api_key_id), f"{record.account_name}/{record.key_name}")
        return stacked(key, record.model)

    @admin.display(description=gettext_lazy("API key"))
    def key_page(self, record: UsageRecord) -> SafeString:
        return link(change_url(ApiKey(pk=record.api_key_id)), record.key_name)

    @admin.display(description=gettext_lazy("account"))
    def account_link(self, record: UsageRecord) -> SafeString:
        return link(change_url(record.account), record.account_name)

    @admin.display(description=gettext_lazy("ending"))
    def ending_badge(self, record: UsageRecord) -> SafeString:
        tone, icon = ENDING_LOOKS.get(record.ending, ("bad", "error"))
        return badge(ENDING_WORDS.get(record.ending, record.ending), tone, icon)

    @admin.display(description=gettext_lazy("metering"))
    def metering_badge(self, record: UsageRecord) -> SafeString:
        tone, icon = METERING_LOOKS.get(record.metering, ("calm", "help"))
        return badge(METERING_WORDS.get(record.metering, record.metering), tone, icon)

    @admin.display(description=gettext_lazy("input"))
    def input_figure(self, record: UsageRecord) -> SafeString:
        count = figure(number(record.input))
        written = record.cache_write + record.cache_write_1h
        if not record.cache_read and not written:
            return count
        words = _("cache %(read)s · %(written)s") % {"read": number(record.cache_read), "written": number(written)}
        return stacked(count, words)

    output_figure = number_column("output", gettext_lazy("output"))

    @admin.display(description=gettext_lazy("cost"))
    def cost_figure(self, record: UsageRecord) -> SafeString:
        if record.unpriced:
            return badge(_("unpriced"), "bad", "money_off", stored_words(record.unpriced_reason))
        return figure(money(record.cost_nanos, record.currency, NANO_PLACES))

    @admin.display(description=gettext_lazy("invoice"))
    def invoice_link(self, record: UsageRecord) -> SafeString | str:
        if record.invoice is None:
            return _("on none yet")
        return link(change_url(record.invoice), record.invoice)

    @admin.display(description=gettext_lazy("wire format"))
    def wire(self, record: UsageRecord) -> str:
        name = WIRE_FORMATS.get(record.wire_format, record.wire_format)
        return name if record.stream else _("%(wire_format)s, as a whole answer") % {"wire_format": name}

    @admin.display(description=gettext_lazy("service tier asked · served"))
    def tiers(self, record: UsageRecord) -> str:
        return f"{record.tier_asked or UNKNOWN} · {record.service_tier or UNKNOWN}"

    @admin.display(description=gettext_lazy("flags"))
    def flagged(self, record: UsageRecord) -> str:
        return ", ".join(record.flags) or UNKNOWN


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _dropped_until(request: HttpRequest) -> str:
    """Up to when requests are in files instead; "" where none are, or the list looks back no more than days."""
    looks_far = request.GET.get("period") == "all" or any(request.GET.get(name) for name in NARROWED_BY)
    until = seals.dropped_until() if looks_far else None
    return f"{until.astimezone(dt.UTC):%Y-%m-%d} UTC" if until else ""
