"""The OpenAPI file: complete, with examples that are real answers, and kept by a gateway that schemathesis asks."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import uvicorn
import yaml
from django.test import override_settings

from billing import views
from billing.admin.attempts import OUTCOME_WORDS
from billing.models import ApiKey, Attempt
from billing.money import parse
from billing.reports import COUNTS
from billing.usage import BUCKETS, ENDINGS, METERINGS, Part, TokenUsage
from hopbase_site import api_docs, asgi
from hopbase_site.docs_values import of_this_process
from streaming import gateway as gateways
from streaming.configuration import apply
from streaming.consumers import described
from streaming.errors import CODES, ApiError
from streaming.protocols import WIRE_FORMATS
from streaming.protocols.answers import openai_error
from streaming.routing import api_routes, health_routes
from tests import settings
from tests.billing.factories import make_account, make_adjustment, make_key, make_record, price, utc
from tests.end_to_end import scenes
from tests.end_to_end.conftest import price_entry, provider_entry
from tests.end_to_end.provider import Provider

FILE = json.loads(api_docs.openapi("openapi.json", of_this_process()))
OPERATIONS = {(path, method): operation for path, item in FILE["paths"].items() for method, operation in item.items()}
EACH = [pytest.param(*place, id=f"{place[1]} {place[0]}") for place in OPERATIONS]
CHAT, MESSAGES, COUNT_TOKENS = "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"
USAGE, USAGE_REQUEST = "/v1/usage", "/v1/usage/requests/{request_id}"
MODELS, MODEL = "/v1/models", "/v1/models/{id}"
PARAMETERS = {"/v1/models/<path:name>": MODEL, "/v1/usage/requests/<path:name>": USAGE_REQUEST}
REQUEST = "req_01a22bdaf2ae70f7a8198728425568a0"
NOW = utc(2026, 11, 30)
KEYS = {
    "main": {},
    "expired": {"expires_at": "2026-01-01T00:00:00Z"},
    "bound": {"allowed_ips": ["203.0.113.9"]},
    "slow": {"limits": {"requests_per_minute": 1}},
    "spent": {"limits": {"monthly_budget": "0.001"}},
}
"""Name -> what is special about it."""
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")


def resolved(value: Any) -> Any:
    """What a `$ref` leads to."""
    while isinstance(value, dict) and "$ref" in value:
        kind, name = value["$ref"].removeprefix("#/components/").split("/")
        value = FILE["components"][kind][name]
    return value


def answers(path: str, method: str = "get") -> dict[int, Any]:
    """Status -> the answer that the file describes."""
    return {int(status): resolved(answer) for status, answer in OPERATIONS[path, method]["responses"].items()}


def body_of(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer["content"]["application/json"]
    return found


def examples(answer: Any) -> list[Any]:
    body = body_of(answer)
    return [each["value"] for each in body.get("examples", {}).values()] + (
        [body["example"]] if "example" in body else []
    )


def enums(schema: Any, field: str) -> set[str]:
    """What an answer's schema allows for the `code` or the `type` of an error."""
    own = schema.get("anyOf", [schema])[0]
    found: list[str] = own["properties"]["error"]["properties"][field]["enum"]
    return set(found)


def strict(schema: Any) -> Any:
    """The same without any field that is not named: an answer may not have more than the file says."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(value) for name, value in schema.items()}
    if found.get("type") == "object" and "properties" in found:
        found["additionalProperties"] = False
    return found


STRICT = {"$schema": "https://json-schema.org/draft/2020-12/schema", "components": strict(FILE["components"])}


def check(answer: Any, value: Any) -> None:
    """An answer's body against the file, no field more or less."""
    jsonschema_rs.validator_for({**STRICT, **strict(body_of(answer)["schema"])}, validate_formats=True).validate(value)


# --- what the file says ---


def test_routes_are_in_the_file() -> None:
    """/metrics is the operator's."""
    own = [route for route in (*api_routes, *health_routes) if not str(route.pattern).startswith("^")]
    served = {f"/{route.pattern}": route.callback.consumer_class.methods for route in own}
    assert served.pop("/metrics")
    expected = {PARAMETERS.get(path, path): {*methods} - {"HEAD"} for path, methods in served.items()}
    assert {path: {method.upper() for method in item} for path, item in FILE["paths"].items()} == expected


def test_error_codes_are_in_the_file() -> None:
    schemas = FILE["components"]["schemas"]
    assert schemas["ErrorCode"]["enum"] == list(CODES)
    assert {*schemas["MessagesError"]["properties"]["error"]["properties"]["type"]["enum"]} == {
        kind for _, kind in CODES.values()
    }
    assert {*schemas["Error"]["properties"]["error"]["properties"]["type"]["enum"]} == {
        openai_error(ApiError(code, "").error)["error"]["type"] for code in CODES
    }


def test_each_code_is_at_its_status() -> None:
    found = {
        (code, status)
        for path, method in OPERATIONS
        if path not in (MESSAGES, COUNT_TOKENS, "/healthz", "/readyz")
        for status, answer in answers(path, method).items()
        if status != 200 and "schema" in body_of(answer)
        for code in enums(body_of(answer)["schema"], "code")
    }
    assert found == {(code, status) for code, (status, _) in CODES.items() if code != "method_not_allowed"}


def test_relay_routes_have_each_code() -> None:
    """A new code needs a place there, or here."""
    told = {
        code
        for status, answer in answers(CHAT, "post").items()
        if status in {known for known, _ in CODES.values()}
        for code in enums(body_of(answer)["schema"], "code")
    }
    assert told == {*CODES} - {"route_not_found", "request_not_found", "method_not_allowed"}


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
def test_anthropic_types_are_at_their_statuses(path: str) -> None:
    elsewhere = {402} if path == COUNT_TOKENS else set()
    for status in {status for status, _ in CODES.values()} - {405} - elsewhere:
        told = enums(body_of(answers(path, "post")[status])["schema"], "type")
        assert told == {kind for known, kind in CODES.values() if known == status}, status


def test_choices_are_the_products() -> None:
    schemas = FILE["components"]["schemas"]
    request = schemas["UsageRequest"]["properties"]
    assert request["ending"]["enum"] == [*ENDINGS]
    assert request["metering"]["enum"] == [*METERINGS]
    assert request["wire_format"]["enum"] == [*WIRE_FORMATS]
    assert schemas["Attempt"]["properties"]["outcome"]["enum"] == [*OUTCOME_WORDS]
    assert [*schemas["Tokens"]["properties"]] == [*COUNTS]
    assert [*schemas["RequestTokens"]["properties"]] == [*COUNTS, "server_tools"]
    assert [*schemas["Part"]["properties"]["usage"]["properties"]] == [*BUCKETS, "server_tools"]


@pytest.mark.parametrize(("path", "method"), EACH)
def test_examples_are_as_described(path: str, method: str) -> None:
    for status, answer in answers(path, method).items():
        for example in examples(answer):
            check(answer, example)
            if code := example.get("error", {}).get("code"):
                assert (
                    openai_error(ApiError(code, example["error"]["message"]).error)["error"]["type"]
                    == (example["error"]["type"])
                )
                assert CODES[code][0] == status


@pytest.mark.parametrize("language", api_docs.WORDS)
@pytest.mark.parametrize(
    ("page", "paths"),
    [("usage", [USAGE, USAGE_REQUEST]), ("models", [MODELS])],
)
def test_pages_have_the_same_examples(language: str, page: str, paths: list[str]) -> None:
    text = api_docs.source(language, page, of_this_process())
    shown = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    assert shown == [examples(answers(path)[200])[0] for path in paths]


@override_settings(PUBLIC_URL="https://hopbase.example/", MAX_BODY_BYTES=5 * 2**20)
def test_file_is_filled_in_and_served() -> None:
    status, headers, text = api_docs.respond("/docs/openapi.yaml")
    assert (status, dict(headers)[b"content-type"]) == (200, b"application/yaml")
    assert b"{{" not in text
    assert b"at most 5 MB" in text
    status, headers, body = api_docs.respond("/docs/openapi.json")
    assert (status, dict(headers)[b"content-type"]) == (200, b"application/json")
    assert json.loads(body) == yaml.load(text, yaml.CSafeLoader)
    assert json.loads(body)["servers"] == [{"url": "https://hopbase.example"}]


# --- what the product answers ---


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key(make_account(timezone="Asia/Taipei"), monthly_budget_nanos=parse("100"))


def example_record(key: ApiKey) -> None:
    """The request of the examples."""
    ended_at = dt.datetime(2026, 11, 30, 3, 0, 2, tzinfo=dt.UTC)
    record = make_record(
        key, ended_at, request_name=REQUEST, stream=False, first_output_at=ended_at - dt.timedelta(seconds=1)
    )
    Attempt.objects.create(
        record=record, number=1, outcome="answered", status=200, duration_ms=812, started_at=record.started_at
    )


def test_examples_are_real_answers(key: ApiKey) -> None:
    example_record(key)
    (usage,), (request,) = (examples(answers(path)[200]) for path in (USAGE, USAGE_REQUEST))
    assert views.usage(key.pk, {"from": usage["from"], "to": usage["to"]}, NOW) == usage
    assert views.usage_request(key.pk, REQUEST) == request
    assert described("gpt-5.6-sol") == examples(answers(MODEL)[200])[0]


def test_rich_answers_are_as_described(key: ApiKey) -> None:
    """With what the examples lack: tools, other models' parts, adjustments, no price, no attempt, no budget."""
    advised = make_record(
        key, NOW, TokenUsage(input=1, output=2, server_tools={"web_search": 2}),
        version=price(server_tools={"web_search": parse("0.01")}), others=[price("advisor")],
        parts=[Part("advisor", TokenUsage(input=7, output=9))],
    )  # fmt: skip
    make_adjustment(key, NOW, -5, record=advised)
    make_adjustment(key, NOW, 7)
    Attempt.objects.create(record=advised, number=1, outcome="failed", duration_ms=3, started_at=NOW)
    unpriced = make_record(key, NOW, version=price(currency="EUR"), ending="gateway_lost", metering="checkpoint")
    for record in (advised, unpriced):
        check(answers(USAGE_REQUEST)[200], views.usage_request(key.pk, record.request_name))
    usage = views.usage(key.pk, {}, NOW)
    assert [day["model"] for day in usage["data"]] == ["", "gpt-5.6-sol"]
    check(answers(USAGE)[200], usage)
    key.monthly_budget_nanos = None
    key.save()
    check(answers(USAGE)[200], views.usage(key.pk, {}, NOW))


def secret(name: str) -> str:
    return f"sk-test-{name}-0123456789abcdef"


@pytest.fixture
def url(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The application on a port, in a thread with an event loop of its own; a provider, a model and keys."""
    monkeypatch.setattr(gateways, "_gateway", None)  # the process's one: made by this loop, and gone with it
    with Provider(scenes.stage({})) as provider:
        apply(json.dumps(configuration(provider.base_url)).encode(), variables={"PROVIDER_KEY": "sk-provider"})
        example_record(ApiKey.objects.get(name="main"))
        make_record(ApiKey.objects.get(name="spent"), dt.datetime.now(dt.UTC))
        with serving() as port:
            yield f"http://127.0.0.1:{port}"


def configuration(base_url: str) -> dict[str, Any]:
    keys = [{"name": name, "secret": secret(name), **special} for name, special in KEYS.items()]
    disabled = {"name": "southwind", "active": False, "keys": [{"name": "disabled", "secret": secret("disabled")}]}
    return {
        "providers": [provider_entry("acme", base_url, {})],
        "models": [{"name": "gpt-5.6-sol", "routes": [{"provider": "acme", "upstream_model": "plain"}]}],
        "prices": [price_entry("gpt-5.6-sol")],
        "accounts": [{"name": "northwind", "timezone": "Asia/Taipei", "currency": "USD", "keys": keys}, disabled],
    }


@contextlib.contextmanager
def serving() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(asgi.application, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def get(url: str, path: str, key: str = "") -> httpx.Response:
    return httpx.get(url + path, headers={"authorization": f"Bearer {secret(key)}"} if key else {})


def post(url: str, path: str, key: str, encoding: str = "identity", **more: Any) -> httpx.Response:
    body = {"model": "gpt-5.6-sol", "messages": [{"role": "user", "content": "Hello"}], **more}
    return httpx.post(
        url + path, json=body, headers={"authorization": f"Bearer {secret(key)}", "content-encoding": encoding}
    )


@pytest.mark.slow
@pytest.mark.skipif(not settings.POSTGRESQL, reason="once is enough: on the database that takes less, NUL for example")
def test_gateway_keeps_the_file(url: str, tmp_path: Path) -> None:
    """schemathesis makes requests from the file, good and bad ones, the same ones each time."""
    (tmp_path / "openapi.json").write_bytes(api_docs.openapi("openapi.json", of_this_process()))
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION), "run", "openapi.json",
        "--url", url, "--header", f"Authorization: Bearer {secret('main')}", "--no-color",
    ]  # fmt: skip
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_refusals_are_the_examples(url: str) -> None:
    """As a customer runs into them; the statuses, codes, fields and words of the file."""
    get(url, MODELS, "slow")
    asked = [
        (USAGE, get(url, f"{USAGE}?from=2026-11-31", "main")),
        (USAGE, get(url, USAGE)),
        (USAGE, get(url, USAGE, "nobody")),
        (MODELS, get(url, MODELS, "expired")),
        (MODELS, get(url, MODELS, "disabled")),
        (MODELS, get(url, MODELS, "bound")),
        (MODELS, get(url, MODELS, "slow")),
        (MODEL, get(url, "/v1/models/none", "main")),
        (USAGE_REQUEST, get(url, "/v1/usage/requests/req_none", "main")),
        (CHAT, post(url, CHAT, "spent")),
        (CHAT, post(url, CHAT, "main", "gzip")),
    ]
    for path, answer in asked:
        told = answers(path, "post" if path == CHAT else "get")[answer.status_code]
        check(told, answer.json())
        assert json.loads(re.sub(r"in \d+ s", "in 60 s", answer.text)) in examples(told)
        assert {name for name in answer.headers if name.startswith(("x-", "retry", "request"))} <= {*told["headers"]}
    codes = [answer.json()["error"]["code"] for _, answer in asked]
    assert len({*codes}) == len(codes)


def test_odd_names_are_not_found(url: str) -> None:
    """Line ends and NUL were a 500 once."""
    for odd in ("%0A", "a%0D%0Ab", "%00", "a%00b", "%FF", "%ED%A0%80", "x" * 4000):
        for route, within in ((MODEL, MODELS), (USAGE_REQUEST, "/v1/usage/requests")):
            answer = get(url, f"{within}/{odd}", "main")
            assert answer.status_code == 404, answer.text
            check(answers(route)[404], answer.json())


def test_counting_never_streams(url: str) -> None:
    """Whoever asks for a stream there gets the count, and the route stays in use for everybody else."""
    for _ in range(4):
        answer = post(url, COUNT_TOKENS, "main", stream=True)
        assert (answer.status_code, [*answer.json()]) == (200, ["input_tokens"])
