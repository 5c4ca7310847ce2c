"""Chat streams as providers sent them: a new quirk is two new files in tests/streams/chat_completions."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming.protocols.chat_completions import Meter
from streaming.protocols.meter import Ended, MeterOptions
from streaming.protocols.sse import SSEDecoder, SSEEvent
from tests.streaming.protocols.playback import MAX_EVENT, cut_at

# In a fresh clone the first text drawn builds hypothesis's Unicode tables, which takes seconds on a busy machine.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
STREAMS = Path(__file__).resolve().parents[2] / "streams" / "chat_completions"
ENDINGS = {"complete": "complete", "incomplete": "incomplete", "error": "provider_error", "cut": "provider_cut"}
CASES = sorted(STREAMS.glob("*.sse"))
ASKED = {"usage_asked": True, "usage_not_asked": False}


class Relayed:
    """A stream as a relay passes it on, which stops at its end: tails go where their events went."""

    def __init__(self, chunks: Iterable[bytes], options: MeterOptions) -> None:
        self.raw, self.ended, self._passed = b"", None, False
        self.texts: dict[Any, str] = {}
        self.meter = Meter(options)
        decoder = SSEDecoder(MAX_EVENT)
        for chunk in chunks:
            self._take(decoder.feed(chunk))
        last = decoder.close()
        self._take([last] if last else [])
        if self.ended is None:
            verdict = self.meter.finish()
            self.raw, self.ended = self.raw + verdict.raw, verdict.ended

    ended: Ended | None

    def _take(self, events: list[SSEEvent]) -> None:
        for event in events:
            if event.tail:
                self.raw += event.raw if self._passed else b""
            if event.data is None:
                self._passed = self._passed and event.tail
            elif self.ended is None:
                verdict = self.meter.feed(event)
                self.raw, self.ended, self._passed = self.raw + verdict.raw, verdict.ended, bool(verdict.raw)
                for key, text in self.meter.take_texts().items():
                    self.texts[key] = self.texts.get(key, "") + text


def at_random(data: bytes, seed: int) -> list[int]:
    return random.Random(seed).sample(range(1, len(data)), min(200, len(data) - 1))


CUTS = {
    "whole": lambda data: [],
    "bytes": lambda data: range(1, len(data)),
    "random": lambda data: at_random(data, len(data)),
    "other-random": lambda data: at_random(data, len(data) + 1),
}


def told(path: Path) -> dict[str, Any]:
    loaded = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def relayed(path: Path, cuts: str = "whole", **options: Any) -> Relayed:
    data, case = path.read_bytes(), told(path)
    outside = "chat_completions" in case["settings"].get("reasoning_outside", [])
    given = {"model": case["model"], "reasoning_outside": outside, **options}
    return Relayed(cut_at(data, CUTS[cuts](data)), MeterOptions(**given))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("asked", ASKED)
def test_stream_is_passed_on_and_metered(path: Path, cuts: str, asked: str) -> None:
    case, stream = told(path), relayed(path, cuts, include_usage=ASKED[asked])
    client, usage = case["client"][asked], stream.meter.usage()
    assert (len(stream.raw), hashlib.sha256(stream.raw).hexdigest()) == (client["bytes"], client["sha256"])
    assert stream.ended is not None
    assert ENDINGS[stream.ended] in (case["ending"], case.get("ending_too"))
    assert (usage is not None) == (case["metering"] == "reported")
    if usage is not None:
        found = {**usage.usage.buckets(), "reasoning": usage.usage.reasoning, "server_tools": usage.usage.server_tools}
        assert found == case["expected"]
        assert usage.flags == ()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_output_text_is_heard_once(path: Path) -> None:
    heard = {"text": 0, "reasoning": 0, "tools": 0}
    kinds = {"content": "text", "refusal": "text", "reasoning": "reasoning", "tool": "tools"}
    stream = relayed(path)
    for (_, kind, _), text in stream.texts.items():
        heard[kinds[kind]] += len(text)
    assert heard == told(path)["joined_chars"]
    assert stream.meter.produced == any(heard.values())


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
@pytest.mark.parametrize("asked", ASKED)
def test_renamed_model_alone_changes(path: Path, asked: str) -> None:
    case = told(path)
    public = relayed(path, include_usage=ASKED[asked], model="public/name", rename_from=case["model"]).raw
    original = relayed(path, include_usage=ASKED[asked]).raw
    name = json.dumps(case["model"]).encode()
    renamed = [(old, new) for old, new in zip(original.split(b"\n"), public.split(b"\n"), strict=True) if old != new]
    assert all(
        old.replace(b'"model":', b'"model": ').replace(b"  ", b" ").count(b'"model": ' + name) >= 1
        for old, _ in renamed
    )
    assert all(new == old.replace(name, b'"public/name"', 1) for old, new in renamed)
    assert b'"model":' + name not in public
    assert b'"model": ' + name not in public


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("groq-error-after-reasoning", 400, "Tool call validation failed"),
        ("openrouter-comments-error-after-finish", 400, "Token limit reached"),
    ],
)
def test_provider_s_error_is_read(name: str, status: int, message: str) -> None:
    error = relayed(STREAMS / f"{name}.sse").meter.error
    assert error is not None
    assert error.status == status
    assert message in error.message


@pytest.mark.parametrize(
    ("name", "tier"),
    [
        ("groq-kimi-tools", "on_demand"),
        ("mistral-thinking-parts", "standard"),
        ("azure-tool-call", "default"),
        ("snowflake-no-finish", ""),
    ],
)
def test_served_tier_is_read(name: str, tier: str) -> None:
    usage = relayed(STREAMS / f"{name}.sse").meter.usage()
    assert usage is not None
    assert usage.service_tier == tier


POOL = [
    (b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}' % "世界🎈".encode(), True),
    (b'data:{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}', True),
    (b'event: x~id: 7~data: {"choices":[],~data: "vendor" : 1.0E+2}', True),
    (b'data: {"choices":[{"index":0,"delta":{"content":"\xe2\x80\x8b"}}]}', False),
    (b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}', False),
    (b": a comment", False),
    (b"event: ping", False),
    (b"data:", False),
    (b"retry: 3000", False),
]


@UNTIMED
@given(
    st.lists(st.tuples(st.sampled_from(POOL), st.sampled_from([b"\n", b"\r\n", b"\r"]))),
    st.randoms(use_true_random=False),
)
def test_bytes_out_are_bytes_in_less_drops(
    blocks: list[tuple[tuple[bytes, bool], bytes]], chance: random.Random
) -> None:
    framed = [(event.replace(b"~", end) + end + end, kept) for (event, kept), end in blocks]
    sent = b"".join(raw for raw, _ in framed)
    places = chance.sample(range(len(sent)), min(len(sent), chance.randrange(9)))
    stream = Relayed(cut_at(sent, places), MeterOptions("m"))
    ended = b"data: [DONE]\n\n" if stream.ended == "complete" else b""
    assert stream.raw == b"".join(raw for raw, kept in framed if kept) + ended
