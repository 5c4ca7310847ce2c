"""What is read of the meter's health: by a fixed number of queries, and right."""

from __future__ import annotations

import datetime as dt
import uuid
from pathlib import Path

import pytest
from django.db import connection
from pytest_django import DjangoAssertNumQueries

from billing import rollups
from billing.ledger import Journal
from billing.ledger.events import Kind, note
from billing.meter_health import MeterReader
from billing.meter_health.readings import FLAG_DAYS, LATELY, Flagged, Journals, Metered
from billing.models import ApiKey, GatewayProcess, MeterEvent, OpenStream, RollupDue
from billing.processes import WATCH_S, Folder
from tests.billing.factories import make_account, make_key, make_record, price
from tests.billing.ledger.entries import ENDED, opening, settlement

pytestmark = pytest.mark.django_db

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
QUERIES = 9


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def reader(folder: Folder) -> MeterReader:
    return MeterReader(folder)


@pytest.fixture
def key() -> ApiKey:
    return make_key(make_account("northwind", timezone="Asia/Taipei"))


def open_stream(key: ApiKey, process: uuid.UUID, started_at: dt.datetime, **fields: object) -> None:
    id = uuid.uuid4()
    OpenStream.objects.create(
        id=id, api_key=key, account=key.account, key_name=key.name, account_name=key.account.name,
        request_name=id.hex, process=process, model="m", wire_format="messages", stream=True, started_at=started_at,
        **fields,
    )  # fmt: skip


def test_empty_installation_reads_nothing(reader: MeterReader) -> None:
    readings = reader.read(NOW)
    assert (readings.at, readings.living, readings.dead, readings.open_streams) == (NOW, 0, 0, 0)
    assert (readings.oldest_open, readings.rollup_due_since, readings.dead_since) == (None, None, None)
    assert (readings.unpriced.records, list(readings.flagged), list(readings.metered)) == (0, [], [])
    assert readings.redis_answers is None


def test_queries_do_not_grow(
    reader: MeterReader, key: ApiKey, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for hours in range(30):
        at = NOW - hours * HOUR
        make_record(key, at, flags=[f"unknown:counter_{hours}"], provider=f"provider-{hours}")
        make_record(key, at, model=f"model-{hours}", version=price("another"))
        open_stream(key, uuid.uuid4(), at)
        GatewayProcess.objects.create(id=uuid.uuid4(), label="gw", started_at=at)
        note(Kind.LATE, uuid.uuid4(), 1, at)
    rollups.rebuild_due()
    with django_assert_num_queries(QUERIES):
        readings = reader.read(NOW)
    assert (readings.unpriced.records, readings.open_streams, len(readings.flagged)) == (30, 30, 30)


def test_large_tables_are_not_scanned(key: ApiKey, reader: MeterReader) -> None:
    """Neither database reads the records but through their partial indexes."""
    make_record(key, NOW, model="model", version=price("another"))
    rollups.rebuild_due()
    asked: list[tuple[str, object]] = []

    def remember(execute: object, sql: str, params: object, many: bool, context: object) -> object:
        asked.append((sql, params))
        return execute(sql, params, many, context)  # type: ignore[operator]

    with connection.execute_wrapper(remember):
        reader.read(NOW)
    of_records = [one for one in asked if '"billing_usagerecord"' in one[0]]
    assert len(of_records) == 2
    for sql, params in of_records:
        assert "record_unpriced" in plan(sql, params)


def plan(sql: str, params: object) -> str:
    """How the database would do it, were the table too large to be read whole."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")
        explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
        cursor.execute(f"{explain} {sql}", params)
        return "\n".join(str(row) for row in cursor.fetchall())


def test_unpriced_records_name_what_they_block(reader: MeterReader, key: ApiKey) -> None:
    other = make_key(make_account("umbrella"), "batch")
    make_record(key, NOW - 2 * HOUR)
    for which, at, model in (
        (key, NOW - 40 * dt.timedelta(days=1), "m-1"),
        (key, NOW - HOUR, "m-2"),
        (other, NOW, "m-1"),
    ):
        make_record(which, at, model=model, version=price("another"))
    unpriced = reader.read(NOW).unpriced
    assert (unpriced.records, unpriced.since) == (3, NOW - 40 * dt.timedelta(days=1))
    assert unpriced.models == ("m-1", "m-2")
    assert unpriced.invoices == (
        f"northwind/{key.name} 2026-10", f"northwind/{key.name} 2026-11", "umbrella/batch 2026-11",
    )  # fmt: skip


def test_flags_are_counted_by_provider(reader: MeterReader, key: ApiKey) -> None:
    for provider, flags in (("acme", ["unknown:a", "zero_with_output"]), ("acme", ["unknown:a"]), ("beta", [])):
        make_record(key, NOW - HOUR, provider=provider, flags=flags)
    make_record(key, NOW - dt.timedelta(days=FLAG_DAYS + 2), flags=["unknown:old"])
    rollups.rebuild_due()
    assert reader.read(NOW).flagged == [
        Flagged("unknown:a", "acme", 2, NOW - HOUR),
        Flagged("zero_with_output", "acme", 1, NOW - HOUR),
    ]


def test_estimates_are_shares_of_a_day(reader: MeterReader, key: ApiKey) -> None:
    for provider, metering, count in (
        ("acme", "reported", 7), ("acme", "estimated", 2), ("acme", "checkpoint", 1), ("acme", "none", 5),
        ("beta", "reported", 1),
    ):  # fmt: skip
        for _ in range(count):
            make_record(key, NOW - HOUR, provider=provider, metering=metering)
    make_record(key, NOW - LATELY - HOUR, provider="acme", metering="estimated")
    rollups.rebuild_due()
    metered = reader.read(NOW).metered
    assert metered == [Metered("acme", 10, 3), Metered("beta", 1, 0)]
    assert [one.permille for one in metered] == [300, 0]


def test_rollup_lag_is_of_the_oldest(reader: MeterReader, key: ApiKey) -> None:
    for minutes in (9, 3):
        RollupDue.objects.create(api_key=key, day=NOW.date(), created_at=NOW - dt.timedelta(minutes=minutes))
    assert reader.read(NOW).rollup_due_since == NOW - dt.timedelta(minutes=9)


def test_dead_and_living_are_told_apart(folder: Folder, reader: MeterReader, key: ApiKey) -> None:
    alive, gone = uuid.uuid4(), uuid.uuid4()
    lock, left = folder.hold(alive), folder.hold(gone)
    assert lock is not None
    assert left is not None
    left.close()
    for process in (alive, gone):
        GatewayProcess.objects.create(id=process, label="gw", started_at=NOW)
        Journal(folder.journal_path(process)).append([settlement(opening(key))], {})
    open_stream(key, alive, NOW - 2 * HOUR)
    open_stream(key, gone, NOW - HOUR, checkpoint_at=NOW - dt.timedelta(seconds=50))
    open_stream(key, gone, NOW - HOUR)
    readings = reader.read(NOW)
    lock.close()
    size = folder.journal_path(gone).stat().st_size
    assert (readings.living, readings.dead) == (1, 1)
    assert readings.dead_since == NOW - dt.timedelta(seconds=50)
    assert (readings.open_streams, readings.oldest_open) == (3, NOW - 2 * HOUR)
    assert readings.dead_journals == readings.living_journals == Journals(1, size, 1, ENDED)


def test_looking_leaves_the_lock(folder: Folder, reader: MeterReader) -> None:
    gone = uuid.uuid4()
    left = folder.hold(gone)
    assert left is not None
    left.close()
    assert reader.read(NOW).dead == 1
    with folder.adopted(gone) as lock:
        assert lock is not None
        assert reader.read(NOW).dead == 0  # somebody sweeps


def test_silent_process_elsewhere_counts_as_dead(folder: Folder, key: ApiKey) -> None:
    seconds = [0.0]
    reader = MeterReader(folder, clock=lambda: seconds[0])
    still, moving = (GatewayProcess.objects.create(id=uuid.uuid4(), label="gw", started_at=NOW) for _ in range(2))
    open_stream(key, still.id, NOW - HOUR)
    assert reader.read(NOW).dead == 0
    seconds[0] = WATCH_S - 1
    GatewayProcess.objects.filter(id=moving.id).update(heartbeat=7)
    assert reader.read(NOW).dead == 0
    seconds[0] = WATCH_S + 1
    readings = reader.read(NOW)
    assert (readings.living, readings.dead, readings.dead_since) == (1, 1, NOW - HOUR)


def test_events_of_late_and_those_that_stand(reader: MeterReader) -> None:
    old = NOW - LATELY - HOUR
    for kind, at, count in (
        (Kind.LATE, NOW - HOUR, 3), (Kind.LATE, old, 5), (Kind.SWEPT, NOW - HOUR, 2), (Kind.SWEPT, old, 4),
        (Kind.DROPPED, old, 1), (Kind.UNJOURNALLED, NOW, 6),
    ):  # fmt: skip
        note(kind, uuid.UUID(int=count), count, at)
    MeterEvent.objects.filter(kind=Kind.UNJOURNALLED).update(acknowledged_at=NOW)
    readings = reader.read(NOW)
    assert {kind: noted.bills for kind, noted in readings.noted.items()} == {
        Kind.LATE: 3, Kind.SWEPT: 2, Kind.DROPPED: 1,
    }  # fmt: skip
    assert readings.noted[Kind.DROPPED].first_at == old
    assert (readings.swept_ever.processes, readings.swept_ever.bills) == (2, 6)


def test_redis_is_asked(folder: Folder) -> None:
    assert MeterReader(folder, lambda: False).read(NOW).redis_answers is False
