"""The ledger's thread: entries come in by a queue, go to the database in groups, and answer by futures.

What is queued is committed at once, and what comes meanwhile is the next group: no timer, no minimum.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

from billing.ledger import groups
from billing.ledger.entries import OpenRow, Settlement

logger = logging.getLogger(__name__)

MAX_GROUP = 400
"""Entries per transaction: far below half a second on SQLite, where everybody else waits for it."""

ANSWER_S = 2
"""A database that says nothing for this long counts as down."""

APPLICATION_NAME = "hopbase-ledger"
"""By which PostgreSQL's pg_stat_activity tells the writers' connections apart."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0


class LedgerUnavailable(Exception):
    """The database is away, or the ledger stopped: nothing was written."""


@dataclass(slots=True, eq=False)
class Entry:
    """One thing to write, and who waits for it. A bare id is an open row to discard."""

    what: OpenRow | Settlement | uuid.UUID
    done: Future[Any]

    @property
    def id(self) -> uuid.UUID:
        """The billing identity."""
        if isinstance(self.what, Settlement):
            return self.what.open.id
        return self.what.id if isinstance(self.what, OpenRow) else self.what


class Ledger:
    """Writes open rows and usage records from a thread of its own, over a connection of its own.

    `atomic(using)` is the transaction and `clock` counts seconds: seams for tests.
    """

    def __init__(
        self,
        *,
        using: str = "default",
        atomic: Callable[[str], AbstractContextManager[Any]] = transaction.atomic,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._using, self._atomic, self._clock = using, atomic, clock
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._changed = threading.Condition()
        self._queue: deque[Entry] = deque()
        self._kept: deque[Entry] = deque()
        self._names: dict[uuid.UUID, str] = {}
        self._pause_s = 0.0
        self._retry_at = 0.0
        self._stop_by: float | None = None
        self._abandoned = 0

    @property
    def depth(self) -> int:
        """How many entries wait, those that a database away holds up included."""
        return len(self._queue) + len(self._kept)

    @property
    def available(self) -> bool:
        """Whether the database took the last group."""
        return not self._pause_s

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Write what is queued, then end; returns whether everything was written within the time."""
        with self._changed:
            self._stop_by = self._clock() + timeout_s
            self._changed.notify()
        self._thread.join(timeout_s + 2 * ANSWER_S)
        return not (self._thread.is_alive() or self._abandoned)

    def open(self, row: OpenRow) -> Future[str]:
        """Write an open row; resolves, once committed, to the request's name. Cancelled in time, it is not written."""
        return self._put(row)

    def settle(self, settlement: Settlement) -> Future[None]:
        """Write the record and remove the open row. Cannot be cancelled."""
        return self._put(settlement)

    def discard(self, id: uuid.UUID) -> Future[None]:
        """Remove the open row of a request that we refused after all: no record. Cannot be cancelled."""
        return self._put(id)

    def _put(self, what: OpenRow | Settlement | uuid.UUID) -> Future[Any]:
        done: Future[Any] = Future()
        if not isinstance(what, OpenRow):
            # A waiter that is cancelled cancels its future, and must not take the bill with it.
            done.set_running_or_notify_cancel()
        with self._changed:
            if self._stop_by is None:
                self._queue.append(Entry(what, done))
                self._changed.notify()
                return done
        done.set_exception(LedgerUnavailable("the ledger has stopped"))
        return done

    # --- The thread ---

    def _run(self) -> None:
        connections[self._using] = own_connection(self._using)
        try:
            while (entries := self._next_entries()) is not None:
                if entries:
                    self._write(entries)
            self._abandon()
        finally:
            connections[self._using].close()
            del connections[self._using]

    def _next_entries(self) -> list[Entry] | None:
        """Wait for work and take it: what is queued first, since clients wait for it; None when it is time to end."""
        with self._changed:
            while not self._queue and not self._retry_is_due():
                if self._stop_by is not None and (not self._kept or self._clock() >= self._stop_by):
                    return None
                self._changed.wait(self._wait_s())
            if self._stop_by is not None and self._clock() >= self._stop_by and not self.available:
                return None
            entries = _take(self._queue, MAX_GROUP)
        if self._retry_is_due():
            entries += _take(self._kept, max(MAX_GROUP - len(entries), MAX_GROUP // 4))
        return [entry for entry in entries if entry.done.running() or entry.done.set_running_or_notify_cancel()]

    def _retry_is_due(self) -> bool:
        return bool(self._kept) and self._clock() >= self._retry_at

    def _wait_s(self) -> float | None:
        """How long to wait for a new entry; None: as long as it takes."""
        if not self._kept:
            return None
        until = self._retry_at if self._stop_by is None else min(self._retry_at, self._stop_by)
        return max(until - self._clock(), 0)

    def _write(self, entries: Sequence[Entry], *, bare: bool = False) -> None:
        """Commit a group. One that fails on its data is halved until the bad entry stands alone."""
        try:
            given = self._commit(entries, bare=bare)
        except Exception as error:  # noqa: BLE001 - every kind ends in an entry's future or in another try
            connections[self._using].close()
            if is_away(error):
                self._keep_for_later(entries, error)
            elif len(entries) > 1:
                self._write(entries[: len(entries) // 2])
                self._write(entries[len(entries) // 2 :])
            elif isinstance(entries[0].what, Settlement) and not bare:
                self._write(entries, bare=True)
            else:
                self._give_up(entries[0], error)
        else:
            self._resolve(entries, given)

    def _commit(self, entries: Sequence[Entry], *, bare: bool) -> dict[uuid.UUID, str]:
        """One transaction; a second one where an old connection turns out to be dead (the server was started anew)."""
        old, began = connections[self._using].connection is not None, self._clock()
        try:
            return self._transact(entries, bare=bare)
        except DatabaseError as error:
            if not (old and is_away(error) and self._clock() - began < ANSWER_S):
                raise
            connections[self._using].close()
            return self._transact(entries, bare=bare)

    def _transact(self, entries: Sequence[Entry], *, bare: bool) -> dict[uuid.UUID, str]:
        with self._atomic(self._using):
            limit_waiting(connections[self._using])
            return groups.write(grouped(entries, bare=bare), self._names, self._using)

    def _resolve(self, entries: Sequence[Entry], given: dict[uuid.UUID, str]) -> None:
        self._pause_s = 0.0
        self._retry_at = self._clock()
        self._names.update(given)
        for entry in entries:
            if isinstance(entry.what, OpenRow):
                entry.done.set_result(given[entry.id])
            else:
                self._names.pop(entry.id, None)
                entry.done.set_result(None)

    def _keep_for_later(self, entries: Sequence[Entry], error: Exception) -> None:
        """The database is away: admissions fail at once, bills are kept and tried again after a growing pause."""
        if self.available:
            logger.error("the ledger's database is away: %s", type(error).__name__)
        for entry in entries:
            if isinstance(entry.what, OpenRow):
                entry.done.set_exception(LedgerUnavailable("the ledger's database is away"))
            else:
                self._kept.append(entry)
        if self._clock() >= self._retry_at:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) or FIRST_PAUSE_S
            self._retry_at = self._clock() + self._pause_s

    def _give_up(self, entry: Entry, error: Exception) -> None:
        """The database will not have this entry. Its data stay out of the log; an open row stays for the sweep."""
        logger.error("the ledger cannot keep %s of %s: %s", type(entry.what).__name__, entry.id, type(error).__name__)
        self._names.pop(entry.id, None)
        entry.done.set_exception(error)

    def _abandon(self) -> None:
        """Time is out: whoever still waits is told so."""
        with self._changed:
            left = [*_take(self._queue, len(self._queue)), *_take(self._kept, len(self._kept))]
        self._abandoned = len(left)
        if left:
            logger.error("the ledger stopped with %d entries unwritten", len(left))
        for entry in left:
            if entry.done.running() or entry.done.set_running_or_notify_cancel():
                entry.done.set_exception(LedgerUnavailable("the ledger stopped before its database came back"))


def grouped(entries: Sequence[Entry], *, bare: bool) -> groups.Group:
    """Entries by what they are. An admission always comes before its own end."""
    group = groups.Group(bare=bare)
    for entry in entries:
        if isinstance(entry.what, OpenRow):
            group.openings.append(entry.what)
        elif isinstance(entry.what, Settlement):
            group.settlements.append(entry.what)
        else:
            group.discards.append(entry.what)
    return group


def is_away(error: Exception) -> bool:
    """Whether the database is at fault and the same group may pass later, rather than the data of the group."""
    sqlstate = getattr(error.__cause__, "sqlstate", None) or ""
    if sqlstate.startswith("42"):  # a table or column is missing: a migration is under way
        return True
    # 54 is a limit of the program's that a value exceeds: no later try would pass.
    return isinstance(error, OperationalError | InterfaceError) and not sqlstate.startswith("54")


def limit_waiting(connection: BaseDatabaseWrapper) -> None:
    """Let no statement of this transaction wait for longer than ANSWER_S (SQLite: `timeout` of the connection).

    Set per transaction, so that it also holds behind a pooler that hands out sessions by transaction.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true)",
                [f"{ANSWER_S}s", f"{ANSWER_S}s"],
            )


def own_connection(using: str) -> BaseDatabaseWrapper:
    """A connection outside Django's pool: busy views must not hold up the bill."""
    settings = connections.settings[using]
    options = {name: value for name, value in settings["OPTIONS"].items() if name != "pool"}
    if settings["ENGINE"].endswith("sqlite3"):
        options["timeout"] = ANSWER_S
    else:
        options |= {"connect_timeout": ANSWER_S, "application_name": APPLICATION_NAME}
        # The server's own timeouts do not reach us from a host that vanished.
        options |= {"tcp_user_timeout": ANSWER_S * 1000, "keepalives_idle": ANSWER_S, "keepalives_interval": 1}
        options |= {"keepalives_count": 2}
    wrapper: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(
        {**settings, "OPTIONS": options}, using
    )
    return wrapper


def _take(queue: deque[Entry], most: int) -> list[Entry]:
    return [queue.popleft() for _ in range(min(len(queue), most))]
