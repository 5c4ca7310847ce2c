"""A provider that fails in every way there is, and clients that leave: `bench.faults` in short, on both servers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.fault_run import (
    PRICE,
    ROUTES,
    STALL_S,
    Asked,
    Leave,
    Planner,
    Stand,
    installed,
    model_name,
)
from tests.end_to_end.faults import (
    AFTER,
    ANSWERS,
    APART,
    BEFORE_OUTPUT,
    FOREVER,
    STREAM_ANSWERS,
    STREAM_BREAKS,
    WITHOUT_HEADERS,
    Fault,
    begun,
    plain,
    prelude,
)
from tests.end_to_end.formats import CHAT, PATHS
from tests.end_to_end.product import Gateway
from tests.end_to_end.provider import Call, Cut, Head, Pause, Send, Step
from tests.end_to_end.scenes import endless

pytestmark = pytest.mark.slow
SEEDS = {"uvicorn": 4, "daphne": 7}
REQUESTS = 110
"""As many as it takes for every fault to come up once."""
EVERY = {
    (stream, fault) for stream in (True, False) for fault in (*BEFORE_OUTPUT[stream], *AFTER[stream], *ANSWERS[stream])
}
LEAVERS = 60
DRAIN_S, DRAINS, DRAINED = 1, 4, 12
"""How long and how many at a time a provider is read on whose clients have left, and how many leave."""
MODELS = (REQUESTS + LEAVERS) * len(SEEDS)
DRAINING = MODELS
"""The model of that provider."""


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with installed("", MODELS) as made:
        made.installation.apply(draining(made.provider.base_url))
        yield made


def draining(base_url: str) -> dict[str, Any]:
    """A provider that is read on when a client leaves, with one model, which another provider has too."""
    name = model_name(DRAINING)
    on_client_left = {"drain_s": DRAIN_S, "max_drains": DRAINS}
    provider = {"name": "draining", "base_url": base_url, "api_key": "draining", "wire_formats": list(PATHS)}
    second = {"provider": ROUTES[1], "priority": 1}
    price = {"model": name, "effective_from": "2026-01-01T00:00:00Z", "currency": "USD", "per_million": PRICE}
    return {
        "providers": [{**provider, "on_client_left": on_client_left}],
        "models": [{"name": name, "stall_seconds": 60, "routes": [{"provider": "draining"}, second]}],
        "prices": [price],
    }


@pytest.fixture(scope="module", params=SEEDS)
def served(request: pytest.FixtureRequest, stand: Stand) -> Iterator[Gateway]:
    """A gateway that nobody else uses: what is left over is these tests' own."""
    with stand.installation.serving(request.param) as gateway:
        yield gateway


def numbers_of(served: Gateway, start: int, count: int) -> range:
    """Numbers that no other test has, on either server."""
    first = start + count * list(SEEDS).index(served.server)
    return range(first, first + count)


async def test_every_fault_ends_clearly(stand: Stand, served: Gateway) -> None:
    """Whole, or one error; one record each; and nothing is left running."""
    numbers = numbers_of(served, 0, REQUESTS)
    plan = Planner(SEEDS[served.server]).plan(numbers, numbers)
    assert {(each.stream, each.faults[0]) for each in plan if each.faults} == EVERY
    report = await stand.run(served, plan)
    assert report.wrong == []
    assert {"complete", "cut with an error event", "error status", "client left"} <= set(report.ends)


def cut_later(call: Call) -> Iterator[Step]:
    yield from (Head(), Send(begun(call)), APART, Cut())


def ends_later(call: Call) -> Iterator[Step]:
    """The terminal event a moment later, and then silence."""
    yield from (Head(), Send(begun(call)), APART, Send(plain(call)[len(begun(call)) :]), FOREVER)


def fails_later(call: Call) -> Iterator[Step]:
    yield from (Pause(APART.seconds), Cut())


NO_ANSWER = next(fault for fault in WITHOUT_HEADERS if fault.meaning == "timed_out")
MOMENTS: tuple[tuple[float, tuple[Fault, ...]], ...] = (
    (STALL_S, (STREAM_BREAKS[0],)),
    (STALL_S, (NO_ANSWER, STREAM_ANSWERS[0])),
    (APART.seconds, (Fault("cut later", cut_later, "broken"),)),
    (APART.seconds, (Fault("ends later", ends_later, "answers"),)),
    (APART.seconds, (Fault("fails later", fails_later, "failed"), STREAM_ANSWERS[0])),
)
"""When the gateway itself lets the provider go, and why."""


async def test_leaving_just_then_leaks_nothing(stand: Stand, served: Gateway) -> None:
    """Clients that leave at the very moment in which the gateway closes the provider's side."""
    dice = random.Random(SEEDS[served.server])
    asked = []
    for number in numbers_of(served, REQUESTS * len(SEEDS), LEAVERS):
        moment, course = MOMENTS[number % len(MOMENTS)]
        leave = Leave(after_s=moment + dice.uniform(-0.05, 0.2), reset=dice.random() < 0.5)
        asked.append(Asked(number, number, list(PATHS)[number % len(PATHS)], True, course, leave))
    report = await stand.run(served, asked)
    assert report.wrong == []
    assert report.ends["client left"] > LEAVERS / 3


@pytest.mark.parametrize("wave", range(2))
async def test_drain_places_are_given_back(stand: Stand, served: Gateway, wave: int) -> None:
    """So many streams are read on, and the next time just as many."""
    last = Fault("endless", endless, "answers")
    numbers = numbers_of(served, 10_000 + wave * 1000, DRAINED)
    asked = [Asked(number, DRAINING, CHAT, True, (last,), Leave(after_bytes=200)) for number in numbers]
    report = await stand.run(served, asked)
    assert (report.wrong, report.ends) == ([], {"client left": DRAINED})
    calls = [stand.script.played[number][0].call for number in numbers]
    read_s = sorted((call.left_at or 0) - call.at for call in calls)
    assert read_s[DRAINED - DRAINS - 1] < DRAIN_S / 2
    assert DRAIN_S - 0.1 < read_s[-DRAINS] < DRAIN_S + 1


def fails_without_output(call: Call) -> Iterator[Step]:
    if call.streams:
        yield from (Head(), Send(prelude(call)))
    yield from (Pause(APART.seconds * 2), Cut())


@pytest.mark.parametrize("stream", [True, False])
async def test_nothing_is_tried_again_for_nobody(stand: Stand, served: Gateway, stream: bool) -> None:
    """The provider of a client that has left is read on, and fails: no other is asked then."""
    course = (Fault("fails without output", fails_without_output, "failed"), ANSWERS[stream][0])
    numbers = numbers_of(served, 20_000 + stream * 1000, len(PATHS))
    wires = zip(numbers, PATHS, strict=True)
    asked = [Asked(number, DRAINING, wire, stream, course, Leave(after_s=APART.seconds)) for number, wire in wires]
    report = await stand.run(served, asked)
    assert (report.wrong, report.ends) == ([], {"client left": len(PATHS)})
    assert [len(stand.script.played[number]) for number in numbers] == [1] * len(PATHS)
