"""The ledger's thread: groups, repeats, poison, a database away, the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
from django.db import (
    DataError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connection,
    transaction,
)

from billing.ledger import Ledger, LedgerUnavailable
from billing.ledger.writer import APPLICATION_NAME, LONGEST_PAUSE_S, is_away
from billing.models import ApiKey, Attempt, OpenStream, RollupDue, UsageRecord
from tests.billing.ledger.conftest import StartLedger
from tests.billing.ledger.entries import nested, opening, settlement


class Database:
    """A transaction that can be told to fail, before anything was written or after it was committed."""

    def __init__(self) -> None:
        self.away = self.lost_answer = False
        self.tries = 0

    @contextmanager
    def atomic(self, using: str) -> Iterator[None]:
        self.tries += 1
        if self.away:
            raise OperationalError("connection refused")
        with transaction.atomic(using):
            yield
        if self.lost_answer:
            self.lost_answer = False
            raise OperationalError("server closed the connection unexpectedly")


def test_settling_twice_bills_once(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    ledger.open(row)
    for _ in range(3):
        ledger.settle(settlement(row)).result(5)
    assert (UsageRecord.objects.count(), Attempt.objects.count()) == (1, 1)


def test_same_settlement_within_group(key: ApiKey, transactional_db: None) -> None:
    row = opening(key, wished_name="trace-1")
    ledger = Ledger()
    name = ledger.open(row)
    settled = [ledger.settle(settlement(row)) for _ in range(3)]
    ledger.start()
    assert ledger.stop(5)
    assert [done.result(0) for done in settled] == [None] * 3
    assert name.result(0) == UsageRecord.objects.get().request_name == "trace-1"
    assert (Attempt.objects.count(), OpenStream.objects.count(), RollupDue.objects.count()) == (1, 0, 1)


def test_two_thousand_at_once(ledger: Ledger, key: ApiKey) -> None:
    rows = [opening(key, wished_name=f"trace-{n}" if n % 2 else None) for n in range(2000)]
    names = [ledger.open(row) for row in rows]
    settled: list[Future[None]] = []
    for row, name in zip(rows, names, strict=True):
        assert name.result(10) == (row.wished_name or row.own_name)
        settled.append(ledger.settle(settlement(row)))
    for done in settled:
        done.result(10)
    kept = dict(UsageRecord.objects.values_list("id", "request_name"))
    assert kept == {row.id: row.wished_name or row.own_name for row in rows}
    assert (Attempt.objects.count(), OpenStream.objects.count(), ledger.depth) == (2000, 0, 0)


def test_poison_stands_alone(key: ApiKey, caplog: pytest.LogCaptureFixture, transactional_db: None) -> None:
    """One of a group loses its raw usage, one cannot be kept at all; the others do not notice."""
    rows = [opening(key) for _ in range(40)]
    homeless = opening(key, key_id=10**6)
    ledger = Ledger()
    settled = [ledger.settle(settlement(row, raw=nested(300) if row is rows[7] else {"n": 1})) for row in rows]
    lost = ledger.settle(settlement(homeless, reason="secret words"))
    ledger.start()
    assert ledger.stop(10)
    assert [done.result(0) for done in settled] == [None] * 40
    assert lost.exception(0) is not None
    assert set(UsageRecord.objects.filter(raw_usage__isnull=True).values_list("id", flat=True)) == {rows[7].id}
    assert "raw_usage_dropped" in UsageRecord.objects.get(id=rows[7].id).flags
    assert UsageRecord.objects.count() == 40
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        f"the ledger cannot keep Settlement of {homeless.id}: IntegrityError"
    ]


def test_poison_open_row_fails_alone(key: ApiKey, transactional_db: None) -> None:
    good, bad = opening(key, wished_name="trace-1"), opening(key, key_id=10**6)
    ledger = Ledger()
    names = [ledger.open(row) for row in (bad, good)]
    ledger.start()
    assert ledger.stop(5)
    assert names[1].result(0) == "trace-1"
    assert names[0].exception(0) is not None
    assert OpenStream.objects.get().id == good.id


def test_bills_outlast_an_outage(start_ledger: StartLedger, key: ApiKey) -> None:
    database = Database()
    ledger = start_ledger(atomic=database.atomic)
    row, late, refused = opening(key, wished_name="trace-1"), opening(key), opening(key)
    ledger.open(row).result(5)
    ledger.open(refused).result(5)
    database.away = True
    settled, discarded = ledger.settle(settlement(row)), ledger.discard(refused.id)
    with pytest.raises(LedgerUnavailable):
        ledger.open(late).result(5)
    assert (ledger.available, ledger.depth, settled.done()) == (False, 2, False)
    database.away = False
    settled.result(LONGEST_PAUSE_S + 1)
    discarded.result(5)
    assert UsageRecord.objects.get().request_name == "trace-1"
    assert (OpenStream.objects.count(), ledger.available, ledger.depth) == (0, True, 0)


def test_pauses_grow_during_outage(start_ledger: StartLedger, key: ApiKey) -> None:
    database = Database()
    database.away = True
    settled = start_ledger(atomic=database.atomic).settle(settlement(opening(key)))
    time.sleep(1)
    assert 2 <= database.tries <= 5  # at once, then after 0.1, 0.2, 0.4 s
    database.away = False
    settled.result(5)


def test_answered_admission_ends_pause(start_ledger: StartLedger, key: ApiKey) -> None:
    """The first request that gets through takes the kept bills with it: here the clock stands, so no pause ends."""
    database = Database()
    ledger = start_ledger(atomic=database.atomic, clock=lambda: 100.0)
    database.away = True
    settled = ledger.settle(settlement(opening(key)))
    with pytest.raises(LedgerUnavailable):
        ledger.open(opening(key)).result(5)
    database.away = False
    ledger.open(opening(key)).result(5)
    settled.result(5)


def test_lost_answer_doubles_nothing(start_ledger: StartLedger, key: ApiKey) -> None:
    database = Database()
    ledger = start_ledger(atomic=database.atomic)
    row = opening(key, wished_name="trace-1")
    ledger.open(opening(key)).result(5)
    database.lost_answer = True
    assert ledger.open(row).result(5) == "trace-1"
    database.lost_answer = True
    ledger.settle(settlement(row)).result(5)
    assert (UsageRecord.objects.count(), Attempt.objects.count()) == (1, 1)
    assert UsageRecord.objects.get().request_name == "trace-1"


def test_cut_connection_is_replaced(ledger: Ledger, key: ApiKey) -> None:
    ledger.open(opening(key)).result(5)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = %s AND datname = current_database()",
                [APPLICATION_NAME],
            )
            assert cursor.fetchall() == [(True,)]
    row = opening(key)
    assert ledger.open(row).result(5) == row.own_name


def test_locked_database_counts_as_away(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    ledger.open(row).result(5)
    began = time.monotonic()
    with transaction.atomic():
        if connection.vendor == "postgresql":
            connection.cursor().execute("LOCK TABLE billing_openstream, billing_usagerecord IN ACCESS EXCLUSIVE MODE")
        settled = ledger.settle(settlement(row))
        with pytest.raises(LedgerUnavailable):
            ledger.open(opening(key)).result(8)
        assert time.monotonic() - began < 5
    settled.result(5)
    assert UsageRecord.objects.get().id == row.id


@pytest.mark.parametrize(
    ("error", "sqlstate", "away"),
    [
        (OperationalError, None, True),
        (OperationalError, "57P01", True),
        (InterfaceError, None, True),
        (ProgrammingError, "42703", True),
        (OperationalError, "54001", False),
        (DataError, "22003", False),
        (IntegrityError, "23503", False),
        (ValueError, None, False),
    ],
)
def test_blame_is_told_apart(error: type[Exception], sqlstate: str | None, away: bool) -> None:
    cause = Exception()
    cause.sqlstate = sqlstate  # type: ignore[attr-defined]
    raised = error()
    raised.__cause__ = cause
    assert is_away(raised) is away


def test_stop_drains_the_queue(key: ApiKey, transactional_db: None) -> None:
    ledger = Ledger()
    settled = [ledger.settle(settlement(opening(key))) for _ in range(1000)]
    assert ledger.depth == 1000
    ledger.start()
    assert ledger.stop(10)
    assert all(done.done() for done in settled)
    assert UsageRecord.objects.count() == 1000


def test_stop_gives_up_in_time(start_ledger: StartLedger, key: ApiKey) -> None:
    database = Database()
    database.away = True
    ledger = start_ledger(atomic=database.atomic)
    settled = ledger.settle(settlement(opening(key)))
    began = time.monotonic()
    assert not ledger.stop(0.5)
    assert time.monotonic() - began < 1.5
    assert isinstance(settled.exception(0), LedgerUnavailable)


def test_stopped_ledger_takes_nothing(ledger: Ledger, key: ApiKey) -> None:
    assert ledger.stop(5)
    assert isinstance(ledger.open(opening(key)).exception(0), LedgerUnavailable)
    assert isinstance(ledger.settle(settlement(opening(key))).exception(0), LedgerUnavailable)


def test_cancelled_open_is_not_written(key: ApiKey, transactional_db: None) -> None:
    ledger = Ledger()
    row, other = opening(key), opening(key)
    assert ledger.open(row).cancel()
    name, settled = ledger.open(other), ledger.settle(settlement(opening(key)))
    assert not settled.cancel()
    ledger.start()
    assert ledger.stop(5)
    assert OpenStream.objects.get().request_name == name.result(0)
    assert settled.result(0) is None
