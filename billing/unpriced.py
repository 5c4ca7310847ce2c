"""Records without a price: what they wait for, and rating them once there is one.

They were used while a model, tier, bucket or tool had no price, or one in another currency; they cost nothing, and hold
up the invoices of their keys. A price that is added later does not touch them by itself: somebody looks at what it
would come to, and rates them. A record that has a price never changes by this, nor does one on an invoice.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django.db import transaction
from django.db.models import Count, Max, Min, QuerySet

from billing import audit, invoices
from billing.catalogue import readable_price
from billing.ledger import ratings
from billing.models import Invoice, Price, UsageRecord
from billing.money import show
from billing.phrases import gettext_noop, phrase
from billing.pricing import Item, PriceOf, PriceVersion, Rating
from billing.rerating import Outcome, Unrated, price_list, rerate
from billing.usage import BUCKETS, TokenUsage

AT_ONCE = 5_000
"""Records that one act rates: a few seconds. What is more is rated by the next."""
LOOKED_AT = 50_000
"""Records that one act looks at, the oldest first, where many of them cannot be rated yet."""
BATCH = 500
"""Records of one transaction: other writers wait for it on SQLite."""

RATED = gettext_noop("rated %(count)s records of %(model)s (%(reason)s), %(costs)s in all")
COLUMNS = (
    "id", "api_key_id", "day", "model", "service_tier", "started_at", "ended_at", "currency", "server_tools", "items",
    *BUCKETS,
)  # fmt: skip


class Cause(NamedTuple):
    """What a group of unpriced records has in common."""

    model: str
    service_tier: str
    reason: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Unpriced records of one cause; `drafts`: invoices that they hold up."""

    cause: Cause
    records: int
    first: dt.datetime
    last: dt.datetime
    drafts: int


@dataclass(frozen=True, slots=True)
class Terms:
    """By what a cause's records are rated: a version by its label, or "" for those in force; up to which moment."""

    cause: Cause
    version: str
    until: dt.datetime


class Unknown(Exception):
    """There is no price version of this label."""


def waiting() -> list[Waiting]:
    """All unpriced records by cause, those first that have waited longest."""
    ends = _draft_ends()
    found: dict[Cause, Waiting] = {}
    rows = _unpriced().order_by().values_list("model", "service_tier", "unpriced_reason", "api_key")
    counted = rows.annotate(records=Count("id"), first=Min("ended_at"), last=Max("ended_at"))
    for *cause, key_id, records, first, last in counted:
        one = Waiting(Cause(*cause), records, first, last, sum(first < end for end in ends.get(key_id, ())))
        before = found.get(one.cause)
        found[one.cause] = one if before is None else _together(before, one)
    return sorted(found.values(), key=lambda each: (each.first, each.cause))


def _together(one: Waiting, other: Waiting) -> Waiting:
    return Waiting(
        one.cause,
        one.records + other.records,
        min(one.first, other.first),
        max(one.last, other.last),
        one.drafts + other.drafts,
    )


def _draft_ends() -> dict[int, list[dt.datetime]]:
    """Key -> the ends of the periods that it has drafts for."""
    ends: dict[int, list[dt.datetime]] = {}
    drafts = Invoice.objects.filter(status=Invoice.Status.DRAFT).order_by()
    for key_id, end in drafts.values_list("api_key", "period_end"):
        ends.setdefault(key_id, []).append(end)
    return ends


def candidates(cause: Cause) -> list[Price]:
    """The versions that somebody could choose: of the records' model and of those inside them, the newest first."""
    inside = _of(cause).exclude(items=[]).order_by("ended_at", "pk").values_list("items", flat=True)
    looked_at = inside[:LOOKED_AT].iterator(chunk_size=BATCH)
    models = {cause.model, *(item["model"] for items in looked_at for item in items)}
    return list(Price.objects.filter(model__in=models).order_by("model", "-effective_from"))


def preview(terms: Terms) -> Outcome:
    """What rating would bring. Nothing is changed. Unknown where the version is gone."""
    outcome = Outcome()
    for record, rating in _rated(terms, _prices(terms)):
        outcome.add(record.currency, rating)
    return outcome


def rate(terms: Terms) -> Outcome:
    """Rate what `preview` has shown, batch by batch; drafts that it was missing from are drafted again.

    A record that has got a price or its last word in between is left alone.
    """
    prices, outcome = _prices(terms), Outcome()
    ids = [record.pk for record, rating in _rated(terms, prices) if not rating.unpriced]
    if ids and terms.version:
        _mark_used(_version(terms), ids)
    keys: set[int] = set()
    for start in range(0, len(ids), BATCH):
        keys |= _rate_batch(terms.cause, ids[start : start + BATCH], prices, outcome)
    invoices.draft_again(keys)
    return outcome


def _rate_batch(cause: Cause, ids: Sequence[uuid.UUID], prices: PriceOf, outcome: Outcome) -> set[int]:
    """One transaction with its entry in the audit log; returns the keys of the records."""
    done = Outcome()
    with transaction.atomic():
        records = list(ratings.locked(ids).only(*COLUMNS))
        rated = {record.pk: rerate(unrated(record), prices) for record in records}
        ratings.rate(records, rated)
        for record in records:
            done.add(record.currency, rated[record.pk])
        _note(cause, done)
    outcome.take(done)
    return {record.api_key_id for record in records}


def _note(cause: Cause, done: Outcome) -> None:
    """Note on each version what it has rated."""
    costs = ", ".join(f"{currency} {show(nanos)}" for currency, nanos in sorted(done.costs.items()))
    for price in Price.objects.filter(model__in={label.rpartition("@")[0] for label in done.versions}):
        if records := done.versions[price.label]:
            reason = phrase(RATED, count=records, model=cause.model, reason=cause.reason, costs=costs)
            audit.note(price, reason)


def _mark_used(price: Price, ids: Sequence[uuid.UUID]) -> None:
    """A version chosen for requests from before its start is used by them, and never changes any more."""
    (first,) = UsageRecord.objects.filter(pk__in=ids[:1]).values_list("ended_at", flat=True)
    if first < min(price.effective_from, price.rated_from or price.effective_from):
        price.rated_from = first
        price.save(update_fields=["rated_from"])


def unrated(record: UsageRecord) -> Unrated:
    """What a record tells of its use."""
    counts = {bucket: getattr(record, bucket) for bucket in BUCKETS}
    return Unrated(
        model=record.model,
        tier=record.service_tier,
        started_at=record.started_at,
        currency=record.currency,
        usage=TokenUsage(**counts, server_tools=record.server_tools),
        items=[Item(**item) for item in record.items],
    )


def _unpriced() -> QuerySet[UsageRecord]:
    return UsageRecord.objects.filter(unpriced=True, invoice=None)


def _of(cause: Cause) -> QuerySet[UsageRecord]:
    model, tier, reason = cause
    return _unpriced().filter(model=model, service_tier=tier, unpriced_reason=reason)


def _rated(terms: Terms, prices: PriceOf) -> Iterator[tuple[UsageRecord, Rating]]:
    """The records of the terms, the oldest first, as they would be rated; at most so many, see above."""
    records = _of(terms.cause).filter(ended_at__lte=terms.until).order_by("ended_at", "pk").only(*COLUMNS)
    done = 0
    for record in records[:LOOKED_AT].iterator(chunk_size=BATCH):
        rating = rerate(unrated(record), prices)
        yield record, rating
        done += not rating.unpriced
        if done == AT_ONCE:
            return


def _prices(terms: Terms) -> PriceOf:
    """The price list of the terms, as it stands in the database."""
    versions: dict[str, list[PriceVersion]] = {}
    for row in candidates(terms.cause):
        versions.setdefault(row.model, []).append(readable_price(row))
    return price_list(versions, readable_price(_version(terms)) if terms.version else None)


def _version(terms: Terms) -> Price:
    for row in candidates(terms.cause):
        if row.label == terms.version:
            return row
    raise Unknown(terms.version)
