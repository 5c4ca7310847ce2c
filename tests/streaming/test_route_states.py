"""The states that processes share, in a real Valkey."""

import pytest

from streaming import route_states
from streaming.health import RouteState
from streaming.route_states import RouteStates

COOLING = RouteState(failures=3, level=1, until=1_800_000_005.0, since=1_800_000_000.0, reason="status 500")


@pytest.fixture
async def states(valkey):
    made = RouteStates(valkey)
    yield made
    await made.aclose()


async def test_states_are_shared(states, valkey):
    assert await states.put(7, COOLING)
    other = RouteStates(valkey)
    assert await other.read() == {7: COOLING}
    assert await other.remove(7)
    assert await states.read() == {}
    await other.aclose()


async def test_one_process_probes(states, valkey):
    other = RouteStates(valkey)
    assert await states.take_probe(7, 30)
    assert not await other.take_probe(7, 30)
    await states.give_probe(7)
    assert await other.take_probe(7, 30)
    await other.aclose()


async def test_forgotten_probe_expires(states):
    import asyncio

    assert await states.take_probe(7, 0.05)
    await asyncio.sleep(0.1)
    assert await states.take_probe(7, 0.05)


async def test_unknown_content_is_passed_over(states, valkey):
    import redis

    with redis.Redis.from_url(valkey) as client:
        client.hset(route_states.KEY, "8", b'{"another":"version"}')
        client.hset(route_states.KEY, "9", b"\xff")
    assert await states.read() == {}


async def test_redis_away_is_no_failure(tmp_path):
    states = RouteStates(f"unix://{tmp_path}/nobody.sock")
    assert await states.read() is None
    assert not await states.put(7, COOLING)
    assert await states.take_probe(7, 30)
    await states.give_probe(7)
    assert not states.available
    await states.aclose()


async def test_operator_resets(states, valkey, settings):
    settings.VALKEY_URL = valkey
    await states.put(7, COOLING)
    assert route_states.read_all() == {7: COOLING}
    assert route_states.reset(7)
    assert await states.read() == {}


def test_reset_says_when_redis_is_away(tmp_path, settings):
    settings.VALKEY_URL = f"unix://{tmp_path}/nobody.sock"
    assert route_states.read_all() is None
    assert not route_states.reset(7)
