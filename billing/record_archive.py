"""A partition's records in a file: gzip, one JSON object per line with all columns of a record, and its `attempts`.

    written = write(folder, name, table, but)    on the disk under its last name once this returns
    for line in lines(written.path): …           read again, as bytes

Lines come in the order of ids, which is that of time. The hash is of the lines, not of how they were packed, so that
`zcat FILE | sha256sum` tells it; a part of it is in the file's name, so that no file ever takes another one's place.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from django.db import connection

from billing import disk
from billing.models import Attempt

AT_ONCE = 2_000
"""Records that the database gives at once."""
SHOWN = 12
"""Characters of the hash in the file's name."""


class Written(NamedTuple):
    path: Path
    records: int
    sha256: str


def write(folder: Path, name: str, table: str, but: str, tell: Callable[[int], None]) -> Written:
    """Write the records of a table, less those that fit the condition `but` (on the row `r`), in a transaction.

    OSError: the folder does not take it. `tell` hears how many records are written.
    """
    part, digest, records = folder / f"{name}.part", hashlib.sha256(), 0
    try:
        with part.open("wb") as raw:
            part.chmod(0o600)
            with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
                for lines in _pages(table, but):
                    text = b"".join(lines)
                    digest.update(text)
                    packed.write(text)
                    records += len(lines)
                    tell(records)
            raw.flush()
            os.fsync(raw.fileno())
        path = folder / f"{name}-{digest.hexdigest()[:SHOWN]}.jsonl.gz"
        os.replace(part, path)
        disk.sync_folder(folder)
    finally:
        part.unlink(missing_ok=True)
    return Written(path, records, digest.hexdigest())


def lines(path: Path) -> Iterator[bytes]:
    """The file's lines, each with its end. OSError, EOFError or zlib.error: it is not whole."""
    with gzip.open(path, "rb") as file:
        yield from file


def _pages(table: str, but: str) -> Iterator[list[bytes]]:
    """The lines as PostgreSQL writes them, a page at a time: numbers in full, instants in UTC, no line break inside."""
    of_record = f"{Attempt._meta.db_table} a WHERE a.record_id = r.id"
    attempts = f"SELECT jsonb_agg(to_jsonb(a) ORDER BY a.number) FROM {of_record}"  # noqa: S608 - names of our own
    with connection.cursor() as settings:
        settings.execute("SET LOCAL TimeZone = 'UTC'")
    with connection.chunked_cursor() as cursor:
        cursor.execute(
            f"SELECT (to_jsonb(r) || jsonb_build_object('attempts', COALESCE(({attempts}), '[]')))::text"  # noqa: S608
            f' FROM "{table}" r WHERE NOT ({but}) ORDER BY r.id'
        )
        while rows := cursor.fetchmany(AT_ONCE):
            yield [f"{line}\n".encode() for (line,) in rows]
