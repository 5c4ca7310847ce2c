"""What the gateway answers on /v1/usage, once it knows the key. No framework: values in, JSON-able values out."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from typing import Any
from zoneinfo import ZoneInfo

from billing import money, reports, seals
from billing.models import ApiKey
from billing.periods import YEARS, local_day, next_month
from billing.reports import COUNTS, Budget, DayUsage

MAX_DAYS = 400
"""The longest period of one answer: a year and a month."""
DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")


class BadQuery(ValueError):
    """A fault in the query: the field, and a message that says what to do."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param
        self.message = message


def usage(key_id: int, query: Mapping[str, str], now: dt.datetime) -> dict[str, Any]:
    """The key's usage and budget: `from` and `to` (exclusive) are days in the account's zone, by default its month."""
    key = ApiKey.objects.select_related("account").get(pk=key_id)
    start, end = _period(query, local_day(now, ZoneInfo(key.account.timezone)))
    days = reports.usage_by_day_and_model(key_id, start, end)
    return {
        "object": "usage",
        "from": start.isoformat(),
        "to": end.isoformat(),
        "timezone": key.account.timezone,
        "currency": key.account.currency,
        **_summed(days),
        "data": [{"date": day.day.isoformat(), "model": day.model, **_summed([day])} for day in days],
        "budget": _budget(reports.budget(key, now)),
    }


def usage_request(key_id: int, request_id: str) -> dict[str, Any] | None:
    """One request of this key, itemised; None: it has none of that name."""
    return reports.request_detail(key_id, request_id)


def itemised_from() -> dt.datetime | None:
    """Requests that began before this moment are summed only; None: all are here."""
    return seals.dropped_until()


def _summed(days: Iterable[DayUsage]) -> dict[str, Any]:
    days = list(days)
    return {
        "requests": sum(day.requests for day in days),
        "usage": {name: sum(day.usage[name] for day in days) for name in COUNTS},
        "cost": money.show(sum(day.cost_nanos for day in days)),
        "adjustments": money.show(sum(day.adjustment_nanos for day in days)),
        "unpriced": sum(day.unpriced for day in days),
    }


def _budget(found: Budget) -> dict[str, Any]:
    remaining = found.remaining_nanos
    return {
        "period": "month",
        "limit": None if found.limit_nanos is None else money.show(found.limit_nanos),
        "spent": money.show(found.spent_nanos),
        "remaining": None if remaining is None else money.show(max(remaining, 0)),
    }


def _period(query: Mapping[str, str], today: dt.date) -> tuple[dt.date, dt.date]:
    """The days asked for. One end alone stands for the month around it."""
    start = _day(query, "from")
    end = _day(query, "to")
    if start is None:
        start = (end - dt.timedelta(days=1) if end else today).replace(day=1)
    end = end or next_month(start)
    if start >= end:
        raise BadQuery("from", f"from ({start}) must be before to ({end}), which is not included itself.")
    if (end - start).days > MAX_DAYS:
        raise BadQuery("to", f"The period has {(end - start).days} days: ask for at most {MAX_DAYS} at a time.")
    return start, end


def _day(query: Mapping[str, str], name: str) -> dt.date | None:
    text = query.get(name)
    if not text:
        return None
    try:
        if not DAY.match(text):  # fromisoformat also reads 20261130 and 2026-W49-1
            raise ValueError
        day = dt.date.fromisoformat(text)
    except ValueError:
        raise BadQuery(name, f"{name} is not a date: write it as YYYY-MM-DD, for example 2026-11-30.") from None
    if day.year not in YEARS:
        raise BadQuery(name, f"{name} must be between the years {YEARS[0]} and {YEARS[-1]}.")
    return day
