"""Providers that cannot be reached: one that refuses connections, and one that never takes them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from tests.end_to_end.conftest import KEYS, PROVIDER_KEY, price_entry
from tests.end_to_end.formats import CHAT, PATHS, request
from tests.end_to_end.product import Gateway, Installation

KEY = KEYS["main"]
CONNECT_TIMEOUT_S = 3
"""HOPBASE_CONNECT_TIMEOUT_S of these tests."""
DEAD = ("refusing", "silent")


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    """A port on which nobody listens, and one whose queue of connections is full for good."""
    with contextlib.ExitStack() as stack:
        refusing = stack.enter_context(contextlib.closing(socket.socket()))
        refusing.bind(("127.0.0.1", 0))  # bound, but not listening: nobody else gets the port
        silent = stack.enter_context(contextlib.closing(socket.socket()))
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(contextlib.closing(socket.socket()))
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        yield {"refusing": refusing.getsockname()[1], "silent": silent.getsockname()[1]}


@pytest.fixture(scope="module", autouse=True)
def models(installation: Installation, uvicorn: Gateway, ports: dict[str, int]) -> None:
    """Each dead provider alone, and before one that answers."""
    models = []
    for name in DEAD:
        dead = {"provider": name, "upstream_model": "plain"}
        models.append({"name": f"{name}-alone", "routes": [dead]})
        models.append({"name": f"{name}-first", "routes": [dead, {"provider": "acme", "upstream_model": "plain",
                                                                   "priority": 1}]})  # fmt: skip
    providers = [
        {"name": name, "base_url": f"http://127.0.0.1:{port}/v1", "api_key": PROVIDER_KEY, "wire_formats": list(PATHS)}
        for name, port in ports.items()
    ]
    prices = [price_entry(str(model["name"])) for model in models]
    installation.apply({"providers": providers, "models": models, "prices": prices})
    deadline = time.monotonic() + 5
    while uvicorn.get(f"/v1/models/{models[-1]['name']}", KEY).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", DEAD)
def test_next_provider_answers(uvicorn: Gateway, name: str, stream: bool) -> None:
    began = time.monotonic()
    answer = uvicorn.post(PATHS[CHAT], KEY, request(CHAT, f"{name}-first", "Anyone?", stream=stream))
    assert answer.status_code == 200
    waited_s = CONNECT_TIMEOUT_S if name == "silent" else 0
    assert waited_s < time.monotonic() - began < waited_s + 3
    record = uvicorn.record(answer.headers["x-request-id"], KEY)
    assert record["ending"] == "complete"
    outcome = "timed_out" if name == "silent" else "failed"
    assert [attempt["outcome"] for attempt in record["attempts"]] == [outcome, "answered"]


@pytest.mark.parametrize(("name", "status", "attempts"), [("silent", 504, 1), ("refusing", 502, 2)])
def test_unreachable_provider_is_an_error(uvicorn: Gateway, name: str, status: int, attempts: int) -> None:
    answer = uvicorn.post(PATHS[CHAT], KEY, request(CHAT, f"{name}-alone", "Anyone?"))
    assert answer.status_code == status
    assert "127.0.0.1" not in answer.text
    record = uvicorn.record(answer.headers["x-request-id"], KEY)
    assert (record["metering"], len(record["attempts"])) == ("none", attempts)
