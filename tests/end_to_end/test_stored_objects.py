"""Stored objects: nobody names another account's, and each is asked for where it was made, restarts included."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests import settings
from tests.conftest import postgresql_database
from tests.end_to_end import formats
from tests.end_to_end.conftest import PROVIDER_KEY, price_entry, provider_entry
from tests.end_to_end.formats import CHAT, MESSAGES, PATHS, RESPONSES, WORDS, request
from tests.end_to_end.product import Gateway, Installation
from tests.end_to_end.provider import Call, Head, Pause, Provider, Send, Step, Whole
from tests.end_to_end.raw import RawClient
from tests.end_to_end.scenes import JSON_TYPE, error_answer, wire_of
from tests.end_to_end.test_refusals import assert_shape

MINE, THEIRS = "sk-test-mine-0123456789abcdef", "sk-test-theirs-0123456789abcdef"
FIRST, SECOND = "talk-at-acme", "talk-at-beta"
BUSY = "not-at-acme"
"""What a prompt says so that the first route refuses, which harms no route, and the second one answers."""
SLOWLY = "slowly"
CALL = {"type": "code_interpreter_call", "status": "completed", "code": "1 + 1", "outputs": []}


def stage(call: Call) -> Iterator[Step]:
    """Answers with a response and a container of their own."""
    if call.model == FIRST and BUSY.encode() in call.body:
        yield from error_answer(400, "not here", "invalid_request_error")(call)
        return
    number = uuid.uuid4().hex
    if not call.streams:
        yield Whole(200, whole(call, number), JSON_TYPE)
        return
    begun, ended = streamed(call, number)
    yield Head()
    yield Send(begun)
    yield Pause(1.5 if SLOWLY.encode() in call.body else 0)
    yield Send(ended)


def whole(call: Call, number: str) -> bytes:
    if wire_of(call) == MESSAGES:
        return formats.body({**formats.messages_whole(call.model), "container": {"id": f"container_{number}"}})
    answer = formats.responses_whole(call.model)
    item = {**CALL, "id": f"ci_{number}", "container_id": f"cntr_{number}"}
    return formats.body({**answer, "id": f"resp_{number}", "output": [item, *answer["output"]]})


def streamed(call: Call, number: str) -> tuple[bytes, bytes]:
    """The stream up to its first words, and the rest, in which a container shows itself."""
    if wire_of(call) == MESSAGES:
        begun, ended = b"".join(formats.messages_text(call.model, WORDS)).split(b"event: message_delta")
        shown = b'"delta":{"container":{"id":"container_%s"},' % number.encode()
        return begun, b"event: message_delta" + ended.replace(b'"delta":{', shown)
    stream = formats.ResponsesStream(call.model)
    item = {**CALL, "id": f"ci_{number}", "container_id": f"cntr_{number}"}
    events = [*stream.begin(), *stream.message(0, WORDS)]
    last = [stream.event("response.output_item.done", output_index=1, item=item), *stream.end([])]
    own = f'"resp_{number}"'.encode()
    begun, ended = (b"".join(part).replace(b'"resp_7Hq"', own) for part in (events, last))
    return begun, ended


def configuration(base_url: str, with_second: bool = True) -> dict[str, Any]:
    routes = [{"provider": "acme", "upstream_model": FIRST, "priority": 0}]
    if with_second:
        routes.append({"provider": "beta", "upstream_model": SECOND, "priority": 1})
    owned = {"northwind": MINE, "southwind": THEIRS}
    return {
        "providers": [
            *(provider_entry(name, base_url, {}) for name in ("acme", "beta")),
            provider_entry("common", base_url, {"stored_objects": "shared"}),
        ],
        "models": [
            {"name": "talk", "routes": routes},
            {"name": "elsewhere", "routes": [{"provider": "acme", "upstream_model": "elsewhere"}]},
            {"name": "common", "routes": [*routes[:1], {"provider": "common", "upstream_model": "shared-talk"}]},
        ],
        "prices": [price_entry(name) for name in ("talk", "elsewhere", "common")],
        "accounts": [
            {"name": name, "timezone": "UTC", "currency": "USD", "keys": [{"name": "main", "secret": secret}]}
            for name, secret in owned.items()
        ],
    }


@pytest.fixture(scope="module")
def upstream() -> Iterator[Provider]:
    with Provider(stage) as running:
        yield running


@pytest.fixture(scope="module")
def database_url() -> Iterator[str]:
    if settings.POSTGRESQL:
        yield from postgresql_database(settings.postgresql_url())
    else:
        yield ""


@pytest.fixture(scope="module")
def own(database_url: str, upstream: Provider) -> Iterator[Installation]:
    made = Installation(database_url, PROVIDER_KEY=PROVIDER_KEY)
    try:
        made.migrate()
        made.apply(configuration(upstream.base_url))
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def gateway(own: Installation) -> Iterator[Gateway]:
    with own.serving("uvicorn") as running:
        yield running


@pytest.fixture(scope="module")
def other_process(gateway: Gateway, own: Installation) -> Iterator[Gateway]:
    """A second gateway process, which has only the database in common with the first; the other server, too."""
    with own.serving("daphne") as running:
        yield running


def ask(wire: str, say: str = "Hi", **more: Any) -> dict[str, Any]:
    return {**request(wire, "talk", say), **more}


def made_at_second(gateway: Gateway, wire: str = RESPONSES, **more: Any) -> dict[str, Any]:
    """An answer of the second route: it, as the provider made it."""
    answer = gateway.post(PATHS[wire], MINE, ask(wire, BUSY, **more))
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def container_of(made: dict[str, Any]) -> str:
    return str(made["container"]["id"] if "container" in made else made["output"][0]["container_id"])


def assert_continues(gateway: Gateway, provider: Provider, wire: str, at: str = SECOND, **more: Any) -> None:
    """The request is answered by one call, at this route and with these fields as they are."""
    before = len(provider.calls)
    answer = gateway.post(PATHS[wire], MINE, ask(wire, **more))
    assert answer.status_code == 200, answer.text
    (call,) = provider.calls[before:]
    assert call.model == at
    assert all(call.json[field] == value for field, value in more.items() if field != "model")


def assert_refused(
    gateway: Gateway, provider: Provider, wire: str, code: str, param: str, key: str = THEIRS, **more: Any
) -> None:
    """400 in the route's own shape, without an upstream call and without a record."""
    before = len(provider.calls)
    answer = gateway.post(PATHS[wire], key, ask(wire, **more))
    assert_shape(answer, wire, 400, code, "invalid_request_error")
    assert param in answer.json()["error"]["message"]
    assert wire == MESSAGES or answer.json()["error"]["param"] == param
    assert len(provider.calls) == before
    assert gateway.get(f"/v1/usage/requests/{answer.headers['x-request-id']}", key).status_code == 404


def containers(wire: str, id: str) -> list[dict[str, Any]]:
    """The ways to name a container."""
    if wire == MESSAGES:
        return [{"container": id}, {"container": {"id": id, "skills": []}}]
    shell = {"type": "shell", "environment": {"type": "container_reference", "container_id": id}}
    interpreter = {"type": "code_interpreter", "container": {"type": "auto"}}
    earlier = {**CALL, "id": "ci_1", "container_id": id}
    return [
        {"tools": [{"type": "code_interpreter", "container": id}]},
        {"tools": [shell]},
        {"tools": [interpreter], "input": [earlier, {"role": "user", "content": "Go on."}]},
    ]


def test_own_response_continues_where_it_was_made(gateway: Gateway, upstream: Provider) -> None:
    made = made_at_second(gateway)
    for more in ({}, {"stream": True}):
        assert_continues(gateway, upstream, RESPONSES, previous_response_id=made["id"], **more)
    assert_continues(gateway, upstream, RESPONSES, at=FIRST)  # a new conversation takes the first route


def test_streamed_response_continues_where_it_was_made(gateway: Gateway, upstream: Provider) -> None:
    answer = gateway.post(PATHS[RESPONSES], MINE, ask(RESPONSES, BUSY, stream=True))
    created = json.loads(answer.text.split("data: ", 1)[1].split("\n")[0])
    assert_continues(gateway, upstream, RESPONSES, previous_response_id=created["response"]["id"])


@pytest.mark.parametrize("wire", [RESPONSES, MESSAGES])
@pytest.mark.parametrize("stream", [False, True])
def test_own_container_continues_where_it_was_made(
    gateway: Gateway, upstream: Provider, wire: str, stream: bool
) -> None:
    answer = gateway.post(PATHS[wire], MINE, ask(wire, BUSY, stream=stream))
    beginning = "container_" if wire == MESSAGES else "cntr_"
    id = beginning + answer.text.split(f'"{beginning}')[1 if stream or wire == MESSAGES else -1].partition('"')[0]
    for more in containers(wire, id):
        assert_continues(gateway, upstream, wire, **more)
        assert_refused(gateway, upstream, wire, "container_not_found", "container", **more)


@pytest.mark.parametrize("process", ["gateway", "other_process"])
def test_foreign_and_unknown_ids_are_400(
    gateway: Gateway, upstream: Provider, process: str, request: pytest.FixtureRequest
) -> None:
    asked: Gateway = request.getfixturevalue(process)
    for id, stream in ((made_at_second(gateway)["id"], False), ("resp_nobodys", True)):
        assert_refused(
            asked, upstream, RESPONSES, "previous_response_not_found", "previous_response_id",
            previous_response_id=id, stream=stream,
        )  # fmt: skip
    container = container_of(made_at_second(gateway, MESSAGES))
    assert_refused(asked, upstream, MESSAGES, "container_not_found", "container", container=container)


def test_other_process_knows_it_at_once(gateway: Gateway, other_process: Gateway, upstream: Provider) -> None:
    for number in range(20):
        here, there = (gateway, other_process) if number % 2 else (other_process, gateway)
        assert_continues(there, upstream, RESPONSES, previous_response_id=made_at_second(here)["id"])


def test_response_is_known_while_it_streams(gateway: Gateway, other_process: Gateway, upstream: Provider) -> None:
    """The id counts from the first event on; the rest of the answer takes another second and a half."""
    with RawClient(gateway, RESPONSES, MINE, ask(RESPONSES, f"{BUSY} {SLOWLY}", stream=True)) as client:
        begun = client.read_until(WORDS[1].encode())
        id = json.loads(begun.split(b"data: ", 1)[1].split(b"\n")[0])["response"]["id"]
        for asked in (gateway, other_process):
            assert_continues(asked, upstream, RESPONSES, previous_response_id=id)
        assert id in str(gateway.installation.query("SELECT object_ids FROM billing_openstream"))
        assert b"response.completed" not in client.body
        client.read_all()


def test_restart_forgets_nothing(gateway: Gateway, own: Installation, upstream: Provider) -> None:
    """A process starts with an empty memory: what one brought that has ended by now is in the database."""
    with own.serving("uvicorn") as before:
        made, container = made_at_second(before)["id"], container_of(made_at_second(before, MESSAGES))
    assert_continues(gateway, upstream, RESPONSES, previous_response_id=made)
    assert_continues(gateway, upstream, MESSAGES, container=container)
    code, field = "previous_response_not_found", "previous_response_id"
    assert_refused(gateway, upstream, RESPONSES, code, field, previous_response_id=made)


def test_route_that_is_out_is_503(own: Installation, gateway: Gateway, upstream: Provider) -> None:
    made, container = made_at_second(gateway)["id"], container_of(made_at_second(gateway, MESSAGES))
    own.apply(configuration(upstream.base_url, with_second=False))
    time.sleep(1.5)  # the catalogue is read every second
    before = len(upstream.calls)
    for wire, more in ((RESPONSES, {"previous_response_id": made}), (MESSAGES, {"container": container})):
        answer = gateway.post(PATHS[wire], MINE, ask(wire, **more))
        assert_shape(answer, wire, 503, "no_available_route", "api_error")
        assert next(iter(more)) in answer.json()["error"]["message"]
        assert answer.headers["x-should-retry"] == "false"
        assert not any(secret in answer.text for secret in ("acme", "beta", SECOND))
    assert len(upstream.calls) == before
    own.apply(configuration(upstream.base_url))
    time.sleep(1.5)
    assert_continues(gateway, upstream, RESPONSES, previous_response_id=made)


def test_model_without_the_route_is_503(gateway: Gateway, upstream: Provider) -> None:
    """Another model may go on with a response where it has a route of the same provider; else nobody can."""
    at_first = gateway.post(PATHS[RESPONSES], MINE, ask(RESPONSES)).json()["id"]
    assert_continues(gateway, upstream, RESPONSES, at="elsewhere", model="elsewhere", previous_response_id=at_first)
    made = made_at_second(gateway)["id"]
    answer = gateway.post(PATHS[RESPONSES], MINE, ask(RESPONSES, model="elsewhere", previous_response_id=made))
    assert_shape(answer, RESPONSES, 503, "no_available_route", "api_error")


FILE = {"type": "input_file", "file_id": "file-1"}
ONLY_SHARED: list[tuple[str, str, dict[str, Any]]] = [
    (RESPONSES, "conversation", {"conversation": "conv_1"}),
    (RESPONSES, "prompt.id", {"prompt": {"id": "pmpt_1"}}),
    (RESPONSES, "file_id", {"input": [{"role": "user", "content": [FILE]}]}),
    (RESPONSES, "vector_store_ids", {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}),
    (RESPONSES, "connector_id", {"tools": [{"type": "mcp", "server_label": "m", "connector_id": "connector_gmail"}]}),
    (RESPONSES, "item_reference", {"input": [{"type": "item_reference", "id": "msg_1"}]}),
    (RESPONSES, "item_reference", {"input": [{"id": "msg_1"}, {"role": "user", "content": "Go on."}]}),
    (CHAT, "file_id", {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]}),
    (MESSAGES, "skill_id", {"container": {"skills": [{"type": "custom", "skill_id": "skill_1"}]}}),
    (MESSAGES, "previous_message_id", {"thread": {"type": "continue", "previous_message_id": "msg_1"}}),
]


@pytest.mark.parametrize(("wire", "field", "more"), ONLY_SHARED)
def test_other_objects_are_for_shared_providers(
    gateway: Gateway, upstream: Provider, wire: str, field: str, more: dict[str, Any]
) -> None:
    assert_refused(gateway, upstream, wire, "unsupported_parameter", field, key=MINE, **more)
    if wire != CHAT:
        assert_continues(gateway, upstream, wire, at="shared-talk", model="common", **more)


def test_shared_provider_takes_unknown_ids(gateway: Gateway, upstream: Provider) -> None:
    assert_continues(
        gateway, upstream, RESPONSES, at="shared-talk", model="common", previous_response_id="resp_made_elsewhere"
    )
    at_first = gateway.post(PATHS[RESPONSES], MINE, ask(RESPONSES)).json()["id"]
    assert_continues(gateway, upstream, RESPONSES, at=FIRST, model="common", previous_response_id=at_first)


def test_hidden_id_is_refused(gateway: Gateway, upstream: Provider) -> None:
    """A field twice, of which a provider might read the other one."""
    made, before = made_at_second(gateway)["id"], len(upstream.calls)
    body = json.dumps(ask(RESPONSES, previous_response_id="resp_theirs")).encode()[:-1]
    answer = gateway.post(PATHS[RESPONSES], MINE, body + f',"previous_response_id":"{made}"}}'.encode())
    assert_shape(answer, RESPONSES, 400, "invalid_request_error", "invalid_request_error")
    assert len(upstream.calls) == before
