"""A request's name is its client's wish, once per key; the bill goes by an identity of its own."""

from __future__ import annotations

import uuid

import pytest

from tests.end_to_end.conftest import KEYS
from tests.end_to_end.formats import CHAT, PATHS, request
from tests.end_to_end.product import Gateway


def ask(gateway: Gateway, key: str, name: str) -> str:
    """Send a request under a name; returns what it is called in the end."""
    headers = {"x-request-id": name}
    answer = gateway.post(PATHS[CHAT], KEYS[key], request(CHAT, "plain", "Who?", stream=True), **headers)
    assert answer.headers["x-request-id"] == answer.headers["request-id"]
    return answer.headers["x-request-id"]


def test_used_name_is_not_given_again(gateway: Gateway) -> None:
    name = f"twice-{uuid.uuid4().hex}"
    first, second, others = ask(gateway, "names", name), ask(gateway, "names", name), ask(gateway, "other", name)
    assert first == others == name
    assert second != name
    records = [gateway.record(name, KEYS["names"]), gateway.record(second, KEYS["names"])]
    assert [record["request_id"] for record in records] == [name, second]
    assert all(record["ending"] == "complete" for record in records)
    assert gateway.record(name, KEYS["other"])["request_id"] == name


@pytest.mark.parametrize("name", ["two words", "x" * 129, "", "<script>"])
def test_odd_name_is_not_taken(uvicorn: Gateway, name: str) -> None:
    given = ask(uvicorn, "names", name)
    assert given not in ("", name)
    assert uvicorn.record(given, KEYS["names"])["ending"] == "complete"
