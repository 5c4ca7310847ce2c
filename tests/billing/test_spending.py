"""A key's month is the very sum of its records, kept by the database itself."""

from __future__ import annotations

import datetime as dt
import random
import threading

import pytest
from django.db import connection, connections, transaction
from django.db.models import Q, Sum

from billing import immutability, reports, rollups
from billing.ledger import Ledger
from billing.models import Adjustment, ApiKey, BudgetMonth, UsageRecord
from billing.periods import next_month
from billing.pricing import Rating
from billing.reports import Spending
from billing.spending import LARGEST
from tests.billing.factories import make_account, make_adjustment, make_key, make_record, unsaved_record, utc
from tests.billing.ledger.conftest import StartLedger, start_ledger
from tests.billing.ledger.entries import opening, settlement

NOVEMBER, DECEMBER = dt.date(2026, 11, 1), dt.date(2026, 12, 1)

__all__ = ["start_ledger"]


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key(make_account(timezone="Asia/Taipei"), monthly_budget_nanos=10**9)


def rated(nanos: int) -> Rating:
    return Rating(nanos, {"input": nanos}, {"input": 1})


def spent(key: ApiKey, month: dt.date = NOVEMBER) -> int:
    return reports.spendings([(key.pk, month)])[key.pk, month].spent_nanos


def summed(key: ApiKey, month: dt.date = NOVEMBER) -> int:
    days = Q(api_key=key, day__gte=month, day__lt=next_month(month))
    records = UsageRecord.objects.filter(days).aggregate(cost=Sum("cost_nanos"))["cost"] or 0
    return records + (Adjustment.objects.filter(days).aggregate(nanos=Sum("amount_nanos"))["nanos"] or 0)


def test_records_move_their_month(key: ApiKey) -> None:
    for day, nanos in ((3, 5), (29, 7), (30, 0)):
        make_record(key, utc(2026, 11, day), rating=rated(nanos))
    make_record(key, utc(2026, 11, 30, 17), rating=rated(11))  # December in Taipei
    assert reports.spendings([(key.pk, NOVEMBER), (key.pk, DECEMBER)]) == {
        (key.pk, NOVEMBER): Spending(12, 2),
        (key.pk, DECEMBER): Spending(11, 1),
    }


def test_unspent_month_is_zero(key: ApiKey) -> None:
    assert reports.spendings([(key.pk, NOVEMBER)]) == {(key.pk, NOVEMBER): Spending(0, 0)}
    assert reports.spendings([]) == {}


def test_repeated_insert_moves_nothing(key: ApiKey) -> None:
    record = unsaved_record(key, utc(2026, 11, 3), rating=rated(5))
    for _ in range(3):
        UsageRecord.objects.bulk_create([record], ignore_conflicts=True)
    assert reports.spendings([(key.pk, NOVEMBER)])[key.pk, NOVEMBER] == Spending(5, 1)


def test_rolled_back_record_moves_nothing(key: ApiKey) -> None:
    with transaction.atomic():
        make_record(key, utc(2026, 11, 3), rating=rated(5))
        transaction.set_rollback(True)
    assert not BudgetMonth.objects.exists()


def test_replaced_record_moves_the_difference(key: ApiKey) -> None:
    """What a sweep billed, an owner that lives bills anew, perhaps in another month."""
    record = make_record(key, utc(2026, 11, 3), rating=rated(5))
    UsageRecord.objects.filter(pk=record.pk).update(cost_nanos=3)
    assert (spent(key), spent(key, DECEMBER)) == (3, 0)
    UsageRecord.objects.filter(pk=record.pk).update(cost_nanos=9, day=dt.date(2026, 12, 1))
    assert (spent(key), spent(key, DECEMBER)) == (0, 9)
    version = BudgetMonth.objects.get(month=DECEMBER).version
    UsageRecord.objects.filter(pk=record.pk).update(reason="looked at")
    assert BudgetMonth.objects.get(month=DECEMBER).version == version


def test_many_records_are_one_change(key: ApiKey) -> None:
    other = make_key(key.account, "other")
    UsageRecord.objects.bulk_create(
        unsaved_record(owner, utc(2026, 11, day), rating=rated(day)) for owner in (other, key) for day in (1, 2, 3)
    )
    assert (spent(key), spent(other)) == (6, 6)
    if connection.vendor == "postgresql":
        assert set(BudgetMonth.objects.values_list("version", flat=True)) == {1}


def test_sums_are_exact_and_bounded(key: ApiKey) -> None:
    for nanos in (2**53, 1, LARGEST - 2**53 - 2):
        make_record(key, utc(2026, 11, 3), rating=rated(nanos))
    assert spent(key) == LARGEST - 1
    make_record(key, utc(2026, 11, 3), rating=rated(2**62))
    assert spent(key) == LARGEST


def test_adjustments_move_their_month(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), rating=rated(5))
    make_adjustment(key, utc(2026, 11, 30, 15), -7)
    make_adjustment(key, utc(2026, 11, 30, 17), 3)  # December in Taipei
    assert reports.spendings([(key.pk, NOVEMBER), (key.pk, DECEMBER)]) == {
        (key.pk, NOVEMBER): Spending(-2, 2),
        (key.pk, DECEMBER): Spending(3, 1),
    }


def test_only_approval_moves_the_month(key: ApiKey) -> None:
    nothing: dict[str, object] = {"effective_at": None, "day": None}
    made = make_adjustment(key, utc(2026, 11, 3), -7, state="proposed", **nothing)
    make_adjustment(key, utc(2026, 11, 3), -8, state="rejected", **nothing)
    make_adjustment(key, utc(2026, 11, 3), -9, kind="carried")
    assert not BudgetMonth.objects.exists()
    Adjustment.objects.filter(pk=made.pk).update(
        state="approved", effective_at=utc(2026, 12, 3), day=dt.date(2026, 12, 3)
    )
    assert (spent(key), spent(key, DECEMBER)) == (0, -7)
    Adjustment.objects.filter(pk=made.pk).update(invoice=None)
    assert [month.version for month in BudgetMonth.objects.all()] == [1]


def test_credits_are_bounded_too(key: ApiKey) -> None:
    for nanos in (-LARGEST, -1, 5):
        make_adjustment(key, utc(2026, 11, 3), nanos)
    assert spent(key) == -LARGEST + 5


def test_reports_agree_with_the_month(key: ApiKey) -> None:
    chance = random.Random(7)
    for _ in range(60):
        make_record(
            key, utc(2026, chance.choice((10, 11, 12)), chance.randint(1, 28)), rating=rated(chance.randint(0, 10**10))
        )
        if chance.random() < 0.1:
            rollups.rebuild_due()
            make_adjustment(key, utc(2026, chance.choice((10, 11, 12)), 3), chance.randint(-(10**9), 10**9))
    for month in (dt.date(2026, 10, 1), NOVEMBER, DECEMBER):
        found = reports.budget(key, dt.datetime(month.year, month.month, 9, tzinfo=dt.UTC))
        assert spent(key, month) == summed(key, month) == found.spent_nanos > 0


def test_triggers_are_put_back(key: ApiKey) -> None:
    immutability.remove(connection)
    make_record(key, utc(2026, 11, 3), rating=rated(5))
    assert spent(key) == 0
    immutability.install(connection)
    make_record(key, utc(2026, 11, 3), rating=rated(7))
    assert spent(key) == 7


@pytest.mark.django_db(transaction=True)
def test_ledgers_in_parallel_lose_nothing(start_ledger: StartLedger) -> None:
    """Every settlement twice, through two ledgers at once, over several keys: each counts once."""
    account = make_account(timezone="Asia/Taipei")
    keys = [make_key(account, f"key-{number}") for number in range(3)]
    settlements = [settlement(opening(keys[number % 3]), rating=rated(number)) for number in range(300)]
    ledgers: list[Ledger] = [start_ledger(), start_ledger()]

    def settle(ledger: Ledger, seed: int) -> None:
        mine = random.Random(seed).sample(settlements, len(settlements))
        for done in [ledger.settle(each) for each in mine]:
            done.result(20)
        connections.close_all()

    threads = [threading.Thread(target=settle, args=(ledger, seed)) for seed, ledger in enumerate(ledgers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (month,) = set(BudgetMonth.objects.values_list("month", flat=True))
    for key in keys:
        assert spent(key, month) == summed(key, month) > 0
