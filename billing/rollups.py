"""Sums of records by hour, made again from the records, never added to."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from django.db import DataError, IntegrityError, connection, transaction
from django.db.models import Count, Min, Model, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from billing import locks, quarters
from billing.models import FlagRollup, RollupDue, UsageDay, UsageRecord, UsageRollup
from billing.usage import BUCKETS

log = logging.getLogger(__name__)

INTERRUPTED = (
    "client_left", "provider_cut", "provider_error", "stalled", "timed_out", "stopped", "gateway_lost", "shutdown",
)  # fmt: skip
"""Endings that cut an answer short."""

ESTIMATED = ("estimated", "checkpoint")
"""Meterings of which we counted at least a part ourselves."""

GROUPS = (
    "account_id", "api_key_id", "day", "hour_start", "model", "provider", "service_tier", "metering", "long_context",
)  # fmt: skip

MAX_RECORDS = 50_000
"""Records summed in one transaction, where several days are due."""

MAX_FLAGS = 1_000
"""Rows of flags that one run makes, the most frequent first: a counter's name is a provider's word, and could be new in
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
        UsageDay.objects.filter(wanted).delete()
        FlagRollup.objects.filter(wanted).delete()
        _insert_flags(key_id, days)
        quarters.rebuild(key_id, days)
        hours = _insert_sums(UsageRollup, UsageRecord.objects.filter(wanted), GROUPS, SUMS)
        _insert_sums(UsageDay, UsageRollup.objects.filter(wanted), DAY_GROUPS, DAY_SUMS)
        return hours


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


def _insert_sums(table: type[Model], rows: QuerySet[Any], groups: Sequence[str], sums: Mapping[str, Any]) -> int:
    """INSERT … SELECT: no row comes to Python. Returns how many sums there are."""
    named = {f"sum_{name}": expression for name, expression in sums.items()}
    select, params = rows.order_by().values(*groups).annotate(**named).query.sql_with_params()
    columns = ", ".join(connection.ops.quote_name(name) for name in (*groups, *sums))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table._meta.db_table} ({columns}) {select}", params)
        return int(cursor.rowcount)


def _insert_flags(key_id: int, days: Sequence[dt.date]) -> None:
    """The same for the flags of records, each a row of its own; most records have none."""
    on_postgresql = connection.vendor == "postgresql"
    flags = "jsonb_array_elements_text(flags) AS one(flag)" if on_postgresql else "json_each(flags) AS one"
    flag = "substr(one.flag, 1, 200)" if on_postgresql else "substr(one.value, 1, 200)"
    flagged = "flags <> '[]'::jsonb" if on_postgresql else "flags <> '[]'"
    places = ", ".join(["%s"] * len(days))
    statement = f"""
        INSERT INTO {FlagRollup._meta.db_table} (api_key_id, day, provider, model, flag, records, first_at, last_at)
        SELECT api_key_id, day, provider, model, {flag}, count(*), min(ended_at), max(ended_at)
        FROM {UsageRecord._meta.db_table}, {flags}
        WHERE api_key_id = %s AND day IN ({places}) AND {flagged}
        GROUP BY 1, 2, 3, 4, 5 ORDER BY 6 DESC LIMIT {MAX_FLAGS}
    """  # noqa: S608 - names of our own models
    values = days if on_postgresql else [day.isoformat() for day in days]
    with connection.cursor() as cursor:
        cursor.execute(statement, [key_id, *values])
