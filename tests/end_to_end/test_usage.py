"""What a customer can ask about: usage by day and model, single requests, models; and what an operator can."""

from __future__ import annotations

import datetime as dt
import time
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.end_to_end.conftest import KEYS, Fresh
from tests.end_to_end.formats import CHAT, COST, PATHS, request
from tests.end_to_end.product import Gateway

ZONE = ZoneInfo("Asia/Taipei")


def around_now() -> dict[str, str]:
    today = dt.datetime.now(ZONE).date()
    return {"from": str(today - dt.timedelta(days=1)), "to": str(today + dt.timedelta(days=2))}


@pytest.fixture(scope="session")
def records(uvicorn: Gateway, fresh: Fresh) -> list[dict[str, Any]]:
    """The records of a key's only requests: each wire format, streamed and whole, and a stream that was cut."""
    asked = [(wire, "plain", stream) for wire in PATHS for stream in (False, True)] + [(CHAT, fresh("cut"), True)]
    answers = [
        uvicorn.post(PATHS[wire], KEYS["sums"], request(wire, model, "How much?", stream=stream))
        for wire, model, stream in asked
    ]
    return [uvicorn.record(answer.headers["x-request-id"], KEYS["sums"]) for answer in answers]


def test_page_is_sum_of_records(gateway: Gateway, records: list[dict[str, Any]]) -> None:
    page = gateway.get("/v1/usage", KEYS["sums"], **around_now()).json()
    assert page["object"] == "usage"
    assert page["requests"] == len(records)
    assert Decimal(page["cost"]) == sum(Decimal(record["cost"]) for record in records)
    for bucket in ("input", "cache_read", "cache_write", "cache_write_1h", "output"):
        assert page["usage"][bucket] == sum(record["usage"][bucket] for record in records)
    assert sum(Decimal(day["cost"]) for day in page["data"]) == Decimal(page["cost"])
    assert {day["model"].partition(".")[0] for day in page["data"]} == {"plain", "cut"}
    assert Decimal(page["budget"]["spent"]) == Decimal(page["cost"])


def test_record_parts_sum_to_cost(records: list[dict[str, Any]]) -> None:
    for record in records:
        assert Decimal(record["cost"]) == sum(map(Decimal, record["cost_by_bucket"].values()))
    assert [Decimal(record["cost"]) for record in records[:-1]] == [COST] * 6


def test_other_keys_see_nothing(gateway: Gateway, records: list[dict[str, Any]]) -> None:
    answer = gateway.get(f"/v1/usage/requests/{records[0]['request_id']}", KEYS["unused"])
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "request_not_found"
    assert gateway.get("/v1/usage", KEYS["unused"], **around_now()).json()["requests"] == 0


@pytest.mark.parametrize("query", [{"from": "yesterday"}, {"from": "2026-11-02", "to": "2026-11-01"}])
def test_wrong_period_is_400(uvicorn: Gateway, query: dict[str, str]) -> None:
    answer = uvicorn.get("/v1/usage", KEYS["sums"], **query)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in query


def test_usage_needs_key(uvicorn: Gateway) -> None:
    assert uvicorn.get("/v1/usage").status_code == 401
    assert uvicorn.get("/v1/models").status_code == 401


def test_key_sees_its_models_only(gateway: Gateway) -> None:
    page = gateway.get("/v1/models", KEYS["some-models"]).json()
    assert [model["id"] for model in page["data"]] == ["plain", "refuses"]
    assert gateway.get("/v1/models/tools", KEYS["some-models"]).status_code == 404


def test_health_is_told(gateway: Gateway) -> None:
    assert gateway.get("/healthz").status_code == 200
    assert gateway.get("/readyz").status_code == 200


def test_meter_is_told(gateway: Gateway) -> None:
    """It is read in a thread; before the first reading it says nothing."""
    deadline = time.monotonic() + 10
    while 'hopbase_meter_check{check="dropped"} 0.0' not in (told := gateway.get("/metrics").text):
        assert time.monotonic() < deadline, told
        time.sleep(0.05)
    assert "hopbase_unpriced_records" in told
    assert "hopbase_ledger_dropped_total 0.0" in told


def test_metrics_answer_loopback_alone(gateway: Gateway, key: str) -> None:
    gateway.post(PATHS[CHAT], key, request(CHAT, "plain", "count me"))
    answer = gateway.get("/metrics")
    assert answer.status_code == 200
    assert b"hopbase_requests_total" in answer.content
    forwarded = gateway.ask("GET", "/metrics", x_forwarded_for="203.0.113.9")
    assert forwarded.status_code == 404
