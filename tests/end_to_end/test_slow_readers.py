"""Clients that do not read: the provider is held back, memory stays bounded, and after a time they are cut and billed.

Daphne takes in whatever is written, so that memory is bounded on uvicorn alone; there the kernel cuts them.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from decimal import Decimal

import psutil
import pytest

from tests.end_to_end.formats import CHAT, USED, request
from tests.end_to_end.product import Gateway, used
from tests.end_to_end.provider import Call, Provider
from tests.end_to_end.raw import RawClient

SLOW_READER_S = 2
"""HOPBASE_SLOW_READER_S of these tests."""
BUSY_S = 5
READERS = 8
HELD_MB = 1.0
"""More than a stream may hold: 256 KB, an event, and what aiohttp and uvicorn read ahead."""
NOISE_MB = 8.0


@pytest.fixture
def name() -> str:
    return f"slow-{uuid.uuid4().hex}"


def process_of(gateway: Gateway) -> psutil.Process:
    return psutil.Process(gateway.process.pid)


def resident_mb(gateway: Gateway) -> float:
    return float(process_of(gateway).memory_info().rss / 1e6)


def until_disconnected(gateway: Gateway, client: RawClient, within_s: float) -> None:
    """Until the gateway has no connection with the client any more, though the client keeps its end."""
    deadline = time.monotonic() + within_s
    while any(one.raddr and one.raddr.port == client.port for one in process_of(gateway).net_connections("tcp")):
        assert time.monotonic() < deadline, "the connection is kept"
        time.sleep(0.05)


def test_client_that_reads_nothing_is_cut(gateway: Gateway, key: str, provider: Provider, name: str) -> None:
    body = request(CHAT, "rapid", name, stream=True)
    with RawClient(gateway, CHAT, key, body, narrow=True, x_request_id=name) as client:
        call = provider.call_with(name)
        assert call.left.wait(SLOW_READER_S + BUSY_S)
        assert (call.left_at or 0) - call.at > SLOW_READER_S
        until_disconnected(gateway, client, BUSY_S)
    record = gateway.record(name, key)
    assert (record["ending"], record["metering"]) == ("client_left", "estimated")
    assert record["usage"]["output"] > 0
    assert Decimal(record["cost"]) > 0


def test_unread_answer_keeps_no_connection(gateway: Gateway, key: str, name: str) -> None:
    with RawClient(gateway, CHAT, key, request(CHAT, "rapid", name), narrow=True, x_request_id=name) as client:
        record = gateway.record(name, key)
        until_disconnected(gateway, client, SLOW_READER_S + BUSY_S)
    assert (record["metering"], used(record)) == ("reported", USED)


def test_memory_is_bounded_meanwhile(uvicorn: Gateway, key: str, provider: Provider, name: str) -> None:
    warm_up(uvicorn, key)
    names = [f"{name}-{number}" for number in range(READERS)]
    with contextlib.ExitStack() as stack:
        before = resident_mb(uvicorn)
        for each in names:
            stack.enter_context(RawClient(uvicorn, CHAT, key, request(CHAT, "flood", each, stream=True)))
        most = most_resident_until_cut(uvicorn, [provider.call_with(each) for each in names])
    assert most - before < READERS * HELD_MB + NOISE_MB


def warm_up(gateway: Gateway, key: str) -> None:
    """An estimated bill, for which the tokenizer's vocabulary is loaded."""
    with RawClient(gateway, CHAT, key, request(CHAT, "cut", "warm", stream=True)) as client:
        client.read_all()
    assert gateway.record(client.request_id, key)["metering"] == "estimated"


def most_resident_until_cut(gateway: Gateway, calls: list[Call]) -> float:
    most, deadline = 0.0, time.monotonic() + SLOW_READER_S + BUSY_S
    while not all(call.left.is_set() for call in calls):
        assert time.monotonic() < deadline, "a client that reads nothing is not cut"
        most = max(most, resident_mb(gateway))
        time.sleep(0.05)
    return most


def test_client_that_reads_slowly_is_served(uvicorn: Gateway, key: str, provider: Provider, name: str) -> None:
    """It reads now and then, for longer than a client may read nothing."""
    body = request(CHAT, "flood", name, stream=True)
    with RawClient(uvicorn, CHAT, key, body, x_request_id=name) as client:
        call, until = provider.call_with(name), time.monotonic() + 2 * SLOW_READER_S
        while time.monotonic() < until:
            client.read_some(4 * 1024 * 1024)
            time.sleep(0.5)
        assert not call.left.is_set()
        client.leave()
    assert call.left.wait(BUSY_S)
    assert uvicorn.record(name, key)["ending"] == "client_left"
