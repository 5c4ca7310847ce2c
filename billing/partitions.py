"""Usage records by month on PostgreSQL: one table to whoever reads and writes, a partition per month of `started_at`.

    convert(connection, now)      all that is there becomes the partition `_before`, and stays in place
    make_ahead(connection, now)   beat: this month's partition and the next two, where they are missing
    revert(connection)            a plain table again
    take_out(cursor, name, keep)  a month goes, but for rows that stay behind (`billing.dropping` says when it may)

A request's id and `started_at` are set once, in its open row, so that (id, started_at) is as good as the id alone. A
key's names are unique within each partition; among all of them by the look-up that admits a request. Whoever has fewer
than hundreds of millions of records is better off without: ADR 0023 says why. SQLite keeps its plain table.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from typing import NamedTuple

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models import UniqueConstraint

from billing import immutability, spending
from billing.models import Adjustment, Attempt, UsageRecord

log = logging.getLogger(__name__)

RECORD = immutability.RECORD
BEFORE, DEFAULT = f"{RECORD}_before", f"{RECORD}_default"
COPIED = "INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE"
AHEAD = 2
"""Months after the present one that have their partition."""
LOCK_S = 5
"""How long making a partition waits for those who read and write; the next round tries again."""
[NAMES] = [one for one in UsageRecord._meta.constraints if isinstance(one, UniqueConstraint)]
COLUMNS = {field.name: str(field.column) for field in UsageRecord._meta.concrete_fields}
BOUND = re.compile(r"'([^']+)'")


class Partition(NamedTuple):
    """A partition by its name, and the months from `start` (None: whatever is earlier) to before `end`."""

    name: str
    start: dt.datetime | None
    end: dt.datetime


def first_of(moment: dt.datetime) -> dt.datetime:
    """The beginning of a moment's month, in UTC."""
    return moment.astimezone(dt.UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def next_of(start: dt.datetime) -> dt.datetime:
    """The beginning of the month after the one that begins then."""
    return first_of(start + dt.timedelta(days=31))


class Impossible(Exception):
    """The database, or its table as it is, cannot be converted; says why."""


def is_partitioned(connection: BaseDatabaseWrapper) -> bool:
    """Whether the table is one of partitions."""
    if connection.vendor != "postgresql":
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass(%s)", [RECORD])
        return (True,) in cursor.fetchall()


def convert(connection: BaseDatabaseWrapper, now: dt.datetime) -> None:
    """Make the plain table a partitioned one. No row moves: the time it takes is that of one more index and a scan.

    Nobody else reads or writes records meanwhile.
    """
    if connection.vendor != "postgresql":
        raise Impossible("partitions are PostgreSQL's: SQLite keeps its plain table")
    if is_partitioned(connection):
        raise Impossible("the records are in partitions already")
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        _require_our_triggers(cursor)
        immutability.remove(connection)
        indexes, keys = _indexes(cursor), _foreign_keys(cursor, "conrelid")
        for name, table, _ in _foreign_keys(cursor, "confrelid"):
            cursor.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
        end = _end_of_before(cursor, now)
        _make_before(cursor, [name for name, _ in indexes])
        cursor.execute(f"CREATE TABLE {RECORD} (LIKE {BEFORE} {COPIED}) PARTITION BY RANGE (started_at)")
        cursor.execute(f"ALTER TABLE {RECORD} ADD CONSTRAINT {RECORD}_pkey PRIMARY KEY (id, started_at)")
        for name, _, definition in keys:
            cursor.execute(f'ALTER TABLE {RECORD} ADD CONSTRAINT "{name}" {definition}')
        cursor.execute(f"ALTER TABLE {RECORD} ATTACH PARTITION {BEFORE} FOR VALUES FROM (MINVALUE) TO ('{end}')")
        for name, rest in indexes:
            cursor.execute(f'CREATE INDEX "{name}" ON {RECORD} USING {rest}')  # those of `_before` become its parts
        _make(cursor, DEFAULT, "DEFAULT")
        make_ahead(connection, now)
        immutability.install(connection)


def revert(connection: BaseDatabaseWrapper) -> None:
    """Make it a plain table again: all rows are copied."""
    if not is_partitioned(connection):
        raise Impossible("the records are in a plain table already")
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        _require_our_triggers(cursor)
        immutability.remove(connection)
        indexes, keys = _indexes(cursor), _foreign_keys(cursor, "conrelid")
        cursor.execute(f"CREATE TABLE {RECORD}_plain (LIKE {RECORD} {COPIED})")
        cursor.execute(f"INSERT INTO {RECORD}_plain SELECT * FROM {RECORD}")  # noqa: S608 - names of our own
        cursor.execute(f"DROP TABLE {RECORD}")
        cursor.execute(f"ALTER TABLE {RECORD}_plain RENAME TO {RECORD}")
        cursor.execute(f"ALTER TABLE {RECORD} ADD CONSTRAINT {RECORD}_pkey PRIMARY KEY (id)")
        for name, rest in indexes:
            cursor.execute(f'CREATE INDEX "{name}" ON {RECORD} USING {rest}')
        for name, _, definition in keys:
            cursor.execute(f'ALTER TABLE {RECORD} ADD CONSTRAINT "{name}" {definition}')
        _constrain(connection, cursor)
        immutability.install(connection)


def make_ahead(connection: BaseDatabaseWrapper, now: dt.datetime) -> list[str]:
    """Make the partitions of this month and the next ones that are missing; returns their names."""
    if not is_partitioned(connection):
        return []
    made, start = [], first_of(now)
    for _ in range(AHEAD + 1):
        with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_S}s'")
            cursor.execute(f"LOCK TABLE {RECORD} IN SHARE UPDATE EXCLUSIVE MODE")  # two beats: one after the other
            if all(start >= one.end or next_of(start) <= (one.start or start) for one in _partitions(cursor)):
                made.append(_make_month(cursor, start))
        start = next_of(start)
    return made


def partitions(connection: BaseDatabaseWrapper) -> list[Partition]:
    """Those that there are, oldest first, without the default one."""
    with connection.cursor() as cursor:
        return _partitions(cursor)


def take_out(cursor: CursorWrapper, name: str, keep: str) -> None:
    """Drop a partition; those of its rows (`r`) that fit the condition `keep` move to the default one.

    The caller holds the table for himself. Neither has a trigger while it is detached.
    """
    cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    cursor.execute(f'ALTER TABLE {RECORD} DETACH PARTITION "{name}"')
    cursor.execute(f'SELECT EXISTS (SELECT 1 FROM "{name}" r WHERE {keep})')  # noqa: S608 - conditions of our own
    if cursor.fetchone()[0]:
        cursor.execute(f"ALTER TABLE {RECORD} DETACH PARTITION {DEFAULT}")
        cursor.execute(f'INSERT INTO {DEFAULT} SELECT r.* FROM "{name}" r WHERE {keep}')  # noqa: S608 - the same
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(f"ALTER TABLE {RECORD} ATTACH PARTITION {DEFAULT} DEFAULT")
    cursor.execute(f'DROP TABLE "{name}"')


def _require_our_triggers(cursor: CursorWrapper) -> None:
    """Those that `immutability` does not put back would be lost."""
    cursor.execute("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgrelid = %s::regclass", [RECORD])
    ours = {trigger.name for trigger in (*immutability.TRIGGERS, *spending.TRIGGERS)}
    if others := sorted({name for (name,) in cursor.fetchall()} - ours):
        raise Impossible(
            f"the table has other triggers ({', '.join(others)}); end `ship_records` before, begin it after"
        )


def _make_month(cursor: CursorWrapper, start: dt.datetime) -> str:
    """Make a month's partition. What beat came too late for, and lies in the default one, moves."""
    name, end = f"{RECORD}_{start:%Y_%m}", next_of(start)
    cursor.execute(
        f"SELECT EXISTS (SELECT 1 FROM {DEFAULT} WHERE started_at >= %s AND started_at < %s)",  # noqa: S608 - the same
        [start, end],
    )
    if cursor.fetchone()[0]:
        log.error("usage records of %s had no partition: they move from the default one", f"{start:%Y-%m}")
        _move_strays(cursor, name, start, end)
    _make(cursor, name, f"FOR VALUES FROM ('{start.isoformat()}') TO ('{end.isoformat()}')")
    return name


def _move_strays(cursor: CursorWrapper, name: str, start: dt.datetime, end: dt.datetime) -> None:
    """Into a table that is no partition yet. The default one is detached meanwhile, and so has no trigger."""
    cursor.execute(f"ALTER TABLE {RECORD} DETACH PARTITION {DEFAULT}")
    cursor.execute(f"CREATE TABLE {name} (LIKE {RECORD} {COPIED})")
    cursor.execute(
        f"WITH moved AS (DELETE FROM {DEFAULT} WHERE started_at >= %s AND started_at < %s RETURNING *)"  # noqa: S608
        f" INSERT INTO {name} SELECT * FROM moved",
        [start, end],
    )
    cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    cursor.execute(f"ALTER TABLE {RECORD} ATTACH PARTITION {DEFAULT} DEFAULT")


def _make(cursor: CursorWrapper, name: str, bounds: str) -> None:
    """Make a partition, or of a table one. Attaching lets others read and write, where `PARTITION OF` would not."""
    cursor.execute(f"CREATE TABLE IF NOT EXISTS {name} (LIKE {RECORD} {COPIED})")
    cursor.execute(
        f"CREATE UNIQUE INDEX {name}_names ON {name} ({', '.join(COLUMNS[field] for field in NAMES.fields)})"
    )
    cursor.execute(f"ALTER TABLE {RECORD} ATTACH PARTITION {name} {bounds}")


def _make_before(cursor: CursorWrapper, indexes: list[str]) -> None:
    """Rename the table and its indexes, and give it the primary key of a partition."""
    cursor.execute(f"ALTER TABLE {RECORD} RENAME TO {BEFORE}")
    for name in indexes:
        cursor.execute(f'ALTER INDEX "{name}" RENAME TO "{name[:56]}_before"')
    cursor.execute(f"ALTER TABLE {BEFORE} DROP CONSTRAINT {RECORD}_pkey")
    cursor.execute(f"ALTER TABLE {BEFORE} ADD CONSTRAINT {BEFORE}_pkey PRIMARY KEY (id, started_at)")


def _constrain(connection: BaseDatabaseWrapper, cursor: CursorWrapper) -> None:
    """What a partitioned table cannot have: names that are unique in all of it, and references to an id alone."""
    with connection.schema_editor() as editor:
        editor.add_constraint(UsageRecord, NAMES)
    for model in (Attempt, Adjustment):
        table, field = model._meta.db_table, model._meta.get_field("record")
        if getattr(field, "db_constraint", False):
            cursor.execute(
                f"ALTER TABLE {table} ADD CONSTRAINT {table}_record_fk FOREIGN KEY (record_id) REFERENCES {RECORD} (id)"
                " DEFERRABLE INITIALLY DEFERRED"
            )


def _end_of_before(cursor: CursorWrapper, now: dt.datetime) -> dt.datetime:
    """Where the partition of all that is there ends: with the last month, or with this one if it has begun there."""
    cursor.execute(f"SELECT max(started_at) FROM {RECORD}")  # noqa: S608 - our own name
    newest = cursor.fetchone()[0]
    return first_of(now) if newest is None or newest < first_of(now) else next_of(first_of(newest))


def _partitions(cursor: CursorWrapper) -> list[Partition]:
    cursor.execute(
        "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = %s::regclass",
        [RECORD],
    )
    found = []
    for name, bounds in cursor.fetchall():
        moments = [dt.datetime.fromisoformat(text) for text in BOUND.findall(bounds)]
        if moments:
            found.append(Partition(name, moments[0] if len(moments) == 2 else None, moments[-1]))
    return sorted(found, key=lambda one: one.end)


def _indexes(cursor: CursorWrapper) -> list[tuple[str, str]]:
    """Those that are not unique: name, and what follows `USING`."""
    cursor.execute(
        "SELECT c.relname, pg_get_indexdef(c.oid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " WHERE i.indrelid = %s::regclass AND NOT i.indisunique ORDER BY 1",
        [RECORD],
    )
    return [(name, definition.partition(" USING ")[2]) for name, definition in cursor.fetchall()]


def _foreign_keys(cursor: CursorWrapper, side: str) -> list[tuple[str, str, str]]:
    """Of the table (`conrelid`) or of others that name it (`confrelid`): name, whose, definition."""
    cursor.execute(
        "SELECT conname, conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint"  # noqa: S608 - ours
        f" WHERE contype = 'f' AND conparentid = 0 AND {side} = %s::regclass",
        [RECORD],
    )
    return list(cursor.fetchall())
