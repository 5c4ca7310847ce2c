"""Rating what had no price when it was used: which version counts now, and what it costs by it. Pure."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from billing.pricing import Item, PriceOf, PriceVersion, Rating, parts_of, rate, version_at
from billing.usage import TokenUsage


@dataclass(frozen=True, slots=True)
class Unrated:
    """A request without a price, as its record tells of it; `items` are what other models did in it."""

    model: str
    tier: str
    started_at: dt.datetime
    currency: str
    usage: TokenUsage
    items: Sequence[Item] = ()


def price_list(versions: Mapping[str, Sequence[PriceVersion]], chosen: PriceVersion | None = None) -> PriceOf:
    """Of each model the version in force when the request started; of the chosen one's model that one, whenever it was.

    Somebody chooses where none in force can do: a tier that was missing comes with a version that begins later, since
    a used version never changes.
    """

    def price_of(model: str, at: dt.datetime) -> PriceVersion | None:
        if chosen is not None and chosen.model == model:
            return chosen
        return version_at(versions.get(model, ()), at)

    return price_of


def rerate(unrated: Unrated, price_of: PriceOf) -> Rating:
    """What the request costs by these prices; unpriced, with the reason, where something is still missing."""
    return rate(
        unrated.usage,
        model=unrated.model,
        tier=unrated.tier,
        at=unrated.started_at,
        currency=unrated.currency,
        price_of=price_of,
        parts=parts_of(unrated.items),
    )


@dataclass(slots=True)
class Outcome:
    """What rating brings: how many records, by which versions, their cost by currency, and what is still missing."""

    records: int = 0
    versions: Counter[str] = field(default_factory=Counter)
    costs: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)

    def add(self, currency: str, rating: Rating) -> None:
        if rating.unpriced:
            self.missing[rating.unpriced_reason] += 1
            return
        self.records += 1
        self.costs[currency] += rating.cost_nanos
        self.versions.update({rating.price_version, *(item.price_version for item in rating.items)} - {""})

    def take(self, other: Outcome) -> None:
        """Add what another one brought."""
        self.records += other.records
        for mine, theirs in ((self.versions, other.versions), (self.costs, other.costs), (self.missing, other.missing)):
            mine.update(theirs)
