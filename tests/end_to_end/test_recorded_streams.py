"""Streams as providers sent them, through the whole product, whole and in pieces: the client's bytes, and the bill."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import KEYS
from tests.end_to_end.formats import CHAT, PATHS, request
from tests.end_to_end.product import KEEPALIVE, Gateway
from tests.end_to_end.scenes import recorded_models

MODELS = recorded_models()


def requests_for(path: Path, model: str) -> list[tuple[str, dict[str, Any]]]:
    """What to ask: the name of the client's bytes in the stream's description, and the request's body."""
    wire = path.parent.name
    body = request(wire, model, "What was recorded?", stream=True)
    if wire != CHAT:
        return [("any", body)]
    asked = {**body, "stream_options": {"include_usage": True}}
    return [("usage_not_asked", body), ("usage_asked", asked)]


@pytest.mark.parametrize("model", MODELS)
def test_recorded_stream_arrives_and_is_billed(uvicorn: Gateway, model: str) -> None:
    path, _ = MODELS[model]
    said = json.loads(path.with_suffix(".json").read_text())
    for name, body in requests_for(path, model):
        answer = uvicorn.post(PATHS[path.parent.name], KEYS["recorded"], body)
        assert_bytes(answer.content.replace(KEEPALIVE, b""), answer.status_code, said["client"][name])
        record = uvicorn.record(answer.headers["x-request-id"], KEYS["recorded"])
        assert_record(record, said)


def assert_bytes(body: bytes, status: int, expected: dict[str, Any]) -> None:
    """The length and the hash of what the client must get; an error event of ours comes after that."""
    if "http_status" in expected:
        assert status == expected["http_status"]
        return
    assert status == 200
    length = expected["bytes"]
    assert hashlib.sha256(body[:length]).hexdigest() == expected["sha256"], body[:2000]
    if expected.get("error_event"):
        assert body[length:].count(b"data: ") == 1
        assert b"error" in body[length:]
    else:
        assert len(body) == length


def assert_record(record: dict[str, Any], said: dict[str, Any]) -> None:
    """Ending, metering and buckets; an estimate is more than nothing."""
    assert record["ending"] in (said["ending"], said.get("ending_too"))
    assert record["metering"] == said["metering"]
    if said["expected"] is None:
        assert record["usage"]["output"] > 0
        return
    expected = {**said["expected"], "reasoning": said["expected"]["reasoning"] or 0}
    assert record["usage"] == expected
