"""What the fake provider plays, by the name of the model that it is asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.end_to_end import formats
from tests.end_to_end.formats import CHAT, FORMATS, MESSAGES
from tests.end_to_end.provider import Call, Cut, Head, Meet, Pause, Send, Stage, Step, Whole

RECORDED = Path(__file__).resolve().parent.parent / "streams"
SECOND_NAME = "acme-internal-7b"
"""What the provider calls the public model `renamed`."""
SILENCE_S = 1.6
"""Longer than the keepalive interval of the tests."""
SILENCE_BEFORE_HEADERS_S = 2.6
CROWD = 300
"""Streams that run at once."""
RATELIMIT = (("x-ratelimit-remaining-requests", "41"),)
PROVIDER_REQUEST = (("x-request-id", "prov-5510"),)
JSON_TYPE = (("content-type", "application/json"),)


def wire_of(call: Call) -> str:
    """The wire format of a call, by its path."""
    return FORMATS[call.path.partition("?")[0]]


def usage_asked(call: Call) -> bool:
    return bool((call.json.get("stream_options") or {}).get("include_usage"))


def text(call: Call) -> Iterator[Step]:
    """Words, as a stream or whole."""
    wire = wire_of(call)
    if not call.streams:
        yield Whole(200, formats.whole(wire, call.model), (*JSON_TYPE, *RATELIMIT, *PROVIDER_REQUEST))
        return
    yield Head(headers=(("content-type", "text/event-stream"), *RATELIMIT, *PROVIDER_REQUEST))
    yield Send(b"".join(formats.text_stream(wire, call.model, usage=usage_asked(call))))


def in_pieces(call: Call) -> Iterator[Step]:
    """The same words, eleven bytes at a time."""
    yield Head()
    yield Send(b"".join(formats.text_stream(wire_of(call), call.model, usage=usage_asked(call))), size=11)


def thinking(call: Call) -> Iterator[Step]:
    yield Head()
    yield Send(b"".join(formats.thinking_stream(wire_of(call), call.model, usage_asked(call))))


def tools(call: Call) -> Iterator[Step]:
    yield Head()
    yield Send(b"".join(formats.tools_stream(wire_of(call), call.model, usage_asked(call))))


def quiet(call: Call) -> Iterator[Step]:
    """Silent before the headers, and again after the first word."""
    events = formats.text_stream(wire_of(call), call.model, usage=usage_asked(call))
    half = len(events) // 2
    yield Pause(SILENCE_BEFORE_HEADERS_S)
    yield Head()
    yield Send(b"".join(events[:half]))
    yield Pause(SILENCE_S)
    yield Send(b"".join(events[half:]))


def begun(call: Call) -> bytes:
    """A stream up to its third word."""
    events = formats.text_stream(wire_of(call), call.model)
    return b"".join(events[: first_word(events) + 3])


def first_word(events: list[bytes]) -> int:
    """Where the first word is."""
    return next(place for place, data in enumerate(events) if formats.WORDS[0].encode() in data)


def cut(call: Call) -> Iterator[Step]:
    """Breaks off after some words, or in the middle of a whole answer."""
    if call.streams:
        yield Head()
        yield Send(begun(call))
    yield Cut()


def endless(call: Call) -> Iterator[Step]:
    """Words without end, until the gateway leaves."""
    events = formats.text_stream(wire_of(call), call.model)
    place = first_word(events)
    yield Head()
    yield Send(b"".join(events[: place + 1]))
    while True:
        yield Pause(0.05)
        yield Send(events[place])


def large(call: Call, pause_s: float) -> Iterator[Step]:
    """Large events of little text, without end."""
    word = [{"index": 0, "delta": {"role": "assistant", "content": " word"}, "finish_reason": None}]
    yield Head()
    while True:
        yield Send(formats.chat_chunk(call.model, word, obfuscation="x" * 32_768))
        yield Pause(pause_s)


def flood(call: Call) -> Iterator[Step]:
    """As much as the gateway takes."""
    yield from large(call, 0)


def rapid(call: Call) -> Iterator[Step]:
    """More than any connection holds, though not at once; or a whole answer of that kind."""
    if call.streams:
        yield from large(call, 0.005)
    else:
        answer = {**formats.chat_whole(call.model), "padding": "x" * 8_000_000}
        yield Whole(200, formats.body(answer), JSON_TYPE)


def paced(call: Call) -> Iterator[Step]:
    """Twenty words over two seconds, and the rest of the stream."""
    words = tuple(f"word{number} " for number in range(20))
    yield Head()
    for data in formats.text_stream(wire_of(call), call.model, words, usage_asked(call)):
        yield Send(data)
        yield Pause(0.08 if b"word" in data else 0)


def stamped(call: Call) -> Iterator[Step]:
    """Ten words, each the moment of `time.monotonic` at which it is sent, a tenth of a second apart."""
    events = formats.text_stream(wire_of(call), call.model, ("moment",) * 10, usage_asked(call))
    yield Head()
    for data in events:
        is_word = data.count(b"moment") == 1  # the whole text, which Responses repeats at its end, has ten
        yield Send(data.replace(b"moment", b"sent@%.6f@" % time.monotonic()) if is_word else data)
        yield Pause(0.1 if is_word else 0)


def crowded(call: Call) -> Iterator[Step]:
    """Words, half of them only once all are there; the use is the call's own: as many output tokens as it was told."""
    own = int(call.json["messages"][0]["content"].rpartition(" ")[2])
    *events, usage, done = formats.chat_text(call.model, formats.WORDS, usage=True)
    chunk = json.loads(usage.removeprefix(b"data: "))
    chunk["usage"] = {"prompt_tokens": 7, "completion_tokens": own, "total_tokens": 7 + own}
    half = len(events) // 2
    yield Head()
    yield Send(b"".join(events[:half]))
    yield Meet(CROWD)
    for data in events[half:]:
        yield Send(data)
        yield Pause(0.05)
    yield Send(formats.event(chunk) + done)


def never(call: Call) -> Iterator[Step]:
    """No answer at all."""
    yield Pause(60)


def late(call: Call) -> Iterator[Step]:
    """A whole answer after a second."""
    yield Pause(1)
    yield from text(call)


def failing_event(call: Call) -> Iterator[Step]:
    """An error event of the provider's after some words."""
    wire = wire_of(call)
    yield Head()
    yield Send(begun(call))
    if wire == CHAT:
        yield Send(formats.event({"error": {"message": "model crashed", "type": "server_error", "code": None}}))
    elif wire == MESSAGES:
        error = {"type": "overloaded_error", "message": "model crashed"}
        yield Send(formats.named({"type": "error", "error": error}))
    else:
        stream = formats.ResponsesStream(call.model)
        error = {"code": "server_error", "message": "model crashed"}
        yield Send(stream.event("response.failed", response={**stream.response("failed"), "error": error}))


def error_answer(status: int, message: str, kind: str, **headers: str) -> Stage:
    """An error answer of the provider's, in the shape of the wire format."""

    def play(call: Call) -> Iterator[Step]:
        sent = (*JSON_TYPE, *((name.replace("_", "-"), value) for name, value in headers.items()))
        yield Whole(status, formats.body(error_object(wire_of(call), message, kind)), sent)

    return play


def echoes(call: Call) -> Iterator[Step]:
    """Refuses, and says back what it was called with."""
    yield from error_answer(401, f"no such key: {call.headers['authorization']}", "authentication_error")(call)


def error_object(wire: str, message: str, kind: str) -> dict[str, Any]:
    """An error of the provider's as its JSON."""
    if wire == MESSAGES:
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_prov_1"}
    return {"error": {"message": message, "type": kind, "param": "temperature", "code": None}}


def count_tokens(call: Call) -> Iterator[Step]:
    yield Whole(200, b'{"input_tokens": 2095}', JSON_TYPE)


def recorded(path: Path, size: int) -> Stage:
    """A recorded stream."""

    def play(call: Call) -> Iterator[Step]:
        yield Head()
        yield Send(path.read_bytes(), size)

    return play


REFUSAL = "temperature: must be at most 2"
SCENES: dict[str, Stage] = {
    "plain": text,
    SECOND_NAME: text,
    "in-pieces": in_pieces,
    "thinking": thinking,
    "tools": tools,
    "quiet": quiet,
    "cut": cut,
    "endless": endless,
    "flood": flood,
    "rapid": rapid,
    "paced": paced,
    "stamped": stamped,
    "crowded": crowded,
    "never": never,
    "late": late,
    "failing-event": failing_event,
    "refuses": error_answer(400, REFUSAL, "invalid_request_error"),
    "limited": error_answer(429, "slow down", "rate_limit_error", retry_after="7"),
    "fails": error_answer(500, "oh no", "server_error"),
    "locked-out": error_answer(401, "bad key sk-prov", "authentication_error"),
    "echoes": echoes,
}


FRAGILE = ("cut", "failing-event", "limited", "fails", "locked-out")
COPIES = 40


def copies() -> list[str]:
    """Models of the scenes after which a route cools down or is out: each request takes a new one (`fresh`)."""
    return [f"{name}.{number}" for name in FRAGILE for number in range(COPIES)]


def recorded_models() -> dict[str, tuple[Path, int]]:
    """Model name -> recorded stream and size of the pieces (0: whole); the name is the provider's for the whole one."""
    found: dict[str, tuple[Path, int]] = {}
    for path in sorted(RECORDED.glob("*/*.sse")):
        for size in (0, 5):
            found[f"{path.parent.name}.{path.stem}.{size}"] = (path, size)
    return found


def stage(recordings: dict[str, tuple[Path, int]]) -> Stage:
    """All scenes: those above, and the recorded streams by the model that they are asked for."""

    def play(call: Call) -> Iterator[Step]:
        if call.path.partition("?")[0].endswith("/count_tokens"):
            yield from count_tokens(call)
        elif call.model in recordings:
            yield from recorded(*recordings[call.model])(call)
        else:
            yield from SCENES[call.model.partition(".")[0]](call)

    return play
