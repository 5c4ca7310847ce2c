"""The usage report: rows and totals with what was before beside them, one currency at a time."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries

from billing import rollups, usage_report, usage_sheet
from billing.models import ApiKey
from billing.money import MAX_NANOS
from billing.report_query import BadQuery, Query
from billing.usage import TokenUsage
from billing.usage_report import Lone, Report, adjusted, build, change, share
from tests.billing.factories import make_account, make_adjustment, make_key, make_record, price, utc

pytestmark = pytest.mark.django_db
NOW = utc(2026, 11, 14)


def report(now: dt.datetime = NOW, **given: str) -> Report:
    return build(Query.parse(given), now)[0]


def costs(found: Report) -> list[tuple[Any, ...]]:
    """Place in words, currency, requests now, requests before."""
    return [
        (
            *usage_sheet.place_words(found, row),
            row.currency,
            row.now.requests,
            row.before.requests if row.before else None,
        )
        for row in found.rows
    ]


@pytest.fixture
def key() -> ApiKey:
    return make_key(make_account(timezone="Asia/Taipei"))


def test_same_days_stand_beside(key: ApiKey) -> None:
    for moment in (utc(2026, 11, 3), utc(2026, 11, 4), utc(2026, 10, 3), utc(2026, 10, 14), utc(2026, 10, 15)):
        make_record(key, moment)
    rollups.rebuild_due()
    found = report(by="day")
    assert costs(found) == [
        ("2026-11-14", "USD", 0, 1),
        ("2026-11-04", "USD", 1, 0),
        ("2026-11-03", "USD", 1, 1),
    ]
    (total,) = found.totals
    assert (total.now.requests, total.before.requests if total.before else None) == (2, 2)


def test_what_ended_before_is_a_row(key: ApiKey) -> None:
    """An account that spent something before and nothing now is in the report, or the totals would not add up."""
    make_record(make_key(make_account("gone")), utc(2026, 10, 3))
    make_record(key, utc(2026, 11, 3))
    assert costs(report(then="none")) == [("northwind", "USD", 1, 0), ("gone", "USD", 0, 1)]


def test_day_without_counterpart_has_a_row(key: ApiKey) -> None:
    make_record(key, utc(2026, 10, 31, 3))
    found = report(by="day", compare="previous")
    assert found.rows[0].place == (Lone(dt.date(2026, 10, 31)),)
    assert costs(found) == [("2026-10-31 (before)", "USD", 0, 1)]


def test_no_comparison_has_no_columns(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    found = report(compare="none")
    assert found.rows[0].before is None
    assert [measure.name for measure in usage_sheet.measures(found)][-1] == "cost"


def test_currencies_are_apart(key: ApiKey) -> None:
    taiwan = make_key(make_account("umbrella", currency="TWD"))
    for _ in range(3):
        make_record(taiwan, utc(2026, 11, 3), version=price(currency="TWD"))
    make_record(key, utc(2026, 11, 3))
    found = report(by="model")
    assert costs(found) == [("gpt-5.6-sol", "TWD", 3, 0), ("gpt-5.6-sol", "USD", 1, 0)]
    assert [(total.currency, total.now.requests) for total in found.totals] == [("TWD", 3), ("USD", 1)]


def test_rows_go_by_cost(key: ApiKey) -> None:
    for name, tokens in (("small", 10), ("large", 1000), ("middle", 100)):
        make_record(make_key(key.account, name), utc(2026, 11, 3), TokenUsage(input=tokens))
    assert [row[0] for row in costs(report(by="key"))] == ["northwind/large", "northwind/middle", "northwind/small"]


def test_second_dimension_stays_within_the_first(key: ApiKey) -> None:
    other = make_key(make_account("umbrella"))
    for one, model, tokens in ((key, "a", 10), (key, "b", 1000), (other, "a", 500), (other, "b", 5)):
        make_record(one, utc(2026, 11, 3), TokenUsage(input=tokens), model=model, version=price(model))
    assert [row[:2] for row in costs(report())] == [
        ("northwind", "b"), ("northwind", "a"), ("umbrella", "a"), ("umbrella", "b"),
    ]  # fmt: skip


def test_one_account_has_its_own_month(key: ApiKey) -> None:
    """18:00 UTC on 30 November is December in Taipei; the books, in UTC, still have November."""
    moment = utc(2026, 11, 30, 18)
    make_record(key, moment)
    make_key(make_account("umbrella"))
    assert report(moment).periods.now.first == dt.date(2026, 11, 1)
    assert report(moment).totals == []
    own = report(moment, account=str(key.account_id))
    assert (own.zones, own.periods.now.first, own.totals[0].now.requests) == (("Asia/Taipei",), dt.date(2026, 12, 1), 1)


def test_everybodys_today_is_in_the_month() -> None:
    """Taipei has begun the 15th while the books have the 14th."""
    taipei, angeles = (make_key(make_account(zone, timezone=zone)) for zone in ("Asia/Taipei", "America/Los_Angeles"))
    moment = utc(2026, 11, 14, 18)
    for key in (taipei, angeles):
        make_record(key, moment)
    assert report(moment).totals[0].now.requests == 2


@pytest.mark.parametrize("given", [{"account": "999"}, {"key": "999"}])
def test_unknown_filter_is_a_fault(key: ApiKey, given: dict[str, str]) -> None:
    with pytest.raises(BadQuery):
        report(**given)


def test_another_accounts_key_is_a_fault(key: ApiKey) -> None:
    other = make_account("umbrella")
    with pytest.raises(BadQuery):
        report(account=str(other.pk), key=str(key.pk))


def test_unpriced_cost_is_unknown(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), service_tier="scale")
    (row,) = report().rows
    assert row.now.unpriced == 1
    assert usage_report.cost_nanos(row.now) is None
    make_record(key, utc(2026, 11, 3))
    (row,) = report().rows
    assert usage_report.cost_nanos(row.now) == row.now.cost_nanos > 0


def test_adjustments_are_told_apart(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    make_adjustment(key, utc(2026, 11, 5), -1_500_000)
    make_adjustment(key, utc(2026, 10, 5), -7)
    found = report()
    assert adjusted(found) == [("USD", -1_500_000)]
    assert found.totals[0].now.cost_nanos == 1_630_000


@pytest.mark.parametrize("sign", [1, -1])
def test_adjustments_add_up_past_a_column(key: ApiKey, sign: int) -> None:
    for day in (3, 4, 5):
        make_adjustment(key, utc(2026, 11, day), sign * MAX_NANOS)
    ((currency, nanos),) = adjusted(report())
    assert (currency, nanos, type(nanos)) == ("USD", sign * 3 * MAX_NANOS, int)


def test_charts_days_hold_the_table(key: ApiKey) -> None:
    for day in (3, 4):
        make_record(key, utc(2026, 11, day))
    make_record(key, utc(2026, 10, 3))
    found, days = build(Query.parse({}), NOW, with_days=True)
    assert days is not None
    total = found.totals[0].now.cost_nanos
    for sums in (days.totals, days.leaders, days.whole):
        assert sum(figures.cost_nanos for figures in sums.values()) == total
    assert {key: figures.requests for key, figures in days.before.items()} == {(dt.date(2026, 11, 3), "USD"): 1}
    assert days.days == [dt.date(2026, 11, day) for day in range(1, 15)]


def test_shares_have_one_place() -> None:
    assert (share(1, 3), share(2, 3), share(0, 5), share(1, 0)) == (Decimal("33.3"), Decimal("66.7"), Decimal(0), None)
    assert (change(3, 2), change(1, 2), change(1, 0)) == (Decimal("50.0"), Decimal("-50.0"), None)


def test_queries_do_not_grow_with_rows(key: ApiKey, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for at in range(12):
        make_record(make_key(make_account(f"account-{at}")), utc(2026, 11, 3), model=f"model-{at}")
    rollups.rebuild_due()
    # Zones; five sums of two statements each; the names of accounts.
    with django_assert_num_queries(12):
        build(Query.parse({}), NOW, with_days=True)
