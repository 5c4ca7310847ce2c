"""Sealed days: those with dropped records. Their sums stand for ever, for what is left could not make them anew.

    last_day()            every key's days up to this one are sealed; None: nothing was ever dropped
    hold()                the same, and it stays so until the transaction ends
    unsealed(due)         due rows, less those of sealed days

Whoever drops holds the table of records for himself alone (`billing.dropping`), so that a reader's lock on it, taken
before one asks, is enough. What is newer than `OLD` is of no sealed day: the hot path asks nothing.
"""

from __future__ import annotations

import datetime as dt

from django.db import connections
from django.db.models import Exists, Max, OuterRef, Q, QuerySet

from billing.models import DroppedMonth, RollupDue, UsageRecord

OLD = dt.timedelta(days=20)
"""What began and ended more lately than this is of no sealed day."""
SEALED_AFTER = dt.timedelta(days=25)
"""No later day is sealed: the days between leave room for clocks that differ."""


def last_day(using: str = "default") -> dt.date | None:
    """The last sealed day, of all keys and zones."""
    newest: dt.date | None = DroppedMonth.objects.using(using).aggregate(day=Max("last_day"))["day"]
    return newest


def hold(using: str = "default") -> dt.date | None:
    """The last sealed day. Nothing is dropped from here to the end of the running transaction."""
    connection = connections[using]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"LOCK TABLE ONLY {UsageRecord._meta.db_table} IN ACCESS SHARE MODE")
    return last_day(using)


def unsealed(due: QuerySet[RollupDue]) -> QuerySet[RollupDue]:
    """The due rows whose days are read from records: those of a sealed day would show what is left of it."""
    return due.exclude(Exists(DroppedMonth.objects.filter(last_day__gte=OuterRef("day"))))


def dropped_until() -> dt.datetime | None:
    """Requests that began before this moment were dropped; None: none were."""
    newest: dt.datetime | None = DroppedMonth.objects.aggregate(end=Max("end"))["end"]
    return newest


def ends_of_days_from(first: dt.date) -> Q:
    """A condition on records for the index on their end, which loses none of a day from `first` on, in any zone.

    What came late for a sealed day is counted on a later one: its end is not near its day.
    """
    ends = Q(ended_at__gte=_midnight(first) - dt.timedelta(days=1))
    if (last := last_day()) is not None:
        ends |= Q(ended_at__lt=_midnight(last) + dt.timedelta(days=2))
    return ends


def _midnight(day: dt.date) -> dt.datetime:
    return dt.datetime.combine(day, dt.time(), dt.UTC)
