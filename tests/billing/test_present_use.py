"""Present use beside limits: the gateway's own counts where there are any, else the database's; money is always its."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator, Mapping

import pytest
from django.utils.timezone import now
from pytest_django import DjangoAssertNumQueries

from billing import gateway, present_use
from billing.gateway import SharedUse
from billing.models import ApiKey, BudgetMonth, OpenStream
from billing.money import NANOS
from billing.present_use import Use
from billing.usage import TokenUsage
from tests.billing.factories import make_account, make_key, make_record, utc

pytestmark = pytest.mark.django_db
NOON = utc(2026, 11, 15)
NOVEMBER = dt.date(2026, 11, 1)
Tell = Callable[[Mapping[int, SharedUse] | None], None]


@pytest.fixture
def tell() -> Iterator[Tell]:
    """Says what Redis tells; at first that it is away."""
    before = gateway._shared_use, gateway._offer, gateway._models

    def answer(shared: Mapping[int, SharedUse] | None) -> None:
        gateway.answer(lambda months: shared, dict, list)

    answer(None)
    yield answer
    gateway.answer(*before)


def under_way(key: ApiKey, started_at: dt.datetime, **fields: int) -> OpenStream:
    return OpenStream.objects.create(
        id=uuid.uuid4(), api_key=key, account=key.account, key_name=key.name, account_name=key.account.name,
        request_name=uuid.uuid4().hex, process=uuid.uuid4(), model="gpt", wire_format="messages", stream=True,
        started_at=started_at, **fields,
    )  # fmt: skip


def test_counts_of_redis_stand_beside_limits(tell: Tell) -> None:
    key = make_key(requests_per_minute=60, tokens_per_minute=1000, concurrency=5, monthly_budget_nanos=NANOS)
    BudgetMonth.objects.create(api_key=key, month=NOVEMBER, spent_nanos=NANOS // 4)
    tell({key.pk: SharedUse(30, 20_000, 990, 40_000, 4, 7)})
    use = present_use.of([key], NOON)[key.pk]
    assert use.requests == Use(30, 60, NOON + dt.timedelta(seconds=20))
    assert use.tokens == Use(990, 1000, NOON + dt.timedelta(seconds=40))
    assert use.running == Use(4, 5)
    assert use.spent == Use(NANOS // 4, NANOS, utc(2026, 12, 1, 0))
    assert (use.held_nanos, use.is_shared, use.is_near) == (7, True, True)
    assert [each.percent for each in (use.requests, use.tokens, use.running, use.spent)] == [50, 99, 80, 25]


def test_database_tells_what_redis_does_not(tell: Tell) -> None:
    key = make_key(requests_per_minute=60, tokens_per_minute=1000, concurrency=5)
    make_record(key, NOON, TokenUsage(input=10, cache_read=5, output=3))
    make_record(key, NOON - dt.timedelta(minutes=5))
    under_way(key, NOON - dt.timedelta(seconds=30), counted_input=4, counted_output=2)
    under_way(key, NOON - dt.timedelta(minutes=10), counted_input=400, counted_output=200)
    use = present_use.of([key], NOON)[key.pk]
    assert (use.requests, use.tokens, use.running) == (Use(2, 60), Use(24, 1000), Use(2, 5))
    assert (use.held_nanos, use.is_shared) == (0, False)


def test_unlimited_use_is_the_databases(tell: Tell) -> None:
    key = make_key()
    make_record(key, NOON)
    tell({key.pk: SharedUse(0, 0, 0, 0, 0, 0)})  # the gateway counts nothing of a key without limits
    use = present_use.of([key], NOON)[key.pk]
    assert (use.requests, use.running) == (Use(1, None), Use(0, None))
    assert use.spent.now == sum(month.spent_nanos for month in BudgetMonth.objects.all()) > 0
    assert not use.is_near


@pytest.mark.parametrize(
    ("now_", "limit", "percent", "near"),
    [(0, 0, 100, True), (799, 1000, 79, False), (800, 1000, 80, True), (-5, 10, 0, False), (30, 10, 300, True)],
)
def test_share_of_a_limit(now_: int, limit: int, percent: int, near: bool) -> None:
    assert (Use(now_, limit).percent, Use(now_, limit).is_near) == (percent, near)


def test_month_is_the_accounts_own(tell: Tell) -> None:
    late = utc(2026, 11, 30, 20)
    taipei = make_key(make_account("taipei", timezone="Asia/Taipei"))
    angeles = make_key(make_account("angeles", timezone="America/Los_Angeles"))
    for key in (taipei, angeles):
        BudgetMonth.objects.create(api_key=key, month=NOVEMBER, spent_nanos=11)
        BudgetMonth.objects.create(api_key=key, month=dt.date(2026, 12, 1), spent_nanos=12)
    found = present_use.of([taipei, angeles], late)
    assert [found[key.pk].spent.now for key in (taipei, angeles)] == [12, 11]
    assert found[taipei.pk].spent.resets_at == utc(2026, 12, 31, 16)


def test_near_keys_are_found(tell: Tell) -> None:
    moment = now()
    account = make_account()
    spent, _far = (make_key(account, name, monthly_budget_nanos=100) for name in ("spent", "far"))
    make_key(account, "unlimited")
    busy = make_key(account, "busy", requests_per_minute=10)
    for name, fields in (("revoked", {"revoked_at": moment}), ("expired", {"expires_at": moment})):
        gone = make_key(account, name, monthly_budget_nanos=0, **fields)
        assert gone.pk
    BudgetMonth.objects.create(api_key=spent, month=moment.date().replace(day=1), spent_nanos=81)
    tell({busy.pk: SharedUse(9, 0, 0, 0, 0, 0)})
    assert present_use.near_a_limit(moment) == {spent.pk, busy.pk}


@pytest.mark.parametrize("named", [500, 2])
def test_queries_are_few_for_many_keys(
    tell: Tell, django_assert_num_queries: DjangoAssertNumQueries, named: int
) -> None:
    account = make_account()
    keys = [make_key(account, f"key {number}", requests_per_minute=1) for number in range(5)]
    make_record(keys[3], NOON)
    with django_assert_num_queries(3):
        found = present_use.of(keys, NOON, most_named=named)
    assert [found[key.pk].requests.now for key in keys] == [0, 0, 0, 1, 0]
