"""A provider's figures against ours, by day and model, and what explains the difference. Pure: plain values only.

Ours is what was billed. The provider may count more, or elsewhere, and each reason has its kind:

    failed      what attempts that no customer pays for reported: a retry, a stream that broke before its first output
    test        what an operator's tests of a provider used
    boundary    attempts near midnight that the provider counts on the neighbouring day
    estimate    attempts whose usage we counted ourselves, since no report came: at most as much as was counted
    unknown     the rest

In each bucket theirs - ours is exactly the sum of the kinds, and no kind takes more than it can prove or than is left:
nothing is explained twice, and no explanation leaves more unexplained than there was. Money has one more kind, price:
what is left of cost - billed when each token of a difference is valued at what our customers pay for such a token.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from operator import attrgetter

from billing.money import divide_half_even
from billing.usage import BUCKETS

KINDS = ("failed", "test", "boundary", "estimate", "unknown")
STATES = ("matched", "differs", "only_theirs", "only_ours")

WHERE_FOLDED = {"cache_write_1h": "cache_write", "cache_write": "input", "cache_read": "input"}
"""The bucket that holds another one's tokens where a provider does not tell them apart."""

Tokens = Mapping[str, int]
"""Bucket -> tokens."""


@dataclass(frozen=True, slots=True)
class Theirs:
    """What the provider counted of a model on a day. `lines`: of the file; None: the file does not tell."""

    day: dt.date
    model: str
    tokens: Tokens
    requests: int | None = None
    cost_nanos: int | None = None
    lines: int = 0


@dataclass(frozen=True, slots=True)
class Ours:
    """Attempts of a day and model that are alike.

    `use`: billed, estimated (billed by our own count), failed (billed to nobody) or test. `edge`: the provider may
    count them on the day before (-1) or after (1). `nanos`: bucket -> what the tokens were billed, in `currency`;
    `billed_nanos` holds server tools besides. `silent`: attempts of which nobody knows what they used.
    """

    day: dt.date
    model: str
    use: str
    tokens: Tokens
    attempts: int = 1
    edge: int = 0
    currency: str = ""
    nanos: Tokens = field(default_factory=dict)
    billed_nanos: int = 0
    silent: int = 0
    unpriced: int = 0


@dataclass(frozen=True, slots=True)
class Terms:
    """What is compared: days `first` to `last`, these buckets (none: costs alone), this currency."""

    first: dt.date
    last: dt.date
    buckets: Sequence[str]
    currency: str
    has_cost: bool


@dataclass(slots=True)
class Compared:
    """A day and model, both sides. `kinds`: kind -> bucket -> theirs - ours as far as the kind explains it.

    `billed`: currency -> nanos. `margin_nanos`: billed - cost; None where it is not known, for another currency was
    billed too or the file has no cost. `price_nanos`: cost - billed by price alone; None besides where a token of the
    difference has no price here.
    """

    day: dt.date
    model: str
    state: str
    theirs: Theirs | None
    ours: dict[str, int]
    kinds: dict[str, dict[str, int]]
    attempts: int = 0
    silent: int = 0
    unpriced: int = 0
    billed: dict[str, int] = field(default_factory=dict)
    cost_nanos: int | None = None
    margin_nanos: int | None = None
    price_nanos: int | None = None

    @property
    def unexplained(self) -> int:
        """Tokens that no kind explains, too many and too few added up."""
        return sum(map(abs, self.kinds["unknown"].values()))


def compare(theirs: Iterable[Theirs], ours: Iterable[Ours], terms: Terms) -> list[Compared]:
    """Both sides of each day and model within the period, by day and name.

    `ours` has to hold the day before and the day after the period too, for what may be counted across its ends.
    """
    by_model: dict[str, list[Theirs]] = defaultdict(list)
    for their in theirs:
        by_model[their.model].append(their)
    ours_by_model: dict[str, list[Ours]] = defaultdict(list)
    for our in ours:
        ours_by_model[our.model].append(_folded(our, terms.buckets))
    rows: list[Compared] = []
    for model in by_model.keys() | ours_by_model.keys():
        rows += _compare_model(by_model[model], ours_by_model[model], terms)
    return sorted(rows, key=attrgetter("day", "model"))


def _compare_model(theirs: Sequence[Theirs], ours: Sequence[Ours], terms: Terms) -> Iterator[Compared]:
    there = {their.day: their for their in theirs}
    here: dict[dt.date, list[Ours]] = defaultdict(list)
    for our in ours:
        here[our.day].append(our)
    explained = {bucket: _explain(bucket, there, here, terms) for bucket in terms.buckets}
    rates = _rates(ours, terms)
    for day in _days(terms.first, terms.last):
        if row := _row(day, there.get(day), here.get(day, []), explained, terms):
            _set_money(row, here.get(day, []), rates, terms)
            yield row


def _row(
    day: dt.date, their: Theirs | None, here: Sequence[Ours], explained: Mapping[str, _Explained], terms: Terms
) -> Compared | None:
    """A day's row without its money; None where neither side counts anything."""
    billed = _sum(our.tokens for our in here if our.use in ("billed", "estimated"))
    is_ours = any(billed.values()) or any(our.billed_nanos for our in here)
    if not is_ours and (their is None or not (any(their.tokens.values()) or their.cost_nanos)):
        return None
    kinds = {kind: {bucket: explained[bucket][kind].get(day, 0) for bucket in terms.buckets} for kind in KINDS}
    return Compared(
        day=day,
        model=(their or here[0]).model,
        state=_state(their, is_ours or any(our.use in ("failed", "test") for our in here), kinds),
        theirs=their,
        ours={bucket: billed.get(bucket, 0) for bucket in terms.buckets or BUCKETS},
        kinds=kinds,
        attempts=sum(our.attempts for our in here),
        silent=sum(our.silent for our in here),
        unpriced=sum(our.unpriced for our in here),
    )


def _state(their: Theirs | None, is_ours: bool, kinds: Mapping[str, Tokens]) -> str:
    if their is None:
        return "only_ours"
    if not is_ours:
        return "only_theirs"
    return "differs" if any(any(tokens.values()) for tokens in kinds.values()) else "matched"


# --- tokens ---

_Explained = dict[str, dict[dt.date, int]]
"""Kind -> day -> tokens of one bucket."""


def _explain(
    bucket: str, there: Mapping[dt.date, Theirs], here: Mapping[dt.date, Sequence[Ours]], terms: Terms
) -> _Explained:
    """What explains the differences of a model in one bucket, day by day. Guesses come last.

    Midnight comes first, with an eye on what failed attempts and tests can explain: a day that lacks 40 tokens which
    the day before has, and has 8 of a test, lacks 32.
    """
    days = list(_days(terms.first, terms.last))
    counts = {day: _counts(bucket, here.get(day, ())) for day in _days(*_around(terms))}
    rest = {day: (there[day].tokens.get(bucket, 0) if day in there else 0) - counts[day].billed for day in days}
    found: _Explained = {kind: {} for kind in KINDS}
    found["boundary"] = _move(rest, counts, terms)
    for kind in ("failed", "test"):
        for day in days:
            found[kind][day] = _take(rest, day, 0, getattr(counts[day], kind))
    for day in days:
        found["estimate"][day] = _take(rest, day, -counts[day].estimated, counts[day].estimated)
    found["unknown"] = rest
    return found


@dataclass(slots=True)
class _Counts:
    """A day's tokens in one bucket; `early` and `late` are billed ones that may count on the day before or after."""

    billed: int = 0
    estimated: int = 0
    failed: int = 0
    test: int = 0
    early: int = 0
    late: int = 0


def _counts(bucket: str, ours: Sequence[Ours]) -> _Counts:
    counts = _Counts()
    for our in ours:
        tokens = our.tokens.get(bucket, 0)
        if our.use in ("failed", "test"):
            setattr(counts, our.use, getattr(counts, our.use) + tokens)
            continue
        counts.billed += tokens
        counts.estimated += tokens if our.use == "estimated" else 0
        counts.early += tokens if our.edge < 0 else 0
        counts.late += tokens if our.edge > 0 else 0
    return counts


def _take(rest: dict[dt.date, int], day: dt.date, least: int, most: int) -> int:
    """As much of the day's rest as lies within these bounds (`least` <= 0 <= `most`), taken off it."""
    left = rest[day]
    taken = min(left, most) if left > 0 else max(left, least)
    rest[day] -= taken
    return taken


def _move(rest: dict[dt.date, int], counts: Mapping[dt.date, _Counts], terms: Terms) -> dict[dt.date, int]:
    """Tokens that the provider counts on a neighbouring day: too many here and too few there, or the reverse.

    Beyond the ends of the period nobody sees the other half; what we counted near them is believed to be it.
    """
    found = dict.fromkeys(rest, 0)
    for before in _days(terms.first - dt.timedelta(days=1), terms.last):
        after = before + dt.timedelta(days=1)
        sides = [(rest[day], counts[day].failed + counts[day].test) if day in rest else None for day in (before, after)]
        back = _movable(sides[0], sides[1], counts[after].early)
        moved = back or -_movable(sides[1], sides[0], counts[before].late)
        for day, tokens in ((before, moved), (after, -moved)):
            if day in rest:
                found[day] += tokens
                rest[day] -= tokens
    return found


_Side = tuple[int, int]
"""A day's rest, and how much of it failed attempts and tests could explain."""


def _movable(more: _Side | None, less: _Side | None, near: int) -> int:
    """How many of the tokens `near` midnight belong to the day that has too many, away from the one that has too few.

    As many as one of the two cannot explain otherwise, and the other can do without; None: beyond the period.
    """
    unexplained = [more[0] - more[1]] if more else []
    bounds = [near, more[0]] if more else [near]
    if less:
        unexplained.append(-less[0])
        bounds.append(less[1] - less[0])
    return max(0, min(max(unexplained), *bounds))


# --- money ---


def _rates(ours: Iterable[Ours], terms: Terms) -> dict[str, Fraction]:
    """Nanos that customers pay for a token of each bucket, on average over the period."""
    priced = [our for our in ours if our.nanos and our.currency == terms.currency and not our.unpriced]
    tokens, nanos = _sum(our.tokens for our in priced), _sum(our.nanos for our in priced)
    return {bucket: Fraction(nanos.get(bucket, 0), count) for bucket, count in tokens.items() if count}


def _set_money(row: Compared, here: Sequence[Ours], rates: Mapping[str, Fraction], terms: Terms) -> None:
    """Cost, billed, margin and what the price explains."""
    for our in here:
        if our.billed_nanos:
            row.billed[our.currency] = row.billed.get(our.currency, 0) + our.billed_nanos
    if not terms.has_cost:
        return
    row.cost_nanos = (row.theirs.cost_nanos if row.theirs else 0) or 0
    if row.billed.keys() - {terms.currency}:
        return
    billed = row.billed.get(terms.currency, 0)
    row.margin_nanos = billed - row.cost_nanos
    differing = _sum(row.kinds.values())
    if terms.buckets and all(bucket in rates for bucket, tokens in differing.items() if tokens):
        volume = sum((tokens * rates[bucket] for bucket, tokens in differing.items() if tokens), Fraction(0))
        row.price_nanos = row.cost_nanos - billed - divide_half_even(volume.numerator, volume.denominator)


# --- sums ---


@dataclass(slots=True)
class Totals:
    """Rows added up. `too_many` and `too_few`: unexplained tokens of both signs, in `unsettled` rows.

    A figure of None is not known for every row. `billed`: currency -> nanos.
    """

    rows: int = 0
    attempts: int = 0
    silent: int = 0
    unpriced: int = 0
    theirs: int = 0
    ours: int = 0
    kinds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    too_many: int = 0
    too_few: int = 0
    unsettled: int = 0
    cost_nanos: int | None = 0
    billed: dict[str, int] = field(default_factory=dict)
    margin_nanos: int | None = 0
    price_nanos: int | None = 0

    @property
    def explained(self) -> int:
        return sum(tokens for kind, tokens in self.kinds.items() if kind != "unknown")

    def add(self, row: Compared) -> None:
        """Add a row."""
        self.rows += 1
        self.attempts += row.attempts
        self.silent += row.silent
        self.unpriced += row.unpriced
        self.theirs += sum(row.theirs.tokens.values()) if row.theirs else 0
        self.ours += sum(row.ours.values())
        for kind, tokens in row.kinds.items():
            self.kinds[kind] += sum(tokens.values())
        unknown = row.kinds["unknown"].values()
        self.too_many += sum(tokens for tokens in unknown if tokens > 0)
        self.too_few += sum(tokens for tokens in unknown if tokens < 0)
        self.unsettled += any(unknown)
        self._add_money(row)

    def _add_money(self, row: Compared) -> None:
        for currency, nanos in row.billed.items():
            self.billed[currency] = self.billed.get(currency, 0) + nanos
        for name in ("cost_nanos", "margin_nanos", "price_nanos"):
            sum_so_far, nanos = getattr(self, name), getattr(row, name)
            setattr(self, name, None if sum_so_far is None or nanos is None else sum_so_far + nanos)


def total(rows: Iterable[Compared]) -> Totals:
    """All rows added up."""
    totals = Totals()
    for row in rows:
        totals.add(row)
    return totals


def totals_by_model(rows: Iterable[Compared]) -> dict[str, Totals]:
    """The rows of each model added up."""
    ordered = sorted(rows, key=attrgetter("model"))
    return {model: total(found) for model, found in groupby(ordered, key=attrgetter("model"))}


def _folded(our: Ours, buckets: Sequence[str]) -> Ours:
    """Our attempts in the buckets that the file tells apart; where it tells none, as they are."""
    if not buckets or set(buckets) == set(BUCKETS):
        return our
    return Ours(
        our.day, our.model, our.use, _fold(our.tokens, buckets), our.attempts, our.edge, our.currency,
        _fold(our.nanos, buckets), our.billed_nanos, our.silent, our.unpriced,
    )  # fmt: skip


def _fold(tokens: Tokens, buckets: Sequence[str]) -> dict[str, int]:
    folded: dict[str, int] = {}
    for bucket, count in tokens.items():
        place: str | None = bucket
        while place is not None and place not in buckets:
            place = WHERE_FOLDED.get(place)
        if place is not None:
            folded[place] = folded.get(place, 0) + count
    return folded


def _sum(parts: Iterable[Tokens]) -> dict[str, int]:
    summed: dict[str, int] = {}
    for part in parts:
        for bucket, count in part.items():
            summed[bucket] = summed.get(bucket, 0) + count
    return summed


def _days(first: dt.date, last: dt.date) -> Iterator[dt.date]:
    return (first + dt.timedelta(days=ahead) for ahead in range((last - first).days + 1))


def _around(terms: Terms) -> tuple[dt.date, dt.date]:
    return terms.first - dt.timedelta(days=1), terms.last + dt.timedelta(days=1)
