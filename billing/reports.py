"""What was used, for the customer: roll-ups for the days that are up to date, records for those that are not, and the
adjustments made on a day, whichever request they are about."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django.db.models import Prefetch, Q

from billing import adjustments, money
from billing.models import ApiKey, BudgetMonth, UsageRecord
from billing.periods import local_day, next_month
from billing.usage import BUCKETS
from billing.usage_sums import Cut, Figures, MoneySum, sums

COUNTS = (*BUCKETS, "reasoning")


@dataclass(frozen=True, slots=True)
class DayUsage:
    """A key's use of a model on a day of its account's zone. `usage`: bucket (and `reasoning`) -> tokens.

    `cost_nanos` holds the adjustments made on that day (`adjustment_nanos`, signed); model "": they are about none.
    """

    day: dt.date
    model: str
    requests: int
    unpriced: int
    usage: Mapping[str, int]
    cost_nanos: int
    adjustment_nanos: int = 0


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
    """A key's use from `start` to before `end`, exact at the moment of asking, by day and model."""
    found = sums(Cut(start, end - dt.timedelta(days=1), key=key_id), ("day", "model"))
    rows = [_day_usage(day, model, figures) for (day, model), figures in found.items()]
    days = Q(api_key_id=key_id, day__gte=start, day__lt=end)
    return sorted(_with_adjustments(rows, days), key=lambda row: (row.day, row.model))


def _with_adjustments(rows: Sequence[DayUsage], days: Q) -> Collection[DayUsage]:
    """The rows with what was billed more or less on these days; where nothing else was used, on rows of their own."""
    found = {(row.day, row.model): row for row in rows}
    made = adjustments.counted().filter(days).order_by().values_list("day", "record__model")
    for day, model, nanos in made.annotate(nanos=MoneySum("amount_nanos")):
        at, nanos = (day, model or ""), int(nanos)
        row = found.get(at) or DayUsage(*at, 0, 0, dict.fromkeys(COUNTS, 0), 0)
        found[at] = replace(row, cost_nanos=row.cost_nanos + nanos, adjustment_nanos=nanos)
    return found.values()


def _day_usage(day: dt.date, model: str, figures: Figures) -> DayUsage:
    return DayUsage(
        day=day,
        model=model,
        requests=figures.requests,
        unpriced=figures.unpriced,
        usage={name: getattr(figures, name) for name in COUNTS},
        cost_nanos=figures.cost_nanos,
    )


def budget(key: ApiKey, now: dt.datetime) -> Budget:
    """What the key may spend and has spent in the running month: an absolute figure, from records and adjustments."""
    month = local_day(now, ZoneInfo(key.account.timezone)).replace(day=1)
    spent_nanos = sum(row.cost_nanos for row in usage_by_day_and_model(key.pk, month, next_month(month)))
    return Budget(month, key.monthly_budget_nanos, spent_nanos)


def spendings(months: Collection[KeyMonth]) -> dict[KeyMonth, Spending]:
    """What keys have spent in months: the very sum of the month's records and adjustments, below zero for credits."""
    keys, firsts = {key_id for key_id, _ in months}, {month for _, month in months}
    rows = BudgetMonth.objects.filter(api_key__in=keys, month__in=firsts)
    found = {(row.api_key_id, row.month): Spending(row.spent_nanos, row.version) for row in rows}
    return {wanted: found.get(wanted, Spending(0, 0)) for wanted in months}


def request_detail(key_id: int, request_id: str) -> dict[str, Any] | None:
    """A request of this key by its name, as `GET /v1/usage/requests/{id}` shows it; None where it has none."""
    records = UsageRecord.objects.prefetch_related("attempts", Prefetch("adjustments", adjustments.counted()))
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
        "adjustments": money.show(sum(made.amount_nanos for made in record.adjustments.all())),
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
        if not item["quantity"]:
            continue
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
