"""Cool-down, back-off, the one probe, and routes that are out; the clock is an argument."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from streaming.errors import ApiError, Failure
from streaming.health import HEALTHY, LONGEST_COOL_DOWN_S, RouteState, after_failure, after_output
from tests.streaming.entries import route
from tests.streaming.runs import Alone, ScriptedAnswer, health_of, relayed
from tests.streaming.test_relay import JSON, OUTPUT, PRELUDE, answer

NOW = 1_800_000_000.0


def failed(state, times=1, kind="failed", retry_after_s=None, now=NOW):
    for _ in range(times):
        state = after_failure(state, kind, "status 500", retry_after_s, now)
    return state


@pytest.mark.parametrize("kind", ["failed", "overloaded", "timed_out", "unreachable"])
def test_third_failure_in_a_row_cools(kind):
    assert not failed(HEALTHY, 2, kind).is_cooling(NOW)
    cooled = failed(HEALTHY, 3, kind)
    assert (cooled.until, cooled.reason) == (NOW + 5, "status 500")


def test_cool_down_doubles_to_ten_minutes():
    state, lengths = failed(HEALTHY, 2), []
    for _ in range(10):
        state = failed(state)
        lengths.append(state.until - NOW)
    assert lengths == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]


@pytest.mark.parametrize(("told", "length"), [(17.0, 17), (None, 5), (5000.0, LONGEST_COOL_DOWN_S)])
def test_rate_limit_cools_until_its_reset(told, length):
    assert failed(HEALTHY, kind="rate_limited", retry_after_s=told).until == NOW + length


def test_overload_is_no_rate_limit():
    assert failed(HEALTHY, kind="overloaded", retry_after_s=30).until == 0


def test_failed_probe_cools_longer():
    cooled = failed(HEALTHY, 3)
    assert failed(cooled, now=NOW + 6).until == NOW + 6 + 10


def test_output_opens_but_does_not_forgive():
    opened = after_output(failed(HEALTHY, 3))
    assert not opened.needs_probe
    assert failed(opened).is_cooling(NOW)


class Clock:
    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def alone():
    return Alone()


@pytest.fixture
async def health(alone, clock):
    return health_of(alone, asyncio.ensure_future, clock)


async def cooled(health, route_id=1):
    for _ in range(3):
        health.failed(route_id, "failed", "status 500")
    await asyncio.sleep(0)


async def test_cooling_route_is_passed_over(health):
    await cooled(health)
    assert health.usable([route(1), route(2)]) == [route(2)]


async def test_cool_downs_are_counted(health):
    def counted():
        return REGISTRY.get_sample_value("hopbase_cool_downs_total", {"kind": "failed"}) or 0

    before = counted()
    await cooled(health)
    assert (counted() - before, health.cooling()) == (1, 1)


async def test_routes_out_are_counted(health):
    health.failed(1, "account", "status 401")
    assert health.out([route(1), route(2), replace(route(3), out_reason="status 402")]) == 2


async def test_all_cooling_is_429_with_the_shortest_wait(health):
    health.failed(1, "rate_limited", "429", 30)
    health.failed(2, "rate_limited", "429", 12)
    with pytest.raises(ApiError) as refused:
        health.usable([route(1), route(2)])
    assert refused.value.error.code == "all_routes_rate_limited"
    assert refused.value.headers == {"retry-after": "12", "retry-after-ms": "12000"}


async def test_one_probe_at_a_time(health, clock):
    await cooled(health)
    assert not await health.admits(route(1))
    clock.now += 5
    assert await health.admits(route(1))
    assert not await health.admits(route(1))
    health.abandoned(1)
    await asyncio.sleep(0)
    assert await health.admits(route(1))


async def test_probe_of_another_process_counts(health, alone, clock):
    await cooled(health)
    clock.now += 5
    alone.probes.add(1)
    assert not await health.admits(route(1))


async def test_good_answer_reopens(health, alone, clock):
    await cooled(health)
    clock.now += 5
    await health.admits(route(1))
    health.has_output(1)
    assert await health.admits(route(1))
    health.succeeded(1)
    await asyncio.sleep(0)
    assert health.state(1) == HEALTHY
    assert (alone.states, alone.probes) == ({}, set())


@pytest.mark.parametrize("kind", ["refused", "stream_options"])
async def test_bad_request_harms_no_route(health, kind):
    for _ in range(5):
        health.failed(1, kind, "status 400")
    assert health.state(1) == HEALTHY


async def test_account_trouble_takes_the_route_out(health, alone, clock):
    health.failed(1, "account", "status 401")
    await asyncio.sleep(0)
    assert alone.out == {1: "status 401"}
    clock.now += 100_000
    with pytest.raises(ApiError) as refused:
        health.usable([route(1)])
    assert refused.value.error.code == "no_available_route"


async def test_operator_puts_a_route_back(health):
    health.failed(1, "account", "status 401")
    marked = replace(route(1), out_reason="status 401")
    with pytest.raises(ApiError):
        health.usable([marked])
    assert health.usable([route(1)]) == [route(1)]


async def test_cool_down_is_told_to_all(health, alone, clock):
    await cooled(health)
    other = health_of(alone, asyncio.ensure_future, clock)
    other.take_over(dict(alone.states))
    assert not await other.admits(route(1))


async def test_reset_elsewhere_ends_a_cool_down(health, alone):
    await cooled(health)
    await asyncio.sleep(0)
    alone.states.clear()
    health.take_over({})
    assert health.state(1) == HEALTHY


async def test_unshared_cool_down_stays(health, alone):
    async def away(route_id, state):
        return False

    alone.put = away
    await cooled(health)
    health.take_over({})
    assert not await health.admits(route(1))


# --- what the relay tells of routes ---


async def states_after(*answers, wire="messages", **options):
    alone = Alone()
    health = health_of(alone)
    outcome = await relayed(wire, *answers, health=health, **options)
    return outcome, health, alone


async def test_cut_after_output_counts():
    _, health, _ = await states_after(ScriptedAnswer(PRELUDE["messages"], OUTPUT["messages"]))
    assert health.state(1).failures == 1


async def test_whole_answer_forgives():
    alone = Alone()
    health = health_of(alone)
    health.failed(1, "failed", "status 500")
    await relayed("messages", answer("messages"), health=health)
    assert health.state(1) == HEALTHY


async def test_refusal_does_not_count():
    refusal = ScriptedAnswer(
        b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}', status=400, headers=JSON
    )
    _, health, _ = await states_after(refusal)
    assert health.state(1) == HEALTHY


async def test_each_failed_attempt_counts():
    _, health, _ = await states_after(
        Failure("unreachable", "reset", stays=True), Failure("unreachable", "reset", stays=True)
    )
    assert health.state(1).failures == 2


async def test_route_that_began_to_cool_is_skipped():
    alone = Alone()
    health = health_of(alone)
    await cooled(health)
    outcome = await relayed("messages", answer("messages"), health=health, routes=[route(1), route(2)])
    assert outcome.run.route.id == 2
    assert len(outcome.run.attempts) == 1


async def test_all_skipped_is_a_refusal():
    health = health_of(Alone())
    await cooled(health)
    with pytest.raises(ApiError) as refused:
        await relayed("messages", health=health)
    assert refused.value.error.code == "all_routes_rate_limited"


def test_state_survives_as_plain_values():
    from dataclasses import asdict

    state = failed(HEALTHY, 3)
    assert RouteState(**asdict(state)) == state
