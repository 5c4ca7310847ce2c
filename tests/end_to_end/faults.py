"""What providers do wrong, each fault as a scene of the fake provider and what it means for the attempt.

A fault says what it is, not what the gateway should do about it: that is judged in `fault_run`.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.end_to_end import formats
from tests.end_to_end.formats import CHAT, MESSAGES, RESPONSES
from tests.end_to_end.provider import Call, Cut, Head, Pause, Raw, Reset, Send, Stage, Step, Whole
from tests.end_to_end.scenes import JSON_TYPE, error_object, failing_event, usage_asked, wire_of

Meaning = Literal[
    "answers", "refused", "rate_limited", "overloaded", "timed_out", "failed",  # before any output
    "broken", "fails_itself",  # after it: the gateway's error event is due, or the provider sent its own
]  # fmt: skip
AFTER_OUTPUT = frozenset({"broken", "fails_itself"})
FOREVER = Pause(3600)
COMMENT = b": still here\n\n"
PING = formats.named({"type": "ping"})
SHORT_WAIT_S = 1


@dataclass(frozen=True)
class Fault:
    """`status`: of the provider's answer, where that is not 200; `wait_s`: the retry-after that it tells.

    `shown`: what a client gets of an answer, by wire format and model, where that is not the good stream of words.
    `says`: the body of a refusal, by wire format, where that is not `refusal`; `hopeless`: no route answers otherwise.
    """

    name: str
    play: Stage
    meaning: Meaning
    status: int = 200
    wait_s: int | None = None
    shown: Callable[[str, str], list[bytes]] | None = None
    says: Callable[[str], bytes] | None = None
    hopeless: bool = False

    @property
    def is_final(self) -> bool:
        """Whether nothing may be asked again after it."""
        return self.meaning == "answers" or self.meaning in AFTER_OUTPUT

    def events(self, wire: str, model: str) -> list[bytes]:
        """What a client that asks for no usage gets of the answer."""
        return self.shown(wire, model) if self.shown else formats.text_stream(wire, model, usage=False)

    def refusal(self, wire: str) -> bytes:
        """What the provider says with an error status."""
        return self.says(wire) if self.says else refusal(wire, self.status)


def stream_of(call: Call) -> list[bytes]:
    """The events of a good stream of words."""
    return formats.text_stream(wire_of(call), call.model, usage=usage_asked(call))


def split(call: Call) -> tuple[list[bytes], list[bytes]]:
    """The events before the first word, and those from it on."""
    events = stream_of(call)
    place = next(place for place, data in enumerate(events) if formats.WORDS[0].encode() in data)
    return events[:place], events[place:]


def begun(call: Call, words: int = 3) -> bytes:
    """A stream up to one of its words."""
    before, after = split(call)
    return b"".join([*before, *after[:words]])


def half(call: Call) -> bytes:
    """A stream that breaks off inside its third word's event, past its `data:`."""
    _, after = split(call)
    return begun(call, 2) + after[2][: len(after[2]) * 2 // 3]


def then(*steps: Step, lead: Callable[[Call], bytes] | None = None) -> Stage:
    """A stream that begins with some bytes and goes on with fixed steps."""

    def play(call: Call) -> Iterator[Step]:
        yield Head()
        if lead is not None:
            yield Send(lead(call))
        yield from steps

    return play


def plain(call: Call) -> bytes:
    return b"".join(stream_of(call))


def prelude(call: Call) -> bytes:
    return b"".join(split(call)[0])


def pings(lead: Callable[[Call], bytes]) -> Stage:
    """A dead provider that pings: some bytes, and then only comments and, where there are any, ping events."""

    def play(call: Call) -> Iterator[Step]:
        noise = COMMENT + (PING if wire_of(call) == MESSAGES else b"")
        yield Head()
        yield Send(lead(call))
        while True:
            yield Pause(0.05)
            yield Send(noise)

    return play


def noisy(call: Call) -> Iterator[Step]:
    """Comments between the words."""
    yield Head()
    for data in stream_of(call):
        yield Send(COMMENT + data)
        yield Pause(0.02)


def hesitant(call: Call) -> Iterator[Step]:
    """A slow first token, and a silence in the middle: longer than keepalives wait, shorter than a stall."""
    yield Pause(0.35)
    yield Head()
    yield Send(begun(call))
    yield Pause(0.35)
    yield Send(plain(call)[len(begun(call)) :])


def in_bytes(call: Call) -> Iterator[Step]:
    """One byte at a time; a whole answer too."""
    if call.streams:
        yield Head()
        yield Send(plain(call), size=1)
    else:
        yield Head(headers=JSON_TYPE)
        yield Send(formats.whole(wire_of(call), call.model), size=1)


def packed(call: Call) -> Iterator[Step]:
    """Gzip, which nobody asked for; a stream event by event."""
    encoded = ("content-encoding", "gzip")
    if not call.streams:
        body = gzip.compress(formats.whole(wire_of(call), call.model))
        yield Whole(200, body, (*JSON_TYPE, encoded))
        return
    packer = zlib.compressobj(wbits=31)
    yield Head(headers=(("content-type", "text/event-stream"), encoded))
    for data in stream_of(call):
        yield Send(packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH), size=7)
    yield Send(packer.flush())


def cut_gzip(call: Call) -> Iterator[Step]:
    """Gzip that breaks off after some words."""
    packer = zlib.compressobj(wbits=31)
    yield Head(headers=(("content-type", "text/event-stream"), ("content-encoding", "gzip")))
    yield Send(packer.compress(begun(call)) + packer.flush(zlib.Z_SYNC_FLUSH))


def told_as(encoding: str) -> Stage:
    """A plain stream that says it is encoded."""

    def play(call: Call) -> Iterator[Step]:
        yield Head(headers=(("content-type", "text/event-stream"), ("content-encoding", encoding)))
        yield Send(plain(call))

    return play


def until_closed(kind: str, data: Callable[[Call], bytes]) -> Stage:
    """An answer of HTTP/1.0: its end is the connection's."""

    def play(call: Call) -> Iterator[Step]:
        yield Raw(f"HTTP/1.0 200 OK\r\ncontent-type: {kind}\r\n\r\n".encode() + data(call))
        yield Cut()

    return play


def whole_body(call: Call) -> bytes:
    return formats.whole(wire_of(call), call.model)


def redirect(call: Call) -> Iterator[Step]:
    """To a place where a good answer would be."""
    yield Whole(307, b"", (("location", call.path),))


def whole(call: Call) -> Iterator[Step]:
    yield Whole(200, formats.whole(wire_of(call), call.model), JSON_TYPE)


def late(call: Call) -> Iterator[Step]:
    yield Pause(0.5)
    yield from whole(call)


def status(code: int, **headers: str) -> Stage:
    """An error answer, in the shape of the wire format."""

    def play(call: Call) -> Iterator[Step]:
        sent = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        yield Whole(code, refusal(wire_of(call), code), (*JSON_TYPE, *sent))

    return play


def status_without_body(code: int, *end: Step) -> Stage:
    """An error answer whose body never comes whole."""

    def play(call: Call) -> Iterator[Step]:
        said = refusal(wire_of(call), code)
        head = f"HTTP/1.1 {code} Status\r\ncontent-type: application/json\r\ncontent-length: {len(said)}\r\n\r\n"
        yield Raw(head.encode() + said[:10])
        yield from end

    return play


def refusal(wire: str, code: int) -> bytes:
    """What the provider says with a status."""
    kind = {429: "rate_limit_error", 529: "overloaded_error"}.get(code, "server_error" if code >= 500 else "bad")
    return formats.body(error_object(wire, f"status {code}, says the provider", kind))


def steps(*fixed: Step) -> Stage:
    return lambda call: iter(fixed)


def body(data: bytes, kind: str = "application/json") -> Stage:
    """A 200 with a body that is no answer."""
    return steps(Whole(200, data, (("content-type", kind),)))


def error_in_a_200(call: Call) -> Iterator[Step]:
    yield Whole(200, formats.body(error_object(wire_of(call), "out of luck", "server_error")), JSON_TYPE)


def cut_json(call: Call) -> Iterator[Step]:
    """Half a JSON body, announced and sent as if it were all."""
    data = formats.whole(wire_of(call), call.model)
    yield Whole(200, data[: len(data) // 2], JSON_TYPE)


def short_body(*end: Step) -> Stage:
    """Half a body of an announced length, and then the end."""

    def play(call: Call) -> Iterator[Step]:
        data = formats.whole(wire_of(call), call.model)
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        yield Raw(head.encode() + data[: len(data) // 2])
        yield from end

    return play


def first_event_error(call: Call) -> Iterator[Step]:
    """An error event before any output: overloaded."""
    yield Head()
    yield Send(error_event(wire_of(call), call.model))
    yield FOREVER


def error_event(wire: str, model: str) -> bytes:
    if wire == MESSAGES:
        return formats.named({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
    if wire == RESPONSES:
        stream = formats.ResponsesStream(model)
        error = {"code": "server_overloaded", "message": "busy"}
        return stream.event("response.failed", response={**stream.response("failed"), "error": error})
    return formats.event({"error": {"message": "busy", "type": "server_error", "code": "server_overloaded"}})


def hollow_stream(call: Call) -> Iterator[Step]:
    """Complete by its events, but without output and without usage."""
    wire, model = wire_of(call), call.model
    yield Head()
    if wire == CHAT:
        done = [formats.chat_delta(model, role="assistant", content=""), *formats.chat_end(model, usage=False)]
    elif wire == RESPONSES:
        stream = formats.ResponsesStream(model)
        empty = {**stream.response("completed"), "usage": None}
        done = [*stream.begin(), stream.event("response.completed", response=empty)]
    else:
        message = {"id": "msg_0", "type": "message", "role": "assistant", "model": model, "content": []}
        done = [formats.named({"type": "message_start", "message": message}), formats.named({"type": "message_stop"})]
    yield Send(b"".join(done))


APART = Pause(0.2)
WELL_APART = Pause(0.7)
"""So that what follows is read by itself even by a busy gateway: a read with a broken chunk in it is lost whole."""
BROKEN_CHUNK = Raw(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
"""What a proxy writes into a stream whose own upstream has gone."""
STATUSES = (
    *(Fault(f"status {code}", status(code), "refused", code) for code in (400, 404, 422)),
    Fault("429", status(429), "rate_limited", 429),
    Fault("429, shortly", status(429, retry_after=str(SHORT_WAIT_S)), "rate_limited", 429, SHORT_WAIT_S),
    Fault("429, long", status(429, retry_after="20"), "rate_limited", 429, 20),
    *(Fault(f"status {code}", status(code), "failed", code) for code in (500, 502)),
    *(Fault(f"status {code}", status(code), "overloaded", code) for code in (503, 529)),
    Fault("503, cut", status_without_body(503, Cut()), "overloaded", 503),
    Fault("429, reset", status_without_body(429, APART, Reset()), "rate_limited", 429),
    Fault("status 504", status(504), "timed_out", 504),
    Fault("a redirect", redirect, "failed", 307),
    Fault("status 204", steps(Raw(b"HTTP/1.1 204 No Content\r\n\r\n")), "failed", 204),
    Fault("no HTTP", steps(Raw(b"220 mail.test ESMTP\r\n"), FOREVER), "failed"),
)
WITHOUT_HEADERS = (
    Fault("reset before headers", steps(Reset()), "failed"),
    Fault("closed before headers", steps(Cut()), "failed"),
    Fault("no answer", steps(FOREVER), "timed_out"),
)
STREAM_ANSWERS = (
    Fault("a stream", then(lead=plain), "answers"),
    Fault("single bytes", in_bytes, "answers"),
    Fault("gzip", packed, "answers"),
    Fault("until closed", until_closed("text/event-stream", plain), "answers"),
    Fault("comments between", noisy, "answers"),
    Fault("slow", hesitant, "answers"),
    Fault("hangs after the terminal", then(FOREVER, lead=plain), "answers"),
    Fault("cut after the terminal", then(Cut(), lead=plain), "answers"),
    Fault("reset after the terminal", then(Reset(), lead=plain), "answers"),
)
STREAM_FAULTS = (
    Fault("stall in the prelude", then(FOREVER, lead=prelude), "timed_out"),
    Fault("pings before output", pings(prelude), "timed_out"),
    Fault("ended in the prelude", then(lead=prelude), "failed"),
    Fault("cut in the prelude", then(Cut(), lead=prelude), "failed"),
    Fault("reset in the prelude", then(Reset(), lead=prelude), "failed"),
    Fault("broken chunk in the prelude", then(APART, BROKEN_CHUNK, FOREVER, lead=prelude), "failed"),
    Fault("error event first", first_event_error, "overloaded"),
    Fault("empty stream", then(), "failed"),
    Fault("HTML", body(b"<html><body>Bad gateway</body></html>", "text/html"), "failed"),
    Fault("error object in a 200", error_in_a_200, "failed"),
    Fault("neither output nor usage", hollow_stream, "failed"),
    Fault("a whole answer to a stream", whole, "failed"),
    Fault("no gzip", told_as("gzip"), "failed"),
    Fault("Brotli", told_as("br"), "failed"),
)
STREAM_BREAKS = (
    Fault("stall after output", then(FOREVER, lead=begun), "broken"),
    Fault("pings after output", pings(begun), "broken"),
    Fault("ended after output", then(lead=begun), "broken"),
    Fault("cut after output", then(Cut(), lead=begun), "broken"),
    Fault("reset after output", then(Reset(), lead=begun), "broken"),
    Fault("ended in half an event", then(lead=half), "broken"),
    Fault("cut in half an event", then(Cut(), lead=half), "broken"),
    Fault("reset in half an event", then(Reset(), lead=half), "broken"),
    Fault("stall in half an event", then(FOREVER, lead=half), "broken"),
    Fault("broken chunk after output", then(WELL_APART, BROKEN_CHUNK, FOREVER, lead=begun), "broken"),
    Fault("gzip, cut", cut_gzip, "broken"),
    Fault("closed after output", until_closed("text/event-stream", begun), "broken"),
    Fault("error event after output", failing_event, "fails_itself"),
)
WHOLE_ANSWERS = (
    Fault("an answer", whole, "answers"),
    Fault("a late answer", late, "answers"),
    Fault("single bytes", in_bytes, "answers"),
    Fault("gzip", packed, "answers"),
    Fault("until closed", until_closed("application/json", whole_body), "answers"),
)
WHOLE_FAULTS = (
    Fault("empty body", body(b""), "failed"),
    Fault("HTML", body(b"<html><body>Bad gateway</body></html>", "text/html"), "failed"),
    Fault("cut JSON", cut_json, "failed"),
    Fault("error object in a 200", error_in_a_200, "failed"),
    Fault("cut in the body", short_body(Cut()), "failed"),
    Fault("reset in the body", short_body(Reset()), "failed"),
    Fault("a stream to a whole answer", then(lead=plain), "failed"),
    Fault("stall in the body", short_body(FOREVER), "timed_out"),
)
ANSWERS: dict[bool, Sequence[Fault]] = {True: STREAM_ANSWERS, False: WHOLE_ANSWERS}
BEFORE_OUTPUT: dict[bool, Sequence[Fault]] = {
    True: (*STATUSES, *WITHOUT_HEADERS, *STREAM_FAULTS),
    False: (*STATUSES, *WITHOUT_HEADERS, *WHOLE_FAULTS),
}
AFTER: dict[bool, Sequence[Fault]] = {True: STREAM_BREAKS, False: ()}
"""By whether a stream was asked for."""


def is_error(wire: str, event: bytes) -> bool:
    """Whether an event of a stream is its error."""
    if wire == MESSAGES:
        return event.startswith(b"event: error\n")
    if wire == RESPONSES:
        return event.startswith((b"event: error\n", b"event: response.failed\n"))
    return event.startswith(b'data: {"error"')


def is_terminal(event: bytes) -> bool:
    """Whether an event says that the answer is whole."""
    return event.startswith((b"data: [DONE]", b"event: message_stop\n", b"event: response.completed\n"))


def events_of(data: bytes) -> list[bytes]:
    """The events of a body, each with its blank line; what has none is the last."""
    parts = data.split(b"\n\n")
    return [part + b"\n\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def request(wire: str, model: str, number: int, stream: bool) -> dict[str, Any]:
    """A request whose prompt names its number in the run."""
    return formats.request(wire, model, f"run {number}", stream=stream)


def number_of(call: Call) -> int:
    """The number of the run that a call belongs to."""
    said = call.json.get("input") or call.json["messages"][0]["content"]
    return int(str(said).rpartition(" ")[2])
