"""Keys under their limits, over several processes on a real Valkey."""

from __future__ import annotations

import asyncio
import uuid

import pytest
import redis
from prometheus_client import REGISTRY

from streaming.errors import ApiError
from streaming.limits import Hold
from streaming.limits.store import RENEW, place
from tests.streaming.limits.conftest import Start
from tests.streaming.limits.processes import (
    NOVEMBER,
    NOW,
    OUTPUT_NANOS,
    Database,
    Process,
    flush,
    limited,
    members,
    refusal,
    stored,
)  # fmt: skip


async def refused(process: Process, key: object, **body: object) -> ApiError:
    with pytest.raises(ApiError) as raised:
        await process.hold(key, **body)  # type: ignore[arg-type]
    return raised.value


def refused_by(limit: str) -> float:
    """As /metrics says."""
    return REGISTRY.get_sample_value("hopbase_limit_refusals_total", {"limit": limit}) or 0


async def test_unlimited_key_needs_no_store(start: Start) -> None:
    process = start(url="unix:///nowhere.sock")
    assert await process.hold(limited()) is None
    assert await process.limits.admit_bare(uuid.uuid4(), limited(), NOW) == {}
    assert process.limits.available


async def test_requests_are_counted_over_processes(start: Start) -> None:
    key = limited(requests_per_minute=10)
    processes = [start() for _ in range(3)]
    answers = await asyncio.gather(*(process.admit(key) for _ in range(7) for process in processes))
    assert refusal(list(answers)) == {"ok": 10, "rate_limit_exceeded": 11}


async def test_refusal_says_when_to_come_again(start: Start) -> None:
    key = limited(requests_per_minute=2)
    one, two = start(), start()
    for _ in range(2):
        await one.admit(key)
    for process in (one, two):  # what one counts itself, and what the other learns from Redis
        error = await refused(process, key)
        assert (error.error.status, error.error.code) == (429, "rate_limit_exceeded")
        assert 1 <= int(error.headers["retry-after"]) <= 60
        assert 50_000 < int(error.headers["retry-after-ms"]) <= 60_000
        assert error.headers["x-ratelimit-limit-requests"] == "2"
        assert error.headers["x-ratelimit-remaining-requests"] == "0"


async def test_admission_tells_what_is_left(start: Start) -> None:
    hold = await start().hold(limited(requests_per_minute=5, tokens_per_minute=10_000), max_tokens=1_000)
    assert hold is not None
    assert hold.headers["x-ratelimit-remaining-requests"] == "4"
    assert hold.headers["x-ratelimit-limit-tokens"] == "10000"
    assert hold.headers["x-ratelimit-remaining-tokens"] == str(10_000 - hold.tokens)
    assert hold.headers["x-ratelimit-reset-requests"] == "60s"


async def test_bare_requests_count_as_requests_alone(start: Start) -> None:
    key = limited(requests_per_minute=2, tokens_per_minute=1, concurrency=1, monthly_budget_nanos=0)
    process = start()
    for _ in range(2):
        await process.limits.admit_bare(uuid.uuid4(), key, NOW)
    with pytest.raises(ApiError):
        await process.limits.admit_bare(uuid.uuid4(), key, NOW)


async def test_tokens_are_held_and_settled(start: Start) -> None:
    key = limited(tokens_per_minute=10_000)
    one, two = start(), start()
    hold = await one.hold(key, max_tokens=6_000)
    assert hold is not None
    assert await two.admit(key, max_tokens=6_000) == "rate_limit_exceeded"
    await one.settle(hold, used=2_000)
    again = await two.hold(key, max_tokens=6_000)
    assert again is not None
    assert int(again.headers["x-ratelimit-remaining-tokens"]) == 10_000 - 2_000 - again.tokens
    await two.settle(again, used=9_000)
    assert await one.admit(key, max_tokens=1) == "rate_limit_exceeded"


async def test_settling_twice_changes_nothing(start: Start, valkey: str) -> None:
    key = limited(tokens_per_minute=10_000)
    process = start()
    hold = await process.hold(key, max_tokens=6_000)
    assert hold is not None
    await process.settle(hold, used=1_000)
    await process.settle(hold, used=1_000)
    hold.settled_ms = None  # as after an answer that was lost
    await process.settle(hold, used=1_000)
    with redis.Redis.from_url(valkey) as client:
        (value,) = client.hvals(place(1, "tokens"))  # type: ignore[misc]
    assert value.startswith(b"1000:")


async def test_larger_than_the_limit_passes_alone(start: Start) -> None:
    key = limited(tokens_per_minute=1_000)
    process = start()
    assert isinstance(await process.admit(key, max_tokens=50_000), Hold)
    assert await process.admit(key, max_tokens=1) == "rate_limit_exceeded"


async def test_limits_of_zero_let_nothing_through(start: Start) -> None:
    before = {limit: refused_by(limit) for limit in ("requests", "tokens", "concurrency", "budget")}
    for field in ("requests_per_minute", "tokens_per_minute", "concurrency"):
        assert await start().admit(limited(**{field: 0})) == "rate_limit_exceeded"
    assert await start().admit(limited(monthly_budget_nanos=0)) == "insufficient_quota"
    assert {limit: refused_by(limit) - count for limit, count in before.items()} == dict.fromkeys(before, 1)


async def test_refused_request_counts_nowhere(start: Start, valkey: str) -> None:
    key = limited(requests_per_minute=50, tokens_per_minute=10**6, concurrency=1, monthly_budget_nanos=10**12)
    one, two = start(), start()
    hold = await one.hold(key)
    assert hold is not None
    before = stored(valkey)
    assert await two.admit(key) == "rate_limit_exceeded"
    assert await one.admit(key) == "rate_limit_exceeded"
    assert stored(valkey) == before
    await one.settle(hold)
    again = await two.hold(key)
    assert again is not None
    assert again.headers["x-ratelimit-remaining-requests"] == "48"


async def test_2000_tries_never_exceed_ten(start: Start) -> None:
    """Check and count are one step: whatever runs in parallel, ten run at a time."""
    key = limited(concurrency=10)
    processes = [start() for _ in range(4)]
    running, peak, admitted = 0, 0, 0

    async def attempt(number: int) -> None:
        nonlocal running, peak, admitted
        process = processes[number % 4]
        await asyncio.sleep(number / 4_000)
        hold = await process.admit(key)
        if isinstance(hold, str):
            return
        running, admitted = running + 1, admitted + 1
        peak = max(peak, running)
        await asyncio.sleep(0.001)
        running -= 1
        process.limits.ended(hold)
        process.limits.settle(hold, 0, None)

    for _ in range(4):  # where the machine stands still for long, no place is free again before all have tried
        await asyncio.gather(*(attempt(number) for number in range(500)))
        await asyncio.sleep(0.05)
    assert peak <= 10
    assert admitted > 10


async def test_place_is_free_before_the_bill(start: Start) -> None:
    """A client that sends one request after the other is never in its own way, however slow the database is."""
    key = limited(concurrency=1, monthly_budget_nanos=10**12)
    process = start()
    for _ in range(20):
        hold = await process.hold(key, max_tokens=10)
        assert hold is not None
        process.limits.ended(hold)


async def test_abandoned_leases_free_themselves(start: Start, valkey: str) -> None:
    key = limited(concurrency=10, tokens_per_minute=10**9, monthly_budget_nanos=10**12)
    dead, alive = start(lease_s=0.3), start()
    assert refusal([await dead.admit(key, max_tokens=10) for _ in range(10)]) == {"ok": 10}
    assert await alive.admit(key) == "rate_limit_exceeded"
    await asyncio.sleep(0.35)
    hold = await alive.hold(key, max_tokens=10)
    assert hold is not None
    assert stored(valkey)["held"] == str(hold.nanos)
    assert members(valkey, "leases") == members(valkey, "holds") == 1


async def test_beats_keep_leases_alive(start: Start) -> None:
    key = limited(concurrency=1)
    alive, other = start(lease_s=0.4), start()
    hold = await alive.hold(key)
    assert hold is not None
    for _ in range(8):
        await asyncio.sleep(0.1)
        await alive.limits.beat()
        assert await other.admit(key) == "rate_limit_exceeded"
    await alive.settle(hold)
    assert isinstance(await other.admit(key), Hold)


async def test_late_renewal_revives_nothing(start: Start, valkey: str) -> None:
    key = limited(concurrency=1)
    process = start()
    hold = await process.hold(key)
    assert hold is not None
    renewal = asyncio.ensure_future(process.limits.beat())
    await process.settle(hold)
    await renewal
    assert members(valkey, "leases") == 0


async def test_cancelled_admission_leaks_nothing(start: Start, valkey: str) -> None:
    key = limited(concurrency=1, tokens_per_minute=10**6, monthly_budget_nanos=10**12)
    process = start()
    for turns in range(8):
        admission = asyncio.ensure_future(process.hold(key))
        for _ in range(turns):
            await asyncio.sleep(0)
        admission.cancel()
        await asyncio.gather(admission, return_exceptions=True)
        if not admission.cancelled() and (hold := admission.result()) is not None:
            process.limits.drop(hold)
        await process.quiet()
        assert members(valkey, "leases") == members(valkey, "holds") == 0
        assert "held" not in stored(valkey)
    assert isinstance(await process.admit(key), Hold)


async def test_flushed_store_learns_of_all_holds(start: Start, valkey: str) -> None:
    key = limited(concurrency=2, monthly_budget_nanos=10**12)
    one, two = start(), start()
    holds = [await process.hold(key, max_tokens=100) for process in (one, two)]
    await one.limits.beat()
    await two.limits.beat()
    flush(valkey)
    await one.limits.beat()
    await two.limits.beat()
    assert members(valkey, "leases") == members(valkey, "holds") == 2
    assert stored(valkey)["held"] == str(sum(hold.nanos for hold in holds if hold))
    assert await start().admit(key) == "rate_limit_exceeded"


async def test_process_alone_keeps_to_the_limit(start: Start, valkey: str) -> None:
    """Redis may have forgotten everything: what a process admitted itself, it knows."""
    process = start()
    for key in (limited(id=1, requests_per_minute=3), limited(id=2, concurrency=3)):
        answers = []
        for _ in range(6):
            answers.append(await process.admit(key))
            flush(valkey)
        assert refusal(answers) == {"ok": 3, "rate_limit_exceeded": 3}


async def test_one_round_trip_for_each_request(start: Start, valkey: str, database: Database) -> None:
    key = limited(
        requests_per_minute=1000, tokens_per_minute=10**9, concurrency=100, monthly_budget_nanos=10**12
    )  # fmt: skip
    process = start()
    first = await process.hold(key)
    assert first is not None
    await process.settle(first, 10, 10)
    with redis.Redis.from_url(valkey) as client:
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]  # type: ignore[index]
        for _ in range(20):
            hold = await process.hold(key)
            assert hold is not None
            await process.settle(hold, 10, 10)
        after = client.info("commandstats")["cmdstat_evalsha"]["calls"]  # type: ignore[index]
    assert after - before == 40


async def test_small_settlements_go_together(start: Start, database: Database, valkey: str) -> None:
    """Small parts of a budget cost one look at the database; a large part waits for nobody, and takes all along."""
    key = limited(monthly_budget_nanos=10**12)
    process = start(company_s=0.2)
    holds = [await process.hold(key) for _ in range(10)]
    before = database.reads
    for hold in holds[:9]:
        process.limits.settle(hold, 10, NOW)
    await process.quiet()
    assert (database.reads, members(valkey, "holds")) == (before, 10)
    await asyncio.sleep(0.25)
    await process.quiet()
    assert (database.reads, members(valkey, "holds")) == (before + 1, 1)
    large = await process.hold(limited(id=2, monthly_budget_nanos=1_000_000))
    before = database.reads
    process.limits.settle(holds[9], 10, NOW)
    process.limits.settle(large, 10, NOW)
    await process.quiet()
    assert (database.reads, members(valkey, "holds")) == (before + 1, 0)


async def test_flushed_scripts_are_loaded_again(start: Start, valkey: str) -> None:
    key = limited(requests_per_minute=100)
    process = start()
    await process.admit(key)
    with redis.Redis.from_url(valkey) as client:
        client.script_flush()
    answers = await asyncio.gather(*(process.admit(key) for _ in range(5)))
    assert refusal(list(answers)) == {"ok": 5}
    assert process.limits.available


async def test_hold_follows_what_is_counted(start: Start, valkey: str, database: Database) -> None:
    key = limited(monthly_budget_nanos=10**12)
    process = start()
    hold = await process.hold(key, max_tokens=100)
    assert hold is not None
    await process.limits.beat()
    hold.counted = lambda: (1, 80)
    await process.limits.beat()
    assert stored(valkey)["held"] == str(hold.nanos)
    before = hold.nanos
    hold.counted = lambda: (1, 5_000)
    await process.limits.beat()
    assert hold.nanos == before + 4_900 * OUTPUT_NANOS
    assert stored(valkey)["held"] == str(hold.nanos)
    await process.settle(hold, 5_000, 7)
    assert stored(valkey) == {"spent": "7", "version": "1"}


async def test_renewal_is_one_call_for_many(start: Start, valkey: str) -> None:
    key = limited(concurrency=1000)
    process = start()
    await asyncio.gather(*(process.hold(key) for _ in range(350)))
    calls: list[object] = []
    call = process.limits.store.call
    process.limits.store.call = lambda script, *rest: (calls.append(script), call(script, *rest))[1]  # type: ignore
    await process.limits.beat()
    assert calls == [RENEW, RENEW]
    assert members(valkey, "leases") == 350


async def test_month_is_that_of_the_account(start: Start) -> None:
    hold = await start().hold(limited(monthly_budget_nanos=10**12))
    assert hold is not None
    assert hold.month == NOVEMBER
