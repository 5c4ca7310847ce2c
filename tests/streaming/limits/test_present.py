"""What the admin reads of a key's use is what its processes were told, in one round trip."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest

from billing import gateway
from streaming.limits.present import shared_use
from tests.streaming.limits.conftest import Start
from tests.streaming.limits.processes import NOVEMBER, flush, limited


@pytest.fixture(autouse=True)
def _here(valkey: str, settings: Any) -> None:
    settings.VALKEY_URL = valkey


async def test_counts_are_those_of_all_processes(start: Start) -> None:
    one, two = start(), start()
    under = limited(requests_per_minute=10, tokens_per_minute=10**6, concurrency=5, monthly_budget_nanos=10**12)
    first = await one.hold(under, max_tokens=100)
    second = await two.hold(under, max_tokens=50)
    assert first is not None
    assert second is not None
    found = (shared_use([(1, NOVEMBER)]) or {})[1]
    assert (found.requests, found.running) == (2, 2)
    assert found.tokens == first.estimate.tokens + second.estimate.tokens
    assert found.held_nanos == first.nanos + second.nanos > 0
    assert 59_000 < found.requests_reset_ms <= 60_000
    assert 59_000 < found.tokens_reset_ms <= 60_000
    await one.settle(first, used=7, nanos=first.nanos)
    found = (shared_use([(1, NOVEMBER)]) or {})[1]
    assert (found.requests, found.running, found.held_nanos) == (2, 1, second.nanos)
    assert found.tokens == 7 + second.estimate.tokens


async def test_expired_lease_runs_no_more(start: Start) -> None:
    await start(lease_s=0.001).hold(limited(concurrency=5))
    await asyncio.sleep(0.02)
    assert (shared_use([(1, NOVEMBER)]) or {})[1].running == 0


def test_unused_keys_use_nothing(valkey: str) -> None:
    flush(valkey)
    found = shared_use([(id, dt.date(2026, 12, 1)) for id in range(1, 51)])
    assert found == dict.fromkeys(range(1, 51), gateway.SharedUse(0, 0, 0, 0, 0, 0))
    assert shared_use([]) == {}


def test_redis_away_is_told(settings: Any, tmp_path: Any) -> None:
    settings.VALKEY_URL = f"unix://{tmp_path}/nobody.sock"
    assert shared_use([(1, NOVEMBER)]) is None
    assert gateway.shared_use([(1, NOVEMBER)]) is None  # the app has said that it answers
