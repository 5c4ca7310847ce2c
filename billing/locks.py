"""Named locks of the database that end with the transaction."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection


def hold(*name: object) -> None:
    """Wait for the lock of this name and keep it until the running transaction ends.

    SQLite: its transactions begin IMMEDIATE (settings), so that one writer at a time is inside one; that is the lock.
    """
    _hold([":".join(map(str, name))])


def hold_all(kind: str, ids: Iterable[int]) -> None:
    """The same for the locks of many ids, in their order, so that two that need several cannot deadlock."""
    _hold([f"{kind}:{id}" for id in sorted(ids)])


def _hold(names: list[str]) -> None:
    if not connection.in_atomic_block:
        raise RuntimeError("a lock outside a transaction would end at once")
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(name, 0)) FROM unnest(%s::text[]) AS name", [names]
            )
