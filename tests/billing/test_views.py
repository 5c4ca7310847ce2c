"""What /v1/usage answers."""

from __future__ import annotations

import json

import pytest

from billing import views
from billing.models import ApiKey
from billing.money import parse
from tests.billing.factories import make_account, make_key, make_record, utc

NOW = utc(2026, 11, 15)


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key(make_account(timezone="Asia/Taipei"), monthly_budget_nanos=parse("0.003"))


def test_default_period_is_the_month(key: ApiKey) -> None:
    make_record(key, utc(2026, 10, 31, 15))  # October in Taipei
    make_record(key, utc(2026, 10, 31, 17))  # November
    make_record(key, utc(2026, 11, 14))
    found = views.usage(key.pk, {}, NOW)
    row = {
        "requests": 1,
        "usage": {"input": 14, "cache_read": 0, "cache_write": 0, "cache_write_1h": 0, "output": 52, "reasoning": 0},
        "cost": "0.001630000",
        "adjustments": "0.000000000",
        "unpriced": 0,
    }
    assert found == {
        "object": "usage",
        "from": "2026-11-01",
        "to": "2026-12-01",
        "timezone": "Asia/Taipei",
        "currency": "USD",
        "requests": 2,
        "usage": {"input": 28, "cache_read": 0, "cache_write": 0, "cache_write_1h": 0, "output": 104, "reasoning": 0},
        "cost": "0.003260000",
        "adjustments": "0.000000000",
        "unpriced": 0,
        "data": [
            {"date": "2026-11-01", "model": "gpt-5.6-sol", **row},
            {"date": "2026-11-14", "model": "gpt-5.6-sol", **row},
        ],
        "budget": {"period": "month", "limit": "0.003000000", "spent": "0.003260000", "remaining": "0.000000000"},
    }
    json.dumps(found)


@pytest.mark.parametrize(
    ("query", "start", "end"),
    [
        ({"from": "2026-11-03", "to": "2026-11-04"}, "2026-11-03", "2026-11-04"),
        ({"from": "2026-10-05"}, "2026-10-05", "2026-11-01"),
        ({"to": "2026-11-01"}, "2026-10-01", "2026-11-01"),
        ({"to": "2026-11-09"}, "2026-11-01", "2026-11-09"),
        ({"from": "", "beta": "true"}, "2026-11-01", "2026-12-01"),
    ],
)
def test_period_may_be_asked_for(key: ApiKey, query: dict[str, str], start: str, end: str) -> None:
    found = views.usage(key.pk, query, NOW)
    assert (found["from"], found["to"]) == (start, end)


@pytest.mark.parametrize(
    ("query", "param", "told"),
    [
        ({"from": "yesterday"}, "from", "write it as YYYY-MM-DD"),
        ({"to": "2026-02-30"}, "to", "write it as YYYY-MM-DD"),
        ({"to": "2026-2-3"}, "to", "write it as YYYY-MM-DD"),
        ({"from": "20261104"}, "from", "write it as YYYY-MM-DD"),
        ({"from": "٢٠٢٦-11-04"}, "from", "write it as YYYY-MM-DD"),
        ({"from": "2026-11-04\n"}, "from", "write it as YYYY-MM-DD"),
        ({"from": "0001-01-01"}, "from", "between the years 2000 and 2999"),
        ({"from": "2026-11-04", "to": "2026-11-04"}, "from", "must be before to"),
        ({"from": "2024-01-01", "to": "2026-01-01"}, "to", "at most 400"),
    ],
)
def test_bad_dates_name_field_and_remedy(key: ApiKey, query: dict[str, str], param: str, told: str) -> None:
    with pytest.raises(views.BadQuery, match=told) as refused:
        views.usage(key.pk, query, NOW)
    assert refused.value.param == param


def test_budget_is_of_this_month_always(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 14))
    found = views.usage(key.pk, {"from": "2026-01-01", "to": "2026-02-01"}, NOW)
    assert (found["requests"], found["budget"]["spent"]) == (0, "0.001630000")


def test_key_without_limit_has_none(key: ApiKey) -> None:
    key.monthly_budget_nanos = None
    key.save()
    assert views.usage(key.pk, {}, NOW)["budget"] == {
        "period": "month",
        "limit": None,
        "spent": "0.000000000",
        "remaining": None,
    }


def test_request_is_found_by_name(key: ApiKey) -> None:
    record = make_record(key, utc(2026, 11, 3))
    found = views.usage_request(key.pk, record.request_name)
    assert found is not None
    assert found["cost"] == "0.001630000"
    assert views.usage_request(key.pk, "unknown") is None
