"""What was used, for the customer: roll-ups for the days that are up to date, records for those that are not."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from billing import money
from billing.models import ApiKey, BudgetMonth, RollupDue, UsageRecord, UsageRollup
from billing.periods import local_day, next_month
from billing.usage import BUCKETS

COUNTS = (*BUCKETS, "reasoning")


@dataclass(frozen=True, slots=True)
class DayUsage:
    """A key's use of a model on a day of its account's zone. `usage`: bucket (and `reasoning`) -> tokens."""

    day: dt.date
    model: str
    requests: int
    unpriced: int
    usage: Mapping[str, int]
    cost_nanos: int


@dataclass(frozen=True, slots=True)
class Budget:
    """A key's budget of the calendar month in its account's zone; no limit: None."""

    month: dt.date
    limit_nanos: int | None
    spent_nanos: int

    @property
    def remaining_nanos(self) -> int | None:
        """What is left; below zero where the last request went past the limit."""
        return None if self.limit_nanos is None else self.limit_nanos - self.spent_nanos


KeyMonth = tuple[int, dt.date]
"""A key's id and the first day of a month in its account's zone."""


class Spending(NamedTuple):
    """What a key has spent in a month; the version grows with each change."""

    spent_nanos: int
    version: int


def usage_by_day_and_model(key_id: int, start: dt.date, end: dt.date) -> list[DayUsage]:
    """A key's use from `start` to before `end`, exact at the moment of asking, by day and model.

    A day that becomes due after the first query shows as it was before; one that is rebuilt meanwhile changes at once.
    """
    days = Q(api_key_id=key_id, day__gte=start, day__lt=end)
    due = list(RollupDue.objects.filter(days).order_by().values_list("day", flat=True).distinct())
    rows = [
        *_sums(UsageRollup.objects.filter(days).exclude(day__in=due), Sum("requests"), Sum("unpriced")),
        *_sums(
            UsageRecord.objects.filter(api_key_id=key_id, day__in=due),
            Count("*"),
            Count("id", filter=Q(unpriced=True)),
        ),
    ]
    return sorted(rows, key=lambda row: (row.day, row.model))


def _sums(rows: QuerySet[Any], requests: Any, unpriced: Any) -> list[DayUsage]:
    counts = {f"sum_{name}": Coalesce(Sum(name), 0) for name in COUNTS}
    by_day = rows.order_by().values("day", "model")
    found = by_day.annotate(sum_requests=requests, sum_unpriced=unpriced, cost=Sum("cost_nanos"), **counts)
    return [
        DayUsage(
            day=row["day"],
            model=row["model"],
            requests=row["sum_requests"],
            unpriced=row["sum_unpriced"],
            usage={name: row[f"sum_{name}"] for name in COUNTS},
            cost_nanos=row["cost"],
        )
        for row in found
    ]


def budget(key: ApiKey, now: dt.datetime) -> Budget:
    """What the key may spend and has spent in the running month: an absolute figure, read from the records."""
    month = local_day(now, ZoneInfo(key.account.timezone)).replace(day=1)
    spent_nanos = sum(row.cost_nanos for row in usage_by_day_and_model(key.pk, month, next_month(month)))
    return Budget(month, key.monthly_budget_nanos, spent_nanos)


def spendings(months: Collection[KeyMonth]) -> dict[KeyMonth, Spending]:
    """What keys have spent in months, as the settlements left it: the very sum of the month's records."""
    keys, firsts = {key_id for key_id, _ in months}, {month for _, month in months}
    rows = BudgetMonth.objects.filter(api_key__in=keys, month__in=firsts)
    found = {(row.api_key_id, row.month): Spending(row.spent_nanos, row.version) for row in rows}
    return {wanted: found.get(wanted, Spending(0, 0)) for wanted in months}


def request_detail(key_id: int, request_id: str) -> dict[str, Any] | None:
    """A request of this key by its name, as `GET /v1/usage/requests/{id}` shows it; None where it has none."""
    records = UsageRecord.objects.prefetch_related("attempts")
    record = records.filter(api_key_id=key_id, request_name=request_id).first()
    return None if record is None else _detail(record)


def _detail(record: UsageRecord) -> dict[str, Any]:
    return {
        "object": "usage.request",
        "request_id": record.request_name,
        "model": record.model,
        "wire_format": record.wire_format,
        "stream": record.stream,
        "ending": record.ending,
        "metering": record.metering,
        "usage": {
            **{bucket: getattr(record, bucket) for bucket in BUCKETS},
            "reasoning": record.reasoning or 0,
            "server_tools": record.server_tools,
        },
        "service_tier": record.service_tier or "default",
        "currency": record.currency,
        "cost": money.show(record.cost_nanos),
        "cost_by_bucket": {name: money.show(nanos) for name, nanos in cost_by_bucket(record).items()},
        "unit_prices": {name: money.show(record.unit_prices[name]) for name in BUCKETS if name in record.unit_prices},
        "unpriced": record.unpriced,
        "price_version": record.price_version,
        "parts": _parts(record),
        "attempts": [
            {
                "number": attempt.number,
                "outcome": attempt.outcome,
                "status": attempt.status,
                "duration_ms": attempt.duration_ms,
            }
            for attempt in record.attempts.all()
        ],
        "started_at": _instant(record.started_at),
        "first_output_at": _instant(record.first_output_at),
        "ended_at": _instant(record.ended_at),
    }


def cost_by_bucket(record: UsageRecord) -> dict[str, int]:
    """Bucket or server tool -> nanos, other models' parts included; what was not used is left out. Sums to the cost."""
    costs = {bucket: getattr(record, f"{bucket}_nanos") for bucket in BUCKETS if getattr(record, bucket)}
    for item in record.items:
        costs[item["bucket"]] = costs.get(item["bucket"], 0) + item["amount_nanos"]
    return costs


def _parts(record: UsageRecord) -> list[dict[str, Any]]:
    """What other models did inside the request: one entry per model."""
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for item in record.items:
        if item["per_million"] or item["model"] != record.model:
            by_model.setdefault(item["model"], []).append(item)
    return [
        {
            "model": model,
            "usage": _part_usage(items),
            "cost": money.show(sum(item["amount_nanos"] for item in items)),
        }
        for model, items in by_model.items()
    ]


def _part_usage(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    usage: dict[str, Any] = {**dict.fromkeys(BUCKETS, 0), "server_tools": {}}
    for item in items:
        held = usage if item["per_million"] else usage["server_tools"]
        held[item["bucket"]] = held.get(item["bucket"], 0) + item["quantity"]
    return usage


def _instant(instant: dt.datetime | None) -> str | None:
    return instant.astimezone(dt.UTC).isoformat().replace("+00:00", "Z") if instant else None
