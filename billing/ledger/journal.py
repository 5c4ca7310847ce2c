"""The journal of a process: what the ledger could not write while its database was away, on the local disk.

One file per process, one entry per line: a CRC-32 in hexadecimal, a space, JSON. A batch is synced before it counts. A
line that is torn or damaged is ignored; the file is removed once all in it is committed. Its owner replays from memory,
whoever holds a dead owner's lock from the file; both write what can be written twice.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from billing import disk
from billing.ledger.encoding import decoded, encoded
from billing.ledger.entries import BroughtObjects, CheckpointRow, Settlement

logger = logging.getLogger(__name__)

KINDS: Mapping[str, type] = {"settlement": Settlement, "checkpoint": CheckpointRow, "objects": BroughtObjects}
DISCARD = "discard"

Kept = Settlement | CheckpointRow | BroughtObjects | uuid.UUID
"""What a journal holds; a bare id is an open row to discard."""

COMPACT_BYTES = 64 * 1024 * 1024
"""A journal that has grown so much since it was written anew is written anew: older checkpoints are of no use."""


@dataclass(slots=True)
class Contents:
    """What a journal says: the newest checkpoint of each request, and all else. `names`: of the requests, as known."""

    settlements: dict[uuid.UUID, Settlement] = field(default_factory=dict)
    checkpoints: dict[uuid.UUID, CheckpointRow] = field(default_factory=dict)
    objects: list[BroughtObjects] = field(default_factory=list)
    discards: set[uuid.UUID] = field(default_factory=set)
    names: dict[uuid.UUID, str] = field(default_factory=dict)

    @property
    def entries(self) -> Iterator[Kept]:
        """All of it, as it would be journalled."""
        yield from self.settlements.values()
        yield from self.checkpoints.values()
        yield from self.objects
        yield from self.discards

    def add(self, entry: Kept) -> None:
        """Take an entry in; a later one of the same request replaces the earlier."""
        if isinstance(entry, Settlement):
            self.settlements[entry.open.id] = entry
        elif isinstance(entry, CheckpointRow):
            self.checkpoints[entry.open.id] = entry
        elif isinstance(entry, BroughtObjects):
            self.objects.append(entry)
        else:
            self.discards.add(entry)


class Journal:
    """The journal of this process. Only the ledger's thread touches it; `size` may be read by all.

    `compact_bytes` is by how much it grows before it is written anew.
    """

    def __init__(self, path: Path, *, compact_bytes: int = COMPACT_BYTES) -> None:
        self.path = path
        self.size = 0
        self._compact_bytes = self._compact_at = compact_bytes
        self._file: int | None = None

    def append(self, entries: Iterable[Kept], names: Mapping[uuid.UUID, str]) -> bool:
        """Write and sync; False, and an error in the log, where the disk does not take it."""
        data = b"".join(_line(entry, names) for entry in entries)
        try:
            self._write(data)
        except OSError as error:
            logger.error("the journal cannot be written (%s): bills wait in memory alone", error.strerror)
            return False
        if self.size > self._compact_at:
            self._compact()
        return True

    def clear(self) -> None:
        """All of it is committed: remove the file."""
        if self._file is None:
            return
        self._close()
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:  # it will be replayed, which changes nothing
            logger.error("the journal cannot be removed: %s", error.strerror)

    def close(self) -> None:
        """Leave the file to whoever replays it."""
        if self._file is not None:
            self._close()

    def _write(self, data: bytes) -> None:
        file = self._open()
        try:
            os.lseek(file, self.size, os.SEEK_SET)
            for start in range(0, len(data), 1 << 20):
                _write_all(file, data[start : start + (1 << 20)])
            os.fsync(file)
        except OSError:
            os.ftruncate(file, self.size)  # no half line stays in front of the next
            raise
        self.size += len(data)

    def _open(self) -> int:
        if self._file is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            self.size = os.fstat(self._file).st_size
            disk.sync_folder(self.path.parent)
        return self._file

    def _compact(self) -> None:
        """Write anew what still counts, beside the old file and then in its place."""
        contents, fresh = read(self.path), self.path.with_suffix(".new")
        try:
            file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            data = b"".join(_line(entry, contents.names) for entry in contents.entries)
            _write_all(file, data)
            os.fsync(file)
            os.replace(fresh, self.path)
            disk.sync_folder(self.path.parent)
        except OSError as error:
            logger.error("the journal cannot be written anew: %s", error.strerror)
            fresh.unlink(missing_ok=True)
            self._compact_at = 2 * self.size
            return
        self._close()
        self._file, self.size = file, len(data)
        self._compact_at = self.size + self._compact_bytes

    def _close(self) -> None:
        assert self._file is not None
        os.close(self._file)
        self._file, self.size = None, 0


def read(path: Path) -> Contents:
    """What a journal says, as far as its lines are whole; nothing where there is no file."""
    contents = Contents()
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return contents
    for line in filter(None, lines):
        try:
            entry, name = _entry(line)
        except (ValueError, TypeError, KeyError):
            logger.warning("a damaged line of journal %s is ignored", path.name)
            continue
        contents.add(entry)
        if name is not None and not isinstance(entry, BroughtObjects | uuid.UUID):
            contents.names[entry.open.id] = name
    return contents


@dataclass(frozen=True, slots=True)
class Length:
    """How long a journal is, a torn last line left out of `entries`; `since`: of when its first entry is."""

    bytes: int = 0
    entries: int = 0
    since: dt.datetime | None = None


def measure(path: Path) -> Length:
    """A journal's length, without reading what its entries say; nothing where there is no file.

    The first entry's own time says since when the database has been away: a file has no such time.
    """
    try:
        with path.open("rb") as file:
            first = file.readline()
            size, entries = len(first), first.count(b"\n")
            while chunk := file.read(1 << 20):
                size, entries = size + len(chunk), entries + chunk.count(b"\n")
            changed = dt.datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, dt.UTC)
    except FileNotFoundError:
        return Length()
    return Length(size, entries, (_time_of(first.rstrip(b"\n")) or changed) if size else None)


def _time_of(line: bytes) -> dt.datetime | None:
    try:
        entry = json.loads(line.partition(b" ")[2])["entry"]
        return dt.datetime.fromisoformat(entry["ended_at"] if "ended_at" in entry else entry["at"])
    except (ValueError, TypeError, KeyError):  # damaged, or a discard
        return None


def _line(entry: Kept, names: Mapping[uuid.UUID, str]) -> bytes:
    """`names` are those of the requests that are known."""
    if isinstance(entry, uuid.UUID):
        kind, body, name = DISCARD, orjson.dumps(entry), None
    else:
        [kind] = [kind for kind, of in KINDS.items() if isinstance(entry, of)]
        id = entry.id if isinstance(entry, BroughtObjects) else entry.open.id
        body, name = encoded(entry), names.get(id)
    data = orjson.dumps({"kind": kind, "name": name, "entry": orjson.Fragment(body)})
    return b"%08x %s\n" % (zlib.crc32(data), data)


def _entry(line: bytes) -> tuple[Kept, str | None]:
    """ValueError, TypeError or KeyError: the line is damaged."""
    checksum, _, data = line.partition(b" ")
    if int(checksum, 16) != zlib.crc32(data):
        raise ValueError("the checksum is another")
    said = json.loads(data)  # orjson reads integers of more than 64 bits as floats
    if said["kind"] == DISCARD:
        return uuid.UUID(said["entry"]), None
    entry: Kept = decoded(KINDS[said["kind"]], said["entry"])
    return entry, said["name"]


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
