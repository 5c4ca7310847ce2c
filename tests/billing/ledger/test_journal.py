"""The journal: what is written comes back, whatever happens to the file."""

from __future__ import annotations

import datetime as dt
import json
import os
import resource
import signal
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from uuid_utils.compat import uuid7

from billing.ledger import BroughtObjects, Journal, OpenRow
from billing.ledger import journal as journals
from billing.usage import Part, ReportedUsage, TokenUsage
from tests.billing.ledger.entries import ENDED, checkpoint_row, nested, opening, settlement


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal" / "1.jsonl"


def row(**fields: Any) -> OpenRow:
    return opening(SimpleNamespace(id=3, account_id=2, name="production"), **fields)  # type: ignore[arg-type]


def test_entries_come_back_equal(path: Path) -> None:
    advisor = Part("advisor-1", TokenUsage(input=5, server_tools={"web_search": 1}))
    reported = ReportedUsage(TokenUsage(input=9, output=2, reasoning=1), "flex", (advisor,), {"n": [1]}, ("zero",))
    told = settlement(row(), reported=reported, attempts=())
    plain = settlement(row(wished_name="trace-1"))
    begun = checkpoint_row(row(), reported=reported)
    brought = BroughtObjects(uuid7(), 2, "acme", "sol", 4, ("resp_1",), ENDED)
    gone = uuid7()
    assert Journal(path).append([told, plain, begun, brought, gone], {plain.open.id: "trace-1"})
    read = journals.read(path)
    assert read.settlements == {told.open.id: told, plain.open.id: plain}
    assert read.checkpoints == {begun.open.id: begun}
    assert (read.objects, read.discards, read.names) == ([brought], {gone}, {plain.open.id: "trace-1"})


def test_other_versions_lines_are_read(path: Path) -> None:
    """One of before lacks fields, one of later has some that nobody knows here."""
    kept = checkpoint_row(row())
    Journal(path).append([kept], {})
    said = json.loads(path.read_bytes().partition(b" ")[2])
    for column in ("first_output_at", "attempt_started_at", "provider_request_id"):
        del said["entry"][column]
    said["entry"]["open"] |= {"of_a_later_version": 1}
    said["entry"]["open"].pop("silence_limit_s")
    data = json.dumps(said).encode()
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(data), data))
    [read] = journals.read(path).checkpoints.values()
    assert (read.open.id, read.counted_output, read.at) == (kept.open.id, 40, kept.at)
    assert (read.first_output_at, read.attempt_started_at, read.provider_request_id) == (None, None, "")


def test_newest_checkpoint_counts(path: Path) -> None:
    opened, journal = row(), Journal(path)
    journal.append([checkpoint_row(opened, counted_output=n) for n in (10, 20)], {})
    journal.append([checkpoint_row(opened, counted_output=30)], {})
    assert [found.counted_output for found in journals.read(path).checkpoints.values()] == [30]


@pytest.mark.parametrize("cut", [1, 2, 40, 300])
def test_torn_last_line_is_ignored(path: Path, cut: int) -> None:
    first, last = settlement(row()), settlement(row())
    Journal(path).append([first, last], {})
    os.truncate(path, path.stat().st_size - cut - 1)
    assert list(journals.read(path).settlements) == [first.open.id]


def test_damaged_line_spares_others(path: Path) -> None:
    entries = [settlement(row()) for _ in range(3)]
    Journal(path).append(entries, {})
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b'"output":52', b'"output":99')
    path.write_bytes(b"\n".join([*lines, b"zzzz {}", b"\xff\x00"]))
    assert list(journals.read(path).settlements) == [entries[0].open.id, entries[2].open.id]


@pytest.mark.parametrize(
    "raw", [{"text": "lone \ud800 and \0"}, {"huge": 10**30}, {"deep": nested(300)}, {"long": "x" * 1_000_000}]
)
def test_poison_usage_is_journalled(path: Path, raw: Any) -> None:
    bad, good = settlement(row(), raw=raw, reason="a lone \ud800"), settlement(row())
    assert Journal(path).append([bad, good], {})
    assert path.stat().st_size < 40_000
    read = journals.read(path).settlements
    assert list(read) == [bad.open.id, good.open.id]
    assert read[bad.open.id].usage == bad.usage


def test_huge_counts_stay_exact(path: Path) -> None:
    absurd = settlement(row(), usage=TokenUsage(input=10**30, output=-5))
    Journal(path).append([absurd], {})
    assert journals.read(path).settlements[absurd.open.id].usage == absurd.usage


def test_cleared_journal_is_gone(path: Path) -> None:
    journal = Journal(path)
    journal.append([uuid7()], {})
    journal.clear()
    assert not path.exists()
    journal.append([gone := uuid7()], {})
    assert journals.read(path).discards == {gone}


def test_no_file_says_nothing(path: Path) -> None:
    assert list(journals.read(path).entries) == []


def test_only_owner_may_read(path: Path) -> None:
    Journal(path).append([uuid7()], {})
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@contextmanager
def disk_full_after(size: int) -> Iterator[None]:
    """Writing past this size of a file fails, as on a full disk."""
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_full_disk_leaves_whole_lines(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal, first, second, third = Journal(path), *(settlement(row()) for _ in range(3))
    assert journal.append([first], {})
    with disk_full_after(journal.size + 100):
        assert not journal.append([second], {})
    assert "the journal cannot be written" in caplog.text
    assert journal.append([third], {})
    assert list(journals.read(path).settlements) == [first.open.id, third.open.id]


def test_unwritable_folder_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "journal").write_text("a file where the folder should be")
    assert not Journal(tmp_path / "journal" / "1.jsonl").append([uuid.uuid4()], {})
    assert "bills wait in memory alone" in caplog.text


def test_long_journal_is_written_anew(path: Path) -> None:
    opened, ended, journal = row(), settlement(row()), Journal(path, compact_bytes=20_000)
    journal.append([ended], {ended.open.id: "trace-1"})
    for n in range(100):
        journal.append([checkpoint_row(opened, counted_output=n, at=ENDED + dt.timedelta(seconds=n))], {})
    assert journal.size == path.stat().st_size < 25_000
    read = journals.read(path)
    assert [found.counted_output for found in read.checkpoints.values()] == [99]
    assert (list(read.settlements), read.names) == ([ended.open.id], {ended.open.id: "trace-1"})


def test_length_is_measured(path: Path) -> None:
    journal, first, second = Journal(path), settlement(row()), checkpoint_row(row())
    assert journals.measure(path) == journals.Length()
    journal.append([first], {})
    journal.append([second, uuid7()], {})
    assert journals.measure(path) == journals.Length(path.stat().st_size, 3, first.ended_at)
    with path.open("ab") as file:
        file.write(b"12345678 torn")
    assert journals.measure(path).entries == 3


@pytest.mark.parametrize("begin", [b"damaged\n", b"00000000 {}\n", b"00000000 [1]\n", b"torn"])
def test_unreadable_begin_is_as_old_as_the_file(path: Path, begin: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(begin)
    os.utime(path, (ENDED.timestamp(), ENDED.timestamp()))
    assert journals.measure(path) == journals.Length(len(begin), begin.count(b"\n"), ENDED)
