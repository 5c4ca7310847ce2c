"""Months of records that are dropped: when they may not be, what is the same afterwards, and what can never happen."""

from __future__ import annotations

import datetime as dt
import gzip
import hashlib
import importlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from django.urls import reverse

from billing import (
    adjustments,
    dropping,
    invoices,
    partitions,
    proofs,
    quarters,
    record_export,
    reports,
    rollups,
    seals,
    statements,
    views,
)  # fmt: skip
from billing.ledger.groups import Group, write
from billing.models import (
    Adjustment,
    ApiKey,
    Attempt,
    AuditEntry,
    BudgetMonth,
    DroppedInvoice,
    DroppedMonth,
    DroppedRecord,
    Invoice,
    Price,
    RecordToShip,
    RollupDue,
    UsageDay,
    UsageRecord,
    UsageRollup,
)  # fmt: skip
from billing.money import parse
from billing.partitions import BEFORE, DEFAULT, RECORD
from billing.record_export import RecordQuery
from billing.usage import TokenUsage
from tests import settings as ground
from tests.billing.admin_site import Login
from tests.billing.factories import make_account, make_adjustment, make_key, make_record, utc
from tests.billing.ledger import entries

pytestmark = pytest.mark.skipif(not ground.POSTGRESQL, reason="partitions are PostgreSQL's")
NOW = utc(2024, 8, 1)
JANUARY, FEBRUARY = dt.date(2024, 1, 1), dt.date(2024, 2, 1)


class World(NamedTuple):
    """Two keys, in UTC and in Taipei, with records of January and February; both months are issued and rolled up."""

    key: ApiKey
    taipei: ApiKey
    crossing: UsageRecord
    """Of January by its start, of 1 February by its day."""
    beside: UsageRecord
    """Of February, on that same day."""


def make_world() -> World:
    key = make_key(make_account(tax_rate_ppm=50_000))
    taipei = make_key(make_account("formosa", timezone="Asia/Taipei", currency="TWD"))
    for day in (3, 3, 14):
        attempted(make_record(key, utc(2024, 1, day), TokenUsage(input=1_234_567, output=day)))
        make_record(taipei, utc(2024, 1, day), TokenUsage(input=777, cache_read=5), metering="estimated")
    crossing = attempted(make_record(taipei, utc(2024, 1, 31, 20)), "failed", "answered")
    beside = make_record(key, utc(2024, 2, 1), TokenUsage(output=99))
    make_record(key, utc(2024, 2, 20), TokenUsage(output=7))
    rollups.rebuild_due()
    for month in (JANUARY, FEBRUARY):
        for draft in invoices.draft(month, now=utc(2024, 3, 2)):
            invoices.issue(draft.pk, now=utc(2024, 3, 2))
    return World(key, taipei, crossing, beside)


def attempted(record: UsageRecord, *outcomes: str) -> UsageRecord:
    for number, outcome in enumerate(outcomes or ("answered",), start=1):
        Attempt.objects.create(
            record=record, number=number, provider="acme-cloud", upstream_model="m", outcome=outcome, status=200,
            started_at=record.started_at, duration_ms=900,
        )  # fmt: skip
    return record


def divide() -> None:
    """Into what was before 2024, January, February and March."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what the test wrote in this transaction
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
    partitions.convert(connection, utc(2024, 1, 15))


@pytest.fixture
def archive(settings: Any, tmp_path: Path) -> Path:
    settings.RECORDS_KEEP_MONTHS, settings.RECORDS_ARCHIVE = 5, tmp_path
    return tmp_path


@pytest.fixture
def world(db: None, archive: Path) -> World:
    divide()
    return make_world()


def names() -> list[str]:
    return [one.name for one in partitions.partitions(connection)]


def january() -> DroppedMonth:
    """Drop what may go: the empty partition before, January, February."""
    dropped, problem = dropping.drop_old(NOW)
    assert problem is None, problem
    return next(one for one in dropped if one.partition.endswith("2024_01"))


def only_january(settings: Any) -> DroppedMonth:
    settings.RECORDS_KEEP_MONTHS = 6
    return january()


def refusal(now: dt.datetime = NOW) -> str:
    """Why January stays, and that nothing is changed by trying."""
    before = UsageRecord.objects.count(), Attempt.objects.count()
    _, problem = dropping.drop_old(now)
    assert f"{RECORD}_2024_01 stays" in str(problem)
    assert (UsageRecord.objects.count(), Attempt.objects.count()) == before
    assert (DroppedInvoice.objects.count(), DroppedRecord.objects.count()) == (0, 0)
    return str(problem)


def figures(world: World) -> dict[str, Any]:
    """What customers and Finance read of January and February."""
    months = [(JANUARY, FEBRUARY), (FEBRUARY, dt.date(2024, 3, 1))]
    return {
        "usage": [reports.usage_by_day_and_model(key.pk, *month) for key in world[:2] for month in months],
        "statements": [
            (statement.used, statement.total, statement.parts, statement.billed)
            for key in world[:2]
            for statement in (statements.build(key.account, month) for month in (JANUARY, FEBRUARY))
        ],
        "quarters": sorted(map(repr, quarters.read("acme-cloud", utc(2024, 1, 1, 0), utc(2024, 3, 1, 0)))),
        "budgets": list(BudgetMonth.objects.order_by("pk").values("api_key", "month", "spent_nanos")),
        "hours": list(UsageRollup.objects.order_by("pk").values()),
    }


def proof_of(invoice: Invoice) -> proofs.Proof:
    return proofs.prove(invoice, now=NOW)


# --- it goes ---


def test_all_figures_stay(world: World, archive: Path, settings: Any) -> None:
    before, held = figures(world), {one.pk: proof_of(one) for one in Invoice.objects.all()}
    cost = UsageRecord.objects.filter(started_at__lt=utc(2024, 2, 1, 0)).aggregate(sum=Sum("cost_nanos"))["sum"]
    dropped = only_january(settings)
    assert (dropped.records, sum(dropped.costs.values()), dropped.last_day) == (7, cost, FEBRUARY)
    assert names()[0] == f"{RECORD}_2024_02"
    assert {one.day for one in UsageRecord.objects.all()} == {FEBRUARY, dt.date(2024, 2, 20)}
    assert not Attempt.objects.exists()
    assert DroppedRecord.objects.count() == 7
    assert figures(world) == before
    for invoice in Invoice.objects.all():
        now, then = proof_of(invoice), held[invoice.pk]
        assert (now.holds, then.holds, now.lines, now.sums) == (True, True, then.lines, then.sums)
        assert now.records + sum(filed.records for filed in now.filed) == then.records
        assert proofs.read(json.loads(json.dumps(now.as_json()))) == now
    filed = [filed for invoice in Invoice.objects.all() for filed in proof_of(invoice).filed]
    assert sum(one.records for one in filed) == 7
    assert {(one.file_name, one.sha256) for one in filed} == {(dropped.file_name, dropped.sha256)}


def with_late_use(key: ApiKey, *months: int) -> list[Invoice]:
    """Use of 3 January that is on the invoices of later months: of 1 each."""
    found = []
    for month in months:
        make_record(key, utc(2024, 1, 3), TokenUsage(input=200_000))
        make_record(key, utc(2024, month, 9), TokenUsage(input=300_000))
        rollups.rebuild_due()
        (draft,) = invoices.draft(dt.date(2024, month, 1), account=key.account, now=NOW)
        found.append(invoices.issue(draft.pk, now=NOW))
    return found


def parts_of(key: ApiKey, month: dt.date = JANUARY) -> list[tuple[list[Invoice], int]]:
    return [([*part.invoices], part.cost_nanos) for part in statements.build(key.account, month).parts]


def test_dropped_late_use_is_on_its_invoice(world: World, settings: Any) -> None:
    (march,) = with_late_use(world.key, 3)
    before = parts_of(world.key)
    assert before[1:] == [([march], parse("1"))]
    only_january(settings)
    assert parts_of(world.key) == before


def test_dropped_late_use_of_several_invoices_is_together(world: World, settings: Any) -> None:
    """Which of them has how much of which month only the file tells."""
    march, april = with_late_use(world.key, 3, 4)
    own, *late = parts_of(world.key)
    assert late == [([march], parse("1")), ([april], parse("1"))]
    only_january(settings)
    assert parts_of(world.key) == [own, ([march, april], parse("2"))]
    assert parts_of(world.key, dt.date(2024, 3, 1)) == [([march], parse("1.5"))]
    make_record(world.key, utc(2024, 3, 20), TokenUsage(input=200_000))
    assert parts_of(world.key, dt.date(2024, 3, 1))[1:] == [([], parse("1"))]


def test_file_holds_records_and_attempts(world: World, archive: Path, settings: Any) -> None:
    kept = {str(one.pk): one for one in UsageRecord.objects.filter(started_at__lt=utc(2024, 2, 1, 0))}
    dropped = only_january(settings)
    raw = gzip.decompress((archive / dropped.file_name).read_bytes())
    assert hashlib.sha256(raw).hexdigest() == dropped.sha256
    assert dropped.file_name == f"usage-records-2024-01-{dropped.sha256[:12]}.jsonl.gz"
    told = [json.loads(line) for line in raw.splitlines()]
    assert {one["id"] for one in told} == set(kept)
    for one in told:
        record = kept[one["id"]]
        assert set(one) == {field.attname for field in UsageRecord._meta.concrete_fields} | {"attempts"}
        assert (one["cost_nanos"], one["unit_prices"]) == (record.cost_nanos, record.unit_prices)
        assert dt.datetime.fromisoformat(one["started_at"]) == record.started_at
    assert [a["outcome"] for one in told for a in one["attempts"] if one["id"] == str(world.crossing.pk)] == [
        "failed", "answered",
    ]  # fmt: skip
    assert not list(archive.glob("*.part"))


def test_audit_log_tells_number_cost_hash_and_file(world: World, settings: Any) -> None:
    dropped = only_january(settings)
    entry = AuditEntry.objects.get(table="billing.droppedmonth", object_id=dropped.pk)
    assert entry.who == "drop_records"
    assert entry.message.startswith("7 records dropped (TWD 0.0")
    assert entry.message.endswith(f"in {dropped.file_name}, SHA-256 {dropped.sha256}")


def test_later_months_follow(world: World) -> None:
    january()
    assert UsageRecord.objects.count() == 0
    assert seals.last_day() == dt.date(2024, 2, 20)
    assert all(proof_of(invoice).holds for invoice in Invoice.objects.all())


def test_adjusted_record_stays_behind(world: World, settings: Any) -> None:
    """An adjustment names its record for ever: proofs and reports read its model there."""
    record = UsageRecord.objects.filter(api_key=world.key, day=dt.date(2024, 1, 14)).get()
    make_adjustment(world.key, utc(2024, 5, 1), -1_000, record=record, kind=Adjustment.Kind.GOODWILL)
    may = dt.date(2024, 5, 1), dt.date(2024, 6, 1)
    before, credited = figures(world), reports.usage_by_day_and_model(world.key.pk, *may)
    assert [row.model for row in credited] == [record.model]
    assert only_january(settings).records == 6
    assert UsageRecord.objects.filter(day__lt=FEBRUARY).get() == record
    assert Attempt.objects.get().record == record
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {DEFAULT}")
        assert cursor.fetchall() == [(record.pk,)]
    assert figures(world) == before
    assert reports.usage_by_day_and_model(world.key.pk, *may) == credited
    assert all(proof_of(invoice).holds for invoice in Invoice.objects.all())
    with pytest.raises(IntegrityError, match="never deleted"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {RECORD}")


# --- it stays ---


def keep_unbilled(world: World) -> None:
    make_record(world.key, utc(2024, 1, 20))
    rollups.rebuild_due()


def void_one(world: World) -> None:
    invoices.void(Invoice.objects.get(api_key=world.key, month=JANUARY).pk, "wrong", NOW)


def leave_neighbour_unbilled(world: World) -> None:
    """A record of February, on a day that January's records share."""
    make_record(world.key, utc(2024, 2, 1, 13))
    rollups.rebuild_due()


def make_due(world: World) -> None:
    RollupDue.objects.create(api_key=world.key, day=FEBRUARY)


def open_one(world: World) -> None:
    write(Group(openings=[entries.opening(world.key, started_at=utc(2024, 1, 31))]), {}, "default")


def note_change(world: World) -> None:
    RecordToShip.objects.create(record_id=world.crossing.pk)


def damage_sums(world: World) -> None:
    UsageDay.objects.filter(day=dt.date(2024, 1, 3), api_key=world.key).update(requests=1)


def end_lately(world: World) -> None:
    """A stream that went on for half a year."""
    make_record(world.key, utc(2024, 7, 20), started_at=utc(2024, 1, 20))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (keep_unbilled, "1 of its 8 records are on no issued invoice"),
        (void_one, "3 of its 7 records are on no issued invoice"),
        (leave_neighbour_unbilled, "1 records of days up to 2024-02-01 that are in later months"),
        (make_due, "roll-ups of days up to 2024-02-01 are due: 1"),
        (open_one, "requests that began before its end are not settled: 1"),
        (note_change, "1 changes of its records wait for ClickHouse"),
        (damage_sums, "roll-ups and records differ on 1 days, the first of them 2024-01-03"),
        (end_lately, "a request of it ended on 2024-07-20"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_month_in_doubt_stays(world: World, archive: Path, change: Callable[[World], None], reason: str) -> None:
    change(world)
    assert reason in refusal()
    assert not list(archive.glob("usage-records-2024*"))


def test_altered_record_stays(world: World) -> None:
    """Whoever got around the triggers changed an amount, and the sums with it: the record does not follow its price."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(f"UPDATE {RECORD} SET output_nanos = output_nanos + 1 WHERE id = %s", [world.crossing.pk])
        cursor.execute("SET session_replication_role = origin")
    assert "the amounts of 1 records do not follow" in refusal()


def test_young_month_stays(world: World, settings: Any) -> None:
    settings.RECORDS_KEEP_MONTHS = 7
    assert [one.name for one in dropping.old(utc(2024, 8, 31))] == [BEFORE]
    assert [one.name for one in dropping.old(utc(2024, 9, 1))] == [BEFORE, f"{RECORD}_2024_01"]


def test_nothing_is_old_without_the_setting(world: World, settings: Any) -> None:
    settings.RECORDS_KEEP_MONTHS = 0
    assert dropping.drop_old(NOW) == ([], None)


def test_missing_folder_keeps_all(world: World, settings: Any, tmp_path: Path) -> None:
    settings.RECORDS_ARCHIVE = tmp_path / "unmounted"
    _, problem = dropping.drop_old(NOW)
    assert "is no folder that can be written here" in str(problem)
    assert names()[0] == BEFORE


def test_only_the_oldest_goes(world: World) -> None:
    [_, first, second, *_rest] = dropping.old(NOW)
    assert "an older month is still there" in dropping.in_the_way(second, NOW)
    with pytest.raises(dropping.Refused, match="not the oldest"):
        dropping.drop(second, now=NOW)
    assert first.name in names()


def test_command_tells_what_stands_in_the_way(world: World, capsys: pytest.CaptureFixture[str], settings: Any) -> None:
    settings.RECORDS_KEEP_MONTHS = 1  # by now, years are past
    call_command("drop_records", "--dry-run")
    assert f"{BEFORE}: can be dropped\n{RECORD}_2024_01: an older month is still there\n" in capsys.readouterr().out
    make_due(world)
    with pytest.raises(CommandError, match=rf"{RECORD}_2024_01 stays: roll-ups of days up to 2024-02-01 are due: 1"):
        call_command("drop_records")
    RollupDue.objects.all().delete()
    call_command("drop_records")
    assert f"{RECORD}_2024_01: 7 records (TWD 0.0" in capsys.readouterr().out


# --- afterwards ---


def test_invoice_is_never_void_again(world: World, settings: Any) -> None:
    """Neither one with dropped records nor one that shares a sealed day."""
    only_january(settings)
    for invoice in Invoice.objects.exclude(month=FEBRUARY, api_key=world.taipei):
        with pytest.raises(invoices.InvoiceError, match="credit it instead"):
            invoices.void(invoice.pk, "wrong", NOW)
        with pytest.raises(IntegrityError, match="all of its records"), transaction.atomic():
            Invoice.objects.filter(pk=invoice.pk).update(status="void", voided_at=NOW)
        invoices.mark_paid(invoice.pk, dt.date(2024, 8, 2), "x")


def test_what_is_noted_never_changes(world: World, settings: Any) -> None:
    only_january(settings)
    for rows in (DroppedMonth.objects.all(), DroppedInvoice.objects.all()):
        with pytest.raises(IntegrityError, match="never changes"), transaction.atomic():
            rows.update(records=0)
        with pytest.raises(IntegrityError, match="never changes"), transaction.atomic():
            rows._raw_delete("default")


def test_migration_is_not_undone(world: World, settings: Any) -> None:
    """Without its tables nothing would be sealed any more."""
    migration = importlib.import_module("billing.migrations.0020_dropped_months")
    with connection.schema_editor() as editor:
        migration.refuse_to_forget(apps, editor)
        only_january(settings)
        with pytest.raises(RuntimeError, match="is not undone"):
            migration.refuse_to_forget(apps, editor)


def test_sealed_day_is_not_summed_again(world: World, settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    only_january(settings)
    before = figures(world)
    for day in (dt.date(2024, 1, 3), FEBRUARY, dt.date(2024, 2, 20)):
        RollupDue.objects.create(api_key=world.key, day=day)
    assert figures(world) == before  # due or not, it is not read from what is left
    assert rollups.rebuild_due() == 3
    assert not RollupDue.objects.exists()
    assert "sums of 2024-01-03 to 2024-02-01 stay" in caplog.text
    assert {**figures(world), "hours": ()} == {**before, "hours": ()}
    assert rollups.rebuild(world.key.pk, FEBRUARY) == 0
    assert UsageDay.objects.filter(api_key=world.key, day=FEBRUARY).get().cost_nanos == world.beside.cost_nanos


def late(key: ApiKey, **fields: Any) -> Any:
    """What an old journal says of a request that began on 31 January."""
    started = utc(2024, 1, 31, 9)
    row = entries.opening(key, started_at=started, account_name=key.account.name)
    return entries.settlement(row, ended_at=started + dt.timedelta(minutes=5), zone=key.account.timezone, **fields)


def settle(*settlements: Any) -> None:
    write(Group(settlements=list(settlements)), {}, "default")


def test_late_record_counts_today(world: World, settings: Any) -> None:
    only_january(settings)
    before, one = figures(world), late(world.key)
    settle(one)
    settle(one)
    record = UsageRecord.objects.get(pk=one.open.id)
    today = dt.datetime.now(dt.UTC).date()
    assert (record.ended_at, record.day) == (one.ended_at, today)
    assert record.hour_start.date() == today
    [due] = RollupDue.objects.values_list("day", flat=True).distinct()
    assert due == today
    rollups.rebuild_due()
    assert UsageDay.objects.get(day=today).cost_nanos == record.cost_nanos
    assert BudgetMonth.objects.get(month=today.replace(day=1)).spent_nanos == record.cost_nanos
    for name in ("usage", "statements"):
        assert figures(world)[name] == before[name]
    query = RecordQuery.parse({"day": today.isoformat()})
    assert query.records(dt.datetime.now(dt.UTC)).get() == record
    bill = invoices.draft(today.replace(day=1), account=world.key.account, now=dt.datetime.now(dt.UTC))[0]
    assert [line.late for line in bill.lines.all()] == [True] * bill.lines.count()


def test_dropped_record_is_not_billed_twice(world: World, settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A dead host's disk comes back after months; what its journal says was settled by others long ago."""
    one = late(world.key)
    settle(one)
    [draft] = invoices.draft(dt.date(2024, 3, 1), account=world.key.account, now=utc(2024, 4, 1))
    invoices.issue(draft.pk, now=utc(2024, 4, 1))
    rollups.rebuild_due()
    only_january(settings)
    before, fresh = figures(world), entries.settlement(entries.opening(world.key))
    caplog.set_level(logging.ERROR)
    settle(one, fresh)
    assert "it is not billed again" in caplog.text
    assert UsageRecord.objects.filter(pk__in=[one.open.id, fresh.open.id]).get().pk == fresh.open.id
    assert not Attempt.objects.filter(record_id=one.open.id).exists()
    RollupDue.objects.all().delete()
    assert figures(world)["usage"] == before["usage"]


def test_own_word_on_kept_record_is_an_adjustment(world: World, settings: Any) -> None:
    """A lost stream's record shares a sealed day: it is invoiced, so that its owner's word is billed beside it."""
    row = entries.opening(world.key, started_at=utc(2024, 2, 1, 6))
    told = {"ended_at": utc(2024, 2, 1, 7), "zone": "UTC"}
    settle(entries.settlement(row, ending="gateway_lost", **told))
    [draft] = invoices.draft(dt.date(2024, 3, 1), account=world.key.account, now=utc(2024, 4, 1))
    invoices.issue(draft.pk, now=utc(2024, 4, 1))
    rollups.rebuild_due()
    only_january(settings)
    settle(entries.settlement(row, **told))
    record = UsageRecord.objects.get(pk=row.id)
    assert (record.ending, record.day) == ("gateway_lost", FEBRUARY)
    assert Adjustment.objects.get().record == record
    assert not RollupDue.objects.filter(day=FEBRUARY).exists()


def test_price_in_force_counts_as_used(world: World, settings: Any) -> None:
    version = Price(model="m", effective_from=utc(2024, 1, 1), currency="USD")
    assert not version.is_used()
    only_january(settings)
    assert version.is_used()
    assert not Price(model="m", effective_from=utc(2024, 2, 2), currency="USD").is_used()


def test_account_stays_locked(world: World) -> None:
    january()
    assert world.taipei.account.is_used()
    with pytest.raises(IntegrityError, match="time zone and currency stay"), transaction.atomic():
        type(world.taipei.account).objects.filter(pk=world.taipei.account_id).update(timezone="UTC")


def test_no_adjustment_of_what_is_gone(world: World, settings: Any, django_user_model: Any) -> None:
    record = UsageRecord.objects.filter(day=dt.date(2024, 1, 14), api_key=world.key).get()
    only_january(settings)
    user = django_user_model.objects.create(username="ann")
    with pytest.raises(adjustments.AdjustmentError, match="dropped"):
        adjustments.propose(world.key, "goodwill", -5, "late", by=user, now=NOW, record=record)


def test_readers_say_where_the_rest_is(world: World, settings: Any, login: Login) -> None:
    assert views.itemised_from() is None
    dropped = only_january(settings)
    assert views.itemised_from() == utc(2024, 2, 1, 0)
    head = dict(record_export.sheet(RecordQuery.parse({"day__gte": "2024-01-15"}), NOW).head)
    assert head["Not included"].startswith("requests that began before 2024-02-01 00:00 UTC")
    assert "Not included" not in dict(record_export.sheet(RecordQuery.parse({"day": "2024-02-20"}), NOW).head)
    finance, invoice = login("finance"), Invoice.objects.get(api_key=world.key, month=JANUARY)
    page = finance.get(reverse("admin:invoice_prove", args=[invoice.pk])).content.decode()
    for told in ("3 records more", dropped.file_name, dropped.sha256, "what its 3 records come to", "it agrees"):
        assert told in page
    page = finance.get(reverse("admin:billing_invoice_void", args=[invoice.pk])).content.decode()
    assert "give a credit note instead" in page
    records = login("root").get(reverse("admin:billing_usagerecord_changelist"), {"invoice": invoice.pk})
    assert "Requests that began before 2024-02-01 UTC are no longer here" in records.content.decode()


# --- half-way ---


@pytest.fixture
def committed(transactional_db: None, archive: Path) -> Iterator[World]:
    """The same, seen by other connections too."""
    divide()
    yield make_world()
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE billing_usagerecord, billing_attempt CASCADE")
    partitions.revert(connection)


def other_connection() -> psycopg.Connection[Any]:
    params = {**connection.get_connection_params(), "autocommit": True, "cursor_factory": psycopg.Cursor}
    return psycopg.connect(**params)


def test_reader_holds_the_drop_up(committed: World, archive: Path, settings: Any) -> None:
    """Its file is there by then; nothing else is, and the next try is right."""
    settings.RECORDS_KEEP_MONTHS = 6
    before, month = figures(committed), dropping.old(NOW)[1]
    dropping.drop(dropping.old(NOW)[0], now=NOW)
    with other_connection() as other, other.transaction():
        other.execute(f"SELECT count(*) FROM {RECORD}")
        with pytest.raises(dropping.Refused, match="lock timeout"):
            dropping.drop(month, now=NOW, lock_s=0.1)
        [written] = archive.glob("usage-records-2024-01-*")
        assert (UsageRecord.objects.count(), Attempt.objects.count()) == (9, 5)
        assert DroppedMonth.objects.count() == 1
    assert dropping.drop(month, now=NOW).file_name == written.name
    assert UsageRecord.objects.count() == 2
    assert figures(committed) == before


def test_killed_between_file_and_drop(committed: World, archive: Path, settings: Any) -> None:
    settings.RECORDS_KEEP_MONTHS = 6
    before, month = figures(committed), dropping.old(NOW)[1]
    dropping.drop(dropping.old(NOW)[0], now=NOW)
    refused: list[dropping.Refused] = []

    def run() -> None:
        try:
            dropping.drop(month, now=NOW, lock_s=60)
        except dropping.Refused as error:
            refused.append(error)
        finally:
            connection.close()

    with other_connection() as other, other.transaction():
        other.execute(f"SELECT count(*) FROM {RECORD}")
        thread = threading.Thread(target=run)
        thread.start()
        waiting = "SELECT pid FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"
        while not (found := other.execute(waiting).fetchall()):
            time.sleep(0.02)
        assert list(archive.glob("usage-records-2024-01-*"))
        other.execute("SELECT pg_terminate_backend(%s)", found[0])
        thread.join()
    assert len(refused) == 1
    assert (UsageRecord.objects.count(), Attempt.objects.count(), DroppedMonth.objects.count()) == (9, 5, 1)
    assert figures(committed) == before
    assert dropping.drop(month, now=NOW).records == 7
    assert figures(committed) == before


def test_void_comes_before_or_after(committed: World, settings: Any) -> None:
    """One that is under way holds its invoice: the month stays."""
    settings.RECORDS_KEEP_MONTHS = 6
    dropping.drop(dropping.old(NOW)[0], now=NOW)
    invoice = Invoice.objects.get(api_key=committed.key, month=JANUARY)
    with other_connection() as other, other.transaction():
        other.execute("UPDATE billing_invoice SET status = 'void' WHERE id = %s", [invoice.pk])
        with pytest.raises(dropping.Refused, match="lock timeout"):
            dropping.drop(dropping.old(NOW)[0], now=NOW, lock_s=0.1)
    with pytest.raises(dropping.Refused, match="3 of its 7 records are on no issued invoice"):
        dropping.drop(dropping.old(NOW)[0], now=NOW)
