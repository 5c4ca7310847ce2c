"""The database away: what goes to the journal, and that it is written once when the database is back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import OperationalError, transaction

from billing.ledger import BroughtObjects, Journal, Ledger, LedgerUnavailable
from billing.ledger import journal as journals
from billing.models import ApiKey, GatewayProcess, OpenStream, StoredObject, UsageRecord
from tests.billing.ledger.conftest import StartLedger
from tests.billing.ledger.entries import ENDED, PROCESS, checkpoint, checkpoint_row, opening, settlement


class Database:
    """A transaction that fails as long as the database is away."""

    away = False

    @contextmanager
    def atomic(self, using: str) -> Iterator[None]:
        if self.away:
            raise OperationalError("connection refused")
        with transaction.atomic(using):
            yield


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "1.jsonl"


@pytest.fixture
def ledger(start_ledger: StartLedger, database: Database, path: Path) -> Ledger:
    return start_ledger(atomic=database.atomic, journal=Journal(path))


def wait_until(so: Callable[[], object], timeout_s: float = 5) -> None:
    deadline = time.monotonic() + timeout_s
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_outage_is_journalled_then_written(ledger: Ledger, database: Database, path: Path, key: ApiKey) -> None:
    ended, living, refused = opening(key, wished_name="trace-1"), opening(key), opening(key)
    for row in (ended, living, refused):
        ledger.open(row).result(5)
    database.away = True
    settled, discarded = ledger.settle(settlement(ended)), ledger.discard(refused.id)
    ledger.checkpoint(checkpoint(checkpoint_row(living), heartbeat=7))
    ledger.remember(BroughtObjects(living.id, key.account_id, "acme", "sol", 1, ("resp_1",), ENDED))
    wait_until(lambda: len(list(journals.read(path).entries)) == 4)
    kept = journals.read(path)
    assert kept.settlements == {ended.id: settlement(ended)}
    assert kept.names == {ended.id: "trace-1", living.id: living.own_name}
    assert (kept.checkpoints, kept.discards) == ({living.id: checkpoint_row(living)}, {refused.id})
    wait_until(lambda: ledger.journal_bytes == path.stat().st_size)
    database.away = False
    settled.result(5)
    discarded.result(5)
    wait_until(lambda: not path.exists())
    assert UsageRecord.objects.get().request_name == "trace-1"
    assert (OpenStream.objects.get().id, OpenStream.objects.get().counted_output) == (living.id, 40)
    assert (GatewayProcess.objects.get().heartbeat, StoredObject.objects.count()) == (7, 1)


def test_newest_checkpoint_is_written(ledger: Ledger, database: Database, path: Path, key: ApiKey) -> None:
    rows = [opening(key) for _ in range(3)]
    for row in rows:
        ledger.open(row).result(5)
    database.away = True
    for number in range(1, 6):
        row = rows[number % 3]
        told = ledger.checkpoint(checkpoint(checkpoint_row(row, counted_output=number * 10), heartbeat=number))
    settled = ledger.settle(settlement(opening(key)))
    wait_until(lambda: ledger.depth == 2)  # one checkpoint, one settlement
    assert told.result(5) is not None
    database.away = False
    settled.result(5)
    wait_until(lambda: not path.exists())
    counted = dict(OpenStream.objects.values_list("id", "counted_output"))
    assert [counted[row.id] for row in rows] == [30, 40, 50]
    assert GatewayProcess.objects.get().heartbeat == 5


def test_end_outdates_kept_checkpoint(ledger: Ledger, database: Database, path: Path, key: ApiKey) -> None:
    row = opening(key)
    ledger.open(row).result(5)
    database.away = True
    ledger.checkpoint(checkpoint(checkpoint_row(row)))
    settled = ledger.settle(settlement(row))
    wait_until(path.exists)
    database.away = False
    settled.result(5)
    wait_until(lambda: not path.exists())
    assert (OpenStream.objects.count(), UsageRecord.objects.count()) == (0, 1)


def test_unwritable_journal_keeps_bills(
    start_ledger: StartLedger, database: Database, tmp_path: Path, key: ApiKey, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "full").write_text("a file where the folder should be")
    ledger = start_ledger(atomic=database.atomic, journal=Journal(tmp_path / "full" / "1.jsonl"))
    database.away = True
    settled = ledger.settle(settlement(opening(key)))
    wait_until(lambda: "bills wait in memory alone" in caplog.text)
    (tmp_path / "full").unlink()  # room again: what waits is journalled with the next try
    wait_until((tmp_path / "full" / "1.jsonl").exists)
    database.away = False
    settled.result(5)
    assert UsageRecord.objects.count() == 1


def test_end_during_outage_leaves_journal(ledger: Ledger, database: Database, path: Path, key: ApiKey) -> None:
    database.away = True
    row = opening(key)
    settled = ledger.settle(settlement(row))
    assert not ledger.stop(0.3)
    assert isinstance(settled.exception(0), LedgerUnavailable)
    assert list(journals.read(path).settlements) == [row.id]


def test_leaving_process_goes(ledger: Ledger, database: Database, key: ApiKey) -> None:
    ledger.checkpoint(checkpoint()).result(5)
    ledger.leave(PROCESS).result(5)
    assert GatewayProcess.objects.count() == 0
    database.away = True
    ledger.leave(PROCESS).result(5)
