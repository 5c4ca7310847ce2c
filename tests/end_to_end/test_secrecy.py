"""Nothing secret is written down: keys, prompts and answers nowhere, a provider's address in the database alone."""

from __future__ import annotations

import uuid

import pytest

from tests.end_to_end import formats
from tests.end_to_end.conftest import KEYS, PROVIDER_KEY, Fresh
from tests.end_to_end.formats import CHAT, PATHS, WORDS, request
from tests.end_to_end.product import Gateway, Installation
from tests.end_to_end.provider import Provider
from tests.end_to_end.raw import RawClient

DATABASES = ("hopbase.sqlite3", "kept.sqlite3")
"""The database, and its copy from before the first request."""
MODELS = ("plain", "cut", "failing-event", "refuses", "limited", "fails", "locked-out", "no-such-model")


@pytest.mark.parametrize("wire", PATHS)
def test_nothing_secret_is_written(
    gateway: Gateway, installation: Installation, provider: Provider, fresh: Fresh, key: str, wire: str
) -> None:
    prompt = f"secret-prompt-{uuid.uuid4().hex}"
    bodies = b""
    for model in MODELS:
        for stream in (False, True):
            answer = gateway.post(PATHS[wire], key, request(wire, fresh(model), prompt, stream=stream))
            bodies += answer.content + repr(answer.headers).encode()
    with RawClient(gateway, wire, key, request(wire, "endless", prompt, stream=True)) as client:
        client.read_until(WORDS[0].encode())
    gateway.post(PATHS[wire], key, prompt.encode())
    gateway.post(PATHS[wire], prompt, request(wire, "plain", prompt))
    address = f"127.0.0.1:{provider.port}"
    hidden = {"the provider's key": PROVIDER_KEY, "the customer's key": KEYS["main"]}
    assert [what for what, text in {**hidden, "its address": address}.items() if text.encode() in bodies] == []
    assert provider.calls_with(prompt)
    assert installation.files_with({**hidden, "the prompt": prompt, "the answer": formats.TEXT}) == []
    assert installation.files_with({"the provider's address": address}, besides=DATABASES) == []


def test_provider_gets_its_key_alone(uvicorn: Gateway, key: str, provider: Provider) -> None:
    prompt = uuid.uuid4().hex
    sent = {"x-api-key": key, "cookie": "session=1", "openai-organization": "org-1", "x-forwarded-for": "203.0.113.9"}
    uvicorn.post(PATHS[CHAT], key, request(CHAT, "plain", prompt), **sent, **{"openai-beta": "assistants=v2"})
    call = provider.call_with(prompt)
    assert set(call.headers) == {
        "host", "content-type", "content-length", "accept", "accept-encoding", "user-agent", "authorization",
        "openai-beta",
    }  # fmt: skip
    assert call.headers["authorization"] == f"Bearer {PROVIDER_KEY}"
    assert call.headers["accept-encoding"] == "identity"
