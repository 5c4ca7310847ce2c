"""Streams as providers sent them: a new quirk is two new files in tests/streams."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from streaming.protocols import messages, responses
from tests.streaming.protocols.playback import Played, cut_at, play

STREAMS = Path(__file__).resolve().parents[2] / "streams"
MODULES = {"messages": messages, "responses": responses}
ENDINGS = {"complete": "complete", "incomplete": "incomplete", "error": "provider_error", "cut": "provider_cut"}
CASES = sorted(path for name in MODULES for path in (STREAMS / name).glob("*.sse"))


def at_random(data: bytes, seed: int) -> list[int]:
    chance = random.Random(seed)
    return chance.sample(range(1, len(data)), min(200, len(data) - 1))


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


def played(path: Path, cuts: str = "whole", **options: Any) -> Played:
    data, case = path.read_bytes(), told(path)
    module = MODULES[case["wire_format"]]
    return play(module.Meter, cut_at(data, CUTS[cuts](data)), **{"model": case["model"], **options})


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.parametrize("cuts", CUTS)
class TestRecordedStream:
    def test_ends_as_the_provider_meant(self, path: Path, cuts: str) -> None:
        case, stream = told(path), played(path, cuts)
        assert stream.ended is not None
        assert ENDINGS[stream.ended] in (case["ending"], case.get("ending_too"))

    def test_client_gets_the_provider_s_bytes(self, path: Path, cuts: str) -> None:
        client = told(path)["client"]["any"]
        if "http_status" in client:
            assert not played(path, cuts).meter.produced
            return
        raw = played(path, cuts).raw
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (client["bytes"], client["sha256"])

    def test_usage_is_what_was_reported(self, path: Path, cuts: str) -> None:
        case, usage = told(path), played(path, cuts).usage
        if case["metering"] == "none":
            assert usage is None
            return
        assert usage is not None
        found = {**usage.usage.buckets(), "reasoning": usage.usage.reasoning, "server_tools": usage.usage.server_tools}
        assert found == case["expected"]

    def test_other_models_are_parts(self, path: Path, cuts: str) -> None:
        usage = played(path, cuts).usage
        found = [(part.model, part.usage.input, part.usage.output) for part in usage.parts] if usage else []
        others = told(path).get("expected_other_models", [])
        assert found == [(other["model"], other["input"], other["output"]) for other in others]


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_renamed_model_alone_changes(path: Path) -> None:
    case = told(path)
    public = played(path, model="public-name", rename_from=case["model"]).raw
    original = played(path).raw
    name = json.dumps(case["model"]).encode()
    assert name not in public
    assert public.replace(b'"public-name"', name) == original


@pytest.mark.parametrize(
    ("stream", "flags"),
    [
        ("responses/openai-incomplete-zero-usage", ("zero_with_output",)),
        ("responses/xai-text", ()),
        ("responses/openrouter-no-event-names-done", ()),
        ("messages/code-execution-cache-grows", ()),
    ],
)
def test_flags_for_the_operator(stream: str, flags: tuple[str, ...]) -> None:
    usage = played(STREAMS / f"{stream}.sse").usage
    assert usage is not None
    assert usage.flags == flags


def test_stored_objects_are_noted() -> None:
    container = played(STREAMS / "messages/code-execution-cache-grows.sse").meter.object_ids
    response = played(STREAMS / "responses/xai-text.sse").meter.object_ids
    assert container == ["container_10Mr9RD8ld1jfUOuUdKfxjzv"]
    assert response == ["006cb394-e479-972b-b41e-422dbefebb96"]


def test_quota_error_is_account_trouble() -> None:
    stream = played(STREAMS / "responses/openai-quota-error-then-failed.sse")
    assert stream.meter.error is not None
    assert stream.meter.error.account_trouble
    assert (stream.meter.produced, stream.usage) == (False, None)


def test_repeated_text_counts_once() -> None:
    stream = played(STREAMS / "responses/bedrock-data-before-event-cache-write.sse")
    assert stream.text == "First tool result: `first result`\n\nSecond tool result: `second result`"
