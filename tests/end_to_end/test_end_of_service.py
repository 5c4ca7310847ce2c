"""SIGTERM while streams run: what can finish does, the rest is ended and billed, nothing new is taken."""

from __future__ import annotations

import time
import uuid

import pytest

from tests.end_to_end.conftest import KEYS
from tests.end_to_end.formats import CHAT, MESSAGES, PATHS, USED, WORDS, request
from tests.end_to_end.product import Gateway, Installation, used
from tests.end_to_end.raw import RawClient

KEY = KEYS["drain"]
DRAIN_S = 3
"""HOPBASE_DRAIN_S of these tests."""


@pytest.mark.parametrize("server", ["uvicorn", "daphne"])
def test_running_streams_end_well(uvicorn: Gateway, installation: Installation, server: str) -> None:
    finishing, lasting = (f"end-{uuid.uuid4().hex}" for _ in range(2))
    with installation.serving(server) as gateway:
        short = RawClient(gateway, CHAT, KEY, request(CHAT, "paced", "Go on.", stream=True), x_request_id=finishing)
        long = RawClient(gateway, MESSAGES, KEY, request(MESSAGES, "endless", "On.", stream=True), x_request_id=lasting)
        with short, long:
            short.read_until(b"word0")
            long.read_until(WORDS[0].encode())
            asked_at = time.monotonic()
            gateway.terminate()
            assert_takes_nothing_new(gateway)
            assert short.read_all().endswith(b"data: [DONE]\n\n")
            assert time.monotonic() - asked_at < DRAIN_S
            assert b"event: error\n" in long.read_all()
        assert gateway.process.wait(DRAIN_S + 10) == 0
        assert time.monotonic() - asked_at < DRAIN_S + 5
    record = uvicorn.record(finishing, KEY)
    assert (record["ending"], record["metering"], used(record)) == ("complete", "reported", USED)
    record = uvicorn.record(lasting, KEY)
    assert (record["ending"], record["metering"]) == ("shutdown", "estimated")
    assert float(record["cost"]) > 0


def assert_takes_nothing_new(gateway: Gateway) -> None:
    deadline = time.monotonic() + 2
    while (answer := gateway.get("/readyz")).status_code != 503:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert "draining" in answer.text
    assert gateway.get("/healthz").status_code == 200
    refused = gateway.post(PATHS[CHAT], KEY, request(CHAT, "plain", "One more?"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "service_unavailable")
