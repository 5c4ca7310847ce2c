"""A client that goes away, on both servers: the provider is let go at once, and what was produced is billed."""

from __future__ import annotations

import time
import uuid
from decimal import Decimal

import pytest

from tests.end_to_end.formats import CHAT, MESSAGES, PATHS, RESPONSES, USED, WORDS, request
from tests.end_to_end.product import Gateway, used
from tests.end_to_end.provider import Call, Provider
from tests.end_to_end.raw import RawClient


@pytest.fixture
def name() -> str:
    """What a request is called, and what its prompt holds, so that both sides of it can be found."""
    return f"leave-{uuid.uuid4().hex}"


def closed_within(call: Call, seconds: float, since: float) -> bool:
    """Whether the gateway closed the provider's connection in that time."""
    return call.left.wait(max(0.0, since + seconds - time.monotonic()))


@pytest.mark.parametrize("wire", PATHS)
@pytest.mark.parametrize("reset", [False, True])
def test_leaving_after_first_event_is_billed(
    gateway: Gateway, key: str, provider: Provider, name: str, wire: str, reset: bool
) -> None:
    body = request(wire, "endless", name, stream=True)
    with RawClient(gateway, wire, key, body, x_request_id=name) as client:
        client.read_until(WORDS[0].encode())
        left_at = client.leave(reset)
    assert closed_within(provider.call_with(name), 2, left_at)
    record = gateway.record(name, key)
    assert time.monotonic() - left_at < 5
    assert record["ending"] == "client_left"
    assert record["metering"] == "estimated"
    assert record["usage"]["output"] > 0
    assert Decimal(record["cost"]) == sum(map(Decimal, record["cost_by_bucket"].values())) > 0
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["client_left"]


def test_reported_input_is_billed_after_leaving(gateway: Gateway, key: str, name: str) -> None:
    body = request(MESSAGES, "endless", name, stream=True)
    with RawClient(gateway, MESSAGES, key, body, x_request_id=name) as client:
        client.read_until(WORDS[0].encode())
        client.leave()
    record = gateway.record(name, key)
    assert (record["usage"]["input"], record["usage"]["cache_read"]) == (10, 4)


@pytest.mark.parametrize("wire", [CHAT, RESPONSES])
def test_leaving_before_headers_costs_nothing(
    gateway: Gateway, key: str, provider: Provider, name: str, wire: str
) -> None:
    body = request(wire, "never", name, stream=True)
    with RawClient(gateway, wire, key, body, x_request_id=name) as client:
        call = provider.call_with(name)
        left_at = client.leave()
    assert closed_within(call, 2, left_at)
    record = gateway.record(name, key)
    assert (record["ending"], record["metering"]) == ("client_left", "none")
    assert Decimal(record["cost"]) == 0


@pytest.mark.parametrize("wire", [CHAT, MESSAGES])
def test_abandoned_whole_answer_is_billed(gateway: Gateway, key: str, provider: Provider, name: str, wire: str) -> None:
    with RawClient(gateway, wire, key, request(wire, "late", name), x_request_id=name) as client:
        call = provider.call_with(name)
        client.leave()
    record = gateway.record(name, key)
    assert (record["ending"], record["metering"], used(record)) == ("client_left", "reported", USED)
    assert record["cost"] == "0.001612000"
    assert not call.left.is_set()
    assert len(provider.calls_with(name)) == 1
