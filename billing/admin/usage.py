"""Requests: to be found and read, never written here."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.admin.attempts import outcome_badge
from billing.admin.display import (
    UNKNOWN,
    ago,
    badge,
    change_url,
    clipped,
    code,
    duration,
    figure,
    link,
    list_url,
    moment,
    money,
    number,
    price_per_million,
    stacked,
)
from billing.admin.filters import (
    BUCKET_WORDS,
    ENDING_WORDS,
    METERING_WORDS,
    WIRE_FORMATS,
    AccountFilter,
    Choice,
    EndingFilter,
    MeteringFilter,
    ModelFilter,
    UnpricedFilter,
    WireFormatFilter,
)
from billing.admin.lines import records_behind
from billing.admin.typed import DropdownFilter, ModelAdmin
from billing.models import ApiKey, Attempt, InvoiceLine, UsageRecord
from billing.money import NANO_PLACES
from billing.usage import BUCKETS

PERIODS = {"1": gettext_lazy("last 24 hours"), "7": gettext_lazy("last 7 days"), "30": gettext_lazy("last 30 days")}
NARROWED_BY = ("q", "line", "invoice", "day", "day__gte")
"""Parameters that narrow a list by themselves, so that it looks over all time without being asked to."""

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


class PeriodFilter(DropdownFilter):
    """How far back the list looks. By itself 7 days, so that no filter ever reads millions of rows unasked."""

    title, parameter_name = gettext_lazy("period"), "period"
    all_option = None

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        self.narrowed = any(request.GET.get(name) for name in NARROWED_BY)
        return [*PERIODS.items(), ("all", gettext_lazy("all time"))]

    def value(self) -> str:
        chosen = super().value()
        return chosen if chosen in PERIODS or chosen == "all" else ("all" if self.narrowed else "7")

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if day := _date(request.GET.get("day", "")):
            # Drops nothing of any zone's day, but lets the index on `ended_at` find it.
            start = dt.datetime.combine(day, dt.time(), dt.UTC)
            queryset = queryset.filter(
                ended_at__gte=start - dt.timedelta(days=1), ended_at__lt=start + dt.timedelta(days=2)
            )
        if self.value() == "all":
            return queryset
        return queryset.filter(ended_at__gte=now() - dt.timedelta(days=int(self.value())))


class LineFilter(DropdownFilter):
    """The records behind an invoice line; the line is named by the link that leads here."""

    title, parameter_name = gettext_lazy("invoice line"), "line"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        chosen = request.GET.get("line", "")
        self.line = (
            InvoiceLine.objects.select_related("invoice").filter(pk=chosen).first() if chosen.isdecimal() else None
        )
        return [] if self.line is None else [(chosen, f"{self.line.invoice}: {self.line}")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.line is None else records_behind(self.line, queryset)


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
    empty_text = gettext_lazy("No record. Refusals (401, 402, 429) leave none; see also the live streams.")
    list_note = gettext_lazy(
        "Times are in each account's own zone; costs have 9 decimal places, so that they add up. "
        "Below the input: tokens read from the cache and written to it."
    )
    change_form_outer_after_template = "admin/billing/usagerecord/detail.html"
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "request_id",
                    "ending_badge",
                    "why",
                    "metering_badge",
                    "cost_figure",
                    "why_unpriced",
                    "invoice_link",
                )
            },
        ),
        (
            gettext_lazy("Who and what"),
            {
                "classes": ("tab",),
                "fields": (
                    "account_link",
                    "key_page",
                    "model",
                    "wire",
                    "streamed",
                    "provider",
                    "upstream_model",
                    "tiers",
                    "flagged",
                ),
            },
        ),
        (
            gettext_lazy("When"),
            {"classes": ("tab",), "fields": ("started", "first_output", "ended", "took", "day_shown", "retry_count")},
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

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        identity = _uuid(object_id)
        record = UsageRecord.objects.filter(pk=identity).first() if identity else None
        context = {**(extra_context or {}), **({} if record is None else breakdown(record))}
        return super().change_view(request, object_id, form_url, context)

    @admin.display(description=gettext_lazy("ended"))
    def ended(self, record: UsageRecord) -> SafeString | str:
        return ago(record.ended_at, record.account.timezone)

    @admin.display(description=gettext_lazy("started"))
    def started(self, record: UsageRecord) -> str:
        return moment(record.started_at, record.account.timezone)

    @admin.display(description=gettext_lazy("first output"))
    def first_output(self, record: UsageRecord) -> str:
        if record.first_output_at is None:
            return UNKNOWN
        return _("after %(time)s") % {"time": duration(record.first_output_at - record.started_at)}

    @admin.display(description=gettext_lazy("took"))
    def took(self, record: UsageRecord) -> str:
        return duration(record.ended_at - record.started_at)

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

    @admin.display(description=gettext_lazy("output"))
    def output_figure(self, record: UsageRecord) -> SafeString:
        return figure(number(record.output))

    @admin.display(description=gettext_lazy("cost"))
    def cost_figure(self, record: UsageRecord) -> SafeString:
        if record.unpriced:
            return badge(_("unpriced"), "bad", "money_off", record.unpriced_reason)
        return figure(money(record.cost_nanos, record.currency, NANO_PLACES))

    @admin.display(description=gettext_lazy("why unpriced"))
    def why_unpriced(self, record: UsageRecord) -> str:
        return record.unpriced_reason or UNKNOWN

    @admin.display(description=gettext_lazy("reason"))
    def why(self, record: UsageRecord) -> str:
        return record.reason or UNKNOWN

    @admin.display(description=gettext_lazy("invoice"))
    def invoice_link(self, record: UsageRecord) -> SafeString | str:
        if record.invoice is None:
            return _("on none yet")
        return link(change_url(record.invoice), record.invoice)

    @admin.display(description=gettext_lazy("wire format"))
    def wire(self, record: UsageRecord) -> str:
        return WIRE_FORMATS.get(record.wire_format, record.wire_format)

    @admin.display(description=gettext_lazy("stream"), boolean=True)
    def streamed(self, record: UsageRecord) -> bool:
        return record.stream

    @admin.display(description=gettext_lazy("service tier asked · served"))
    def tiers(self, record: UsageRecord) -> str:
        return f"{record.tier_asked or UNKNOWN} · {record.service_tier or UNKNOWN}"

    @admin.display(description=gettext_lazy("flags"))
    def flagged(self, record: UsageRecord) -> str:
        return ", ".join(record.flags) or UNKNOWN


def breakdown(record: UsageRecord) -> dict[str, Any]:
    """What the page of a record shows below its fields: buckets and items that add up, attempts, raw usage."""
    parts = [_bucket_row(record, bucket) for bucket in BUCKETS] + [_item_row(record, item) for item in record.items]
    return {
        "parts": parts,
        "parts_total": UNKNOWN if record.unpriced else money(record.cost_nanos, record.currency, NANO_PLACES),
        "reasoning": None if record.reasoning is None else number(record.reasoning),
        "price_version": record.price_version,
        "long_context": record.long_context,
        "attempts": [_attempt_row(attempt, record.account.timezone) for attempt in record.attempts.all()],
        "raw_usage": json.dumps(record.raw_usage, indent=1, ensure_ascii=False) if record.raw_usage else "",
    }


def _bucket_row(record: UsageRecord, bucket: str) -> dict[str, Any]:
    unit = record.unit_prices.get(bucket)
    amount = None if record.unpriced else getattr(record, f"{bucket}_nanos")
    return {
        "name": BUCKET_WORDS[bucket],
        "quantity": number(getattr(record, bucket)),
        "unit": price_per_million(unit, record.currency),
        "amount": money(amount, record.currency, NANO_PLACES),
    }


def _item_row(record: UsageRecord, item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as the ledger keeps it: `billing.pricing.Item` as a dict."""
    other = "" if item["model"] == record.model else item["model"]
    return {
        "name": BUCKET_WORDS.get(item["bucket"], item["bucket"]),
        "model": other,
        "quantity": number(item["quantity"]),
        "unit": price_per_million(item["unit_nanos"], record.currency),
        "each": not item["per_million"],
        "amount": money(item["amount_nanos"], record.currency, NANO_PLACES),
    }


def _attempt_row(attempt: Attempt, zone: str) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "outcome": outcome_badge(attempt.outcome),
        "started": moment(attempt.started_at, zone),
        "headers": UNKNOWN if attempt.headers_ms is None else _("%(count)s ms") % {"count": number(attempt.headers_ms)},
        "first": UNKNOWN
        if attempt.first_output_ms is None
        else _("%(count)s ms") % {"count": number(attempt.first_output_ms)},
        "took": _("%(count)s ms") % {"count": number(attempt.duration_ms)},
    }


def _date(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return None


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
