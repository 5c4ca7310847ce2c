"""Clients that do not read: the provider is held back, memory stays bounded, and after a time they are cut and billed.

On uvicorn alone: Daphne takes whatever is written.
"""

from __future__ import annotations

import contextlib
import time
import uuid

import psutil

from tests.end_to_end.conftest import Fresh
from tests.end_to_end.formats import CHAT, request
from tests.end_to_end.product import Gateway
from tests.end_to_end.provider import Call, Provider
from tests.end_to_end.raw import RawClient

SLOW_READER_S = 2
"""HOPBASE_SLOW_READER_S of these tests."""
READERS = 8
HELD_MB = 1.0
"""More than a stream may hold: 256 KB, an event, and what aiohttp and uvicorn read ahead."""
NOISE_MB = 8.0


def resident_mb(gateway: Gateway) -> float:
    return float(psutil.Process(gateway.process.pid).memory_info().rss / 1e6)


def flooded(gateway: Gateway, key: str, name: str) -> RawClient:
    return RawClient(gateway, CHAT, key, request(CHAT, "flood", name, stream=True), x_request_id=name)


def most_resident_until_cut(gateway: Gateway, calls: list[Call], within_s: float) -> float:
    most, deadline = 0.0, time.monotonic() + within_s
    while not all(call.left.is_set() for call in calls):
        assert time.monotonic() < deadline, "a client that reads nothing is not cut"
        most = max(most, resident_mb(gateway))
        time.sleep(0.05)
    return most


def warm_up(gateway: Gateway, key: str, model: str) -> None:
    """An estimated bill, for which the tokenizer's vocabulary is loaded."""
    with RawClient(gateway, CHAT, key, request(CHAT, model, "warm", stream=True)) as client:
        client.read_all()
    assert gateway.record(client.request_id, key)["metering"] == "estimated"


def test_client_that_reads_nothing_is_cut(uvicorn: Gateway, key: str, provider: Provider, fresh: Fresh) -> None:
    warm_up(uvicorn, key, fresh("cut"))
    names = [f"slow-{uuid.uuid4().hex}" for _ in range(READERS)]
    with contextlib.ExitStack() as stack:
        before, began = resident_mb(uvicorn), time.monotonic()
        for name in names:
            stack.enter_context(flooded(uvicorn, key, name))
        calls = [provider.call_with(name) for name in names]
        most = most_resident_until_cut(uvicorn, calls, SLOW_READER_S + 6)
        assert most - before < READERS * HELD_MB + NOISE_MB
        assert min(call.left_at or 0 for call in calls) - began > SLOW_READER_S
    for name in names:
        record = uvicorn.record(name, key)
        assert (record["ending"], record["metering"]) == ("client_left", "estimated")
        assert record["usage"]["output"] > 0
        assert float(record["cost"]) > 0


def test_client_that_reads_slowly_is_served(uvicorn: Gateway, key: str, provider: Provider) -> None:
    """It reads now and then, for longer than a client may read nothing."""
    name = f"slow-{uuid.uuid4().hex}"
    with flooded(uvicorn, key, name) as client:
        client.read_head()
        call, until = provider.call_with(name), time.monotonic() + 2 * SLOW_READER_S
        while time.monotonic() < until:
            client.read_some(4 * 1024 * 1024)
            time.sleep(0.5)
        assert not call.left.is_set()
        client.leave()
    assert call.left.wait(2)
    assert uvicorn.record(name, key)["ending"] == "client_left"
