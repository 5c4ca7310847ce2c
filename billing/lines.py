"""The lines of an invoice: sums of its records and adjustments, exact, each rounded once to the currency's places."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.db.models import BooleanField, Count, ExpressionWrapper, Q, QuerySet, Sum
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from billing import money
from billing.models import Adjustment, InvoiceLine, UsageRecord
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

ADJUSTMENT, CARRIED_OVER = "adjustment", "carried_over"
"""The buckets of the lines of adjustments, and of the line that takes what is left of a credit to the next invoice."""

BY_LEDGER = (Adjustment.Kind.SETTLED, Adjustment.Kind.SWEPT)
BY_HAND = {str(Adjustment.Kind.GOODWILL): _("goodwill"), str(Adjustment.Kind.CORRECTION): _("correction")}


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


@dataclass(slots=True)
class Due:
    """What a key is billed: exact sums, not yet rounded or put into words.

    `of_ledger`: late or not, model, nanos; `by_hand`: late or not, model, kind, reason, nanos.
    """

    used: dict[LineKey, LineSum] = field(default_factory=dict)
    of_ledger: list[tuple[bool, str, int]] = field(default_factory=list)
    by_hand: list[tuple[Any, ...]] = field(default_factory=list)
    carried_nanos: int = 0


def due(
    records: QuerySet[UsageRecord], adjustments: QuerySet[Adjustment], period_start: dt.datetime
) -> defaultdict[int, Due]:
    """Key -> what these records and adjustments bill it for a period that began then; earlier ones are late.

    Unpriced records are none of it: they hold up the issue instead of showing as zero. The queries are as many for one
    key as for all.
    """
    found: defaultdict[int, Due] = defaultdict(Due)
    _add_records(found, records, period_start)
    _add_adjustments(found, adjustments, period_start)
    return found


def build(due: Due, currency: str) -> list[InvoiceLine]:
    """The lines (not saved, without an invoice) in the language that is active; they never sum to less than zero.

    What is from before the period is on lines of its own. A bucket nobody used is on none. Where credits are more than
    all the rest, a last line takes what is left of them over to the next invoice.
    """
    places = money.currency_places(currency)
    built = [_line(key, due.used[key], places) for key in sorted(due.used)]
    built += _of_adjustments(due, places)
    if (subtotal := sum(line.amount_nanos for line in built)) < 0:
        words = gettext("credit carried over to the next invoice")
        built.append(_sum_line("", CARRIED_OVER, words, -subtotal, places))
    for position, line in enumerate(built, start=1):
        line.position = position
    return built


def carried_nanos(built: Iterable[InvoiceLine]) -> int:
    """How much of its credits an invoice with these lines takes over to the next one."""
    return sum(line.exact_nanos for line in built if line.bucket == CARRIED_OVER)


def _add_records(due: defaultdict[int, Due], records: QuerySet[UsageRecord], period_start: dt.datetime) -> None:
    late = ExpressionWrapper(Q(ended_at__lt=period_start), output_field=BooleanField())
    priced = records.filter(unpriced=False).order_by().annotate(late=late)
    for owner, key, quantity, exact_nanos in (*_buckets(priced), *_items(priced)):
        if quantity or exact_nanos:
            found = due[owner].used.setdefault(key, LineSum())
            found.quantity += quantity
            found.exact_nanos += exact_nanos


def _add_adjustments(due: defaultdict[int, Due], adjustments: QuerySet[Adjustment], period_start: dt.datetime) -> None:
    """The ledger's by model, those made by hand one by one, and carried credit as one.

    The ledger's may be many and tiny: one by one, rounding would make nothing of them.
    """
    late = ExpressionWrapper(Q(effective_at__lt=period_start), output_field=BooleanField())
    dated = adjustments.annotate(late=late)
    by_model = dated.filter(kind__in=BY_LEDGER).order_by("late", "record__model")
    sums = by_model.values_list("api_key_id", "late", "record__model").annotate(nanos=Sum("amount_nanos"))
    for owner, is_late, model, nanos in sums:
        due[owner].of_ledger.append((is_late, model, nanos))
    made = dated.filter(kind__in=BY_HAND).order_by("effective_at", "pk")
    for owner, *told in made.values_list("api_key_id", "late", "record__model", "kind", "reason", "amount_nanos"):
        due[owner].by_hand.append(tuple(told))
    carried = adjustments.filter(kind=Adjustment.Kind.CARRIED).order_by().values_list("api_key_id")
    for owner, nanos in carried.annotate(nanos=Sum("amount_nanos")):
        due[owner].carried_nanos = nanos


def _of_adjustments(due: Due, places: int) -> Iterator[InvoiceLine]:
    """What sums to zero is no line."""
    for late, model, nanos in due.of_ledger:
        words = gettext("requests that ended after they were billed")
        if nanos:
            yield _sum_line(model, ADJUSTMENT, words, nanos, places, late=late)
    for late, about, kind, reason, nanos in due.by_hand:
        yield _sum_line(about or "", ADJUSTMENT, f"{BY_HAND[kind]} · {reason}", nanos, places, late=late)
    if due.carried_nanos:
        words = gettext("credit carried over from an earlier invoice")
        yield _sum_line("", ADJUSTMENT, words, due.carried_nanos, places)


def _buckets(records: QuerySet[Any]) -> Iterator[tuple[int, LineKey, int, int]]:
    """The five buckets of the records' own models, summed by the database: owner, key, quantity, exact nanos."""
    for row in records.values("api_key_id", *DIMENSIONS, "unit_prices").annotate(**BUCKET_SUMS):
        for bucket in BUCKETS:
            key = _key(row, bucket, unit_nanos=row["unit_prices"].get(bucket, 0))
            yield row["api_key_id"], key, row[f"{bucket}_count"], row[f"{bucket}_cost"]


def _items(records: QuerySet[Any]) -> Iterator[tuple[int, LineKey, int, int]]:
    """Server tools and other models' buckets. Records with the same items come as one row and a number of times.

    Long context is a matter of the record's own model; what it does to another model is in that one's unit price.
    """
    for row in records.exclude(items=[]).values("api_key_id", *DIMENSIONS, "items").annotate(times=Count("*")):
        for item in row["items"]:
            own = {**row, "model": item["model"], "price_version": item["price_version"], "long_context": False}
            key = _key(own, item["bucket"], unit_nanos=item["unit_nanos"], per_request=not item["per_million"])
            yield row["api_key_id"], key, item["quantity"] * row["times"], item["amount_nanos"] * row["times"]


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


def _sum_line(model: str, bucket: str, words: str, nanos: int, places: int, *, late: bool = False) -> InvoiceLine:
    """One of no tokens: its quantity is 1, at its own exact sum."""
    described = [model, gettext("adjustment"), words, gettext("of an earlier month") if late else ""]
    amount_nanos = money.round_to_places(nanos, places)
    return InvoiceLine(
        model=model,
        description=" · ".join(word for word in described if word)[:MAX_DESCRIPTION],
        bucket=bucket,
        metering="none",
        late=late,
        quantity=1,
        unit_nanos=nanos,
        per_million=False,
        exact_nanos=nanos,
        rounding_nanos=amount_nanos - nanos,
        amount_nanos=amount_nanos,
    )


def _line(key: LineKey, found: LineSum, places: int) -> InvoiceLine:
    amount_nanos = money.round_to_places(found.exact_nanos, places)
    return InvoiceLine(
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
