"""Chunks that differ in their text alone are read without a parser: nothing may come of it but speed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.protocols.chat_completions import Meter
from streaming.protocols.meter import MeterOptions
from streaming.protocols.sse import SSEDecoder, SSEEvent
from tests.streaming.protocols.playback import MAX_EVENT
from tests.streaming.protocols.test_chat_streams import CASES

OPTIONS = [
    MeterOptions("public", rename_from=renamed, include_usage=asked)
    for renamed, asked in itertools.product((None, "m"), (True, False))
]


class Parser(Meter):
    """Parses every chunk."""

    def _likeness(self, *chunk: Any) -> None:
        return None


def told(meter: Meter, events: list[SSEEvent]) -> list[Any]:
    """All that a meter says, in the order in which it does."""
    said: list[Any] = []
    for event in events:
        verdict = meter.feed(event)
        said += [tuple(verdict), meter.produced, meter.text_only, meter.patience_s, meter.usage()]
        if verdict.ended:
            break
    return [*said, meter.take_texts(), meter.object_ids, meter.error]


def event(chunk: bytes, name: str = "", end: bytes = b"\n\n") -> SSEEvent:
    head = f"event: {name}\n".encode() if name else b""
    return SSEEvent(head + b"data: " + chunk + end, name, chunk)


TEXTS = st.sampled_from(
    [
        " word",
        "字",
        '"',
        "\\",
        "a\\n",
        "\u200b",
        "",
        "\x00",
        "\x7f",
        "\u2028",
        'x","finish_reason":"stop',
        "]}",
        "\ud800",
    ]
) | st.text(max_size=4)
DELTAS = st.builds(lambda text: {"content": text}, TEXTS) | st.sampled_from(
    [
        {}, {"role": "assistant", "content": "Hi"}, {"reasoning_content": "hm"}, {"content": None}, {"content": ["a"]},
        {"content": [{"type": "text", "text": "a"}]}, {"content": "a", "refusal": "b"}, {"tool_calls": [{"index": 0}]},
    ]
)  # fmt: skip


@st.composite
def chunks(draw: st.DrawFn) -> SSEEvent:
    choice = {"index": draw(st.sampled_from([0, 0, 0, 1, None])), "delta": draw(DELTAS)}
    choice |= draw(
        st.sampled_from([{}, {}, {"finish_reason": None}, {"finish_reason": "stop"}, {"logprobs": {"a": 1}}])
    )
    body = {
        "id": draw(st.sampled_from(["1", "1", "2"])),
        "model": "m",
        "choices": [choice] * draw(st.sampled_from([1, 1, 2])),
    }
    body |= draw(
        st.sampled_from(
            [
                {}, {}, {}, {"usage": None}, {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}, {"content": "a"},
                {"service_tier": "flex"}, {"x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}},
                {"error": {"message": "no"}}, {"delta": {"content": "a"}},
            ]
        )
    )  # fmt: skip
    spaced = draw(st.sampled_from([(",", ":"), (",", ":"), (", ", ": ")]))
    text = json.dumps(body, ensure_ascii=draw(st.booleans()), separators=spaced)
    name = draw(st.sampled_from(["", "", "", "", "message"]))
    return event(text.encode("utf-8", "surrogatepass"), name, draw(st.sampled_from([b"\n\n", b"\n\n", b"\r\n\r\n"])))


@given(events=st.lists(chunks(), max_size=12), options=st.sampled_from(OPTIONS), again=st.integers(1, 4))
@settings(deadline=None, max_examples=150)
def test_parser_says_the_same(events: list[SSEEvent], options: MeterOptions, again: int) -> None:
    events = [one for one in events for _ in range(again)]  # likeness needs neighbours
    assert told(Meter(options), events) == told(Parser(options), events)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_recorded_stream_is_read_the_same(path: Path, options: MeterOptions) -> None:
    events = [one for one in SSEDecoder(MAX_EVENT).feed(path.read_bytes()) if one.data is not None]
    assert told(Meter(options), events) == told(Parser(options), events)


def test_parser_is_left_out() -> None:
    """Of a plain stream only the first chunks are parsed."""
    body = '{"id":"1","model":"m","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}],"usage":null}'
    meter = Meter(OPTIONS[3])
    assert [meter.feed(event((body % word).encode())).raw for word in ("a", "b")] == [
        event((body % word).replace('"m"', '"public"').replace(',"usage":null', "").encode()).raw for word in ("a", "b")
    ]
    assert meter._like is not None
    assert meter.feed(event((body % "c\\n").encode())).output
    assert meter.take_texts() == {(0, "content", 0): "abc\n"}
