"""Gateway processes: the lock that says that one lives, and who is dead.

A process holds a lock on a file of its own in HOPBASE_VAR_DIR for as long as it lives; the kernel lets go of it however
it ends. Whoever can take that lock knows that the process is dead. Where the file cannot be seen (another host), a
process is dead only when we ourselves have watched its heartbeat, a number that it raises, stand still while the
database answered. Clock ages, pids and host names decide nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from django.db import DatabaseError, transaction

from billing.models import GatewayProcess, OpenStream

log = logging.getLogger(__name__)

WATCH_S = 20.0
"""How long a heartbeat must stand still."""
LOOK_S = 1.0
ANSWER_S = 2.0
"""A look that took longer, or came so much too late, says nothing: the database, or we, did not run meanwhile."""


class Folder:
    """Where processes of this host keep their locks and journals."""

    def __init__(self, var_dir: Path) -> None:
        self._locks, self._journals = var_dir / "processes", var_dir / "journal"

    def lock_path(self, process: uuid.UUID) -> Path:
        return self._locks / f"{process}.lock"

    def journal_path(self, process: uuid.UUID) -> Path:
        return self._journals / f"{process}.jsonl"

    def processes(self) -> set[uuid.UUID]:
        """Those that have a lock file or a journal here, dead or alive."""
        paths = [*self._locks.glob("*.lock"), *self._journals.glob("*.jsonl")]
        return {id for path in paths if (id := _id_of(path.stem)) is not None}

    def sees(self, process: uuid.UUID) -> bool:
        """Whether the process's lock file is here."""
        return self.lock_path(process).exists()

    def is_held(self, process: uuid.UUID) -> bool:
        """Whether somebody holds the process's lock: itself, or whoever sweeps after it. Looks, and lets go at once.

        A sweeper that comes in just this moment takes the process for living, and looks again in seconds.
        """
        try:
            file = os.open(self.lock_path(process), os.O_RDONLY)
        except FileNotFoundError:
            return False
        except PermissionError:  # another user's: it is for that user's sweep to tell
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def hold(self, process: uuid.UUID) -> ProcessLock | None:
        """Make and hold a process's own lock; None, and an error in the log, where the folder cannot be written.

        Others then go by the process's heartbeat, as if it were on another host.
        """
        try:
            self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
            while (lock := _locked(self.lock_path(process), os.O_RDWR | os.O_CREAT)) is None:
                time.sleep(0.01)  # a sweeper was quicker, and is about to remove the file
        except OSError as error:
            log.error("the lock of this process cannot be held in %s: %s", self._locks, error.strerror)
            return None
        return lock

    @contextlib.contextmanager
    def adopted(self, process: uuid.UUID) -> Iterator[ProcessLock | None]:
        """Hold a dead process's lock; None where somebody else holds it: the process itself, or another sweeper."""
        try:
            lock = _locked(self.lock_path(process), os.O_RDWR)
        except FileNotFoundError:
            lock = None
        try:
            yield lock
        finally:
            if lock is not None:
                lock.close()


@dataclass(slots=True)
class ProcessLock:
    """A lock that is held until `close`, or until the process that holds it is gone."""

    path: Path
    file: int

    def close(self) -> None:
        """Let go; the file stays."""
        os.close(self.file)

    def remove(self) -> None:
        """Remove the file: nothing of the process is left to be swept."""
        self.path.unlink(missing_ok=True)


def _locked(path: Path, flags: int) -> ProcessLock | None:
    """Open and lock without waiting; None where another holds it, or removed the file meanwhile."""
    file = os.open(path, flags, 0o600)  # not inherited by programs that are started
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_ino == os.stat(path).st_ino:
            return ProcessLock(path, file)
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(file)
    return None


def _id_of(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def known_processes() -> set[uuid.UUID]:
    """Those that the database knows of, by their own rows or by their open streams."""
    return {
        *GatewayProcess.objects.values_list("id", flat=True),
        *OpenStream.objects.order_by().values_list("process", flat=True).distinct(),
    }


Heartbeats = dict[uuid.UUID, int]


def read_heartbeats(processes: Collection[uuid.UUID]) -> Heartbeats:
    """The heartbeats of those of the processes that have a row.

    Read as one who is about to write would: what would hold up a process's own heartbeat holds up this too.
    """
    with transaction.atomic():
        rows = GatewayProcess.objects.select_for_update().filter(id__in=processes).order_by("id")
        return dict(rows.values_list("id", "heartbeat"))


def silent(
    processes: Collection[uuid.UUID],
    *,
    watch_s: float = WATCH_S,
    look_s: float = LOOK_S,
    read: Callable[[Collection[uuid.UUID]], Heartbeats] = read_heartbeats,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> set[uuid.UUID]:
    """Those of the processes whose heartbeat stood still for `watch_s` while we watched; takes so long, or less.

    A look that the database did not answer in time begins the watch anew, at most for three times `watch_s` in all.
    """
    watched = set(processes)
    began = since = before = clock()
    first: Heartbeats | None = None
    while watched and clock() - began <= 3 * watch_s:
        asked = clock()
        late = asked - before > look_s + ANSWER_S
        now = _answered(watched, read)
        before = clock()
        if now is None or late or before - asked > ANSWER_S or first is None:
            first, since = now, before
        else:
            watched = {id for id in watched if first.get(id) == now.get(id)}
            if before - since >= watch_s:
                return watched
        if watched:
            sleep(look_s)
    return set()


def _answered(watched: Collection[uuid.UUID], read: Callable[[Collection[uuid.UUID]], Heartbeats]) -> Heartbeats | None:
    try:
        return read(watched)
    except DatabaseError:
        return None


class Standing(Enum):
    """What an onlooker knows of a process."""

    ANSWERS = "answers"
    SILENT = "silent"
    """It lives, for it holds its lock, but its heartbeat stands still: it is stopped, or its database is away."""
    GONE = "gone"
    """Dead, or so it seems from here: a sweep settles what it left."""


class Onlooker:
    """Tells people which processes answer, from the heartbeats that they happen to look at.

    Nothing is decided by it: a sweep watches for itself. Numbers that are equal at two looks `still_s` apart were so
    between them, however seldom somebody looks. One per process of the admin; safe in threads.
    """

    MOST = 1000

    def __init__(
        self, folder: Folder, *, still_s: float = WATCH_S / 2, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._still_s, self._clock = folder, still_s, clock
        self._seen: dict[uuid.UUID, tuple[int | None, float]] = {}

    def standing(self, process: uuid.UUID, heartbeat: int | None) -> Standing:
        """`heartbeat` is the one just read; None where the process has no row: it begins, or is settled already."""
        here = self._folder.sees(process)
        if here and not self._folder.is_held(process):
            return Standing.GONE
        seen = self._seen.get(process)
        if seen is None or seen[0] != heartbeat:
            self._forget_some()
            self._seen[process] = heartbeat, self._clock()
            return Standing.ANSWERS
        if self._clock() - seen[1] < self._still_s:
            return Standing.ANSWERS
        return Standing.SILENT if here else Standing.GONE

    def _forget_some(self) -> None:
        """Processes come and go for as long as the admin runs."""
        if len(self._seen) >= self.MOST:
            self._seen.clear()
