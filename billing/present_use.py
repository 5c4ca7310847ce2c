"""What keys use at this moment, beside their limits: as all gateway processes count it, else as the database knows it.

Money is always the database's: what Redis knows of it is a copy.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django.db.models import Aggregate, Count, F, Q, QuerySet, Sum

from billing import gateway
from billing.gateway import SharedUse
from billing.models import ApiKey, BudgetMonth, OpenStream, UsageRecord
from billing.periods import local_day, month_bounds
from billing.usage import BUCKETS

NEAR = 80
"""Per cent of a limit from which on a key is near it: where the gateway sounds its first alarm."""
FULL = 100
MINUTE = dt.timedelta(minutes=1)
MOST_NAMED = 500
"""Above so many keys the database is asked about all: a list of their ids would be longer than the answer."""

LIMITED = ~Q(requests_per_minute=None, tokens_per_minute=None, concurrency=None, monthly_budget_nanos=None)


@dataclass(frozen=True, slots=True)
class Use:
    """How much of a limit is in use; no limit: None. `resets_at`: when nothing is in use any more, if that is known."""

    now: int
    limit: int | None
    resets_at: dt.datetime | None = None

    @property
    def percent(self) -> int | None:
        """Rounded down; a limit of nothing is always full."""
        if self.limit is None:
            return None
        return max(self.now, 0) * 100 // self.limit if self.limit else FULL

    @property
    def is_near(self) -> bool:
        """Whether little is left, or nothing."""
        return self.percent is not None and self.percent >= NEAR


@dataclass(frozen=True, slots=True)
class PresentUse:
    """A key's use: requests and tokens of the last minute, requests under way, nanos of the month in its own zone.

    `held_nanos` is what requests under way hold of the budget beside what is spent. `is_shared`: Redis answered; else
    rates are those of the requests that the database knows.
    """

    requests: Use
    tokens: Use
    running: Use
    spent: Use
    held_nanos: int
    is_shared: bool

    @property
    def is_near(self) -> bool:
        """Whether the key is near one of its limits."""
        return any(use.is_near for use in (self.requests, self.tokens, self.running, self.spent))


class _Known(NamedTuple):
    """What the database knows: requests begun in the last minute and their tokens so far, and requests under way."""

    requests: int = 0
    tokens: int = 0
    running: int = 0


NOTHING_KNOWN = _Known()


class _Limits(NamedTuple):
    """A key's limits, and the zone in which its months begin."""

    key_id: int
    zone: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency: int | None
    monthly_budget_nanos: int | None


COLUMNS = (
    "pk", "account__timezone", "requests_per_minute", "tokens_per_minute", "concurrency", "monthly_budget_nanos",
)  # fmt: skip
"""Those of `_Limits`."""


def of(keys: Iterable[ApiKey], now: dt.datetime, *, most_named: int = MOST_NAMED) -> dict[int, PresentUse]:
    """What keys use, by their ids: three queries and one round trip to Redis, however many they are."""
    limits = [
        _Limits(
            key.pk, key.account.timezone, key.requests_per_minute, key.tokens_per_minute, key.concurrency,
            key.monthly_budget_nanos,
        )
        for key in keys
    ]  # fmt: skip
    return _of_all(limits, now, most_named)


def near_a_limit(now: dt.datetime) -> set[int]:
    """The ids of the keys that are near one of their limits; revoked and expired ones are not."""
    in_use = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=now))
    rows = ApiKey.objects.filter(in_use, LIMITED).order_by().values_list(*COLUMNS)
    used = _of_all([_Limits(*row) for row in rows], now, MOST_NAMED)
    return {key_id for key_id, use in used.items() if use.is_near}


def _of_all(limits: Sequence[_Limits], now: dt.datetime, most_named: int) -> dict[int, PresentUse]:
    firsts = {zone: local_day(now, ZoneInfo(zone)).replace(day=1) for zone in {key.zone for key in limits}}
    ends = {zone: month_bounds(first, ZoneInfo(zone))[1] for zone, first in firsts.items()}
    months = {key.key_id: firsts[key.zone] for key in limits}
    ids = list(months) if len(months) <= most_named else None
    shared = gateway.shared_use(list(months.items()))
    known, spent = _known(ids, now), _spent(months, ids)
    return {
        key.key_id: _use(key, Use(spent[key.key_id], key.monthly_budget_nanos, ends[key.zone]), known, shared, now)
        for key in limits
    }


def _use(
    key: _Limits,
    spent: Use,
    known: Mapping[int, _Known],
    shared: Mapping[int, SharedUse] | None,
    now: dt.datetime,
) -> PresentUse:
    """A limit's own count where the gateway keeps one, else what the database knows."""
    counted = shared.get(key.key_id) if shared is not None else None
    requests, tokens, running = known.get(key.key_id, NOTHING_KNOWN)
    requests_reset = tokens_reset = None
    if counted is not None and key.requests_per_minute is not None:
        requests, requests_reset = counted.requests, now + dt.timedelta(milliseconds=counted.requests_reset_ms)
    if counted is not None and key.tokens_per_minute is not None:
        tokens, tokens_reset = counted.tokens, now + dt.timedelta(milliseconds=counted.tokens_reset_ms)
    if counted is not None and key.concurrency is not None:
        running = counted.running
    return PresentUse(
        requests=Use(requests, key.requests_per_minute, requests_reset if requests else None),
        tokens=Use(tokens, key.tokens_per_minute, tokens_reset if tokens else None),
        running=Use(running, key.concurrency),
        spent=spent,
        held_nanos=counted.held_nanos if counted else 0,
        is_shared=shared is not None,
    )


def _spent(months: Mapping[int, dt.date], ids: list[int] | None) -> defaultdict[int, int]:
    rows = _of(BudgetMonth.objects.filter(month__in=set(months.values())), ids)
    spent: defaultdict[int, int] = defaultdict(int)
    for key_id, month, nanos in rows.values_list("api_key_id", "month", "spent_nanos"):
        if months.get(key_id) == month:
            spent[key_id] = nanos
    return spent


def _known(ids: list[int] | None, now: dt.datetime) -> defaultdict[int, _Known]:
    """What ended and what is under way; a request is in one of the two."""
    since = now - MINUTE
    ended = UsageRecord.objects.filter(ended_at__gte=since, started_at__gte=since)
    billed = sum((F(bucket) for bucket in BUCKETS[1:]), start=F(BUCKETS[0]))
    lately, counted = Q(started_at__gte=since), F("counted_input") + F("counted_output")
    found: defaultdict[int, _Known] = defaultdict(_Known)
    for key_id, requests, tokens in _by_key(_of(ended, ids), Count("pk"), Sum(billed)):
        found[key_id] = _Known(requests, tokens or 0)
    under_way = Count("pk", filter=lately), Sum(counted, filter=lately), Count("pk")
    for key_id, requests, tokens, running in _by_key(_of(OpenStream.objects.all(), ids), *under_way):
        before = found[key_id]
        found[key_id] = _Known(before.requests + requests, before.tokens + (tokens or 0), running)
    return found


def _of(rows: QuerySet[Any], ids: list[int] | None) -> QuerySet[Any]:
    return rows if ids is None else rows.filter(api_key_id__in=ids)


def _by_key(rows: QuerySet[Any], *sums: Aggregate) -> QuerySet[Any]:
    named = {f"sum_{at}": sum_ for at, sum_ in enumerate(sums)}
    by_key: QuerySet[Any] = rows.order_by().values("api_key_id").annotate(**named)
    return by_key.values_list("api_key_id", *named)
