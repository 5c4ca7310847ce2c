"""The ledger's thread: entries come in by a queue, go to the database in groups, and answer by futures.

What a client waits for is committed at once, with all that is queued; what comes meanwhile is the next group. Bills,
for which nobody waits, stay for a moment and go with the next admission: a transaction of theirs costs as much again.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend
from django.utils.timezone import now

from billing.ledger import events, groups
from billing.ledger.entries import BroughtObjects, Checkpoint, Leaving, OpenRow, Settlement, Told
from billing.ledger.journal import Journal, Kept
from billing.ledger.silence import SilenceWatch
from billing.ledger.terms import Terms
from billing.request_ids import request_id

logger = logging.getLogger(__name__)

MAX_GROUP = 400
"""Entries per transaction: far below half a second on SQLite, where everybody else waits for it."""

ANSWER_S = 2
"""A database that says nothing for this long counts as down."""

SILENCE_S = ANSWER_S + 0.5
"""After so long a transaction is broken off: a little later than the server's own timeouts, which say more."""

APPLICATION_NAME = "hopbase-ledger"
"""By which PostgreSQL's pg_stat_activity tells the writers' connections apart."""

COMPANY_S = 0.02
"""How long bills wait for company."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0


class LedgerUnavailable(Exception):
    """The database is away, or the ledger stopped: nothing was written."""


What = OpenRow | Checkpoint | BroughtObjects | Settlement | Leaving | uuid.UUID


@dataclass(slots=True, eq=False)
class Entry:
    """One thing to write, and who waits for it. A bare id is an open row to discard."""

    what: What
    done: Future[Any]
    journalled: bool = False
    kept: bool = False
    """Whether a database away has held it up."""
    in_memory_alone: bool = False
    """Whether the disk did not take it either, at least once."""

    @property
    def id(self) -> uuid.UUID:
        """The billing identity; of a checkpoint, the process's id."""
        match self.what:
            case Settlement():
                return self.what.open.id
            case Checkpoint():
                return self.what.process.id
            case Leaving():
                return self.what.process
            case uuid.UUID():
                return self.what
        return self.what.id

    @property
    def ends_request(self) -> bool:
        """Whether nothing of the request follows."""
        return isinstance(self.what, Settlement | uuid.UUID)


class Ledger:
    """Writes open rows and usage records from a thread of its own, over a connection of its own.

    `journal` takes what a database away holds up; `names` are those of requests that another ledger opened; `process`
    is whose bills these are, for notes. `faults` counts bills by what went wrong with them.
    `atomic(using)` is the transaction and `clock` counts seconds: seams for tests.
    """

    def __init__(
        self,
        *,
        using: str = "default",
        journal: Journal | None = None,
        names: Mapping[uuid.UUID, str] | None = None,
        process: uuid.UUID = events.NOBODY,
        atomic: Callable[[str], AbstractContextManager[Any]] = transaction.atomic,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._using, self._atomic, self._clock, self._journal = using, atomic, clock, journal
        self._process = process
        self.faults: Counter[events.Kind] = Counter()
        self._to_note: dict[events.Kind, tuple[int, str]] = {}
        self._silence = SilenceWatch(SILENCE_S)
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._changed = threading.Condition()
        self._queue: deque[Entry] = deque()
        self._is_urgent = False
        """Whether a client waits for something that is queued."""
        self._kept: deque[Entry] = deque()
        self._names: dict[uuid.UUID, str] = dict(names or {})
        self._locked: dict[int, Terms] = {}
        """What accounts have for good, since they have a record."""
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

    @property
    def journal_bytes(self) -> int:
        """How much the journal holds."""
        return self._journal.size if self._journal is not None else 0

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

    def remember(self, brought: BroughtObjects) -> Future[None]:
        """Keep whose objects these are, sooner or later: nobody needs to wait. Cannot be cancelled."""
        return self._put(brought)

    def checkpoint(self, checkpoint: Checkpoint) -> Future[Told]:
        """Raise the process's heartbeat and write how far its requests have come. While the database is away it
        resolves with nothing told, and the newest state of each request is written later. Cannot be cancelled."""
        return self._put(checkpoint)

    def leave(self, process: uuid.UUID) -> Future[None]:
        """Remove the row of a process that ends with nothing left to settle. Cannot be cancelled."""
        return self._put(Leaving(process))

    def _put(self, what: What) -> Future[Any]:
        done: Future[Any] = Future()
        if not isinstance(what, OpenRow):
            # A waiter that is cancelled cancels its future, and must not take the bill with it.
            done.set_running_or_notify_cancel()
        with self._changed:
            if self._stop_by is None:
                self._queue.append(Entry(what, done))
                if urgent := isinstance(what, OpenRow | Leaving):
                    self._is_urgent = True
                if urgent or len(self._queue) == 1:
                    self._changed.notify()
                return done
        done.set_exception(LedgerUnavailable("the ledger has stopped"))
        return done

    # --- The thread ---

    def _run(self) -> None:
        connections[self._using] = own_connection(self._using)
        self._silence.start()
        try:
            while (entries := self._next_entries()) is not None:
                if entries:
                    self._write(entries)
                if self._to_note and self.available:
                    self._note()
                if self._journal is not None and self.available and not self._kept:
                    self._journal.clear()
            self._abandon()
        finally:
            self._silence.stop()
            if self._journal is not None:
                self._journal.close()
            connections[self._using].close()
            del connections[self._using]

    def _next_entries(self) -> list[Entry] | None:
        """Wait for work and take it: what is queued first, since clients wait for it; None when it is time to end."""
        with self._changed:
            while not self._queue and not self._retry_is_due():
                if self._stop_by is not None and (not self._kept or self._clock() >= self._stop_by):
                    return None
                self._changed.wait(self._wait_s())
            if not self._is_urgent and self._queue and self._stop_by is None:
                self._changed.wait(COMPANY_S)
            if self._stop_by is not None and self._clock() >= self._stop_by and not self.available:
                return None
            entries = _take(self._queue, MAX_GROUP)
            self._is_urgent = bool(self._queue)
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
        if not self.available:
            self._keep_in_journal(entries)
        try:
            given, told = self._commit(entries, bare=bare)
        except Exception as error:  # noqa: BLE001 - every kind ends in an entry's future or in another try
            connections[self._using].close()
            if is_away(error):
                self._keep_for_later(entries, error)
            elif len(entries) > 1:
                self._write(entries[: len(entries) // 2])
                self._write(entries[len(entries) // 2 :])
            elif isinstance(entries[0].what, Settlement) and not bare:
                self._write(entries, bare=True)
            elif isinstance(entries[0].what, Checkpoint) and (parts := _parts(entries[0].what)):
                self._write_parts(entries[0], parts)
            else:
                self._give_up(entries[0], error)
        else:
            self._resolve(entries, given, told)

    def _write_parts(self, entry: Entry, parts: Sequence[Checkpoint]) -> None:
        """A checkpoint that the database will not have is written in parts: one bad row must not hold up the others."""
        for part in parts:
            self._write([Entry(part, _running(), entry.journalled)])
        entry.done.set_result(Told())

    def _commit(self, entries: Sequence[Entry], *, bare: bool) -> tuple[groups.NamesById, Told]:
        """One transaction; a second one where an old connection turns out to be dead (the server was started anew)."""
        old, began = connections[self._using].connection is not None, self._clock()
        try:
            return self._transact(entries, bare=bare)
        except DatabaseError as error:
            if not (old and is_away(error) and self._clock() - began < ANSWER_S):
                raise
            connections[self._using].close()
            return self._transact(entries, bare=bare)

    def _transact(self, entries: Sequence[Entry], *, bare: bool) -> tuple[groups.NamesById, Told]:
        group = grouped(entries, bare=bare)
        group.locked = self._locked
        with self._silence.over(connections[self._using]), self._atomic(self._using):
            limit_waiting(connections[self._using])
            given = groups.write(group, self._names, self._using)
        self._locked.update(group.settled)
        return given, group.told

    def _resolve(self, entries: Sequence[Entry], given: groups.NamesById, told: Told) -> None:
        self._pause_s = 0.0
        self._retry_at = self._clock()
        self._names.update(given)
        self._note_late(entries)
        for entry in entries:
            if isinstance(entry.what, OpenRow):
                entry.done.set_result(given[entry.id])
            elif isinstance(entry.what, Checkpoint):
                entry.done.set_result(told)
            else:
                self._forget_name(entry)
                entry.done.set_result(None)

    def _note_late(self, entries: Sequence[Entry]) -> None:
        late = [entry for entry in entries if entry.kept and isinstance(entry.what, Settlement)]
        if late:
            self._count_fault(events.Kind.LATE, len(late), f"request {late[-1].id}")

    def _note_in_memory(self, bills: Sequence[Entry]) -> None:
        fresh = [entry for entry in bills if not entry.in_memory_alone]
        for entry in fresh:
            entry.in_memory_alone = True
        if fresh:
            self._count_fault(events.Kind.UNJOURNALLED, len(fresh), f"request {fresh[-1].id}")

    def _count_fault(self, kind: events.Kind, count: int, detail: str) -> None:
        self.faults[kind] += count
        self._to_note[kind] = self._to_note.get(kind, (0, ""))[0] + count, detail

    def _note(self) -> None:
        """Tell the operator what went wrong with bills. Notes that the database does not take are tried again."""
        try:
            with self._silence.over(connections[self._using]), self._atomic(self._using):
                limit_waiting(connections[self._using])
                for kind, (count, detail) in self._to_note.items():
                    events.note(kind, self._process, count, now(), detail=detail, using=self._using)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next bills must be written
            connections[self._using].close()
            logger.warning("what went wrong with bills could not be noted: %s", type(error).__name__)
        else:
            self._to_note.clear()

    def _forget_name(self, entry: Entry) -> None:
        if entry.ends_request:
            self._names.pop(entry.id, None)

    def _keep_for_later(self, entries: Sequence[Entry], error: Exception) -> None:
        """The database is away: admissions fail at once; bills go to the journal, are kept, and are tried again after a
        growing pause."""
        if self.available:
            logger.error("the ledger's database is away: %s", type(error).__name__)
        self._keep_in_journal(entries)
        for entry in entries:
            entry.kept = True
            if isinstance(entry.what, OpenRow):
                entry.done.set_exception(LedgerUnavailable("the ledger's database is away"))
            elif isinstance(entry.what, Leaving):
                entry.done.set_result(None)  # whoever sweeps next removes the row
            elif not self._merged(entry):
                self._kept.append(entry)
        if self._clock() >= self._retry_at:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) or FIRST_PAUSE_S
            self._retry_at = self._clock() + self._pause_s

    def _keep_in_journal(self, entries: Sequence[Entry]) -> None:
        """Sync what a bill needs to the local disk, once; what the disk does not take is tried again."""
        fresh = [entry for entry in entries if not entry.journalled]
        kept = [one for entry in fresh for one in _journal_entries(entry.what, self._names)]
        if self._journal is None or not kept:
            return
        if self._journal.append(kept, self._names):
            for entry in fresh:
                entry.journalled = True
        else:
            self._note_in_memory([entry for entry in fresh if isinstance(entry.what, Settlement)])

    def _merged(self, entry: Entry) -> bool:
        """Whether an entry is a checkpoint that went into one which is kept already: only the newest rows matter."""
        kept = next((one for one in self._kept if isinstance(one.what, Checkpoint)), None)
        if kept is None or not isinstance(entry.what, Checkpoint):
            return False
        assert isinstance(kept.what, Checkpoint)
        older, newer = sorted((kept.what, entry.what), key=lambda checkpoint: checkpoint.heartbeat)
        rows = {row.open.id: row for row in (*older.rows, *newer.rows) if row.open.id in self._names}
        kept.what = dataclasses.replace(newer, rows=tuple(rows.values()))
        kept.journalled = kept.journalled and entry.journalled
        entry.done.set_result(Told())
        return True

    def _give_up(self, entry: Entry, error: Exception) -> None:
        """The database will not have this entry. Its data stay out of the log; an open row stays for the sweep."""
        what, known = type(entry.what).__name__, None
        if isinstance(entry.what, OpenRow | Settlement):
            known = {"request_id": request_id(entry.id)}
        logger.error("the ledger cannot keep %s of %s: %s", what, entry.id, type(error).__name__, extra=known)
        if isinstance(entry.what, Settlement):
            self._count_fault(events.Kind.DROPPED, 1, f"request {entry.id}: {type(error).__name__}")
        self._forget_name(entry)
        entry.done.set_exception(error)

    def _abandon(self) -> None:
        """Time is out: whoever still waits is told so."""
        with self._changed:
            left = [*_take(self._queue, len(self._queue)), *_take(self._kept, len(self._kept))]
        self._keep_in_journal(left)
        self._abandoned = len(left)
        if left:
            where = "in the journal" if all(entry.journalled for entry in left) else "not all of them in the journal"
            logger.error("the ledger stopped with %d entries unwritten, %s", len(left), where)
        for entry in left:
            if entry.done.running() or entry.done.set_running_or_notify_cancel():
                entry.done.set_exception(LedgerUnavailable("the ledger stopped before its database came back"))


def grouped(entries: Sequence[Entry], *, bare: bool) -> groups.Group:
    """Entries by what they are. An admission always comes before its own end."""
    group = groups.Group(bare=bare)
    for entry in entries:
        if isinstance(entry.what, OpenRow):
            group.openings.append(entry.what)
        elif isinstance(entry.what, Checkpoint):
            group.checkpoints.append(entry.what)
        elif isinstance(entry.what, BroughtObjects):
            group.brought.append(entry.what)
        elif isinstance(entry.what, Settlement):
            group.settlements.append(entry.what)
        elif isinstance(entry.what, Leaving):
            group.leaving.append(entry.what.process)
        else:
            group.discards.append(entry.what)
    return group


def _journal_entries(what: What, names: Mapping[uuid.UUID, str]) -> Iterator[Kept]:
    """What of an entry a bill needs: nothing of an admission, which fails at once."""
    if isinstance(what, Checkpoint):
        yield from (row for row in what.rows if row.open.id in names)
    elif not isinstance(what, OpenRow | Leaving):
        yield what


def _parts(checkpoint: Checkpoint) -> list[Checkpoint]:
    """The same in two halves; of one row, without what the provider reported; none where nothing is left to try."""
    rows, half = checkpoint.rows, len(checkpoint.rows) // 2
    if half:
        return [dataclasses.replace(checkpoint, rows=part) for part in (rows[:half], rows[half:])]
    bare = tuple(dataclasses.replace(row, reported=None) for row in rows if row.reported is not None)
    return [dataclasses.replace(checkpoint, rows=bare)] if bare else []


def _running() -> Future[Any]:
    done: Future[Any] = Future()
    done.set_running_or_notify_cancel()
    return done


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
        # A group is one long parameter: to write it into the statement would cost as much as to send it.
        options |= {"server_side_binding": True}
        # The server's own timeouts do not reach us from a host that vanished.
        options |= {"tcp_user_timeout": ANSWER_S * 1000, "keepalives_idle": ANSWER_S, "keepalives_interval": 1}
        options |= {"keepalives_count": 2}
    wrapper: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(
        {**settings, "OPTIONS": options}, using
    )
    return wrapper


def _take(queue: deque[Entry], most: int) -> list[Entry]:
    return [queue.popleft() for _ in range(min(len(queue), most))]
