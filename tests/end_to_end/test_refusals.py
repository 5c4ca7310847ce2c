"""What the gateway refuses itself: the right status, in the route's own shape, without a call to the provider."""

from __future__ import annotations

import gzip
import json
import uuid
from typing import Any

import httpx
import pytest

from tests.end_to_end.conftest import KEYS
from tests.end_to_end.formats import CHAT, MESSAGES, PATHS, RESPONSES, request
from tests.end_to_end.product import Gateway
from tests.end_to_end.provider import Provider

TOO_LARGE = 200_001
"""One byte past HOPBASE_MAX_BODY_BYTES of these tests."""


def assert_shape(answer: httpx.Response, wire: str, status: int, code: str, anthropic_type: str) -> None:
    """An error in the shape of a wire format, with its id in both headers."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == answer.headers["request-id"]
    body = answer.json()
    if wire == MESSAGES:
        assert set(body) == {"type", "error", "request_id"}
        assert set(body["error"]) == {"type", "message"}
        assert (body["type"], body["error"]["type"]) == ("error", anthropic_type)
        assert body["request_id"] == answer.headers["request-id"]
    else:
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["code"] == code
    assert body["error"]["message"]


def marked(wire: str, **more: Any) -> dict[str, Any]:
    return request(wire, "plain", uuid.uuid4().hex, **more)


def doubled(wire: str) -> bytes:
    return json.dumps(marked(wire)).encode()[:-1] + b',"model":"renamed"}'


def without(wire: str, name: str) -> dict[str, Any]:
    return {key: value for key, value in marked(wire).items() if key != name}


INVALID = ("invalid_request_error", "invalid_request_error")
BODIES: dict[str, Any] = {
    "no JSON": lambda wire: b'{"model": "plain", ',
    "an array": lambda wire: b"[]",
    "nothing": lambda wire: b"",
    "no model": lambda wire: without(wire, "model"),
    "model is a number": lambda wire: {**marked(wire), "model": 5},
    "no input": lambda wire: without(wire, "input" if wire == RESPONSES else "messages"),
    "empty input": lambda wire: {**marked(wire), "input" if wire == RESPONSES else "messages": []},
    "model twice": doubled,
}


@pytest.mark.parametrize("wire", PATHS)
@pytest.mark.parametrize("fault", BODIES)
def test_faulty_body_is_400(uvicorn: Gateway, key: str, provider: Provider, wire: str, fault: str) -> None:
    before = len(provider.calls)
    assert_shape(uvicorn.post(PATHS[wire], key, BODIES[fault](wire)), wire, 400, *INVALID)
    assert len(provider.calls) == before


@pytest.mark.parametrize("wire", PATHS)
def test_unknown_and_unallowed_model_are_404(gateway: Gateway, wire: str) -> None:
    for key, model in ((KEYS["main"], "no-such-model"), (KEYS["some-models"], "tools")):
        answer = gateway.post(PATHS[wire], key, {**marked(wire), "model": model})
        assert_shape(answer, wire, 404, "model_not_found", "not_found_error")


@pytest.mark.parametrize("wire", PATHS)
def test_key_faults_are_401(gateway: Gateway, wire: str) -> None:
    missing = gateway.ask("POST", PATHS[wire], marked(wire))
    assert_shape(missing, wire, 401, "missing_api_key", "authentication_error")
    for wrong in ("sk-hb-nonsense", f"{KEYS['main']}x", "Schlüssel"):
        answer = gateway.ask("POST", PATHS[wire], marked(wire), x_api_key=wrong)
        assert_shape(answer, wire, 401, "invalid_api_key", "authentication_error")


@pytest.mark.parametrize("wire", PATHS)
def test_large_body_is_413(gateway: Gateway, key: str, wire: str) -> None:
    answer = gateway.post(PATHS[wire], key, b" " * TOO_LARGE)
    assert_shape(answer, wire, 413, "request_too_large", "request_too_large")


@pytest.mark.parametrize("wire", PATHS)
def test_gzip_body_is_415(uvicorn: Gateway, key: str, wire: str) -> None:
    packed = gzip.compress(json.dumps(marked(wire)).encode())
    answer = uvicorn.post(PATHS[wire], key, packed, **{"content-encoding": "gzip"})
    assert_shape(answer, wire, 415, "unsupported_content_encoding", "invalid_request_error")


@pytest.mark.parametrize("wire", PATHS)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_wrong_method_is_405(uvicorn: Gateway, key: str, wire: str, method: str) -> None:
    answer = uvicorn.ask(method, PATHS[wire], x_api_key=key)
    assert_shape(answer, wire, 405, "method_not_allowed", "invalid_request_error")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("path", "wire"),
    [
        ("/v1/chat/complete", CHAT),
        ("/v1/embeddings", CHAT),
        ("/v1", CHAT),
        ("/v1/responses/resp_1", RESPONSES),
        ("/v1/messages/batches", MESSAGES),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_route_is_404(gateway: Gateway, key: str, path: str, wire: str, method: str) -> None:
    answer = gateway.ask(method, path, x_api_key=key)
    assert_shape(answer, wire, 404, "route_not_found", "not_found_error")


def test_background_response_is_refused(uvicorn: Gateway, key: str) -> None:
    answer = uvicorn.post(PATHS[RESPONSES], key, marked(RESPONSES, background=True))
    assert_shape(answer, RESPONSES, 400, answer.json()["error"]["code"], "invalid_request_error")
    assert answer.json()["error"]["param"] == "background"


def test_refusal_leaves_no_record(uvicorn: Gateway, key: str) -> None:
    answer = uvicorn.post(PATHS[CHAT], key, {**marked(CHAT), "model": "no-such-model"})
    assert uvicorn.get(f"/v1/usage/requests/{answer.headers['x-request-id']}", key).status_code == 404
