"""Cost and requests per day over all keys: roll-ups for days that are up to date, records for those that are due."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum

from billing.models import RollupDue, UsageRecord, UsageRollup
from billing.periods import local_day
from billing.usage import BUCKETS


@dataclass(slots=True)
class DaySum:
    """All requests of a day, each key's on the clocks of its own account. `cost`: currency -> nanos, never added up."""

    day: dt.date
    requests: int = 0
    unpriced: int = 0
    tokens: int = 0
    cost: dict[str, int] = field(default_factory=dict)


def sums_by_day(first: dt.date, last: dt.date) -> list[DaySum]:
    """A sum for each day from `first` to `last`, those without requests included."""
    dates = [first + dt.timedelta(days=ahead) for ahead in range((last - first).days + 1)]
    days = {date: DaySum(date) for date in dates}
    for row in _rows(first, last):
        _add(days[row["day"]], row)
    return list(days.values())


def sum_of_today(now: dt.datetime) -> DaySum:
    """The day that it is now, for each account on its own clocks."""
    today = DaySum(now.date())
    for row in _rows(today.day - dt.timedelta(days=1), today.day + dt.timedelta(days=1)):
        if row["day"] == local_day(now, ZoneInfo(row["account__timezone"])):
            _add(today, row)
    return today


def _add(day: DaySum, row: dict[str, Any]) -> None:
    day.requests += row["sum_requests"]
    day.unpriced += row["sum_unpriced"]
    day.tokens += sum(row[f"sum_{name}"] for name in BUCKETS)
    day.cost[row["currency"]] = day.cost.get(row["currency"], 0) + row["cost"]


def _rows(first: dt.date, last: dt.date) -> Iterable[dict[str, Any]]:
    period = Q(day__gte=first, day__lte=last)
    due = RollupDue.objects.filter(api_key_id=OuterRef("api_key_id"), day=OuterRef("day"))
    clean = UsageRollup.objects.filter(period).exclude(Exists(due))
    return (*_sum(clean, Sum("requests"), Sum("unpriced")), *_sum_due(period, due))


def _sum_due(period: Q, due: QuerySet[RollupDue]) -> Iterable[dict[str, Any]]:
    """The due days from their records; keys and days first, so that the index on both finds them."""
    pairs = list(RollupDue.objects.filter(period).order_by().values_list("api_key_id", "day").distinct())
    if not pairs:
        return ()
    keys, days = {key for key, _day in pairs}, {day for _key, day in pairs}
    records = UsageRecord.objects.filter(api_key_id__in=keys, day__in=days).filter(Exists(due))
    return _sum(records, Count("pk"), Count("pk", filter=Q(unpriced=True)))


def _sum(rows: QuerySet[Any], requests: Any, unpriced: Any) -> Iterable[dict[str, Any]]:
    tokens = {f"sum_{name}": Sum(name) for name in BUCKETS}
    by_day = rows.order_by().values("day", "currency", "account__timezone")
    found: Iterable[dict[str, Any]] = by_day.annotate(
        sum_requests=requests, sum_unpriced=unpriced, cost=Sum("cost_nanos"), **tokens
    )
    return found
