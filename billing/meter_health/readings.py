"""What can be read of the meter's health: from the database by indexes and roll-ups, and from this host's journals.

The number of queries is fixed, and what they read does not grow with the records, so that every process can look every
few seconds. Journals and locks are of this host alone; other hosts' processes are known by their rows.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from django.db.models import Count, Max, Min, Q, Sum
from django.db.models.functions import Coalesce

from billing.ledger.journal import measure
from billing.models import FlagRollup, GatewayProcess, MeterEvent, OpenStream, RollupDue, UsageRecord, UsageRollup
from billing.processes import WATCH_S, Folder

LATELY = dt.timedelta(days=1)
"""Sweeps, late writes and estimates are shown for so long."""
FLAG_DAYS = 7
"""Flags are: a counter that appears once a week is a counter that we do not bill."""
MOST_UNPRICED = 100_000
"""Unpriced records are counted up to here: by then the number tells nothing new."""
MOST_NAMED = 1_000
"""So many of the oldest are looked at for what they block."""
MOST_FLAGS = 100

Kind = MeterEvent.Kind
UNTIL_ACKNOWLEDGED = (Kind.DROPPED, Kind.UNJOURNALLED)


@dataclass(frozen=True, slots=True)
class Journals:
    """The journals of one kind of owner. `since`: of when the oldest entry is."""

    files: int = 0
    bytes: int = 0
    entries: int = 0
    since: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class Noted:
    """Events of a kind: how many bills, of how many processes (each hour anew), and the first and last time."""

    bills: int = 0
    processes: int = 0
    first_at: dt.datetime | None = None
    last_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class Unpriced:
    """Records without a price, the count cut off at MOST_UNPRICED; what they block, as far as MOST_NAMED tell."""

    records: int = 0
    since: dt.datetime | None = None
    models: tuple[str, ...] = ()
    invoices: tuple[str, ...] = ()
    """`account/key 2026-11`, the oldest first."""


@dataclass(frozen=True, slots=True)
class Flagged:
    """Records of a provider with a flag, in the last FLAG_DAYS."""

    flag: str
    provider: str
    records: int
    first_at: dt.datetime


@dataclass(frozen=True, slots=True)
class Metered:
    """A provider's requests lately, as far as they were rolled up, and how many of them we had to count."""

    provider: str
    requests: int
    estimated: int

    @property
    def permille(self) -> int:
        """The share that was estimated, a checkpoint included."""
        return self.estimated * 1000 // self.requests if self.requests else 0


@dataclass(frozen=True, slots=True)
class Readings:
    """All that was read, at one instant."""

    at: dt.datetime
    living_journals: Journals = field(default_factory=Journals)
    dead_journals: Journals = field(default_factory=Journals)
    living: int = 0
    dead: int = 0
    dead_since: dt.datetime | None = None
    """The last that was heard of the dead process that has waited longest with open streams; None: none has any."""
    open_streams: int = 0
    oldest_open: dt.datetime | None = None
    noted: Mapping[Kind, Noted] = field(default_factory=dict)
    swept_ever: Noted = field(default_factory=Noted)
    unpriced: Unpriced = field(default_factory=Unpriced)
    flagged: Sequence[Flagged] = ()
    metered: Sequence[Metered] = ()
    rollup_due_since: dt.datetime | None = None
    redis_answers: bool | None = None
    """None: nobody asked it."""


@dataclass(frozen=True, slots=True)
class Streams:
    """The open streams of a process, and the last that was heard of it."""

    count: int
    oldest: dt.datetime
    heard_at: dt.datetime


class MeterReader:
    """Reads. `asks_redis` says whether Redis answers; `clock` counts seconds.

    Kept, it also learns which processes of other hosts fall silent: their heartbeat stands still for WATCH_S between
    two of its looks. That is for showing alone: only a sweep, which watches all the time, decides who is dead.
    """

    def __init__(
        self,
        folder: Folder,
        asks_redis: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._asks_redis, self._clock = folder, asks_redis, clock
        self._heard: dict[uuid.UUID, tuple[int, float]] = {}

    def read(self, now: dt.datetime) -> Readings:
        """Read everything; the database's errors are raised."""
        streams, heartbeats = open_streams(), dict(GatewayProcess.objects.values_list("id", "heartbeat"))
        here = self._folder.processes()
        dead = {id for id in here if not self._folder.is_held(id)}
        silent = self._silent(
            {id: heartbeats.get(id, 0) for id in heartbeats.keys() | streams.keys() if id not in here}
        )
        lost = [streams[id] for id in dead | silent if id in streams]
        return Readings(
            at=now,
            living_journals=self._journals(here - dead),
            dead_journals=self._journals(dead),
            living=len((heartbeats.keys() | here) - dead - silent),
            dead=len(dead | silent),
            dead_since=min((stream.heard_at for stream in lost), default=None),
            open_streams=sum(stream.count for stream in streams.values()),
            oldest_open=min((stream.oldest for stream in streams.values()), default=None),
            noted=noted(now),
            swept_ever=swept_ever(),
            unpriced=unpriced(),
            flagged=flagged(now),
            metered=metered(now),
            rollup_due_since=RollupDue.objects.order_by("id").values_list("created_at", flat=True).first(),
            redis_answers=self._asks_redis() if self._asks_redis else None,
        )

    def _silent(self, heartbeats: Mapping[uuid.UUID, int]) -> set[uuid.UUID]:
        """Processes of other hosts whose heartbeat is what it was WATCH_S ago."""
        now = self._clock()
        before, self._heard = self._heard, {}
        for id, number in heartbeats.items():
            known = before.get(id)
            self._heard[id] = known if known is not None and known[0] == number else (number, now)
        return {id for id, (_, since) in self._heard.items() if now - since >= WATCH_S}

    def _journals(self, owners: Iterable[uuid.UUID]) -> Journals:
        lengths = [measure(self._folder.journal_path(id)) for id in owners]
        found = [length for length in lengths if length.bytes]
        return Journals(
            files=len(found),
            bytes=sum(length.bytes for length in found),
            entries=sum(length.entries for length in found),
            since=min((length.since for length in found if length.since), default=None),
        )


def open_streams() -> dict[uuid.UUID, Streams]:
    """The open rows by their process: as many as there are streams under way."""
    by_process = OpenStream.objects.order_by().values("process")
    found = by_process.annotate(
        count=Count("pk"), oldest=Min("started_at"), heard_at=Max(Coalesce("checkpoint_at", "started_at"))
    )
    return {row["process"]: Streams(row["count"], row["oldest"], row["heard_at"]) for row in found}


def noted(now: dt.datetime) -> dict[Kind, Noted]:
    """What happened lately, and what nobody has acknowledged yet."""
    lately = Q(kind__in=(Kind.SWEPT, Kind.LATE), last_at__gte=now - LATELY)
    standing = Q(kind__in=UNTIL_ACKNOWLEDGED, acknowledged_at=None)
    rows = MeterEvent.objects.filter(lately | standing).order_by().values("kind")
    found = rows.annotate(bills=Sum("count"), processes=Count("pk"), first=Min("first_at"), last=Max("last_at"))
    return {Kind(row["kind"]): Noted(row["bills"], row["processes"], row["first"], row["last"]) for row in found}


def swept_ever() -> Noted:
    """All sweeps that found a dead process, for counters that never fall."""
    found = MeterEvent.objects.filter(kind=Kind.SWEPT).aggregate(bills=Sum("count"), processes=Count("pk"))
    return Noted(found["bills"] or 0, found["processes"])


def unpriced() -> Unpriced:
    """Records without a price, by their own partial indexes."""
    records = UsageRecord.objects.filter(unpriced=True)
    count = records.order_by().values("model")[:MOST_UNPRICED].count()  # the index holds no more than that
    if not count:
        return Unpriced()
    oldest = list(
        records.order_by("ended_at").values_list("ended_at", "model", "account_name", "key_name", "day")[:MOST_NAMED]
    )
    models = dict.fromkeys(model for _, model, *_ in oldest)
    invoices = dict.fromkeys(f"{account}/{key} {day:%Y-%m}" for _, _, account, key, day in oldest)
    return Unpriced(count, oldest[0][0] if oldest else None, tuple(models), tuple(invoices))


def flagged(now: dt.datetime) -> list[Flagged]:
    """Flags of the last days, the most frequent first."""
    rows = FlagRollup.objects.filter(day__gte=now.date() - dt.timedelta(days=FLAG_DAYS)).order_by()
    sums = rows.values("flag", "provider").annotate(sum_records=Sum("records"), first=Min("first_at"))
    found = sums.order_by("-sum_records", "flag")[:MOST_FLAGS]
    return [Flagged(row["flag"], row["provider"], row["sum_records"], row["first"]) for row in found]


def metered(now: dt.datetime) -> list[Metered]:
    """How the requests of the last day were metered, by provider; those that used nothing are left out."""
    since = now - LATELY
    # The index is on the day, which is each account's own: up to a day apart from ours.
    rows = UsageRollup.objects.filter(day__gte=since.date() - dt.timedelta(days=1), hour_start__gte=since)
    counted = Sum("requests", filter=Q(metering__in=("estimated", "checkpoint")), default=0)
    by_provider = rows.exclude(metering="none").order_by().values("provider")
    found = by_provider.annotate(sum_requests=Sum("requests"), estimated=counted)
    shares = [Metered(row["provider"], row["sum_requests"], row["estimated"]) for row in found]
    return sorted(shares, key=lambda one: (-one.permille, one.provider))
