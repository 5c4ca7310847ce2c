"""Filters of the list of requests: how far back, whose key, around which moment, behind which invoice line."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing import keys, seals
from billing.admin.filters import Choice
from billing.admin.lines import records_behind
from billing.admin.typed import DropdownFilter, ModelAdmin, TextFilter
from billing.models import Account, ApiKey, InvoiceLine
from billing.periods import YEARS, parse_day
from billing.row_ids import row_id

PERIODS = {"1": gettext_lazy("last 24 hours"), "7": gettext_lazy("last 7 days"), "30": gettext_lazy("last 30 days")}
USUAL_PERIOD = "1"
NARROWED_BY = ("q", "at", "line", "invoice", "day", "day__gte")
"""Parameters that narrow a list by themselves, so that it looks over all time without being asked to."""

AROUND = dt.timedelta(minutes=5)
LONGEST = dt.timedelta(hours=2)
"""How much later than a moment a request may have ended and still be found by it: the index is on the end."""

SECRET_BEGINS = 6
"""Characters of a secret that tell a key from others."""

MOMENT = re.compile(r"(?P<moment>\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)\s*(?P<zone>\S.*)?")


class PeriodFilter(DropdownFilter):
    """How far back the list looks. By itself a day, so that no filter ever reads millions of rows unasked."""

    title, parameter_name = gettext_lazy("period"), "period"
    all_option = None

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        self.narrowed = any(request.GET.get(name) for name in NARROWED_BY)
        return [*PERIODS.items(), ("all", gettext_lazy("all time"))]

    def value(self) -> str:
        chosen = super().value()
        return chosen if chosen in PERIODS or chosen == "all" else ("all" if self.narrowed else USUAL_PERIOD)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        for text in (request.GET.get(name, "") for name in ("day", "day__gte", "day__lte")):
            if text and _date(text) is None:
                messages.error(request, _("“%(text)s” is no day: write it as 2026-11-03.") % {"text": text})
                return queryset.none()
        # Drops nothing of any zone's day, but lets the index on `ended_at` find it.
        for name in ("day", "day__gte"):
            if first := _date(request.GET.get(name, "")):
                queryset = queryset.filter(seals.ends_of_days_from(first))
        for name in ("day", "day__lte"):
            if last := _date(request.GET.get(name, "")):
                queryset = queryset.filter(ended_at__lt=_midnight(last) + dt.timedelta(days=2))
        if self.value() == "all":
            return queryset
        return queryset.filter(ended_at__gte=now() - dt.timedelta(days=int(self.value())))


class KeyFilter(TextFilter):
    """A key by what a customer says of it: `account/name`, its name, or how its secret begins."""

    title, parameter_name = gettext_lazy("key: name, account/name or the secret's beginning"), "key"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        text = (self.value() or "").strip()
        return queryset.filter(api_key__in=keys_named(text)) if text else queryset


class MomentFilter(TextFilter):
    """Requests that ran within five minutes of a moment, as the admin writes moments or without a zone."""

    title = gettext_lazy("time ± 5 min, such as 2026-11-03 14:05:09 Asia/Taipei")
    parameter_name = "at"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        text = (self.value() or "").strip()
        if not text:
            return queryset
        moment = parse_moment(text, _zone_of(request))
        if moment is None:
            text = _("“%(text)s” is no time: write it as 2026-11-03 14:05, with a zone or without.") % {"text": text}
            messages.error(request, text)
            return queryset.none()
        # One range of the index on `ended_at`; those that began later are dropped on the way.
        ended = {"ended_at__gte": moment - AROUND, "ended_at__lte": moment + AROUND + LONGEST}
        return queryset.filter(**ended, started_at__lte=moment + AROUND)


class LineFilter(DropdownFilter):
    """The records behind an invoice line; the line is named by the link that leads here."""

    title, parameter_name = gettext_lazy("invoice line"), "line"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        chosen = request.GET.get("line", "")
        lines = InvoiceLine.objects.select_related("invoice")
        self.line = lines.filter(pk=row_id(chosen)).first() if chosen else None
        return [] if self.line is None else [(chosen, f"{self.line.invoice}: {self.line}")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.line is None else records_behind(self.line, queryset)


def keys_named(text: str, most: int = 100) -> list[int]:
    """The ids of the keys that a text may mean."""
    account, slash, name = text.partition("/")
    found = Q(name=text) | (Q(account__name=account, name=name) if slash else Q())
    if len(text) >= SECRET_BEGINS:
        for column in ("shown", "previous_shown"):
            found |= Q(**{f"{column}__in": (text, keys.shown(text))}) | Q(**{f"{column}__startswith": text})
    return list(ApiKey.objects.filter(found).values_list("pk", flat=True)[:most])


def parse_moment(text: str, zone: str) -> dt.datetime | None:
    """A moment as somebody writes it; `zone` where the text names none. None where it is no moment."""
    parts = MOMENT.fullmatch(text)
    if parts is None:
        return None
    named = parts["zone"] or zone
    if int(text[:4]) not in YEARS:
        return None
    try:
        if re.fullmatch(r"Z|[+-]\d\d:?\d\d", named):
            return dt.datetime.fromisoformat(f"{parts['moment']}{named}")
        return dt.datetime.fromisoformat(parts["moment"]).replace(tzinfo=ZoneInfo(named))
    except (ValueError, KeyError, OSError):  # no such day, or no such zone
        return None


def _zone_of(request: HttpRequest) -> str:
    """The zone of the account that the list is narrowed to; UTC where that is none or several."""
    accounts = Account.objects.all()
    if key := request.GET.get("key", "").strip():
        accounts = accounts.filter(keys__in=keys_named(key)).distinct()
    elif chosen := request.GET.get("api_key"):
        accounts = accounts.filter(keys=row_id(chosen))
    elif chosen := request.GET.get("account"):
        accounts = accounts.filter(pk=row_id(chosen))
    else:
        return "UTC"
    zones = set(accounts.values_list("timezone", flat=True)[:50])
    return zones.pop() if len(zones) == 1 else "UTC"


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime.combine(day, dt.time(), dt.UTC)


def _date(text: str) -> dt.date | None:
    try:
        return parse_day(text)
    except ValueError:
        return None
