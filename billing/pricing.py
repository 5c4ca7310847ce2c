"""Rating: usage x price -> amount. Pure, exact, one rounding (half even at the nano) per bucket."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from billing.money import MAX_NANOS, divide_half_even
from billing.phrases import gettext_noop, phrase
from billing.usage import BUCKETS, Part, TokenUsage

BASE_TIERS = frozenset({"", "default", "standard", "on_demand", "auto"})
"""Service tiers, as served, that pay the base price."""

MILLION = 10**6

MAX_TOOL = 60
"""Characters of a server tool's name: those of `InvoiceLine.bucket`. A provider's longer one goes by its first ones."""

MAX_REASON = 200
"""Characters of `UsageRecord.unpriced_reason`."""


@dataclass(frozen=True, slots=True)
class LongContext:
    """Above this many input tokens the whole request is repriced; `input` is the factor of the cache buckets too."""

    above: int
    input: Fraction
    output: Fraction


@dataclass(frozen=True, slots=True)
class PriceVersion:
    """One version of a model's price.

    `per_million`: bucket -> nanos per million tokens. `tiers`: tier -> a factor, or a whole block like `per_million`.
    `server_tools`: tool -> nanos per request.
    """

    model: str
    label: str
    effective_from: dt.datetime
    currency: str
    per_million: Mapping[str, int]
    tiers: Mapping[str, Fraction | Mapping[str, int]] = field(default_factory=dict)
    long_context: LongContext | None = None
    server_tools: Mapping[str, int] = field(default_factory=dict)
    applied: dict[tuple[str, bool], AppliedPrices] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Unit prices that were worked out once, by tier and long context: a version never changes."""


@dataclass(frozen=True, slots=True)
class AppliedPrices:
    """Nanos per million tokens of every bucket that has a price, tier and long context applied: exact, and as shown."""

    exact: Mapping[str, Fraction]
    shown: Mapping[str, int]


PriceOf = Callable[[str, dt.datetime], PriceVersion | None]
"""The price version of a model that is in force at an instant; None where it has no price then."""


@dataclass(frozen=True, slots=True)
class Item:
    """A rated thing beside the five buckets: a server tool's requests, or a bucket of another model (an advisor).

    `unit_nanos` is per million tokens when `per_million`, else per request.
    """

    model: str
    bucket: str
    quantity: int
    unit_nanos: int
    per_million: bool
    amount_nanos: int
    price_version: str


@dataclass(frozen=True, slots=True)
class Rating:
    """What a request costs. `cost_nanos` = sum of `buckets` + sum of the items' amounts; all zero when unpriced.

    Unpriced, it still has items for what other models did, which nothing else on a record tells: see `parts_of`.

    `unit_prices`: bucket -> nanos per million tokens as applied (tier and long context inside), for every bucket that
    has a price. They are for showing: where the factors leave a fraction of a nano it is rounded half even, while the
    amounts come from the exact fraction.
    """

    cost_nanos: int
    buckets: Mapping[str, int]
    unit_prices: Mapping[str, int]
    items: Sequence[Item] = ()
    price_version: str = ""
    long_context: bool = False
    unpriced_reason: str = ""

    @property
    def unpriced(self) -> bool:
        return bool(self.unpriced_reason)


NO_TIER = gettext_noop("no price for service tier %(tier)s of model %(model)s")
NO_BUCKET = gettext_noop("no price for bucket %(bucket)s of model %(model)s")
NO_TOOL = gettext_noop("no price for server tool %(tool)s of model %(model)s")
NO_MODEL = gettext_noop("no price for model %(model)s")
OTHER_CURRENCY = gettext_noop("the price of model %(model)s is in %(price)s, the account's currency is %(account)s")
TOO_LARGE = gettext_noop("the amount for model %(model)s is too large to be true: check its price")
REASONS = (NO_TIER, NO_BUCKET, NO_TOOL, NO_MODEL, OTHER_CURRENCY, TOO_LARGE)
"""Why something is unpriced, as records keep it."""


class NoPrice(Exception):
    """Something that was used has no price; the text says what."""


def version_at(versions: Sequence[PriceVersion], instant: dt.datetime) -> PriceVersion | None:
    """Of a model's versions, in any order, the one in force at an instant."""
    begun = [version for version in versions if version.effective_from <= instant]
    return max(begun, key=lambda version: version.effective_from, default=None)


def rate(
    usage: TokenUsage,
    *,
    model: str,
    tier: str,
    at: dt.datetime,
    currency: str,
    price_of: PriceOf,
    parts: Sequence[Part] = (),
) -> Rating:
    """What a request costs.

    `tier` is the one served, `at` the request's start, `currency` the account's, `parts` what other models did inside.
    Never raises: what cannot be priced is a rating of zeros with a reason. Who used nothing needs no price.
    """
    terms = _Terms(tier, at, currency, price_of)
    try:
        own = _rate_own(usage, model, terms)
        items = [*own.items, *(item for part in parts for item in _rate_part(part, terms))]
        cost = own.cost_nanos + sum(item.amount_nanos for item in items)
        if cost > MAX_NANOS:
            raise NoPrice(phrase(TOO_LARGE, model=model))
    except NoPrice as missing:
        return _unrated_all(str(missing), parts)
    return replace(own, cost_nanos=cost, items=tuple(items))


def foreign(model: str, price: str, account: str, parts: Sequence[Part]) -> Rating:
    """The rating of a request whose price is in another currency than its account."""
    return _unrated_all(_in_other_currency(model, price, account), parts)


def _in_other_currency(model: str, price: str, account: str) -> str:
    return phrase(OTHER_CURRENCY, model=model, price=price, account=account)


def _unrated_all(reason: str, parts: Sequence[Part]) -> Rating:
    """A rating of zeros: a request that waits for a price."""
    items = [item for part in parts for item in _unrated(part)]
    return Rating(0, dict.fromkeys(BUCKETS, 0), {}, items, unpriced_reason=reason[:MAX_REASON])


def parts_of(items: Sequence[Item]) -> list[Part]:
    """What other models did inside an unpriced request, from the items of its rating: `rate` can be tried again."""
    parts: list[tuple[str, dict[str, int], dict[str, int]]] = []
    for item in items:
        if not parts or parts[-1][0] != item.model or _begins_anew(item, *parts[-1][1:]):
            parts.append((item.model, {}, {}))
        counts, tools = parts[-1][1:]
        (counts if item.per_million else tools)[item.bucket] = item.quantity
    return [Part(model, TokenUsage(**counts, server_tools=tools)) for model, counts, tools in parts]


def _begins_anew(item: Item, counts: Mapping[str, int], tools: Mapping[str, int]) -> bool:
    """Whether an item is of another part of the same model: each has its buckets in their order, then its tools."""
    if not item.per_million:
        return item.bucket in tools
    later = BUCKETS[BUCKETS.index(item.bucket) :]
    return bool(tools) or any(bucket in counts for bucket in later)


def _unrated(part: Part) -> list[Item]:
    """Another model's use without a price, as items of no amount; the first bucket always, for it begins the part."""
    if part.usage.is_empty:
        return []
    used = [(name, count, True) for name, count in part.usage.buckets().items() if count or name == BUCKETS[0]]
    used += [(tool, count, False) for tool, count in part.usage.server_tools.items() if count]
    return [Item(part.model, name, count, 0, per_million, 0, "") for name, count, per_million in used]


@dataclass(frozen=True, slots=True)
class UnitPrice:
    """Nanos per million tokens of a bucket, and what multiplies them. A tier with a block of its own has factor 1."""

    base_nanos: int
    tier: Fraction
    long_context: Fraction

    @property
    def exact(self) -> Fraction:
        """As applied."""
        return self.base_nanos * self.tier * self.long_context


def factored(price: PriceVersion, tier: str, total_input: int) -> dict[str, UnitPrice]:
    """The unit price of every bucket that has one, with its factors; NoPrice where the tier has none."""
    block, factor = _tier_of(price, tier)
    long, output = Fraction(1), Fraction(1)
    if is_long(price, total_input):
        assert price.long_context is not None
        long, output = price.long_context.input, price.long_context.output
    return {bucket: UnitPrice(nanos, factor, output if bucket == "output" else long) for bucket, nanos in block.items()}


def unit_prices(price: PriceVersion, tier: str, total_input: int) -> AppliedPrices:
    """The unit price of every bucket that has one, as a request of this tier and size pays it; NoPrice as above."""
    wanted = tier, is_long(price, total_input)
    if (found := price.applied.get(wanted)) is None:
        exact = {bucket: unit.exact for bucket, unit in factored(price, tier, total_input).items()}
        found = AppliedPrices(exact, {bucket: shown(unit) for bucket, unit in exact.items()})
        price.applied[wanted] = found
    return found


def is_long(price: PriceVersion, total_input: int) -> bool:
    """Whether a request with so much input (cached and written included) is repriced: strictly above the threshold."""
    return price.long_context is not None and total_input > price.long_context.above


def _tier_of(price: PriceVersion, tier: str) -> tuple[Mapping[str, int], Fraction]:
    if tier in BASE_TIERS:
        return price.per_million, Fraction(1)
    found = price.tiers.get(tier)
    if found is None:
        raise NoPrice(phrase(NO_TIER, tier=tier, model=price.model))
    return (price.per_million, found) if isinstance(found, Fraction) else (found, Fraction(1))


@dataclass(frozen=True, slots=True)
class _Terms:
    """What holds for all models of a request."""

    tier: str
    at: dt.datetime
    currency: str
    price_of: PriceOf

    def price(self, model: str) -> PriceVersion:
        price = self.price_of(model, self.at)
        if price is None:
            raise NoPrice(phrase(NO_MODEL, model=model))
        if price.currency != self.currency:
            raise NoPrice(_in_other_currency(model, price.currency, self.currency))
        return price


def _rate_own(usage: TokenUsage, model: str, terms: _Terms) -> Rating:
    """The request's own model: its five buckets, and its server tools as items. `cost_nanos` is the buckets' sum."""
    if usage.is_empty:
        return Rating(0, dict.fromkeys(BUCKETS, 0), {})
    price = terms.price(model)
    units = unit_prices(price, terms.tier, usage.total_input)
    amounts = {bucket: _amount(count, units.exact, bucket, model) for bucket, count in usage.buckets().items()}
    return Rating(
        cost_nanos=sum(amounts.values()),
        buckets=amounts,
        unit_prices=units.shown,
        items=_tools(usage, price),
        price_version=price.label,
        long_context=is_long(price, usage.total_input),
    )


def _rate_part(part: Part, terms: _Terms) -> list[Item]:
    """Another model's use inside the request, priced as that model: an item per bucket and server tool used."""
    if part.usage.is_empty:
        return []
    price = terms.price(part.model)
    units = unit_prices(price, terms.tier, part.usage.total_input)
    used = {bucket: count for bucket, count in part.usage.buckets().items() if count}
    amounts = {bucket: _amount(count, units.exact, bucket, part.model) for bucket, count in used.items()}
    return [
        *(
            Item(part.model, bucket, count, units.shown[bucket], True, amounts[bucket], price.label)
            for bucket, count in used.items()
        ),
        *_tools(part.usage, price),
    ]


def _amount(count: int, units: Mapping[str, Fraction], bucket: str, model: str) -> int:
    """A bucket's nanos, from the exact unit price, rounded once."""
    if not count:
        return 0
    if bucket not in units:
        raise NoPrice(phrase(NO_BUCKET, bucket=bucket, model=model))
    unit = units[bucket]
    if unit > MAX_NANOS:  # tier and long context may multiply a price past what an invoice's line holds
        raise NoPrice(phrase(TOO_LARGE, model=model))
    return divide_half_even(count * unit.numerator, MILLION * unit.denominator)


def _tools(usage: TokenUsage, price: PriceVersion) -> list[Item]:
    """Server tools cost their price per request; neither tier nor long context changes it."""
    items = []
    for name, count in usage.server_tools.items():
        tool = name[:MAX_TOOL]
        if count and tool not in price.server_tools:
            raise NoPrice(phrase(NO_TOOL, tool=tool, model=price.model))
        if count:
            unit = price.server_tools[tool]
            items.append(Item(price.model, tool, count, unit, False, count * unit, price.label))
    return items


def shown(unit: Fraction) -> int:
    """A unit price as whole nanos, for showing."""
    return divide_half_even(unit.numerator, unit.denominator)
