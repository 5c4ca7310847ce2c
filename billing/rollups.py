"""Sums of records by hour, made again from the records, never added to; those of sealed days are not made again."""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import IntegrityError, connection, transaction
from django.db.models import Count, Min, Model, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from billing import locks, overflow, quarters, seals
from billing.models import FlagRollup, RollupDue, UsageDay, UsageRecord, UsageRollup
from billing.phrases import gettext_noop
from billing.usage import BUCKETS

log = logging.getLogger(__name__)

NOT_REBUILT = gettext_noop("%(name)s: its days cannot be rolled up: %(reason)s")

INTERRUPTED = (
    "client_left", "provider_cut", "provider_error", "stalled", "timed_out", "stopped", "gateway_lost", "shutdown",
)  # fmt: skip
"""Endings that cut an answer short."""

ESTIMATED = ("estimated", "checkpoint")
"""Meterings of which we counted at least a part ourselves."""

GROUPS = (
    "account_id", "api_key_id", "day", "hour_start", "model", "provider", "service_tier", "metering", "long_context",
)  # fmt: skip

MAX_RECORDS = {"postgresql": 40_000, "sqlite": 5_000}
"""Records summed in one transaction, where several keys' days are due; on SQLite every other writer waits for it."""

MAX_KEYS = 500
"""Keys in one transaction: each holds a lock, and PostgreSQL has room for a few thousand of all kinds."""

WORK_MEM = "32MB"
"""PostgreSQL's memory for a sort or hash: the groups of MAX_RECORDS, which would go through files otherwise."""

MAX_FLAGS = 1_000
"""Rows of flags of a key's day, the most frequent first: a counter's name is a provider's word, and could be new in
every answer."""

SUMS = {
    "currency": Min("currency"),
    "requests": Count("*"),
    "interrupted": Count("id", filter=Q(ending__in=INTERRUPTED)),
    "unpriced": Count("id", filter=Q(unpriced=True)),
    "input": Sum("input"),
    "cache_read": Sum("cache_read"),
    "cache_write": Sum("cache_write"),
    "cache_write_1h": Sum("cache_write_1h"),
    "output": Sum("output"),
    "reasoning": Coalesce(Sum("reasoning"), 0),
    "cost_nanos": Sum("cost_nanos"),
}
"""Column of UsageRollup -> its sum over records."""

DAY_GROUPS = ("account_id", "api_key_id", "day", "model", "provider")
DAY_SUMS = {
    "currency": Min("currency"),
    "requests": Sum("requests"),
    "interrupted": Sum("interrupted"),
    "estimated": Coalesce(Sum("requests", filter=Q(metering__in=ESTIMATED)), 0),
    "unpriced": Sum("unpriced"),
    **{name: Sum(name) for name in (*BUCKETS, "reasoning", "cost_nanos")},
}
"""Column of UsageDay -> its sum over UsageRollup."""


Refuse = Callable[[int, Exception], None]
"""Is told of a key whose sums the database refuses, and why."""


class Batch(NamedTuple):
    """Keys, each with all the days: what one transaction makes anew."""

    keys: Sequence[int]
    days: Sequence[dt.date]

    @property
    def size(self) -> int:
        """How many keys' days these are."""
        return len(self.keys) * len(self.days)

    def condition(self) -> Q:
        """The batch as a condition on records, due rows or sums."""
        return Q(api_key_id__in=self.keys, day__in=self.days)


def rebuild_due(limit: int | None = None, *, refuse: Refuse | None = None) -> int:
    """Rebuild every key's day that is due (at most `limit` of them), and return how many were.

    A key whose data the database refuses does not hold up the others: when they are done, `refuse` is told of it, or
    its error is raised.
    """
    due = RollupDue.objects.order_by("day", "api_key_id").values_list("day", "api_key_id").distinct()[:limit]
    done = 0
    faults: dict[int, Exception] = {}
    for batch in _batches(due):
        done += _rebuild_or_divide(batch, faults)
    for key_id, error in faults.items():
        if refuse is None:
            raise error
        refuse(key_id, error)
    return done


def rebuild(key_id: int, day: dt.date) -> int:
    """Make a key's day anew from its records, and return how many roll-up rows it has."""
    return _rebuild(Batch([key_id], [day]))


def _rebuild_or_divide(batch: Batch, faults: dict[int, Exception]) -> int:
    """Rebuild a batch, and return how many keys' days were: one that fails is halved until the bad key stands alone."""
    try:
        _rebuild(batch)
    except Exception as error:
        if not (isinstance(error, IntegrityError) or overflow.is_of_data(error)):
            raise
        if half := len(batch.keys) // 2:
            parts = (batch.keys[:half], batch.keys[half:])
            return sum(_rebuild_or_divide(Batch(keys, batch.days), faults) for keys in parts)
        log.exception("the roll-up of key %s on %s to %s failed", batch.keys[0], batch.days[0], batch.days[-1])
        faults[batch.keys[0]] = error
        return 0
    return batch.size


def _rebuild(batch: Batch) -> int:
    """Run twice, in parallel or killed half-way: the same numbers.

    The due rows go in a statement before the one that sums; each was committed together with its record, so the record
    of every deleted due row is in the sum. A due row that comes in between stays, and its day is made again.
    """
    with transaction.atomic():
        batch = _without_sealed(batch)
        if not batch.days:
            return 0
        locks.hold_each([("rollup", key) for key in batch.keys])
        _set_up()
        for table in (RollupDue, UsageRollup, UsageDay, FlagRollup):
            table._default_manager.filter(batch.condition()).delete()
        _insert_flags(batch)
        quarters.rebuild(*batch)
        hours = _insert_sums(UsageRollup, UsageRecord.objects.filter(batch.condition()), GROUPS, SUMS)
        _insert_sums(UsageDay, UsageRollup.objects.filter(batch.condition()), DAY_GROUPS, DAY_SUMS)
        return hours


def _without_sealed(batch: Batch) -> Batch:
    """The days that may be made anew. Nothing should make a sealed one due: what did is logged, and its rows go."""
    last = seals.hold()
    sealed = [day for day in batch.days if last is not None and day <= last]
    if not sealed:
        return batch
    gone, _ = RollupDue.objects.filter(Batch(batch.keys, sealed).condition()).delete()
    log.error("the sums of %s to %s stay: records were dropped (%s rows due)", min(sealed), max(sealed), gone)
    return Batch(batch.keys, [day for day in batch.days if day not in sealed])


def _set_up() -> None:
    """For this transaction: memory, and no wait for the disk, since one that a crash takes back is due again."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('work_mem', %s, true), set_config('synchronous_commit', 'off', true)", [WORK_MEM]
            )


def _batches(due: Iterable[tuple[dt.date, int]]) -> Iterator[Batch]:
    """What is due, in the order of its days: a day's records lie together on the disk, those of a key all over it.

    Days on which the same keys are due go together.
    """
    keys_of: dict[dt.date, list[int]] = {}
    for day, key in due:
        keys_of.setdefault(day, []).append(key)
    days_of: dict[tuple[int, ...], list[dt.date]] = {}
    for day, keys in keys_of.items():
        for first in range(0, len(keys), MAX_KEYS):
            days_of.setdefault(tuple(keys[first : first + MAX_KEYS]), []).append(day)
    for together, days in days_of.items():
        yield from _bounded(Batch(together, days))


def _bounded(batch: Batch) -> Iterator[Batch]:
    """The batch in parts of at most MAX_RECORDS records, or of one key's day."""
    counted = UsageRecord.objects.filter(batch.condition()).order_by().values_list("day", "api_key_id")
    counts = Counter({(day, key): count for day, key, count in counted.annotate(records=Count("*"))})
    yield from _divided(batch, counts, MAX_RECORDS[connection.vendor])


def _divided(batch: Batch, counts: Counter[tuple[dt.date, int]], most: int) -> Iterator[Batch]:
    keys, days = batch
    if batch.size == 1 or sum(counts[day, key] for day in days for key in keys) <= most:
        yield batch
    elif half := len(days) // 2:
        yield from _divided(Batch(keys, days[:half]), counts, most)
        yield from _divided(Batch(keys, days[half:]), counts, most)
    else:
        half = len(keys) // 2
        yield from _divided(Batch(keys[:half], days), counts, most)
        yield from _divided(Batch(keys[half:], days), counts, most)


def _insert_sums(table: type[Model], rows: QuerySet[Any], groups: Sequence[str], sums: Mapping[str, Any]) -> int:
    """INSERT … SELECT: no row comes to Python. Returns how many sums there are."""
    named = {f"sum_{name}": expression for name, expression in sums.items()}
    select, params = rows.order_by().values(*groups).annotate(**named).query.sql_with_params()
    columns = ", ".join(connection.ops.quote_name(name) for name in (*groups, *sums))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table._meta.db_table} ({columns}) {select}", params)
        return int(cursor.rowcount)


def _insert_flags(batch: Batch) -> None:
    """The same for the flags of records, each a row of its own; most records have none."""
    on_postgresql = connection.vendor == "postgresql"
    flags = "jsonb_array_elements_text(flags) AS one(flag)" if on_postgresql else "json_each(flags) AS one"
    flag = "substr(one.flag, 1, 200)" if on_postgresql else "substr(one.value, 1, 200)"
    flagged = "flags <> '[]'::jsonb" if on_postgresql else "flags <> '[]'"
    keys, days = (", ".join(["%s"] * len(some)) for some in batch)
    columns = "api_key_id, day, provider, model, flag, records, first_at, last_at"
    statement = f"""
        INSERT INTO {FlagRollup._meta.db_table} ({columns})
        SELECT {columns} FROM (
            SELECT api_key_id, day, provider, model, {flag} AS flag,
                count(*) AS records, min(ended_at) AS first_at, max(ended_at) AS last_at,
                row_number() OVER (PARTITION BY api_key_id, day ORDER BY count(*) DESC) AS place
            FROM {UsageRecord._meta.db_table}, {flags}
            WHERE api_key_id IN ({keys}) AND day IN ({days}) AND {flagged}
            GROUP BY 1, 2, 3, 4, 5
        ) AS flagged WHERE place <= {MAX_FLAGS}
    """  # noqa: S608 - names of our own models
    written = batch.days if on_postgresql else [day.isoformat() for day in batch.days]
    with connection.cursor() as cursor:
        cursor.execute(statement, [*batch.keys, *written])
