"""The faults that every provider shows sooner or later: each ends in the whole answer or in one clear error, in time.

All cases run at once, each with a model of its own, and are judged one by one: what the client got, how often which
route was asked, and what was billed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

import pytest

from tests.end_to_end import fault_run, formats
from tests.end_to_end.fault_run import KEY, STALL_S, Asked, Played, Script, Seen, how_it_ended, judge, model_entry
from tests.end_to_end.faults import (
    AFTER,
    ANSWERS,
    BEFORE_OUTPUT,
    FOREVER,
    SHORT_WAIT_S,
    STREAM_ANSWERS,
    WHOLE_ANSWERS,
    Fault,
    error_event,
    split,
    stream_of,
)
from tests.end_to_end.formats import CHAT, MESSAGES, PATHS, RESPONSES, USED
from tests.end_to_end.product import KEEPALIVE, Gateway, Installation, used
from tests.end_to_end.provider import Call, Head, Pause, Provider, Send, Step, Whole
from tests.end_to_end.scenes import JSON_TYPE, wire_of

FIRST, SECOND = fault_run.ROUTES
STREAM_FAULTS = {fault.name: fault for fault in (*BEFORE_OUTPUT[True], *AFTER[True], *ANSWERS[True])}
WHOLE_FAULTS = {fault.name: fault for fault in (*BEFORE_OUTPUT[False], *ANSWERS[False])}
BEFORE_HEADERS_S = 2
"""HOPBASE_KEEPALIVE_BEFORE_HEADERS_S of these tests."""
AT_ONCE_S = 4
"""More than anything takes that waits for nothing, on a busy machine."""
PATIENCE_S = 5
"""The silence after every finish reason that stands for a `[DONE]`."""


# --- faults of this table alone ---


def slow_first_token(call: Call) -> Iterator[Step]:
    """Headers after the first keepalive, the first token after another silence."""
    before, after = split(call)
    yield Pause(BEFORE_HEADERS_S + 0.5)
    yield Head()
    yield Send(b"".join(before))
    yield Pause(1.3)
    yield Send(b"".join(after))


def malformed_event(wire: str, model: str, events: list[bytes] | None = None) -> list[bytes]:
    """A stream with an event in its middle that is no JSON."""
    events = events or formats.text_stream(wire, model, usage=False)
    middle = len(events) // 2
    return [*events[:middle], b'data: {"choices": [{"delta": {"conte\n\n', *events[middle:]]


def plays(events: Callable[[Call], list[bytes]], *after: Step) -> Callable[[Call], Iterator[Step]]:
    def play(call: Call) -> Iterator[Step]:
        yield Head()
        yield Send(b"".join(events(call)))
        yield from after

    return play


def without_terminal(call: Call) -> list[bytes]:
    """All but the last event."""
    return stream_of(call)[:-1]


def filtered(wire: str, model: str, usage: bool = False) -> list[bytes]:
    """A stream that a content filter ended."""
    good = formats.text_stream(wire, model, usage=usage)
    if wire == CHAT:
        return [event.replace(b'"finish_reason":"stop"', b'"finish_reason":"content_filter"') for event in good]
    if wire == MESSAGES:
        return [event.replace(b'"stop_reason":"end_turn"', b'"stop_reason":"refusal"') for event in good]
    last = good[-1].replace(b"response.completed", b"response.incomplete")
    last = last.replace(b'"status":"completed","model"', b'"status":"incomplete","model"')
    details = b'"incomplete_details":{"reason":"content_filter"}'
    return [*good[:-1], last.replace(b'"incomplete_details":null', details)]


def final_error(wire: str, code: str, message: str) -> bytes:
    """A refusal that no other provider would answer differently."""
    if wire == MESSAGES:
        return formats.body({"type": "error", "error": {"type": "invalid_request_error", "message": message}})
    return formats.body({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}})


def too_long(wire: str) -> bytes:
    return final_error(wire, "context_length_exceeded", "prompt is too long: 215000 tokens > 200000 maximum")


def against_policy(wire: str) -> bytes:
    return final_error(wire, "content_policy_violation", "This violates our usage policies.")


def refuses(says: Callable[[str], bytes]) -> Callable[[Call], Iterator[Step]]:
    def play(call: Call) -> Iterator[Step]:
        yield Whole(400, says(wire_of(call)), JSON_TYPE)

    return play


REPORTED_IN_VAIN = 9_000
"""Input tokens that a failed attempt reports."""


def reports_and_fails(call: Call) -> Iterator[Step]:
    """A report of usage, and then an error event in the place of any output."""
    wire, model = wire_of(call), call.model
    yield Head()
    if wire == CHAT:
        usage = {"prompt_tokens": REPORTED_IN_VAIN, "completion_tokens": 0, "total_tokens": REPORTED_IN_VAIN}
        role = [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
        yield Send(formats.chat_chunk(model, role, usage=usage) + error_event(wire, model))
    elif wire == MESSAGES:
        yield Send(split(call)[0][0].replace(b'"input_tokens":10', b'"input_tokens":%d' % REPORTED_IN_VAIN))
        yield Send(error_event(wire, model))
    else:
        usage = {"input_tokens": REPORTED_IN_VAIN, "output_tokens": 0, "total_tokens": REPORTED_IN_VAIN}
        stream = formats.ResponsesStream(model)
        error = {"code": "server_error", "message": "no luck"}
        failed = {**stream.response("failed"), "error": error, "usage": usage}
        yield Send(b"".join([*stream.begin(), stream.event("response.failed", response=failed)]))


SLOW = Fault("slow first token", slow_first_token, "answers")
MALFORMED = Fault(
    "malformed event",
    plays(lambda call: malformed_event(wire_of(call), call.model, stream_of(call))),
    "answers",
    shown=malformed_event,
)
NO_DONE = Fault("no [DONE]", plays(without_terminal), "answers")
SILENT_DONE = Fault("no [DONE], but silence", plays(without_terminal, FOREVER), "answers")
NO_TERMINAL = Fault("no terminal event", plays(without_terminal), "broken")
FILTERED = Fault(
    "content filter", plays(lambda call: filtered(wire_of(call), call.model, usage=True)), "answers", shown=filtered
)
TOO_LONG = Fault("context length", refuses(too_long), "refused", 400, says=too_long, hopeless=True)
POLICY = Fault("content policy", refuses(against_policy), "refused", 400, says=against_policy, hopeless=True)
REPORTS = Fault("reports and fails", reports_and_fails, "failed")


# --- the table ---


@dataclass(frozen=True)
class Case:
    """What the provider does at each attempt, by names or as faults, and what must come of it.

    `asked`: the routes, in their order; `ending`: the record's; `took_s`: least and most seconds for the client.
    """

    course: tuple[str | Fault, ...]
    asked: tuple[str, ...]
    ends: str
    ending: str
    took_s: tuple[float, float] = (0, AT_ONCE_S)
    routes: int = 2
    stall_s: int = STALL_S
    wires: tuple[str, ...] = tuple(PATHS)
    streams_only: bool = False

    def faults(self, stream: bool) -> tuple[Fault, ...] | None:
        """The course of a stream or of a whole answer; None where the fault is not one of theirs."""
        known = STREAM_FAULTS if stream else WHOLE_FAULTS
        found = [known.get(each) if isinstance(each, str) else each for each in self.course]
        if self.course[-1] == "answer":
            found[-1] = (STREAM_ANSWERS if stream else WHOLE_ANSWERS)[0]
        return None if None in found or (self.streams_only and not stream) else tuple(fault for fault in found if fault)


ANSWERED, ERROR, EVENT = "complete", "error status", "cut with an error event"
CASES = {
    "429 with a short retry-after": Case(
        ("429, shortly", "answer"),
        (FIRST, FIRST),
        ANSWERED,
        "complete",
        (SHORT_WAIT_S, SHORT_WAIT_S + AT_ONCE_S),
        routes=1,
    ),
    "429 with a short retry-after, twice": Case(
        ("429, shortly", "429, shortly", "answer"),
        (FIRST, FIRST, SECOND),
        ANSWERED,
        "complete",
        (SHORT_WAIT_S, SHORT_WAIT_S + AT_ONCE_S),
    ),
    "429 with a long retry-after": Case(("429, long", "answer"), (FIRST, SECOND), ANSWERED, "complete"),
    "429 without retry-after": Case(("429", "answer"), (FIRST, SECOND), ANSWERED, "complete"),
    "429 everywhere": Case(("429, long", "429, long"), (FIRST, SECOND), ERROR, "provider_error"),
    "500 once": Case(("status 500", "answer"), (FIRST, FIRST), ANSWERED, "complete", routes=1),
    "503 for good": Case(("status 503",) * 3, (FIRST, SECOND), ERROR, "provider_error"),
    "reset before headers": Case(("reset before headers", "answer"), (FIRST, FIRST), ANSWERED, "complete", routes=1),
    "no answer at all": Case(
        ("no answer",), (FIRST,), ERROR, "timed_out", (1, 1 + AT_ONCE_S), routes=1, stall_s=BEFORE_HEADERS_S - 1
    ),
    "no answer anywhere": Case(
        ("no answer", "no answer"),
        (FIRST, SECOND),
        "error event",
        "timed_out",
        (4, 4 + AT_ONCE_S),
        stall_s=2,
        streams_only=True,
    ),
    "slow first token": Case(
        (SLOW,), (FIRST,), ANSWERED, "complete", (3, 3 + AT_ONCE_S), stall_s=20, streams_only=True
    ),
    "cut in the prelude": Case(("cut in the prelude", "answer"), (FIRST, SECOND), ANSWERED, "complete"),
    "cut": Case(("cut after output",), (FIRST,), EVENT, "provider_cut"),
    "reset": Case(("reset after output",), (FIRST,), EVENT, "provider_cut"),
    "clean end": Case(("ended after output",), (FIRST,), EVENT, "provider_cut"),
    "cut in a body": Case(("cut in the body", "answer"), (FIRST, SECOND), ANSWERED, "complete"),
    "stall before output": Case(
        ("stall in the prelude", "answer"), (FIRST, SECOND), ANSWERED, "complete", (STALL_S, STALL_S + AT_ONCE_S)
    ),
    "stall": Case(("stall after output",), (FIRST,), EVENT, "stalled", (STALL_S, STALL_S + AT_ONCE_S)),
    "pings for ever": Case(("pings after output",), (FIRST,), EVENT, "stalled", (STALL_S, STALL_S + AT_ONCE_S)),
    "malformed event": Case((MALFORMED,), (FIRST,), ANSWERED, "complete", streams_only=True),
    "malformed framing": Case(("broken chunk after output",), (FIRST,), EVENT, "provider_cut"),
    "malformed framing at first": Case(
        ("broken chunk in the prelude", "answer"), (FIRST, SECOND), ANSWERED, "complete"
    ),
    "no [DONE]": Case((NO_DONE,), (FIRST,), ANSWERED, "complete", wires=(CHAT,), streams_only=True),
    "no [DONE], but silence": Case(
        (SILENT_DONE,),
        (FIRST,),
        ANSWERED,
        "complete",
        (PATIENCE_S, PATIENCE_S + AT_ONCE_S),
        stall_s=60,
        wires=(CHAT,),
        streams_only=True,
    ),
    "no terminal event": Case(
        (NO_TERMINAL,), (FIRST,), EVENT, "provider_cut", wires=(RESPONSES, MESSAGES), streams_only=True
    ),
    "context length": Case((TOO_LONG,), (FIRST,), ERROR, "refused"),
    "content policy": Case((POLICY,), (FIRST,), ERROR, "refused"),
    "content filter": Case((FILTERED,), (FIRST,), ANSWERED, "incomplete", streams_only=True),
    "failover after a report": Case((REPORTS, "answer"), (FIRST, SECOND), ANSWERED, "complete", streams_only=True),
}
Name = tuple[str, str, bool]
"""A case, a wire format, and whether a stream is asked for."""
NAMES: list[Name] = [
    (name, wire, stream)
    for name, case in CASES.items()
    for wire in case.wires
    for stream in (True, False)
    if case.faults(stream) is not None
]
Ended = tuple[Asked, Seen, list[Played]]


@pytest.fixture(scope="module")
def script(installation: Installation, uvicorn: Gateway) -> Iterator[Script]:
    """The provider of the table, and a model for each of its rows and each server."""
    script = Script()
    entries = [
        model_entry(number, CASES[name].routes, CASES[name].stall_s)
        for server in SERVERS
        for number, (name, _, _) in zip(numbers(script, server), NAMES, strict=True)
    ]
    with Provider(script) as provider:
        installation.apply(fault_run.configuration(provider.base_url, entries))
        yield script


SERVERS = ("uvicorn", "daphne")


def numbers(script: Script, server: str) -> range:
    """The models of the rows on one server."""
    start = script.base + SERVERS.index(server) * len(NAMES)
    return range(start, start + len(NAMES))


@pytest.fixture(scope="module")
def ended(script: Script, gateway: Gateway) -> dict[Name, Ended]:
    """How every row ended; all are asked at once."""
    asked = [
        Asked(number, number, wire, stream, CASES[name].faults(stream) or (), routes=CASES[name].routes)
        for number, (name, wire, stream) in zip(numbers(script, gateway.server), NAMES, strict=True)
    ]
    until_known(gateway, fault_run.model_name(asked[-1].model))
    return dict(zip(NAMES, asyncio.run(script.play(gateway, asked)), strict=True))


def until_known(gateway: Gateway, model: str) -> None:
    """A change of the configuration is seen within a second or two."""
    deadline = time.monotonic() + 5
    while gateway.get(f"/v1/models/{model}", KEY).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(("name", "wire", "stream"), NAMES)
def test_fault_ends_clearly(ended: dict[Name, Ended], gateway: Gateway, name: str, wire: str, stream: bool) -> None:
    case = CASES[name]
    asked, seen, played = ended[name, wire, stream]
    assert judge(asked, seen, played, alone=True) == []
    assert tuple(call.route for call in played) == case.asked
    assert how_it_ended(asked, seen, played) == case.ends
    least, most = case.took_s
    assert least - 0.1 < seen.took_s < most
    record = gateway.record(seen.headers["x-request-id"], KEY)
    assert record["ending"] == case.ending
    assert len(record["attempts"]) == len(played)
    if case.ends == ANSWERED:
        assert (record["metering"], used(record)) == ("reported", USED)
    assert (Decimal(record["cost"]) > 0) == (case.ends in (ANSWERED, EVENT))


@pytest.mark.parametrize("wire", PATHS)
def test_slow_first_token_is_bridged(ended: dict[Name, Ended], wire: str) -> None:
    _, seen, _ = ended["slow first token", wire, True]
    assert seen.body.startswith(KEEPALIVE)
    assert 2 <= seen.body.count(KEEPALIVE) <= 4


@pytest.mark.parametrize("wire", PATHS)
@pytest.mark.parametrize("stream", [True, False])
def test_rate_limit_tells_when_to_come_again(ended: dict[Name, Ended], wire: str, stream: bool) -> None:
    _, seen, _ = ended["429 everywhere", wire, stream]
    assert seen.status == 429
    assert seen.headers["retry-after"] == "20"
    assert 15_000 < int(seen.headers["retry-after-ms"]) <= 20_000


@pytest.mark.parametrize("wire", PATHS)
def test_failed_attempt_keeps_its_usage(
    ended: dict[Name, Ended], gateway: Gateway, installation: Installation, wire: str
) -> None:
    """The client pays for the answer alone; what the failed attempt reported is the operator's to see."""
    _, seen, _ = ended["failover after a report", wire, True]
    request_id = seen.headers["x-request-id"]
    record = gateway.record(request_id, KEY)
    assert (used(record), record["cost"]) == (USED, "0.001612000")
    rows = installation.query(
        "SELECT a.number, a.usage FROM billing_attempt a JOIN billing_usagerecord r ON r.id = a.record_id"
        f" WHERE r.request_name = '{request_id}' ORDER BY a.number"
    )
    told = [str(row[1]) for row in rows]
    assert [str(REPORTED_IN_VAIN) in usage for usage in told] == [True, False]
