"""A month's budget: exact sums in Redis, whatever the order, the repetition, or what Redis forgot in between."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming.errors import ApiError
from streaming.limits import Hold
from streaming.limits.spendings import month_name
from streaming.limits.store import TAKE, place
from tests.streaming.limits.conftest import Start
from tests.streaming.limits.processes import (
    DECEMBER,
    NOVEMBER,
    NOW,
    OUTPUT_NANOS,
    Database,
    Process,
    flush,
    limited,
    members,
    stored,
)  # fmt: skip

LARGE = 2**53 + 1
"""The first whole number that a Lua number cannot hold."""

AMOUNTS = st.one_of(st.integers(0, 10**6), st.integers(0, 2**61), st.sampled_from([LARGE - 2, LARGE, LARGE + 2]))
STEPS = st.one_of(
    st.tuples(st.just("hold"), st.integers(1, 10**12)),
    st.tuples(st.just("raise"), st.integers(0, 5), st.integers(1, 10**12)),
    st.tuples(st.just("settle"), st.integers(0, 5), AMOUNTS),
    st.tuples(st.just("repeat"), st.integers(0, 5)),
    st.tuples(st.just("seed"), st.integers(0, 9)),
    st.tuples(st.just("flush")),
)


@dataclass
class Month:
    """A model of a key's month, in whole numbers, beside the real thing."""

    budget: int
    processes: list[Process]
    database: Database
    live: list[tuple[Process, Hold]] = field(default_factory=list)
    over: list[tuple[Process, Hold]] = field(default_factory=list)
    history: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    flushed: int = 0
    """The place in `history` when Redis was emptied last: older figures are corrected at the next refresh only."""

    @property
    def spent(self) -> int:
        return self.history[-1][0]

    @property
    def held(self) -> int:
        return sum(hold.nanos for _, hold in self.live)

    def expected(self, nanos: int) -> str:
        if self.spent >= self.budget:
            return "insufficient_quota"
        return "budget_reserved" if self.held and self.spent + self.held + nanos > self.budget else "ok"

    async def hold(self, output: int) -> None:
        process = self.processes[len(self.live) % 2]
        key = limited(monthly_budget_nanos=self.budget)
        raw_nanos = Hold("", key, NOVEMBER)
        try:
            hold = await process.hold(key, max_tokens=output)
        except ApiError as error:
            answer = error.error.code
            hold = None
        else:
            answer = "ok"
        nanos = hold.nanos if hold else min(10**18, output * OUTPUT_NANOS + raw_nanos.nanos)
        expected = self.expected(nanos)
        # The input's few tokens are not in the model's amount of a refused request.
        assert answer == expected or (hold is None and answer == self.expected(nanos + 10**6))
        if hold is not None:
            self.live.append((process, hold))

    async def raise_(self, at: int, output: int) -> None:
        if at < len(self.live):
            process, hold = self.live[at]
            before = hold.nanos
            hold.counted = lambda: (0, output)
            await process.limits.beat()
            assert hold.nanos >= before

    async def settle(self, at: int, nanos: int) -> None:
        if at < len(self.live):
            process, hold = self.live.pop(at)
            self.history.append((self.spent + nanos, len(self.history)))
            await process.settle(hold, nanos=nanos)
            self.over.append((process, hold))

    async def repeat(self, at: int) -> None:
        if at < len(self.over):
            process, hold = self.over[at]
            hold.settled_ms = None
            process.limits.settle(hold, 0, NOW)
            await process.quiet()

    async def seed(self, age: int) -> None:
        """Another process tells what it read from the database some time ago, since Redis lost what it knew."""
        spent, version = self.history[max(self.flushed, len(self.history) - 1 - age)]
        await self.processes[0].limits.store.call(TAKE, [place(1, month_name(NOVEMBER))], [str(spent), str(version)])

    async def flush(self, url: str) -> None:
        flush(url)
        self.flushed = len(self.history) - 1
        for process in self.processes:
            await process.limits.beat()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, max_size=25), st.one_of(st.integers(0, 10**9), AMOUNTS))
def test_any_order_ends_in_the_same_sums(valkey_url: str, steps: list[tuple[Any, ...]], budget: int) -> None:
    asyncio.run(play(valkey_url, steps, budget))


async def play(url: str, steps: list[tuple[Any, ...]], budget: int) -> None:
    flush(url)
    database = Database()
    month = Month(budget, [Process(url, database), Process(url, database)], database)
    for process in month.processes:
        await process.limits.beat()
    try:
        for name, *values in steps:
            if name == "flush":
                await month.flush(url)
            else:
                await getattr(month, "raise_" if name == "raise" else name)(*values)
            kept = stored(url)
            assert kept.get("held", "0") == str(month.held)
            assert sum(int(value) for key, value in kept.items() if key.startswith("hold:")) == month.held
        while month.live:
            await month.settle(0, 5)
        await month.seed(0)
        kept = stored(url)
        assert kept == {"spent": str(month.spent), "version": str(len(month.history) - 1)}
        assert members(url, "holds") == 0
        assert month.processes[0].limits.local.held(1, NOVEMBER) == 0
    finally:
        for process in month.processes:
            await process.close()


async def code_of(process: Process, key: Any, **body: Any) -> str:
    answer = await process.admit(key, **body)
    return answer if isinstance(answer, str) else "ok"


async def test_spent_budget_is_final(start: Start, database: Database) -> None:
    key = limited(monthly_budget_nanos=10**9)
    database.bill(1, 10**9)
    with pytest.raises(ApiError) as raised:
        await start().hold(key)
    assert (raised.value.error.status, raised.value.error.code) == (402, "insufficient_quota")
    assert raised.value.headers["x-should-retry"] == "false"
    assert "retry-after" not in raised.value.headers


async def test_one_nano_left_gets_one_request(start: Start, database: Database) -> None:
    """Also far beyond what a float can tell apart."""
    for budget in (10**9, LARGE, 2**62 + 1):
        key = limited(id=budget, monthly_budget_nanos=budget)
        database.bill(budget, budget - 1)
        one, two = start(), start()
        hold = await one.hold(key)
        assert hold is not None
        assert await code_of(two, key) == "budget_reserved"
        await one.settle(hold, nanos=1)
        assert await code_of(two, key) == "insufficient_quota"


async def test_reserved_budget_comes_back(start: Start) -> None:
    key = limited(monthly_budget_nanos=10**9)
    one, two = start(), start()
    hold = await one.hold(key, max_tokens=30_000)
    assert hold is not None
    with pytest.raises(ApiError) as raised:
        await two.hold(key, max_tokens=30_000)
    assert (raised.value.error.status, raised.value.headers["retry-after"]) == (429, "1")
    one.limits.ended(hold)
    assert await code_of(two, key, max_tokens=30_000) == "budget_reserved"
    await one.settle(hold, nanos=5)
    assert await code_of(two, key, max_tokens=30_000) == "ok"


async def test_sums_fit_to_the_nano(start: Start) -> None:
    process = start()
    probe = await process.hold(limited(id=9, monthly_budget_nanos=10**12), max_tokens=100)
    assert probe is not None
    for spare, answer in ((0, "ok"), (-1, "budget_reserved")):
        key = limited(id=100 + spare, monthly_budget_nanos=2 * probe.nanos + spare)
        assert await code_of(process, key, max_tokens=100) == "ok"
        assert await code_of(start(), key, max_tokens=100) == answer


async def test_raised_hold_keeps_others_out(start: Start) -> None:
    key = limited(monthly_budget_nanos=10**9)
    one, two = start(), start()
    hold = await one.hold(key, max_tokens=10)
    assert hold is not None
    await one.limits.beat()
    hold.counted = lambda: (0, 33_000)
    await one.limits.beat()
    assert await code_of(two, key, max_tokens=1_000) == "budget_reserved"


async def test_stream_over_the_months_end(start: Start, valkey: str) -> None:
    """Held in the old period, billed in the new."""
    key = limited(monthly_budget_nanos=10**9)
    process, last = start(), dt.datetime(2026, 11, 30, 23, 59, 59, tzinfo=dt.UTC)
    hold = await process.hold(key, now=last, max_tokens=100)
    assert hold is not None
    assert stored(valkey, month=NOVEMBER)["held"] == str(hold.nanos)
    later = last + dt.timedelta(seconds=5)
    fresh = await process.hold(key, now=later, max_tokens=100)
    assert fresh is not None
    assert stored(valkey, month=DECEMBER)["held"] == str(fresh.nanos)
    await process.settle(hold, nanos=70, at=later)
    assert "held" not in stored(valkey, month=NOVEMBER)
    december = stored(valkey, month=DECEMBER)
    assert (december["spent"], december["held"]) == ("70", str(fresh.nanos))


async def test_refused_run_gives_its_hold_back(start: Start, valkey: str) -> None:
    """The database was away: no record, so nothing to read either."""
    key = limited(monthly_budget_nanos=10**9)
    process = start()
    hold = await process.hold(key)
    assert hold is not None
    reads = process.database.reads
    process.limits.settle(hold, 0, None)
    await process.quiet()
    assert stored(valkey) == {"spent": "0", "version": "0"}
    assert process.database.reads == reads


async def test_bill_waits_for_the_database(start: Start, valkey: str, database: Database) -> None:
    """A hold stays until what it became can be read, though its place is free."""
    key = limited(monthly_budget_nanos=10**9, concurrency=1)
    process = start()
    hold = await process.hold(key)
    assert hold is not None
    database.away = True
    await process.settle(hold, nanos=70)
    assert stored(valkey)["held"] == str(hold.nanos)
    database.away = False
    await process.limits.beat()
    await process.quiet()
    assert stored(valkey) == {"spent": "70", "version": "1"}
    assert members(valkey, "leases") == 0


async def test_others_bills_are_learned(start: Start, valkey: str, database: Database) -> None:
    """A sweep or a corrected price moves the sum without a word to Redis."""
    key = limited(monthly_budget_nanos=10**9)
    now = 0.0
    process = start(clock=lambda: now)
    assert await code_of(process, key, max_tokens=33_000) == "ok"
    await process.limits.beat()
    database.bill(1, 10**9)
    assert await code_of(start(), key, max_tokens=33_000) == "budget_reserved"
    now = 6.0
    await process.limits.beat()
    assert stored(valkey)["spent"] == str(10**9)
    assert await code_of(process, key) == "insufficient_quota"


async def test_alarm_sounds_once_per_mark(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "streaming.limits.spendings")
    key = limited(monthly_budget_nanos=1_000)
    one, two = start(), start()
    for process, nanos in ((one, 799), (two, 1), (one, 150), (two, 60)):
        hold = await process.hold(key)
        assert hold is not None
        await process.settle(hold, nanos=nanos)
    marks = [record.getMessage().split(" of its budget")[0] for record in caplog.records]
    assert marks == ["key 1 passed 80 %", "key 1 passed 100 %"]


async def test_database_away_is_no_refusal(start: Start, database: Database) -> None:
    database.away = True
    assert await code_of(start(), limited(monthly_budget_nanos=10**9)) == "service_unavailable"
