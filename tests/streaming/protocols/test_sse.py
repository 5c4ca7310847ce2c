"""Framing: bytes in, events with their bytes out."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming.protocols import spans
from streaming.protocols.sse import EventTooLarge, SSEDecoder, SSEEvent, data_edits, error_field

# In a fresh clone the first text drawn builds hypothesis's Unicode tables, which takes seconds on a busy machine.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
LIMIT = 1 << 20
BOM = b"\xef\xbb\xbf"

LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.sampled_from([
    b'data: {"a":1}', b'data:{"b":2}', b"data", b"data:", b"data:  x", b"event: ping", b"event:x", b"id: 7",
    b"retry: 3000", b": comment", b":", b"error: {}", b"unknown", "data: 世界🎈".encode(), b"data: [DONE]",
])  # fmt: skip
BLOCKS = st.lists(st.tuples(LINES, LINE_ENDS), max_size=4)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Blocks of lines with any line ends between and behind them, perhaps with a BOM and half a block at the end."""
    parts = [draw(st.sampled_from([b"", BOM]))]
    for block in draw(st.lists(BLOCKS, max_size=5)):
        parts += [line + end for line, end in block] + [draw(LINE_ENDS)]
    return b"".join(parts)[: draw(st.sampled_from([None, -1, -2, -5]))]


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    stream = draw(streams())
    places = sorted(draw(st.sets(st.integers(0, len(stream)))))
    edges = [0, *places, len(stream)]
    return stream, [stream[start:end] for start, end in itertools.pairwise(edges)]


def decoded(chunks: Iterable[bytes], limit: int = LIMIT) -> tuple[list[SSEEvent], SSEEvent | None, bool]:
    """The events, tails joined to the event whose LF they are, and the last one that lacked its end."""
    decoder = SSEDecoder(limit)
    events: list[SSEEvent] = []
    for event in (event for chunk in chunks for event in decoder.feed(chunk)):
        if event.tail:
            events[-1] = events[-1]._replace(raw=events[-1].raw + event.raw)
        else:
            events.append(event)
    return events, decoder.close(), decoder.saw_id_or_retry


@UNTIMED
@given(cut_streams())
def test_any_cut_gives_the_same_events(case: tuple[bytes, list[bytes]]) -> None:
    stream, chunks = case
    whole, parts = decoded([stream]), decoded(chunks)
    assert parts == whole


@UNTIMED
@given(streams())
def test_bytes_out_are_bytes_in_less_drops(stream: bytes) -> None:
    events, _, _ = decoded([stream + b"\n\n"])
    out = b"".join(event.raw for event in events)
    fields = [line for line in stream.removeprefix(BOM).splitlines() if line and not line.startswith(b":")]
    assert [line for line in out.splitlines() if line] == fields
    assert all(event.raw in stream + b"\n\n" for event in events if b"\n:" not in stream and b"\r:" not in stream)


@UNTIMED
@given(streams())
def test_framing_agrees_with_the_standard(stream: bytes) -> None:
    """Against a plain reading of the WHATWG algorithm, line by line, on the whole stream."""
    expected, name, data = [], "", []
    for line in stream.removeprefix(BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            if data and data != [b""]:
                expected.append((name, b"\n".join(data)))
            name, data = "", []
        elif field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode()
    found = [(event.name, event.data) for event in decoded([stream])[0] if event.data is not None]
    # An event is whole at the CR of its last line end, which the split above does not see as one.
    assert found[: len(expected)] == expected
    assert len(found) - len(expected) <= 1


@pytest.mark.parametrize(
    ("sent", "events"),
    [
        (b'data: {"a":1}\n\n', [(b'data: {"a":1}\n\n', "", b'{"a":1}')]),
        (b"data:x\n\n", [(b"data:x\n\n", "", b"x")]),
        (b"data:  x\n\n", [(b"data:  x\n\n", "", b" x")]),
        (b"event: a\ndata: x\n\n", [(b"event: a\ndata: x\n\n", "a", b"x")]),
        (b"data: x\nevent: a\n\n", [(b"data: x\nevent: a\n\n", "a", b"x")]),
        (b"data: x\ndata: y\n\n", [(b"data: x\ndata: y\n\n", "", b"x\ny")]),
        (b"event: a\ndata: x\ndata: y\n\n", [(b"event: a\ndata: x\ndata: y\n\n", "a", b"x\ny")]),
        (b"event: ping\n\n", [(b"event: ping\n\n", "ping", None)]),
        (b"data:\n\n", [(b"data:\n\n", "", None)]),
        (b"data: \n\n", [(b"data: \n\n", "", None)]),
        (b": only\n: comments\n\n", []),
        (b":\n\n", []),
        (b"\n\n\n\n", []),
        (b"\n\ndata: x\n\n\n", [(b"data: x\n\n", "", b"x")]),
        (b"event: a\n: inside\ndata: x\n\n", [(b"event: a\ndata: x\n\n", "a", b"x")]),
        (b"data: x\n: last\n\n", [(b"data: x\n\n", "", b"x")]),
        (BOM + b"data: x\n\n", [(b"data: x\n\n", "", b"x")]),
        (b"data: x\r\n\r\n", [(b"data: x\r\n\r\n", "", b"x")]),
        (b"data: x\r\rdata: y\r\r", [(b"data: x\r\r", "", b"x"), (b"data: y\r\r", "", b"y")]),
        (b"data: x\n\r\ndata: y\r\n\n", [(b"data: x\n\r\n", "", b"x"), (b"data: y\r\n\n", "", b"y")]),
        (b"data: x\r\n: c\r\n\r\n", [(b"data: x\r\n\r\n", "", b"x")]),
        (b"event: \xff\ndata: x\n\n", [(b"event: \xff\ndata: x\n\n", "\ufffd", b"x")]),
    ],
)
def test_events_of_a_stream(sent: bytes, events: list[tuple[bytes, str, bytes | None]]) -> None:
    expected = [SSEEvent(*event) for event in events]
    assert decoded([sent])[0] == expected
    assert decoded([sent[at : at + 1] for at in range(len(sent))])[0] == expected


def test_event_is_whole_at_its_last_cr() -> None:
    decoder = SSEDecoder(LIMIT)
    assert decoder.feed(b"data: x\r\n\r") == [SSEEvent(b"data: x\r\n\r", "", b"x")]
    assert decoder.feed(b"\ndata: y\r\n") == [SSEEvent(b"\n", "", None, tail=True)]
    assert decoder.feed(b"\r\n") == [SSEEvent(b"data: y\r\n\r\n", "", b"y")]


@pytest.mark.parametrize(
    ("pieces", "inside"),
    [
        ([], False),
        ([b"da"], True),
        ([b"data: 1\n\n"], False),
        ([b"data: 1\n\nda"], True),
        ([b"data: 1\n\n", b"data: 2", b"3"], True),
        ([b"data: 1\n\n: wai"], False),
        ([b"data: 1\r\n\r", b"\nev"], True),
    ],
)
def test_part_of_an_event_is_known(pieces: list[bytes], inside: bool) -> None:
    decoder = SSEDecoder(1000)
    for piece in pieces:
        decoder.feed(piece)
    assert decoder.in_event is inside


def test_tail_of_a_dropped_block_goes_too() -> None:
    decoder = SSEDecoder(LIMIT)
    assert decoder.feed(b": comment\r\n\r") == []
    assert decoder.feed(b"\n") == []
    assert decoder.feed(b"data: x\n\n") == [SSEEvent(b"data: x\n\n", "", b"x")]


@pytest.mark.parametrize(
    ("sent", "raw"),
    [
        (b'data: {"a":1}\n', b'data: {"a":1}\n\n'),
        (b'data: {"a":1}', b'data: {"a":1}\n\n'),
        (b"data: [DONE]", b"data: [DONE]\n\n"),
        (b'event: a\r\ndata: {"a":1}\r\n', b'event: a\r\ndata: {"a":1}\r\n\r\n'),
        (b'event: a\r\ndata: {"a":1}\r', b'event: a\r\ndata: {"a":1}\r\n\r\n'),
        (b'data: {"a":0}\r\n\r\ndata: {"a":1}\r', b'data: {"a":1}\r\n\r\n'),
        (b'data: {"a":0}\r\rdata: {"a":1}\r', b'data: {"a":1}\r\r'),
        (b'data: {"a":0}\r\n\r\ndata: {"a":1}', b'data: {"a":1}\r\n\r\n'),
        (b'data: {"a":"\\ud83d"}\n', b'data: {"a":"\\ud83d"}\n\n'),
        (b'data: {"a":1}\n: cut comm', b'data: {"a":1}\n\n'),
        (b'data: {\ndata: "a":1}', b'data: {\ndata: "a":1}\n\n'),
    ],
)
def test_whole_last_event_gets_its_end(sent: bytes, raw: bytes) -> None:
    last = decoded([sent])[1]
    assert last is not None
    assert last.raw == raw


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\n",
        b'data: {"a":',
        b'data: {"a":1}\ndata: {"b',
        b"data: [DON",
        b": cut",
        b"event: x\n",
        b"id: 4\n",
        BOM[:2],
    ],
)
def test_cut_last_event_is_dropped(sent: bytes) -> None:
    assert decoded([sent])[1] is None


@pytest.mark.parametrize(
    ("sent", "saw"),
    [
        (b"data: x\n\n", False),
        (b"id: 1\ndata: x\n\n", True),
        (b"retry: 9\n\n", True),
        (b"id\n\n", True),
        (b": id: 1\n\n", False),
    ],
)
def test_id_and_retry_are_noted(sent: bytes, saw: bool) -> None:
    assert decoded([sent])[2] is saw


def test_error_field_can_be_read() -> None:
    (event,), _, _ = decoded([b'error: {"message":"x"}\n\n'])
    assert (event.data, error_field(event)) == (None, '{"message":"x"}')
    assert error_field(SSEEvent(b"data: error\n\n", "", b"error")) == ""


def test_cut_error_field_is_given_back() -> None:
    last = decoded([b'data: x\n\nerror: {"message":"x"}'])[1]
    assert last is not None
    assert (last.data, error_field(last)) == (None, '{"message":"x"}')


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_too_large_event_is_refused(size: int) -> None:
    stream = b"data: x\n\n" + b"data: " + b"y" * 200 + b"\n\n"
    decoder, events = SSEDecoder(100), []
    with pytest.raises(EventTooLarge, match="100 bytes"):
        events += (event for at in range(0, 2001, size) for event in decoder.feed(stream[at : at + size]))
    assert [event.data for event in events] == [b"x"]
    with pytest.raises(EventTooLarge):
        decoder.close()


def test_events_before_a_too_large_one_come_first() -> None:
    decoder = SSEDecoder(100)
    assert len(decoder.feed(b"data: x\n\ndata: " + b"y" * 200 + b"\n\n")) == 1
    with pytest.raises(EventTooLarge):
        decoder.feed(b"data: z\n\n")


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_large_event_costs_linear_time(line_end: bytes) -> None:
    """5 MB in reads of 16 KB takes about 20 ms; a rescan per read would take minutes."""
    stream = b'data: {"x":"' + b"x" * (5 << 20) + b'"}' + line_end * 2
    started = time.perf_counter()
    events, _, _ = decoded((stream[at : at + 16384] for at in range(0, len(stream), 16384)), limit=8 << 20)
    assert [event.raw for event in events] == [stream]
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        (b'data: {"a":1,"u":2}\n\n', b'data: {"a":1}\n\n'),
        (b'data:{"a":1,"u":2}\n\n', b'data:{"a":1}\n\n'),
        (b'event: e\ndata: {"a":1,"u":2}\r\n\r\n', b'event: e\ndata: {"a":1}\r\n\r\n'),
        (b'data: {"a":1,\ndata: "u":2}\n\n', b'data: {"a":1}\n\n'),
        (b'data: {"a":1\nid: 3\ndata: ,"u":\ndata: 2,"b":3}\n\n', b'data: {"a":1,"b":3}\n\n'),
        (b'data: {"u":2,\ndata: "a":1}\n\n', b'data: {"a":1}\n\n'),
    ],
)
def test_edits_of_data_reach_the_bytes(raw: bytes, left: bytes) -> None:
    (event,), _, _ = decoded([raw])
    data = event.data or b""
    found = spans.members(data)
    edited = data_edits(event, [spans.removal(data, found, [member.key for member in found].index("u"))])
    assert edited == left
    (again,), _, _ = decoded([edited])
    assert json.loads(again.data or b"") == {key: value for key, value in json.loads(data).items() if key != "u"}
