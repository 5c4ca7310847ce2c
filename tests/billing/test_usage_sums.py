"""Sums of usage: the same whatever is rolled up, by any dimensions, never of two currencies."""

from __future__ import annotations

import datetime as dt
import threading

import pytest
from django.db import connection
from pytest_django import DjangoAssertNumQueries

from billing import rollups
from billing.models import ApiKey, RollupDue, UsageDay, UsageRecord
from billing.usage import TokenUsage
from billing.usage_sums import Cut, Figures, one_snapshot, sums
from tests.billing.factories import make_account, make_key, make_record, price, utc

NOVEMBER = Cut(dt.date(2026, 11, 1), dt.date(2026, 11, 30))
ALL = ("day", "account", "key", "model", "provider", "currency")


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key(make_account(timezone="Asia/Taipei"))


def fill(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), TokenUsage(1, 2, 3, 4, 5, reasoning=2))
    make_record(key, utc(2026, 11, 3), metering="estimated", ending="client_left")
    make_record(key, utc(2026, 11, 3), metering="checkpoint", ending="gateway_lost", provider="other-cloud")
    make_record(key, utc(2026, 11, 4), service_tier="scale")
    make_record(key, utc(2026, 10, 31, 15), model="claude-sonnet-5")  # 23:00 on 31 October in Taipei
    make_record(key, utc(2026, 10, 31, 17), model="claude-sonnet-5")  # 01:00 on 1 November


def test_every_measure_is_summed(key: ApiKey) -> None:
    fill(key)
    rollups.rebuild_due()
    day = Cut(dt.date(2026, 11, 3), dt.date(2026, 11, 3))
    records = UsageRecord.objects.filter(day=day.first)
    assert sums(day, ()) == {
        (): Figures(
            requests=3,
            interrupted=2,
            estimated=2,
            unpriced=0,
            input=1 + 14 + 14,
            cache_read=2,
            cache_write=3,
            cache_write_1h=4,
            output=5 + 52 + 52,
            reasoning=2,
            cost_nanos=sum(record.cost_nanos for record in records),
        )
    }


@pytest.mark.parametrize("rolled_up", [True, False])
def test_cost_may_pass_what_a_column_holds(key: ApiKey, rolled_up: bool) -> None:
    """Two keys whose days each fit, on pages that sum over both."""
    dear = price(per_million={"input": 5 * 10**18 + 1})
    for owner in (key, make_key(key.account, "other")):
        make_record(owner, utc(2026, 11, 3), TokenUsage(input=1_000_000), version=dear)
    if rolled_up:
        rollups.rebuild_due()
    for by in ((), ("account",)):
        (found,) = sums(NOVEMBER, by).values()
        assert found.cost_nanos == 10**19 + 2


def test_nothing_sums_to_zeros(db: None) -> None:
    assert sums(NOVEMBER, ()) == {(): Figures()}
    assert sums(NOVEMBER, ("day",)) == {}


@pytest.mark.parametrize("by", [(), ("day",), ("model", "currency"), ("key", "provider"), ALL])
def test_figures_do_not_move_with_the_rollup(key: ApiKey, by: tuple[str, ...]) -> None:
    fill(key)
    fill(make_key(make_account("umbrella", currency="TWD")))
    due = sums(NOVEMBER, by)
    rollups.rebuild_due()
    assert not RollupDue.objects.exists()
    assert sums(NOVEMBER, by) == due


def test_only_due_days_are_read_from_records(key: ApiKey) -> None:
    fill(key)
    rollups.rebuild_due()
    UsageDay.objects.filter(day=dt.date(2026, 11, 3)).update(requests=70)
    UsageDay.objects.filter(day=dt.date(2026, 11, 4)).update(requests=1000)
    make_record(key, utc(2026, 11, 4))
    assert sums(NOVEMBER, ("day",))[dt.date(2026, 11, 4),].requests == 2
    assert sums(NOVEMBER, ("day",))[dt.date(2026, 11, 3),].requests == 140


def test_another_keys_due_day_is_its_own(key: ApiKey) -> None:
    other = make_key(key.account, "other")
    for one in (key, other):
        make_record(one, utc(2026, 11, 3))
    rollups.rebuild_due()
    UsageDay.objects.update(requests=7)
    make_record(other, utc(2026, 11, 3))
    assert {pk: figures.requests for (pk,), figures in sums(NOVEMBER, ("key",)).items()} == {key.pk: 7, other.pk: 2}


def test_many_due_days_sum_alike(key: ApiKey) -> None:
    """More than a statement names one by one: whole days are read from the records then."""
    keys = [key, *(make_key(key.account, f"key-{at}") for at in range(3))]
    for one in keys:
        for day in (3, 4, 5):
            make_record(one, utc(2026, 11, day))
    rollups.rebuild_due()
    for day in (3, 4):
        for one in keys:
            make_record(one, utc(2026, 11, day))
    few = sums(NOVEMBER, ALL)
    assert sums(NOVEMBER, ALL, max_due=2) == few
    assert sum(figures.requests for figures in few.values()) == UsageRecord.objects.count()


def test_filters_cut(key: ApiKey) -> None:
    fill(key)
    other = make_key(make_account("umbrella", currency="TWD"))
    make_record(other, utc(2026, 11, 3), version=price(currency="TWD"))
    rollups.rebuild_due()
    make_record(key, utc(2026, 11, 4), model="claude-sonnet-5")

    def requests(**filters: object) -> int:
        return sums(Cut(NOVEMBER.first, NOVEMBER.last, **filters), ())[()].requests  # type: ignore[arg-type]

    assert requests() == 7
    assert requests(account=key.account_id) == 6
    assert requests(key=other.pk) == 1
    assert requests(model="claude-sonnet-5") == 2
    assert requests(provider="other-cloud") == 1
    assert requests(currency="TWD") == 1
    assert requests(account=other.account_id, key=key.pk) == 0


def test_one_statement_finds_what_is_due(key: ApiKey, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    fill(key)
    rollups.rebuild_due()
    with django_assert_num_queries(2):
        sums(NOVEMBER, ALL)
    make_record(key, utc(2026, 11, 4))
    with django_assert_num_queries(3):
        sums(NOVEMBER, ALL)


@pytest.mark.django_db(transaction=True)
def test_snapshot_stands_still() -> None:
    """On PostgreSQL what is written meanwhile shows in neither sum; SQLite keeps no writer waiting."""
    key = make_key()
    make_record(key, utc(2026, 11, 3))
    rollups.rebuild_due()
    with one_snapshot():
        before = sums(NOVEMBER, ())[()].requests
        _elsewhere(key)
        after = sums(NOVEMBER, ())[()].requests
    assert (before, after) == ((1, 1) if connection.vendor == "postgresql" else (1, 2))
    assert sums(NOVEMBER, ())[()].requests == 2


def _elsewhere(key: ApiKey) -> None:
    """A record by another connection."""

    def write() -> None:
        make_record(key, utc(2026, 11, 3))
        connection.close()

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
