"""Which streams are plain text and nothing else, so that what was counted of them is what was reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streaming.protocols import WIRE_FORMATS
from tests.streaming.protocols.playback import Played, play

STREAMS = Path(__file__).resolve().parents[2] / "streams"
PLAIN = {
    "litellm-proxy-two-choices", "openai-moderation-chunk", "openai-no-usage-search", "snowflake-no-finish",
    "perplexity-crlf-usage-each-chunk", "text-padded", "openai-incomplete-zero-usage",
    "openai-reasoning-only-length", "openai-quota-error-then-failed",  # these have no output at all
}  # fmt: skip


def played(wire_format: str, *events: dict[str, object]) -> Played:
    data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return play(WIRE_FORMATS[wire_format].Meter, [data])


@pytest.mark.parametrize("path", sorted(STREAMS.rglob("*.sse")), ids=lambda path: path.stem)
def test_recorded_streams(path: Path) -> None:
    meter = WIRE_FORMATS[path.parent.name].Meter
    for size in (1 << 20, 700):
        raw = path.read_bytes()
        told = play(meter, [raw[at : at + size] for at in range(0, len(raw), size)])
        assert told.meter.text_only == (path.stem in PLAIN)


def block(kind: str, **fields: object) -> dict[str, object]:
    return {"type": "content_block_start", "index": 0, "content_block": {"type": kind, **fields}}


def delta(kind: str, **fields: object) -> dict[str, object]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **fields}}


TEXT = delta("text_delta", text="hi")


@pytest.mark.parametrize(
    "events",
    [
        [block("thinking", thinking=""), delta("signature_delta", signature="c2ln")],  # shown to nobody, billed
        [block("redacted_thinking", data="c2ln")],
        [block("server_tool_use", name="web_search", input={})],
        [block("something_new")],
        [delta("thinking_delta", thinking="hm")],  # without its block's start
        [delta("input_json_delta", partial_json="{")],
    ],
)
def test_hidden_output_of_messages_tells(events: list[dict[str, object]]) -> None:
    assert played("messages", block("text", text=""), TEXT).meter.text_only
    assert not played("messages", block("text", text=""), TEXT, *events, TEXT).meter.text_only


def chat(**said: object) -> dict[str, object]:
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": said}]}


@pytest.mark.parametrize(
    "said",
    [
        {"reasoning_content": "hm"},
        {"refusal": "no"},
        {"audio": {"data": "UklGRg=="}},
        {"images": [{"index": 0}]},
        {"tool_calls": [{"index": 0, "function": {"name": "f"}}]},
        {"content": [{"type": "image_url", "image_url": "x"}]},
    ],
)
def test_other_deltas_of_chat_tell(said: dict[str, object]) -> None:
    plain = chat(role="assistant", content=""), chat(content="hi"), chat(content=[{"type": "text", "text": "hi"}])
    assert played("chat_completions", *plain).meter.text_only
    assert not played("chat_completions", *plain, chat(**said), chat(content="hi")).meter.text_only


def of_responses(kind: str, **fields: object) -> dict[str, object]:
    return {"type": f"response.{kind}", "output_index": 0, **fields}


@pytest.mark.parametrize(
    "event",
    [
        of_responses("output_item.added", item={"type": "reasoning", "id": "rs_1"}),
        of_responses("refusal.delta", delta="no"),
        of_responses("audio.delta", delta="UklGRg=="),
        of_responses("completed", response={"output": [{"type": "web_search_call"}]}),
    ],
)
def test_other_items_of_responses_tell(event: dict[str, object]) -> None:
    plain = of_responses("output_item.added", item={"type": "message"}), of_responses("output_text.delta", delta="hi")
    done = of_responses("output_item.done", item={"type": "message", "content": [{"text": "hi"}]})
    assert played("responses", *plain, done).meter.text_only
    assert not played("responses", *plain, event).meter.text_only
