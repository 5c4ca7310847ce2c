"""Named locks of the database that end with the transaction."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection


def hold(*name: object) -> None:
    """Wait for the lock of this name and keep it until the running transaction ends."""
    hold_each([name])


def hold_each(names: Iterable[tuple[object, ...]]) -> None:
    """The same of several, always in one order, so that two who want the same ones do not wait for each other.

    SQLite: its transactions begin IMMEDIATE (settings), so that one writer at a time is inside one; that is the lock.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("a lock outside a transaction would end at once")
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(name, 0)) FROM unnest(%s::text[]) AS name",
                [sorted(":".join(map(str, name)) for name in names)],
            )
