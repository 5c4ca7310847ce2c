"""What customers are told of their use: exact, from roll-ups and records together."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db.models import Sum

from billing import reports, rollups
from billing.models import ApiKey, Attempt, RollupDue, UsageDay, UsageRecord
from billing.money import MAX_NANOS, parse
from billing.usage import Part, TokenUsage
from tests.billing.factories import (
    USUAL,
    make_account,
    make_adjustment,
    make_key,
    make_record,
    per_million,
    price,
    utc,
)

NOVEMBER, DECEMBER = dt.date(2026, 11, 1), dt.date(2026, 12, 1)


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key(monthly_budget_nanos=parse("0.01"))


def cost(rows: list[reports.DayUsage]) -> int:
    return sum(row.cost_nanos for row in rows)


def test_due_days_are_read_from_records(key: ApiKey) -> None:
    for day in (3, 4):
        make_record(key, utc(2026, 11, day))
    rollups.rebuild_due()
    make_record(key, utc(2026, 11, 4), TokenUsage(input=1, output=2, reasoning=2))
    found = reports.usage_by_day_and_model(key.pk, NOVEMBER, DECEMBER)
    assert [(row.day.day, row.requests, row.usage["input"], row.usage["reasoning"]) for row in found] == [
        (3, 1, 14, 0),
        (4, 2, 15, 2),
    ]
    assert cost(found) == UsageRecord.objects.aggregate(cost=Sum("cost_nanos"))["cost"]


def test_clean_days_are_read_from_rollups(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    rollups.rebuild_due()
    UsageDay.objects.update(requests=7)
    assert [row.requests for row in reports.usage_by_day_and_model(key.pk, NOVEMBER, DECEMBER)] == [7]


def test_figures_do_not_move_with_the_rollup(key: ApiKey) -> None:
    for model in ("gpt-5.6-sol", "claude-sonnet-5"):
        for hour in (1, 13):
            make_record(key, utc(2026, 11, 3, hour), model=model)
    make_record(key, utc(2026, 11, 3), service_tier="scale")
    before = reports.usage_by_day_and_model(key.pk, NOVEMBER, DECEMBER)
    rollups.rebuild_due()
    assert not RollupDue.objects.exists()
    assert reports.usage_by_day_and_model(key.pk, NOVEMBER, DECEMBER) == before
    assert [(row.model, row.requests, row.unpriced) for row in before] == [
        ("claude-sonnet-5", 2, 0),
        ("gpt-5.6-sol", 3, 1),
    ]


def test_end_day_is_not_included(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    assert reports.usage_by_day_and_model(key.pk, dt.date(2026, 11, 1), dt.date(2026, 11, 3)) == []


def test_other_keys_are_not_told(key: ApiKey) -> None:
    make_record(make_key(key.account, "other"), utc(2026, 11, 3))
    assert reports.usage_by_day_and_model(key.pk, NOVEMBER, DECEMBER) == []


def test_budget_is_of_the_zones_month(db: None) -> None:
    """17:00 UTC on 31 October is November in Taipei."""
    key = make_key(make_account(timezone="Asia/Taipei"), monthly_budget_nanos=parse("0.002"))
    make_record(key, utc(2026, 10, 31, 15))
    make_record(key, utc(2026, 10, 31, 17))
    found = reports.budget(key, utc(2026, 10, 31, 18))
    assert (found.month, found.spent_nanos, found.remaining_nanos) == (NOVEMBER, parse("0.00163"), parse("0.00037"))


def test_adjustments_are_inside_the_cost(key: ApiKey) -> None:
    """Those about a request in the row of its model, of the day on which they were made; others on rows of no model."""
    record = make_record(key, utc(2026, 11, 3))
    make_adjustment(key, utc(2026, 11, 3), 5, record=record)
    make_adjustment(key, utc(2026, 11, 7), 7, record=record, kind="correction")
    make_adjustment(key, utc(2026, 11, 7), -3)
    make_adjustment(key, utc(2026, 11, 7), -4, kind="goodwill")
    make_adjustment(key, utc(2026, 11, 7), -99, kind="carried")
    make_adjustment(key, utc(2026, 11, 7), -99, state="rejected", effective_at=None, day=None)
    make_adjustment(make_key(key.account, "other"), utc(2026, 11, 3), -99)
    found = reports.usage_by_day_and_model(key.pk, NOVEMBER, DECEMBER)
    assert [(row.day.day, row.model, row.requests, row.cost_nanos, row.adjustment_nanos) for row in found] == [
        (3, "gpt-5.6-sol", 1, parse("0.00163") + 5, 5),
        (7, "", 0, -7, -7),
        (7, "gpt-5.6-sol", 0, 7, 7),
    ]
    rollups.rebuild_due()
    assert reports.usage_by_day_and_model(key.pk, NOVEMBER, DECEMBER) == found
    assert reports.budget(key, utc(2026, 11, 9)).spent_nanos == cost(found)
    assert (detail(key, record)["cost"], detail(key, record)["adjustments"]) == ("0.001630000", "0.000000012")


def test_adjustments_add_up_past_a_column(key: ApiKey) -> None:
    for _ in range(2):
        make_adjustment(key, utc(2026, 11, 3), MAX_NANOS)
    (row,) = reports.usage_by_day_and_model(key.pk, NOVEMBER, DECEMBER)
    assert (row.adjustment_nanos, row.cost_nanos) == (2 * MAX_NANOS, 2 * MAX_NANOS)


def test_credits_leave_more_to_spend(key: ApiKey) -> None:
    make_adjustment(key, utc(2026, 11, 7), parse("-0.05"))
    assert reports.budget(key, utc(2026, 11, 9)).remaining_nanos == parse("0.06")


def test_no_limit_leaves_nothing_to_remain(key: ApiKey) -> None:
    key.monthly_budget_nanos = None
    assert reports.budget(key, utc(2026, 11, 3)).remaining_nanos is None


def detail(key: ApiKey, record: UsageRecord) -> dict[str, Any]:
    found = reports.request_detail(key.pk, record.request_name)
    assert found is not None
    return found


def test_request_has_the_documented_shape(key: ApiKey) -> None:
    record = make_record(key, utc(2026, 11, 3), first_output_at=utc(2026, 11, 3, 11, 59))
    Attempt.objects.create(
        record=record,
        number=1,
        provider="acme-cloud",
        upstream_model="gpt-5.6-sol",
        outcome="answered",
        status=200,
        started_at=record.started_at,
        duration_ms=812,
    )
    assert detail(key, record) == {
        "object": "usage.request",
        "request_id": record.request_name,
        "model": "gpt-5.6-sol",
        "wire_format": "chat_completions",
        "stream": True,
        "ending": "complete",
        "metering": "reported",
        "usage": {
            "input": 14,
            "cache_read": 0,
            "cache_write": 0,
            "cache_write_1h": 0,
            "output": 52,
            "reasoning": 0,
            "server_tools": {},
        },
        "service_tier": "default",
        "currency": "USD",
        "cost": "0.001630000",
        "adjustments": "0.000000000",
        "cost_by_bucket": {"input": "0.000070000", "output": "0.001560000"},
        "unit_prices": {
            "input": "5.000000000",
            "cache_read": "0.500000000",
            "cache_write": "6.250000000",
            "cache_write_1h": "10.000000000",
            "output": "30.000000000",
        },
        "unpriced": False,
        "price_version": "gpt-5.6-sol@2026-01-01T00:00:00Z",
        "parts": [],
        "attempts": [{"number": 1, "outcome": "answered", "status": 200, "duration_ms": 812}],
        "started_at": "2026-11-03T11:59:58Z",
        "first_output_at": "2026-11-03T11:59:00Z",
        "ended_at": "2026-11-03T12:00:00Z",
    }


def test_provider_is_not_told(key: ApiKey) -> None:
    assert "acme" not in str(detail(key, make_record(key, utc(2026, 11, 3), upstream_model="acme-hidden")))


def test_parts_are_inside_the_buckets(key: ApiKey) -> None:
    record = make_record(
        key,
        utc(2026, 11, 3),
        TokenUsage(input=2411, output=145, server_tools={"web_search": 5}),
        version=price(server_tools={"web_search": parse("0.01")}),
        others=[price("advisor-model", per_million=per_million(input="10", output="50"))],
        parts=[Part("advisor-model", TokenUsage(input=2543, output=18))],
    )
    found = detail(key, record)
    assert found["cost_by_bucket"] == {"input": "0.037485000", "output": "0.005250000", "web_search": "0.050000000"}
    assert found["cost"] == "0.092735000"
    (part,) = found["parts"]
    assert (part["model"], part["cost"]) == ("advisor-model", "0.026330000")
    assert (part["usage"]["input"], part["usage"]["output"]) == (2543, 18)


def test_unpriced_request_says_so(key: ApiKey) -> None:
    found = detail(key, make_record(key, utc(2026, 11, 3), USUAL, service_tier="scale"))
    assert (found["unpriced"], found["cost"], found["service_tier"]) == (True, "0.000000000", "scale")


def test_foreign_request_is_not_found(key: ApiKey) -> None:
    record = make_record(make_key(key.account, "other"), utc(2026, 11, 3))
    assert reports.request_detail(key.pk, record.request_name) is None
