"""Sums of records by hour, made again from the records, never added to."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
from collections.abc import Iterator, Sequence
from operator import itemgetter

from django.db import DataError, IntegrityError, connection, transaction
from django.db.models import Count, Min, Q, Sum
from django.db.models.functions import Coalesce

from billing import locks
from billing.models import RollupDue, UsageRecord, UsageRollup

log = logging.getLogger(__name__)

INTERRUPTED = (
    "client_left", "provider_cut", "provider_error", "stalled", "timed_out", "stopped", "gateway_lost", "shutdown",
)  # fmt: skip
"""Endings that cut an answer short."""

GROUPS = (
    "account_id", "api_key_id", "day", "hour_start", "model", "provider", "service_tier", "metering", "long_context",
)  # fmt: skip

MAX_RECORDS = 100_000
"""Records summed in one transaction, where several days are due."""

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


def rebuild_due(limit: int | None = None) -> int:
    """Rebuild every key's day that is due (at most `limit` of them), and return how many were.

    A key whose data the database refuses does not hold up the others; its error is raised when they are done.
    """
    due = RollupDue.objects.order_by("api_key_id", "day").values_list("api_key_id", "day").distinct()[:limit]
    done, fault = 0, None
    for key_id, pairs in itertools.groupby(list(due), key=itemgetter(0)):
        for days in _batches(key_id, [day for _, day in pairs]):
            try:
                _rebuild(key_id, days)
                done += len(days)
            except (DataError, IntegrityError) as error:
                log.exception("the roll-up of key %s on %s to %s failed", key_id, days[0], days[-1])
                fault = error
    if fault:
        raise fault
    return done


def rebuild(key_id: int, day: dt.date) -> int:
    """Make a key's day anew from its records, and return how many roll-up rows it has."""
    return _rebuild(key_id, [day])


def _rebuild(key_id: int, days: Sequence[dt.date]) -> int:
    """Run twice, in parallel or killed half-way: the same numbers.

    The due rows go in a statement before the one that sums; each was committed together with its record, so the record
    of every deleted due row is in the sum. A due row that comes in between stays, and its day is made again.
    """
    wanted = Q(api_key_id=key_id, day__in=days)
    with transaction.atomic():
        locks.hold("rollup", key_id)
        RollupDue.objects.filter(wanted).delete()
        UsageRollup.objects.filter(wanted).delete()
        return _insert_sums(wanted)


def _batches(key_id: int, days: Sequence[dt.date]) -> Iterator[list[dt.date]]:
    """Days that are summed in one transaction: few enough records not to keep SQLite's other writers waiting."""
    counted = UsageRecord.objects.filter(api_key_id=key_id, day__in=days).order_by().values_list("day")
    counts = dict(counted.annotate(records=Count("*")))
    batch: list[dt.date] = []
    records = 0
    for day in days:
        records += counts.get(day, 0)
        if batch and records > MAX_RECORDS:
            yield batch
            batch, records = [], counts.get(day, 0)
        batch.append(day)
    yield batch


def _insert_sums(wanted: Q) -> int:
    """INSERT … SELECT: no record comes to Python."""
    sums = {f"sum_{name}": expression for name, expression in SUMS.items()}
    records = UsageRecord.objects.filter(wanted).order_by().values(*GROUPS).annotate(**sums)
    select, params = records.query.sql_with_params()
    columns = ", ".join(connection.ops.quote_name(name) for name in (*GROUPS, *SUMS))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {UsageRollup._meta.db_table} ({columns}) {select}", params)
        return int(cursor.rowcount)
