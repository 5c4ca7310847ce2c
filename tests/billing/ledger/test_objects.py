"""Stored objects: whose they are, once for all, whatever the database does."""

from __future__ import annotations

import logging

import pytest

from billing.ledger import Ledger, is_object_id
from billing.ledger.cleaning import OBJECT_ID_LIMIT
from billing.ledger.writer import LONGEST_PAUSE_S
from billing.models import Account, ApiKey, OpenStream, StoredObject, UsageRecord
from tests.billing.ledger.conftest import StartLedger
from tests.billing.ledger.entries import STARTED, brought, opening, settlement
from tests.billing.ledger.test_writer import Database


def kept() -> set[tuple[int, str]]:
    return set(StoredObject.objects.values_list("account_id", "object_id"))


def test_objects_are_kept(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    ledger.open(row)
    ledger.remember(brought(row, "resp_1", "cntr_1")).result(5)
    made = StoredObject.objects.get(object_id="resp_1")
    assert (made.account_id, made.record_id, made.created_at) == (key.account_id, row.id, STARTED)
    assert (made.provider, made.upstream_model, made.route_id) == ("acme-cloud", "gpt-5.6-sol-2026", 7)
    assert OpenStream.objects.get(id=row.id).object_ids == ["resp_1", "cntr_1"]


def test_first_maker_stays(ledger: Ledger, key: ApiKey) -> None:
    """A container goes on in a later answer, and a group may be written twice."""
    first, second = opening(key), opening(key)
    for answer in (brought(first, "cntr_1"), brought(second, "resp_2", "cntr_1", route_id=8)):
        for _ in range(2):
            ledger.remember(answer).result(5)
    assert kept() == {(key.account_id, "cntr_1"), (key.account_id, "resp_2")}
    assert StoredObject.objects.get(object_id="cntr_1").route_id == 7


def test_accounts_do_not_mix(ledger: Ledger, key: ApiKey) -> None:
    other = Account.objects.create(name="southwind")
    row = opening(key)
    ledger.remember(brought(row, "resp_1"))
    ledger.remember(brought(row, "resp_1", account_id=other.id)).result(5)
    assert kept() == {(key.account_id, "resp_1"), (other.id, "resp_1")}


def test_all_of_one_group(key: ApiKey, transactional_db: None) -> None:
    """Admission, objects and end of a request wait for the thread together; the name stays with the request."""
    ledger = Ledger()
    rows = [opening(key, wished_name=f"trace-{n}") for n in range(30)]
    for row in rows:
        ledger.open(row)
        ledger.remember(brought(row, f"resp_{row.own_name}", "cntr_all"))
    settled = [ledger.settle(settlement(row)) for row in rows[:20]]
    ledger.start()
    assert ledger.stop(5)
    assert [done.result(0) for done in settled] == [None] * 20
    assert (StoredObject.objects.count(), OpenStream.objects.count()) == (31, 10)
    assert set(UsageRecord.objects.values_list("request_name", flat=True)) == {f"trace-{n}" for n in range(20)}


def test_name_outlasts_its_objects(ledger: Ledger, key: ApiKey) -> None:
    """Another process swept the open row away; the ledger still knows the name it gave."""
    row = opening(key, wished_name="trace-1")
    ledger.open(row).result(5)
    ledger.remember(brought(row, "resp_1")).result(5)
    OpenStream.objects.all().delete()
    ledger.settle(settlement(row)).result(5)
    assert UsageRecord.objects.get().request_name == "trace-1"


def test_objects_outlast_an_outage(start_ledger: StartLedger, key: ApiKey) -> None:
    database = Database()
    ledger = start_ledger(atomic=database.atomic)
    database.away = True
    remembered = ledger.remember(brought(opening(key), "resp_1"))
    with pytest.raises(TimeoutError):
        remembered.result(0.3)
    assert ledger.depth == 1
    database.away = False
    remembered.result(LONGEST_PAUSE_S + 1)
    assert kept() == {(key.account_id, "resp_1")}


def test_unknown_account_fails_alone(key: ApiKey, caplog: pytest.LogCaptureFixture, transactional_db: None) -> None:
    ledger = Ledger()
    row = opening(key)
    lost = ledger.remember(brought(row, "secret_id", account_id=10**6))
    good = ledger.remember(brought(row, "resp_1"))
    settled = ledger.settle(settlement(row))
    ledger.start()
    assert ledger.stop(5)
    assert (good.result(0), settled.result(0)) == (None, None)
    assert lost.exception(0) is not None
    assert kept() == {(key.account_id, "resp_1")}
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == [f"the ledger cannot keep BroughtObjects of {row.id}: IntegrityError"]


def test_unkeepable_ids_are_left_out(ledger: Ledger, key: ApiKey) -> None:
    """Cut or cleaned, an id could be taken for somebody else's."""
    row = opening(key)
    ledger.open(row)
    longest = "x" * OBJECT_ID_LIMIT
    ledger.remember(brought(row, longest, longest + "y", "nul\0", "half \ud83d", "")).result(5)
    assert kept() == {(key.account_id, longest)}
    assert not any(map(is_object_id, (longest + "y", "nul\0", "half \ud83d", "")))
    assert StoredObject._meta.get_field("object_id").max_length == OBJECT_ID_LIMIT
    assert "nul\ufffd" in OpenStream.objects.get(id=row.id).object_ids
