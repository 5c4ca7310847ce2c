"""What usage that has been would cost by another price version: from roll-ups' sums, before anybody adds it. Pure.

Roll-ups keep tokens by bucket, tier served and whether the long-context price held, so that a sum of them is rated like
one large request. What they do not keep is left out: server tools, and what other models did inside a request. Whether
a request is long is by the threshold that held when it was billed; and rounding once per sum, and not per request, may
differ by half a nano each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from billing.money import divide_half_even
from billing.phrases import at, phrase, said_by
from billing.phrases import phrase as _
from billing.pricing import MILLION, NO_BUCKET, NoPrice, PriceVersion, unit_prices


@dataclass(frozen=True, slots=True)
class TokenSum:
    """What one account used of a model by one tier, with long context or not. `tokens`: bucket -> count."""

    account: str
    currency: str
    tier: str
    long_context: bool
    requests: int
    tokens: Mapping[str, int]


@dataclass(slots=True)
class AccountPreview:
    """An account's month by the version in force (`old_nanos`) and by the new one; None: it cannot be told, for `why`.

    Every version that lacks a price for something that was used has its reason in `why`.
    """

    account: str
    currency: str
    requests: int = 0
    old_nanos: int | None = 0
    new_nanos: int | None = 0
    why: list[str] = field(default_factory=list)

    @property
    def difference_nanos(self) -> int | None:
        """New less old."""
        return None if self.old_nanos is None or self.new_nanos is None else self.new_nanos - self.old_nanos


def preview(sums: Iterable[TokenSum], old: PriceVersion | None, new: PriceVersion) -> list[AccountPreview]:
    """Old -> new by account, in the order of their names."""
    found: dict[str, AccountPreview] = {}
    for one in sums:
        row = found.setdefault(one.account, AccountPreview(one.account, one.currency))
        row.requests += one.requests
        row.old_nanos = _added(row, row.old_nanos, one, old)
        row.new_nanos = _added(row, row.new_nanos, one, new)
    return [found[name] for name in sorted(found)]


def cost(one: TokenSum, version: PriceVersion) -> int:
    """The nanos of a sum by a version; NoPrice where it lacks a price for something that was used."""
    if version.currency != one.currency:
        raise NoPrice(
            _(
                "the price is in %(price)s, the account's currency is %(account)s",
                price=version.currency,
                account=one.currency,
            )
        )
    # A threshold is about requests, and this is a sum of them: what counts is how they were billed.
    above = version.long_context.above + 1 if one.long_context and version.long_context else 0
    units = unit_prices(version, one.tier, above).exact
    missing = [bucket for bucket, count in one.tokens.items() if count and bucket not in units]
    if missing:
        raise NoPrice(phrase(NO_BUCKET, bucket=missing[0], model=version.model))
    return sum(
        divide_half_even(count * units[bucket].numerator, MILLION * units[bucket].denominator)
        for bucket, count in one.tokens.items()
        if count
    )


def _added(row: AccountPreview, nanos: int | None, one: TokenSum, version: PriceVersion | None) -> int | None:
    if nanos is None or version is None:
        return None
    try:
        return nanos + cost(one, version)
    except NoPrice as missing:
        reason = at(version.label, said_by(missing))
        if reason not in row.why:
            row.why.append(reason)
        return None
