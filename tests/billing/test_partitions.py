"""Usage records by month: where they go, what stays unique and guarded, and the way there and back."""

from __future__ import annotations

import datetime as dt

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction

from billing import partitions
from billing.ledger.groups import Group, write
from billing.models import Attempt, BudgetMonth, UsageRecord
from billing.partitions import BEFORE, DEFAULT, RECORD
from tests import settings
from tests.billing.factories import make_key, make_record, utc
from tests.billing.ledger import entries

pytestmark = pytest.mark.skipif(not settings.POSTGRESQL, reason="partitions are PostgreSQL's")


def by_month(*options: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what the test wrote in this transaction
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
    call_command("records_by_month", *options)


@pytest.fixture
def partitioned(db: None) -> None:
    by_month()


def place(record: UsageRecord) -> str:
    """The partition that a record is in."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT tableoid::regclass::text FROM {RECORD} WHERE id = %s", [record.pk])
        [(name,)] = cursor.fetchall()
    return str(name)


def names() -> list[str]:
    return [one.name for one in partitions.partitions(connection)]


def test_months_are_made_once(partitioned: None) -> None:
    before = names()
    assert partitions.make_ahead(connection, utc(2031, 11, 30)) == [
        f"{RECORD}_2031_11", f"{RECORD}_2031_12", f"{RECORD}_2032_01",
    ]  # fmt: skip
    assert partitions.make_ahead(connection, utc(2031, 12, 1)) == [f"{RECORD}_2032_02"]
    assert names() == [*before, f"{RECORD}_2031_11", f"{RECORD}_2031_12", f"{RECORD}_2032_01", f"{RECORD}_2032_02"]


def test_present_months_are_there(partitioned: None) -> None:
    assert partitions.make_ahead(connection, dt.datetime.now(dt.UTC)) == []


def test_record_goes_to_its_month(partitioned: None) -> None:
    key = make_key()
    partitions.make_ahead(connection, utc(2031, 11, 3))
    assert place(make_record(key, utc(2031, 12, 1), started_at=utc(2031, 11, 30, 23))) == f"{RECORD}_2031_11"
    assert place(make_record(key, utc(2031, 12, 1))) == f"{RECORD}_2031_12"
    assert place(make_record(key, utc(2020, 1, 1))) == BEFORE
    assert place(make_record(key, utc(2050, 1, 1))) == DEFAULT


def test_strays_move_to_their_month(partitioned: None) -> None:
    """Beat did not run for months: nothing was refused meanwhile, and nothing stays where it does not belong."""
    record = make_record(make_key(), utc(2031, 11, 3))
    stays = make_record(record.api_key, utc(2050, 1, 1))
    assert place(record) == DEFAULT
    partitions.make_ahead(connection, utc(2031, 11, 20))
    assert (place(record), place(stays)) == (f"{RECORD}_2031_11", DEFAULT)
    assert UsageRecord.objects.count() == 2


@pytest.mark.parametrize(
    "moment", [utc(2020, 1, 1), utc(2031, 11, 3), utc(2050, 1, 1)], ids=["before", "month", "default"]
)
def test_every_partition_is_guarded(partitioned: None, moment: dt.datetime) -> None:
    partitions.make_ahead(connection, utc(2031, 11, 3))
    record = make_record(make_key(), moment)
    with pytest.raises(IntegrityError, match="never deleted"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {place(record)} WHERE id = %s", [record.pk])
    with pytest.raises(IntegrityError), transaction.atomic():
        make_record(record.api_key, moment, id=record.pk, request_name="another")
    with pytest.raises(IntegrityError), transaction.atomic():
        make_record(record.api_key, moment, request_name=record.request_name)


def shape() -> set[tuple[str, ...]]:
    """Indexes and constraints of the table, as the database tells them."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype <> 'n'"
            f" AND ('{RECORD}'::regclass IN (conrelid, confrelid)) UNION ALL"
            f" SELECT 'index', indexdef FROM pg_indexes WHERE tablename = '{RECORD}'"
        )
        return set(cursor.fetchall())


def test_there_and_back_with_records(db: None) -> None:
    """Nothing moves on the way there; on the way back the table is what it was, with what came meanwhile."""
    before, key = shape(), make_key()
    assert (RECORD, "UNIQUE (request_name, api_key_id)") in before
    assert len([told for _, told in before if "REFERENCES billing_usagerecord(id)" in told]) == 1
    old = make_record(key, dt.datetime.now(dt.UTC))
    Attempt.objects.create(
        record=old,
        number=1,
        provider="p",
        upstream_model="m",
        outcome="answered",
        started_at=old.started_at,
        duration_ms=1,
    )
    by_month()
    new = make_record(key, old.started_at + dt.timedelta(days=40))
    assert place(old) == BEFORE
    assert place(new) not in (BEFORE, DEFAULT)
    assert Attempt.objects.get().record == old
    by_month("--undo")
    assert shape() == before
    assert {record.pk for record in UsageRecord.objects.all()} == {old.pk, new.pk}


def test_command_says_what_cannot_be(db: None) -> None:
    with pytest.raises(CommandError, match="plain table already"):
        by_month("--undo")
    by_month()
    with pytest.raises(CommandError, match="in partitions already"):
        by_month()


def test_settled_twice_is_one_record(partitioned: None) -> None:
    """What the ledger repeats conflicts in the partition too, and a sweep's record gives way to its owner's."""
    key = make_key()
    row = entries.opening(key)
    swept, owned = entries.settlement(row, ending="gateway_lost"), entries.settlement(row)
    for settlement in (swept, owned, owned, swept):
        write(Group(settlements=[settlement]), {}, "default")
    record = UsageRecord.objects.get()
    assert (record.id, record.ending, record.started_at) == (row.id, "complete", row.started_at)
    assert Attempt.objects.filter(record_id=row.id).count() == 1
    assert BudgetMonth.objects.get().spent_nanos == record.cost_nanos
