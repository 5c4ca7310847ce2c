"""Routes that fail again and again are left alone, and come back by one probe; flapping ones are bridged."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator

import pytest

from tests.end_to_end import fault_run, faults, formats
from tests.end_to_end.fault_run import KEY, ROUTES, Asked, Script, Seen, model_entry
from tests.end_to_end.faults import STATUSES, STREAM_ANSWERS, Fault
from tests.end_to_end.formats import CHAT, PATHS
from tests.end_to_end.product import Gateway, Installation
from tests.end_to_end.provider import Call, Head, Pause, Provider, Send, Step
from tests.end_to_end.test_classic_faults import until_known

FIRST, SECOND = ROUTES
FAILURES_TO_COOL = 3
FIRST_COOL_DOWN_S = 5
ANSWER = STREAM_ANSWERS[0]
BY_NAME = {fault.name: fault for fault in STATUSES}
UNAUTHORIZED = Fault("status 401", faults.status(401), "failed", 401)
SOON_S = 3.1
"""Longer than what is waited for within a request."""
SOON = Fault("429, soon", faults.status(429, retry_after_ms=str(int(SOON_S * 1000))), "rate_limited", 429)


ALONE = ("limited", "unauthorized alone", "probe", "alternating")
"""The models with one route."""
NAMES = (*ALONE, *(f"503 {wire}" for wire in PATHS), "unauthorized", "flapping")


class Customer:
    """Asks one model after another, each request with faults of its own."""

    def __init__(self, gateway: Gateway, script: Script) -> None:
        self.gateway, self._script = gateway, script
        self._numbers = itertools.count(script.base + len(NAMES))

    def model(self, name: str) -> int:
        """The number of a model."""
        return self._script.base + NAMES.index(name)

    async def ask(self, name: str, *course: Fault, wire: str = CHAT) -> tuple[Seen, list[str]]:
        """One stream; what the client saw, and which routes were asked."""
        asked = Asked(next(self._numbers), self.model(name), wire, True, course or (ANSWER,))
        ((_, seen, played),) = await self._script.play(self.gateway, [asked])
        return seen, [call.route for call in played]

    def whole(self, name: str) -> bytes:
        """The whole answer of a model."""
        return b"".join(formats.text_stream(CHAT, fault_run.model_name(self.model(name)), usage=False))


@pytest.fixture(scope="module")
def customer(installation: Installation, uvicorn: Gateway) -> Iterator[Customer]:
    script = Script()
    made = Customer(uvicorn, script)
    entries = [model_entry(made.model(name), routes=1 if name in ALONE else 2) for name in NAMES]
    with Provider(script) as provider:
        installation.apply(fault_run.configuration(provider.base_url, entries))
        until_known(uvicorn, entries[-1]["name"])
        yield made


def code_of(seen: Seen) -> str:
    return str(json.loads(seen.body)["error"].get("code"))


@pytest.mark.parametrize("wire", PATHS)
async def test_failing_routes_are_left_alone(customer: Customer, wire: str) -> None:
    """Three failures each, and then no call: the client is told at once when to come again."""
    down = BY_NAME["status 503"]
    for _ in range(FAILURES_TO_COOL):
        seen, routes = await customer.ask(f"503 {wire}", down, wire=wire)
        assert (seen.status, routes) == (503, [FIRST, SECOND])
    for _ in range(5):
        seen, routes = await customer.ask(f"503 {wire}", down, wire=wire)
        assert (seen.status, routes) == (429, [])
        assert 1 <= int(seen.headers["retry-after"]) <= FIRST_COOL_DOWN_S
        assert int(seen.headers["retry-after-ms"]) <= FIRST_COOL_DOWN_S * 1000
        assert seen.took_s < 1
    refused = customer.gateway.get(f"/v1/usage/requests/{seen.headers['x-request-id']}", KEY)
    assert refused.status_code == 404


async def test_rate_limit_lasts_as_told(customer: Customer) -> None:
    seen, routes = await customer.ask("limited", BY_NAME["429, long"])
    assert (seen.status, seen.headers["retry-after"], routes) == (429, "20", [FIRST])
    seen, routes = await customer.ask("limited")
    assert (seen.status, code_of(seen), routes) == (429, "all_routes_rate_limited", [])
    assert 15 <= int(seen.headers["retry-after"]) <= 20


async def test_account_trouble_is_not_tried_again(customer: Customer, installation: Installation) -> None:
    seen, routes = await customer.ask("unauthorized", UNAUTHORIZED, ANSWER)
    assert (seen.status, routes) == (200, [FIRST, SECOND])
    for _ in range(3):
        seen, routes = await customer.ask("unauthorized")
        assert (seen.status, routes) == (200, [SECOND])
    reasons = installation.query(
        "SELECT r.out_reason FROM streaming_route r JOIN streaming_model m ON m.id = r.model_id"
        f" WHERE m.name = '{fault_run.model_name(customer.model('unauthorized'))}' ORDER BY r.priority"
    )
    assert ["401" in reason for (reason,) in reasons] == [True, False]


async def test_no_route_left_is_our_trouble(customer: Customer) -> None:
    """A provider that refuses our account is neither the client's fault nor the client's to cure."""
    seen, routes = await customer.ask("unauthorized alone", UNAUTHORIZED)
    assert (seen.status, code_of(seen), routes) == (502, "upstream_error", [FIRST])
    seen, routes = await customer.ask("unauthorized alone")
    assert (seen.status, code_of(seen), routes) == (503, "no_available_route", [])


def unhurried(call: Call) -> Iterator[Step]:
    """A good stream, half a second late."""
    yield Pause(0.5)
    yield Head()
    yield Send(faults.plain(call))


async def test_one_probe_reopens_a_route(customer: Customer) -> None:
    slow = Fault("late", unhurried, "answers")
    await customer.ask("probe", SOON)
    until = time.monotonic() + SOON_S
    assert (await customer.ask("probe"))[1] == []
    await asyncio.sleep(until - time.monotonic() + 0.05)
    crowd = await asyncio.gather(*(customer.ask("probe", slow) for _ in range(8)))
    assert sorted(seen.status for seen, _ in crowd) == [200, *[429] * 7]
    assert sum(len(routes) for _, routes in crowd) == 1
    assert {seen.status for seen, _ in await asyncio.gather(*(customer.ask("probe") for _ in range(8)))} == {200}


async def test_alternating_provider_is_bridged(customer: Customer) -> None:
    """Every other call fails: no client sees it, and each costs one call more."""
    for _ in range(20):
        seen, routes = await customer.ask("alternating", BY_NAME["status 500"], ANSWER)
        assert (seen.status, routes) == (200, [FIRST, FIRST])
        assert seen.body == customer.whole("alternating")


async def test_flapping_provider_is_bridged(customer: Customer) -> None:
    """One route is down every other moment: all answers come, and the dead route is asked a few times only."""
    began, downs = time.monotonic(), []

    def flaps(call: Call) -> Iterator[Step]:
        if call.headers["authorization"].endswith(FIRST) and int((call.at - began) / 0.5) % 2 == 0:
            downs.append(call)
            return BY_NAME["status 500"].play(call)
        return ANSWER.play(call)

    async def works() -> int:
        answers = 0
        while time.monotonic() - began < FIRST_COOL_DOWN_S - 1:
            seen, _ = await customer.ask("flapping", Fault("flapping", flaps, "answers"))
            assert (seen.status, seen.body) == (200, customer.whole("flapping"))
            answers += 1
        return answers

    workers = 4
    answers = await asyncio.gather(*(works() for _ in range(workers)))
    assert sum(answers) > 100
    assert FAILURES_TO_COOL <= len(downs) <= FAILURES_TO_COOL + workers
