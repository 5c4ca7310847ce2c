"""Roll-ups: made again from the records, whatever runs twice, at once or dies in between."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import DataError, connection, transaction
from django.db.models import Count, Sum

from billing import rollups
from billing.models import ApiKey, FlagRollup, RollupDue, UsageDay, UsageRecord, UsageRollup
from billing.usage import BUCKETS, TokenUsage
from tests.billing.factories import make_account, make_key, make_record, utc

DAY = dt.date(2026, 11, 3)
COLUMNS = [field.attname for field in UsageRollup._meta.fields if field.attname != "id"]


def rows() -> list[tuple[Any, ...]]:
    return sorted(UsageRollup.objects.values_list(*COLUMNS), key=str)


def summed(queryset: Any, requests: Any) -> dict[str, int]:
    named = {f"all_{name}": Sum(name, default=0) for name in (*BUCKETS, "reasoning", "cost_nanos")}
    return queryset.aggregate(requests_made=requests, **named)


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key()


def fill(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3, 8), TokenUsage(1, 2, 3, 4, 5, reasoning=2))
    make_record(key, utc(2026, 11, 3, 8, 59), TokenUsage(10, 20, 30, 40, 50))
    make_record(key, utc(2026, 11, 3, 9), metering="estimated", ending="client_left")
    make_record(key, utc(2026, 11, 3, 9), metering="estimated", ending="incomplete")
    make_record(key, utc(2026, 11, 3, 9), service_tier="scale")


def test_hours_and_dimensions_are_apart(key: ApiKey) -> None:
    fill(key)
    assert rollups.rebuild_due() == 1
    found = {
        (row.hour_start.hour, row.metering, row.service_tier): (row.requests, row.interrupted, row.unpriced)
        for row in UsageRollup.objects.all()
    }
    assert found == {
        (8, "reported", ""): (2, 0, 0),
        (9, "estimated", ""): (2, 1, 0),
        (9, "reported", "scale"): (1, 0, 1),
    }


def test_rollup_is_sum_of_records(key: ApiKey) -> None:
    fill(key)
    rollups.rebuild(key.pk, DAY)
    assert summed(UsageRollup.objects, Sum("requests")) == summed(UsageRecord.objects, Count("*"))


def test_run_twice_gives_same_rows(key: ApiKey) -> None:
    fill(key)
    assert rollups.rebuild(key.pk, DAY) == 3
    first = rows()
    assert rollups.rebuild(key.pk, DAY) == 3
    assert rows() == first


def test_clean_days_are_left_alone(key: ApiKey) -> None:
    fill(key)
    assert (rollups.rebuild_due(), rollups.rebuild_due()) == (1, 0)
    assert not RollupDue.objects.exists()


def test_other_keys_and_days_stay(key: ApiKey) -> None:
    fill(key)
    make_record(key, utc(2026, 11, 4))
    make_record(make_key(key.account, "other"), utc(2026, 11, 3))
    rollups.rebuild_due()
    before = rows()
    rollups.rebuild(key.pk, DAY)
    assert rows() == before


def test_limit_leaves_the_rest_due(key: ApiKey) -> None:
    for day in (1, 2, 3):
        make_record(key, utc(2026, 11, day))
    assert rollups.rebuild_due(limit=2) == 2
    assert list(RollupDue.objects.values_list("day", flat=True)) == [DAY]


def test_record_that_vanished_leaves_no_sum(key: ApiKey) -> None:
    """A record that was replaced by one on another day: the first day's sum goes."""
    record = make_record(key, utc(2026, 11, 3))
    rollups.rebuild_due()
    UsageRecord.objects.filter(pk=record.pk).update(day=dt.date(2026, 11, 4))
    assert rollups.rebuild(key.pk, DAY) == 0
    assert not UsageRollup.objects.exists()


def test_days_follow_the_accounts_zone(db: None) -> None:
    """Kathmandu is 5:45 ahead: 18:10 UTC is still its day, 18:20 the next, and hours begin at a quarter past."""
    key = make_key(make_account(timezone="Asia/Kathmandu"))
    make_record(key, utc(2026, 11, 3, 18, 10))
    make_record(key, utc(2026, 11, 3, 18, 20))
    rollups.rebuild_due()
    assert list(UsageRollup.objects.order_by("day").values_list("day", "hour_start")) == [
        (DAY, utc(2026, 11, 3, 17, 15)),
        (dt.date(2026, 11, 4), utc(2026, 11, 3, 18, 15)),
    ]


def test_long_day_has_twenty_five_hours(db: None) -> None:
    key = make_key(make_account(timezone="America/Los_Angeles"))
    for hour in range(25):
        make_record(key, utc(2026, 11, 1, 7) + dt.timedelta(hours=hour, minutes=30))
    rollups.rebuild_due()
    assert UsageRollup.objects.filter(day=dt.date(2026, 11, 1)).count() == 25


class Killed(BaseException):
    """Stands for the process's end."""


@transaction.atomic
def rebuild_and_die(key: ApiKey) -> None:
    rollups.rebuild(key.pk, DAY)
    raise Killed


def test_killed_half_way_changes_nothing(key: ApiKey) -> None:
    fill(key)
    rollups.rebuild_due()
    make_record(key, utc(2026, 11, 3, 10))
    before = rows()
    with pytest.raises(Killed):
        rebuild_and_die(key)
    assert rows() == before
    assert RollupDue.objects.count() == 1
    assert rollups.rebuild_due() == 1
    assert summed(UsageRollup.objects, Sum("requests")) == summed(UsageRecord.objects, Count("*"))


@pytest.mark.django_db(transaction=True)
def test_parallel_runs_agree() -> None:
    """Runs and records at once: at the end, one more run leaves exactly the sum of the records."""
    key = make_key()
    start = threading.Barrier(4)

    def write() -> None:
        start.wait()
        for minute in range(15):
            with transaction.atomic():
                make_record(key, utc(2026, 11, 3, 8, minute))
        connection.close()

    def run() -> None:
        start.wait()
        for _ in range(8):
            rollups.rebuild(key.pk, DAY)
        connection.close()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work) for work in (write, write, run, run)]:
            future.result()
    if not RollupDue.objects.exists():
        assert summed(UsageRollup.objects, Sum("requests")) == summed(UsageRecord.objects, Count("*"))
    rollups.rebuild_due()
    assert summed(UsageRollup.objects, Sum("requests")) == summed(UsageRecord.objects, Count("*"))
    assert UsageRollup.objects.count() == 1


# --- batches of many keys ---


@pytest.fixture
def keys(db: None) -> list[ApiKey]:
    """Of two accounts, each with use on two days, and one with use on a third."""
    accounts = [make_account(f"customer-{at}") for at in range(2)]
    made = [make_key(accounts[at % 2], f"key-{at}") for at in range(5)]
    for key in made:
        make_record(key, utc(2026, 11, 3, 8))
        make_record(key, utc(2026, 11, 4, 8), TokenUsage(output=key.pk))
    make_record(made[0], utc(2026, 11, 5))
    return made


def batches() -> list[tuple[int, int]]:
    """How many keys and days each has."""
    due = RollupDue.objects.order_by("day", "api_key_id").values_list("day", "api_key_id").distinct()
    return [(len(batch.keys), len(batch.days)) for batch in rollups._batches(due)]


def test_days_of_same_keys_go_together(keys: list[ApiKey]) -> None:
    assert batches() == [(5, 2), (1, 1)]


def test_batches_are_bounded(keys: list[ApiKey], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rollups.MAX_RECORDS, connection.vendor, 3)
    assert batches() == [(2, 1), (3, 1), (2, 1), (3, 1), (1, 1)]
    monkeypatch.setitem(rollups.MAX_RECORDS, connection.vendor, 0)
    assert batches() == [(1, 1)] * 11
    monkeypatch.undo()
    monkeypatch.setattr(rollups, "MAX_KEYS", 3)
    assert batches() == [(3, 2), (2, 2), (1, 1)]


@pytest.mark.parametrize("most", [0, 3, 50_000])
def test_batches_change_no_sum(keys: list[ApiKey], monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setitem(rollups.MAX_RECORDS, connection.vendor, most)
    assert rollups.rebuild_due() == 11
    found = rows()
    for key in keys:
        for day in (3, 4, 5):
            rollups.rebuild(key.pk, dt.date(2026, 11, day))
    assert rows() == found
    assert len(found) == 11
    assert summed(UsageRollup.objects, Sum("requests")) == summed(UsageRecord.objects, Count("*"))


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has another error for a sum that is too large")
def test_bad_key_holds_up_no_other(keys: list[ApiKey]) -> None:
    bad = keys[2]
    for at in range(2):
        make_record(bad, utc(2026, 11, 3, 9), request_name=f"huge-{at}")
    UsageRecord.objects.filter(request_name__startswith="huge").update(output=2**62)
    with pytest.raises(DataError):
        rollups.rebuild_due()
    assert set(RollupDue.objects.values_list("api_key", flat=True)) == {bad.pk}
    assert set(UsageRollup.objects.values_list("api_key", flat=True)) == {key.pk for key in keys} - {bad.pk}
    assert UsageRollup.objects.count() == 9
    with pytest.raises(DataError):
        rollups.rebuild_due()


@pytest.mark.django_db(transaction=True)
def test_parallel_batches_agree() -> None:
    """Batches of the same keys at once, and records: no deadlock, and one more run leaves the sum of the records."""
    account = make_account()
    made = [make_key(account, f"key-{at}") for at in range(4)]
    start = threading.Barrier(3)

    def write() -> None:
        start.wait()
        for minute in range(8):
            for key in reversed(made):
                with transaction.atomic():
                    make_record(key, utc(2026, 11, 3, 8, minute))
        connection.close()

    def run() -> None:
        start.wait()
        for _ in range(8):
            rollups.rebuild_due()
        connection.close()

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(work) for work in (write, run, run)]:
            future.result()
    rollups.rebuild_due()
    assert summed(UsageRollup.objects, Sum("requests")) == summed(UsageRecord.objects, Count("*"))
    assert summed(UsageDay.objects, Sum("requests")) == summed(UsageRecord.objects, Count("*"))
    assert UsageRollup.objects.count() == 4


# --- flags ---

FLAG_COLUMNS = ("day", "provider", "model", "flag", "records", "first_at", "last_at")


def test_flags_are_rolled_up(key: ApiKey) -> None:
    early, later = utc(2026, 11, 3, 8), utc(2026, 11, 3, 9)
    make_record(key, early, flags=["unknown:a", "zero_with_output"])
    make_record(key, later, flags=["unknown:a"])
    make_record(key, later, flags=["unknown:a"], provider="beta")
    make_record(key, utc(2026, 11, 4, 8), flags=["negative:output", "x" * 300])
    make_record(key, later)
    rollups.rebuild_due()
    next_day, at = dt.date(2026, 11, 4), utc(2026, 11, 4, 8)
    expected = {
        (DAY, "acme-cloud", "gpt-5.6-sol", "unknown:a", 2, early, later),
        (DAY, "acme-cloud", "gpt-5.6-sol", "zero_with_output", 1, early, early),
        (DAY, "beta", "gpt-5.6-sol", "unknown:a", 1, later, later),
        (next_day, "acme-cloud", "gpt-5.6-sol", "negative:output", 1, at, at),
        (next_day, "acme-cloud", "gpt-5.6-sol", "x" * 200, 1, at, at),
    }
    assert set(FlagRollup.objects.values_list(*FLAG_COLUMNS)) == expected
    rollups.rebuild(key.pk, DAY)
    assert set(FlagRollup.objects.values_list(*FLAG_COLUMNS)) == expected


def test_endless_flags_are_cut_off(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), flags=["common"])
    make_record(key, utc(2026, 11, 3), flags=[*(f"unknown:{n}" for n in range(rollups.MAX_FLAGS)), "common"])
    rollups.rebuild_due()
    assert FlagRollup.objects.count() == rollups.MAX_FLAGS
    assert FlagRollup.objects.get(flag="common").records == 2


def test_endless_flags_crowd_out_nobody(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "MAX_FLAGS", 2)
    make_record(key, utc(2026, 11, 3), flags=[f"unknown:{n}" for n in range(5)])
    make_record(key, utc(2026, 11, 4), flags=["rare"])
    make_record(make_key(key.account, "other"), utc(2026, 11, 3), flags=["rare"])
    rollups.rebuild_due()
    assert FlagRollup.objects.filter(flag="rare").count() == 2
    assert FlagRollup.objects.count() == 4
