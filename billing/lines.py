"""The lines of an invoice: sums of its records, exact, and each rounded once to the currency's places."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db.models import BooleanField, Count, ExpressionWrapper, Q, QuerySet, Sum
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from billing import money
from billing.models import InvoiceLine, UsageRecord
from billing.pricing import BASE_TIERS
from billing.usage import BUCKETS

BUCKET_NAMES = {
    "input": _("input tokens"),
    "cache_read": _("input tokens read from the cache"),
    "cache_write": _("input tokens written to the cache"),
    "cache_write_1h": _("input tokens written to the cache for 1 hour"),
    "output": _("output tokens"),
}
METERING_NAMES = {
    "estimated": _("estimated"),
    "checkpoint": _("from the last checkpoint"),
}
DIMENSIONS = ("late", "model", "metering", "service_tier", "long_context", "price_version")
BUCKET_SUMS = {
    **{f"{bucket}_count": Sum(bucket) for bucket in BUCKETS},
    **{f"{bucket}_cost": Sum(f"{bucket}_nanos") for bucket in BUCKETS},
}
MAX_DESCRIPTION = 300
"""Characters of `InvoiceLine.description`."""


class LineKey(NamedTuple):
    """What records must have in common to be on one line; the order of the lines too."""

    late: bool
    model: str
    per_request: bool
    bucket_order: int
    bucket: str
    metering: str
    service_tier: str
    long_context: bool
    price_version: str
    unit_nanos: int


@dataclass(slots=True)
class LineSum:
    quantity: int = 0
    exact_nanos: int = 0


def build(records: QuerySet[UsageRecord], period_start: dt.datetime, currency: str) -> list[InvoiceLine]:
    """The lines (not saved, without an invoice) of priced records; what ended before the period is on lines of its own.

    Unpriced records make no line: they hold up the issue instead of showing as zero. Nor does a bucket nobody used.
    """
    late = ExpressionWrapper(Q(ended_at__lt=period_start), output_field=BooleanField())
    priced = records.filter(unpriced=False).order_by().annotate(late=late)
    sums: dict[LineKey, LineSum] = {}
    for key, quantity, exact_nanos in (*_buckets(priced), *_items(priced)):
        if quantity or exact_nanos:
            found = sums.setdefault(key, LineSum())
            found.quantity += quantity
            found.exact_nanos += exact_nanos
    places = money.currency_places(currency)
    return [_line(at, key, sums[key], places) for at, key in enumerate(sorted(sums), start=1)]


def _buckets(records: QuerySet[Any]) -> Iterator[tuple[LineKey, int, int]]:
    """The five buckets of the records' own models, summed by the database: key, quantity, exact nanos."""
    for row in records.values(*DIMENSIONS, "unit_prices").annotate(**BUCKET_SUMS):
        for bucket in BUCKETS:
            key = _key(row, bucket, unit_nanos=row["unit_prices"].get(bucket, 0))
            yield key, row[f"{bucket}_count"], row[f"{bucket}_cost"]


def _items(records: QuerySet[Any]) -> Iterator[tuple[LineKey, int, int]]:
    """Server tools and other models' buckets. Records with the same items come as one row and a number of times.

    Long context is a matter of the record's own model; what it does to another model is in that one's unit price.
    """
    for row in records.exclude(items=[]).values(*DIMENSIONS, "items").annotate(times=Count("*")):
        for item in row["items"]:
            own = {**row, "model": item["model"], "price_version": item["price_version"], "long_context": False}
            key = _key(own, item["bucket"], unit_nanos=item["unit_nanos"], per_request=not item["per_million"])
            yield key, item["quantity"] * row["times"], item["amount_nanos"] * row["times"]


def _key(row: Mapping[str, Any], bucket: str, *, unit_nanos: int, per_request: bool = False) -> LineKey:
    return LineKey(
        late=bool(row["late"]),
        model=row["model"],
        per_request=per_request,
        bucket_order=len(BUCKETS) if per_request else BUCKETS.index(bucket),
        bucket=bucket,
        metering=row["metering"],
        service_tier="default" if row["service_tier"] in BASE_TIERS else row["service_tier"],
        long_context=row["long_context"],
        price_version=row["price_version"],
        unit_nanos=unit_nanos,
    )


def _line(position: int, key: LineKey, found: LineSum, places: int) -> InvoiceLine:
    amount_nanos = money.round_to_places(found.exact_nanos, places)
    return InvoiceLine(
        position=position,
        model=key.model,
        description=_description(key),
        bucket=key.bucket,
        metering=key.metering,
        service_tier=key.service_tier,
        long_context=key.long_context,
        price_version=key.price_version,
        late=key.late,
        quantity=found.quantity,
        unit_nanos=key.unit_nanos,
        per_million=not key.per_request,
        exact_nanos=found.exact_nanos,
        rounding_nanos=amount_nanos - found.exact_nanos,
        amount_nanos=amount_nanos,
    )


def _description(key: LineKey) -> str:
    """`gpt-5.6-sol · output tokens · service tier priority`, in the language that is active."""
    bucket = (
        gettext("requests of %(tool)s") % {"tool": key.bucket} if key.per_request else str(BUCKET_NAMES[key.bucket])
    )
    words = [key.model, bucket]
    if key.service_tier != "default":
        words.append(gettext("service tier %(tier)s") % {"tier": key.service_tier})
    if key.long_context:
        words.append(gettext("long context"))
    if key.metering in METERING_NAMES:
        words.append(str(METERING_NAMES[key.metering]))
    if key.late:
        words.append(gettext("late usage"))
    return " · ".join(words)[:MAX_DESCRIPTION]
