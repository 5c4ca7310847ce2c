"""Notes of what went wrong with bills: counted once, added up by the hour, never in the bills' way."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import IntegrityError, OperationalError, ProgrammingError, connections, transaction

from billing.ledger import Journal, Ledger
from billing.ledger.events import NOBODY, Kind, note
from billing.models import ApiKey, MeterEvent, UsageRecord
from tests.billing.ledger.conftest import StartLedger
from tests.billing.ledger.entries import opening, settlement

NOON = dt.datetime(2026, 11, 30, 12, 5, tzinfo=dt.UTC)
PROCESS = uuid.UUID(int=7)


class Database:
    """A transaction that fails as long as the database is away, or for whoever has no bill to write."""

    away = False
    takes_notes = True

    @contextmanager
    def atomic(self, using: str) -> Iterator[None]:
        if self.away:
            raise OperationalError("connection refused")
        with transaction.atomic(using):
            yield
            if not self.takes_notes and MeterEvent.objects.exists():
                raise ProgrammingError("no notes today")


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def ledger(start_ledger: StartLedger, database: Database, tmp_path: Path) -> Ledger:
    return start_ledger(atomic=database.atomic, journal=Journal(tmp_path / "1.jsonl"), process=PROCESS)


def noted() -> dict[str, int]:
    return dict(MeterEvent.objects.filter(process=PROCESS).values_list("kind", "count"))


def wait_until(so: Callable[[], object], timeout_s: float = 5) -> None:
    deadline = time.monotonic() + timeout_s
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.django_db
def test_notes_of_an_hour_add_up() -> None:
    for minutes, count in ((0, 2), (20, 3), (60, 4)):
        note(Kind.LATE, PROCESS, count, NOON + dt.timedelta(minutes=minutes), detail=f"after {minutes}")
    first, second = MeterEvent.objects.order_by("hour")
    assert (first.count, first.detail, first.first_at, first.last_at) == (
        5, "after 20", NOON, NOON + dt.timedelta(minutes=20),
    )  # fmt: skip
    assert (second.count, second.hour) == (4, NOON.replace(minute=0) + dt.timedelta(hours=1))


@pytest.mark.django_db
def test_acknowledged_note_stands_again() -> None:
    note(Kind.DROPPED, PROCESS, 1, NOON)
    MeterEvent.objects.update(acknowledged_at=NOON)
    note(Kind.DROPPED, PROCESS, 1, NOON)
    assert MeterEvent.objects.get().acknowledged_at is None


@pytest.mark.django_db(transaction=True)
def test_notes_at_once_add_up() -> None:
    def add(number: int) -> None:
        note(Kind.LATE, PROCESS, 1, NOON)
        connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, range(20)))
    assert MeterEvent.objects.get().count == 20


def test_late_bills_are_noted_once_written(ledger: Ledger, database: Database, key: ApiKey) -> None:
    database.away = True
    settled = [ledger.settle(settlement(opening(key))) for _ in range(3)]
    wait_until(lambda: not ledger.available)
    assert ledger.faults[Kind.LATE] == 0
    database.away = False
    for done in settled:
        done.result(5)
    wait_until(noted)
    assert (noted(), dict(ledger.faults), UsageRecord.objects.count()) == ({"late": 3}, {Kind.LATE: 3}, 3)


def test_bill_in_time_is_not_noted(ledger: Ledger, key: ApiKey) -> None:
    ledger.settle(settlement(opening(key))).result(5)
    assert ledger.stop(5)
    assert (MeterEvent.objects.count(), dict(ledger.faults)) == (0, {})


def test_refused_bill_is_noted(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key, key_id=10**6)
    assert ledger.settle(settlement(row, reason="secret words")).exception(5) is not None
    wait_until(noted)
    event = MeterEvent.objects.get()
    assert (event.kind, event.count, event.detail) == ("dropped", 1, f"request {row.id}: IntegrityError")
    assert ledger.faults[Kind.DROPPED] == 1


def test_bill_that_no_disk_took_is_noted_once(
    start_ledger: StartLedger, database: Database, tmp_path: Path, key: ApiKey
) -> None:
    (tmp_path / "full").write_text("a file where the folder should be")
    journal = Journal(tmp_path / "full" / "1.jsonl")
    ledger = start_ledger(atomic=database.atomic, journal=journal, process=PROCESS)
    database.away = True
    settled = ledger.settle(settlement(opening(key)))
    wait_until(lambda: ledger.faults[Kind.UNJOURNALLED])
    time.sleep(0.4)  # it is tried again, with the database
    database.away = False
    settled.result(5)
    wait_until(lambda: len(noted()) == 2)
    assert noted() == {"unjournalled": 1, "late": 1}


def test_note_that_fails_waits(ledger: Ledger, database: Database, key: ApiKey) -> None:
    database.takes_notes, database.away = False, True
    settled = ledger.settle(settlement(opening(key)))
    wait_until(lambda: not ledger.available)
    database.away = False
    settled.result(5)
    ledger.settle(settlement(opening(key))).result(5)
    assert (noted(), UsageRecord.objects.count()) == ({}, 2)
    database.takes_notes = True
    ledger.settle(settlement(opening(key))).result(5)
    wait_until(noted)
    assert noted() == {"late": 1}


def test_ledger_of_nobody_notes_too(start_ledger: StartLedger, key: ApiKey) -> None:
    ledger = start_ledger()
    with pytest.raises(IntegrityError):
        ledger.settle(settlement(opening(key, key_id=10**6))).result(5)
    wait_until(MeterEvent.objects.exists)
    assert MeterEvent.objects.get().process == NOBODY
