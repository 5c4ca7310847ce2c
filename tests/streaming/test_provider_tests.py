"""Testing a provider: real requests to a server of a few lines, through the relay's own client and meters."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.conf import settings
from django.urls import reverse

from billing.models import Attempt, AuditEntry, ProviderTest, UsageRecord
from billing.usage import TokenUsage
from streaming import credentials
from streaming.models import Provider, Route
from streaming.provider_tests import MAX_ANSWER_BYTES, Outcome, run_tests
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.streaming.entries import ALL_FORMATS, provider
from tests.streaming.test_relay import ENDING, OUTPUT, PRELUDE, chunk, event

CREDENTIAL = "sk-acme-real-credential"
WIRES = {"/v1/chat/completions": "chat_completions", "/v1/responses": "responses", "/v1/messages": "messages"}
USAGE = {"prompt_tokens": 11, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
CHAT_USAGE = event({"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": USAGE})
CHAT = PRELUDE["chat_completions"] + OUTPUT["chat_completions"] + chunk(finish_reason="stop")
STREAMS = {
    "chat_completions": CHAT + CHAT_USAGE + event("[DONE]"),
    **{wire: PRELUDE[wire] + OUTPUT[wire] + ENDING[wire] for wire in ("responses", "messages")},
}
Reply = tuple[int, str, bytes]


@dataclass
class Fake:
    """A provider: what it was asked, and what it says to each wire format (a function that may wait)."""

    url: str = ""
    asked: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)


@contextlib.contextmanager
def serving(reply: Callable[[str, dict[str, Any]], Reply]) -> Iterator[Fake]:
    fake = Fake()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            fake.asked.append((self.path, body, {name.lower(): value for name, value in self.headers.items()}))
            status, kind, data = reply(WIRES.get(self.path, ""), body)
            self.send_response(status)
            self.send_header("content-type", kind)
            if status in (301, 302):
                self.send_header("location", f"{fake.url}/elsewhere")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the test hangs up on what is too large
                self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def stream(wire: str, body: dict[str, Any]) -> Reply:
    return 200, "text/event-stream", STREAMS[wire]


def said(text: str, status: int = 200, kind: str = "application/json") -> Callable[[str, dict[str, Any]], Reply]:
    return lambda wire, body: (status, kind, text.encode())


def asked_of(url: str, *wires: str, **limits: int) -> list[Outcome]:
    entry = provider(base_url=url, credential=CREDENTIAL)
    return run_tests(entry, "sol-large", wires or sorted(ALL_FORMATS), connect_timeout_s=2, **limits)


def test_each_wire_format_is_asked_once() -> None:
    with serving(stream) as fake:
        outcomes = {outcome.wire_format: outcome for outcome in asked_of(fake.url)}
    assert sorted(path for path, _body, _headers in fake.asked) == sorted(WIRES)
    assert all(outcome.answered and outcome.status == 200 for outcome in outcomes.values())
    assert outcomes["chat_completions"].usage == TokenUsage(input=7, cache_read=4, output=2)
    assert outcomes["responses"].usage == TokenUsage(input=9, output=2)
    assert outcomes["messages"].usage == TokenUsage(input=9, output=2)
    assert all("hello" in outcome.text for outcome in outcomes.values())
    for outcome in outcomes.values():
        assert outcome.headers_ms is not None
        assert outcome.first_output_ms is not None
        assert outcome.headers_ms <= outcome.first_output_ms <= outcome.duration_ms


def test_requests_are_small_and_kept_nowhere() -> None:
    with serving(stream) as fake:
        asked_of(fake.url)
    asked = {path: (body, headers) for path, body, headers in fake.asked}
    assert asked["/v1/responses"][0]["store"] is False
    assert asked["/v1/messages"][0]["max_tokens"] == 64
    assert asked["/v1/messages"][1]["anthropic-version"] == "2023-06-01"
    for body, headers in asked.values():
        assert body["model"] == "sol-large"
        assert headers["authorization"] == f"Bearer {CREDENTIAL}"


def test_refusal_shows_the_providers_words_scrubbed() -> None:
    with serving(lambda wire, body: (401, "application/json", words(fake.url))) as fake:
        (outcome,) = asked_of(fake.url, "messages")
    assert (outcome.answered, outcome.status) == (False, 401)
    assert "wrong key" in outcome.text
    for secret in (CREDENTIAL, fake.url, fake.url.split("/")[2]):
        assert secret not in outcome.text + outcome.reason + repr(outcome)
    assert len(fake.asked) == 1


def words(url: str) -> bytes:
    message = f"wrong key {CREDENTIAL} at {url}"
    return json.dumps({"type": "error", "error": {"type": "authentication_error", "message": message}}).encode()


def test_answer_itself_is_scrubbed() -> None:
    with serving(lambda wire, body: (200, "text/event-stream", answer(fake.url))) as fake:
        (outcome,) = asked_of(fake.url, "chat_completions")
    assert outcome.answered
    assert "[credential]" in outcome.text
    assert CREDENTIAL not in outcome.text
    assert fake.url not in outcome.text


def answer(url: str) -> bytes:
    return chunk(delta={"content": f"{CREDENTIAL} {url}"}) + chunk(finish_reason="stop") + event("[DONE]")


@pytest.mark.parametrize("status", [500, 429, 302])
def test_no_failure_is_tried_again(status: int) -> None:
    with serving(said('{"error": {"message": "busy"}}', status)) as fake:
        (outcome,) = asked_of(fake.url, "responses")
    assert (outcome.answered, outcome.status, outcome.reached) == (False, status, True)
    assert [path for path, _body, _headers in fake.asked] == ["/v1/responses"]


def test_refused_stream_options_are_left_out() -> None:
    def reply(wire: str, body: dict[str, Any]) -> Reply:
        if "stream_options" in body:
            return 400, "application/json", b'{"error": {"message": "Unknown parameter: stream_options"}}'
        return stream(wire, body)

    with serving(reply) as fake:
        (outcome,) = asked_of(fake.url, "chat_completions")
    assert outcome.answered
    assert ["stream_options" in body for _path, body, _headers in fake.asked] == [True, False]


def test_silence_and_size_end_it() -> None:
    goes_on = threading.Event()

    def silent(wire: str, body: dict[str, Any]) -> Reply:
        goes_on.wait(10)
        return stream(wire, body)

    with serving(silent) as fake:
        (outcome,) = asked_of(fake.url, "messages", silence_s=1)
        goes_on.set()
    assert (outcome.answered, outcome.reached) == (False, True)
    assert "no output for 1 s" in outcome.reason
    flood = PRELUDE["messages"] + OUTPUT["messages"] * (MAX_ANSWER_BYTES // 40)
    with serving(lambda wire, body: (200, "text/event-stream", flood)) as fake:
        (outcome,) = asked_of(fake.url, "messages")
    assert not outcome.answered
    assert "larger than" in outcome.reason


def test_refused_addresses_are_never_asked() -> None:
    (outcome,) = asked_of("http://169.254.169.254/v1", "messages")
    assert (outcome.answered, outcome.status, outcome.reached) == (False, None, False)
    assert "link-local" in outcome.reason


def test_nobody_there_is_no_request() -> None:
    (outcome,) = asked_of("http://127.0.0.1:9/v1", "messages")
    assert (outcome.answered, outcome.reached) == (False, False)


# --- the page ---


def page_of(row: Provider) -> str:
    return reverse("admin:streaming_provider_test", args=[row.pk])


def point_at(row: Provider, url: str) -> None:
    row.base_url, row.credential = url, credentials.encrypt(CREDENTIAL, settings.ENCRYPTION_KEYS)
    row.save()


@pytest.mark.django_db
def test_page_asks_before_it_sends(login: Login, world: World) -> None:
    with serving(stream) as fake:
        point_at(world.provider, fake.url)
        text = login("operator").get(page_of(world.provider)).text
    assert "One small real request per wire format; no account is billed." in text
    assert "sol-large" in text
    assert fake.asked == []


@pytest.mark.django_db
def test_page_shows_and_keeps_the_test(login: Login, world: World) -> None:
    ProviderTest.objects.all().delete()
    before = (UsageRecord.objects.count(), Attempt.objects.count())
    with serving(stream) as fake:
        point_at(world.provider, fake.url)
        response = login("operator").post(page_of(world.provider), {"upstream_model": "sol-large"})
    assert [row["status"] for row in response.context["rows"]] == ["200"] * 3
    kept = ProviderTest.objects.get(wire_format="chat_completions")
    assert (kept.tested_by, kept.upstream_model) == ("operator", "sol-large")
    assert (kept.input, kept.cache_read, kept.output) == (7, 4, 2)
    assert ProviderTest.objects.count() == 3
    assert (UsageRecord.objects.count(), Attempt.objects.count()) == before
    assert CREDENTIAL not in response.text
    assert fake.url not in response.text
    assert AuditEntry.objects.filter(who="operator", message__contains="3 of 3 wire formats").exists()


@pytest.mark.django_db
def test_failed_test_harms_no_route(login: Login, world: World) -> None:
    with serving(said("{}", 401)) as fake:
        point_at(world.provider, fake.url)
        response = login("operator").post(page_of(world.provider), {"upstream_model": "sol-large"})
    assert response.status_code == 200
    assert Route.objects.get().out_since is None


@pytest.mark.django_db
def test_provider_without_routes_cannot_be_tested(login: Login, world: World) -> None:
    Route.objects.all().delete()
    client = login("operator")
    assert "No route leads to this provider" in client.get(page_of(world.provider)).text
    assert client.post(page_of(world.provider)).status_code == 409


@pytest.mark.django_db
@pytest.mark.parametrize("who", ["finance", "nobody"])
def test_only_operators_test(login: Login, world: World, who: str) -> None:
    client = login(who)
    url = page_of(world.provider)
    assert (client.get(url).status_code, client.post(url).status_code) == (403, 403)


@pytest.mark.django_db
def test_foreign_model_is_refused(login: Login, world: World) -> None:
    with serving(stream) as fake:
        point_at(world.provider, fake.url)
        login("operator").post(page_of(world.provider), {"upstream_model": "another"})
    assert fake.asked == []
