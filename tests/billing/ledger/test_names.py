"""A key's request name belongs to one request, whoever asks for it and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from django.db import transaction

from billing.ledger import Ledger, OpenRow
from billing.models import ApiKey, OpenStream, UsageRecord
from tests.billing.ledger.conftest import StartLedger
from tests.billing.ledger.entries import make_key, opening, settlement


def test_wished_name_is_given(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key, wished_name="trace-1")
    assert ledger.open(row).result(5) == "trace-1"
    ledger.settle(settlement(row)).result(5)
    assert UsageRecord.objects.get(id=row.id).request_name == "trace-1"


def test_open_name_is_taken(ledger: Ledger, key: ApiKey) -> None:
    ledger.open(opening(key, wished_name="trace-1")).result(5)
    second = opening(key, wished_name="trace-1")
    assert ledger.open(second).result(5) == second.own_name
    assert OpenStream.objects.get(id=second.id).request_name == second.own_name


def test_recorded_name_is_taken(ledger: Ledger, key: ApiKey) -> None:
    first, second = opening(key, wished_name="trace-1"), opening(key, wished_name="trace-1")
    ledger.open(first).result(5)
    ledger.settle(settlement(first)).result(5)
    assert ledger.open(second).result(5) == second.own_name
    ledger.settle(settlement(second)).result(5)
    assert UsageRecord.objects.get(id=second.id).request_name == second.own_name


def test_keys_do_not_share_names(ledger: Ledger, key: ApiKey) -> None:
    other = make_key("staging")
    ledger.open(opening(key, wished_name="trace-1")).result(5)
    row = opening(other, wished_name="trace-1")
    assert ledger.open(row).result(5) == "trace-1"
    ledger.settle(settlement(row)).result(5)
    assert ledger.open(opening(key, wished_name="trace-2")).result(5) == "trace-2"


def test_discarded_name_is_free(ledger: Ledger, key: ApiKey) -> None:
    first = opening(key, wished_name="trace-1")
    ledger.open(first)
    ledger.discard(first.id).result(5)
    assert not OpenStream.objects.exists()
    assert ledger.open(opening(key, wished_name="trace-1")).result(5) == "trace-1"
    assert not UsageRecord.objects.exists()


def test_same_wish_within_group(key: ApiKey, transactional_db: None) -> None:
    rows = [opening(key, wished_name="trace-1") for _ in range(5)]
    ledger = Ledger()
    given = [ledger.open(row) for row in rows]
    ledger.start()
    assert ledger.stop(5)
    names = [name.result(0) for name in given]
    assert names.count("trace-1") == 1
    assert len(set(names)) == 5
    assert dict(OpenStream.objects.values_list("id", "request_name")) == {
        row.id: name for row, name in zip(rows, names, strict=True)
    }


def test_unfit_wish_is_ignored(ledger: Ledger, key: ApiKey) -> None:
    for wish in ("", "x" * 129, "a\0b", "\ud800"):
        row = opening(key, wished_name=wish)
        assert ledger.open(row).result(5) == row.own_name


def test_repeated_open_keeps_name(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key, wished_name="trace-1")
    assert [ledger.open(row).result(5) for _ in range(2)] == ["trace-1", "trace-1"]
    assert OpenStream.objects.count() == 1


def test_uncommitted_settle_holds_name(start_ledger: StartLedger, key: ApiKey) -> None:
    """The other process has deleted the open row and written the record, but not committed: its name stays taken."""
    written, go_on = threading.Event(), threading.Event()
    go_on.set()

    @contextmanager
    def waiting_commit(using: str) -> Iterator[None]:
        with transaction.atomic(using):
            yield
            written.set()
            assert go_on.wait(5)

    one, other = start_ledger(atomic=waiting_commit), start_ledger()
    first, second = opening(key, wished_name="trace-1"), opening(key, wished_name="trace-1")
    one.open(first).result(5)
    written.clear()
    go_on.clear()
    settled = one.settle(settlement(first))
    assert written.wait(5)
    given = other.open(second)
    threading.Timer(0.3, go_on.set).start()
    assert given.result(5) == second.own_name
    settled.result(5)


def test_two_ledgers_share_names(start_ledger: StartLedger, key: ApiKey) -> None:
    """Both wish for the same hundred names, and settle at once, so that names wander from open rows to records."""
    ledgers = [start_ledger(), start_ledger()]
    rows = [[opening(key, wished_name=f"trace-{number % 100}") for number in range(300)] for _ in ledgers]
    settled: list[Future[None]] = []

    def run(ledger: Ledger, mine: list[OpenRow]) -> None:
        for begin in range(0, len(mine), 10):
            opened = [(row, ledger.open(row)) for row in mine[begin : begin + 10]]
            for row, name in opened:
                name.result(10)
                settled.append(ledger.settle(settlement(row)))

    threads = [threading.Thread(target=run, args=pair) for pair in zip(ledgers, rows, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for done in settled:
        done.result(10)
    names = list(UsageRecord.objects.values_list("request_name", flat=True))
    assert len(names) == len(set(names)) == 600
    assert {f"trace-{number}" for number in range(100)} <= set(names)
    assert not OpenStream.objects.exists()


def test_name_found_without_memory(start_ledger: StartLedger, key: ApiKey) -> None:
    row = opening(key, wished_name="trace-1")
    start_ledger().open(row).result(5)
    start_ledger().settle(settlement(row)).result(5)
    assert UsageRecord.objects.get(id=row.id).request_name == "trace-1"


def test_vanished_open_row_is_billed(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key, wished_name="trace-1")
    ledger.open(row).result(5)
    OpenStream.objects.all().delete()
    ledger.settle(settlement(row)).result(5)
    assert UsageRecord.objects.get(id=row.id).request_name == "trace-1"


def test_usurped_name_loses_no_bill(ledger: Ledger, key: ApiKey) -> None:
    """The open row vanished and another request got its name: both are billed all the same."""
    first, second = opening(key, wished_name="trace-1"), opening(key, wished_name="trace-1")
    ledger.open(first).result(5)
    OpenStream.objects.all().delete()
    assert ledger.open(second).result(5) == "trace-1"
    ledger.settle(settlement(second)).result(5)
    ledger.settle(settlement(first)).result(5)
    assert UsageRecord.objects.get(id=first.id).request_name == first.own_name
    assert UsageRecord.objects.get(id=second.id).request_name == "trace-1"
