"""Named locks of the database that end with the transaction."""

from __future__ import annotations

from django.db import connection


def hold(*name: object) -> None:
    """Wait for the lock of this name and keep it until the running transaction ends.

    SQLite: its transactions begin IMMEDIATE (settings), so that one writer at a time is inside one; that is the lock.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("a lock outside a transaction would end at once")
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [":".join(map(str, name))])
