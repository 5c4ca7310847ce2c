"""The official Anthropic SDK against the running product: streams, helpers, tools, thinking, whole answers, errors."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import anthropic
import pytest

from tests.end_to_end.conftest import Fresh
from tests.end_to_end.formats import ARGUMENTS, TEXT, THOUGHT, USED
from tests.end_to_end.product import Gateway, used

MESSAGES: list[Any] = [{"role": "user", "content": "What does the Föhn do?"}]
TOOL: Any = {"name": "forecast", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


@pytest.fixture
def client(anthropic_client: anthropic.Anthropic) -> anthropic.Anthropic:
    return anthropic_client


def create(client: anthropic.Anthropic, model: str, **more: Any) -> Any:
    return client.messages.create(model=model, max_tokens=500, messages=MESSAGES, **more)


@pytest.mark.parametrize("model", ["plain", "in-pieces"])
def test_messages_stream_iterates(client: anthropic.Anthropic, gateway: Gateway, key: str, model: str) -> None:
    stream = create(client, model, stream=True)
    events = list(stream)
    assert "".join(event.delta.text for event in events if event.type == "content_block_delta") == TEXT
    assert events[0].type == "message_start"
    assert events[-1].type == "message_stop"
    record = gateway.record(stream.response.headers["request-id"], key)
    assert used(record) == USED
    assert (record["ending"], record["metering"], record["cost"]) == ("complete", "reported", "0.001612000")


def test_helper_gives_final_message(client: anthropic.Anthropic, gateway: Gateway, key: str) -> None:
    with client.messages.stream(model="plain", max_tokens=500, messages=MESSAGES) as stream:
        assert "".join(stream.text_stream) == TEXT
        final = stream.get_final_message()
        request_id = stream.request_id
    assert (final.stop_reason, final.usage.output_tokens, final.usage.cache_read_input_tokens) == ("end_turn", 52, 4)
    assert request_id is not None
    assert used(gateway.record(request_id, key)) == USED


def test_tool_use_is_assembled(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="tools", max_tokens=500, messages=MESSAGES, tools=[TOOL]) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    calls = [(block.id, block.input) for block in final.content if block.type == "tool_use"]
    assert calls == [("toolu_0", ARGUMENTS), ("toolu_1", ARGUMENTS)]


def test_thinking_is_assembled(client: anthropic.Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    with client.messages.stream(model="thinking", max_tokens=2000, messages=MESSAGES, thinking=thinking) as stream:
        thoughts = [event.thinking for event in stream if event.type == "thinking"]
        final = stream.get_final_message()
    assert thoughts == list(THOUGHT)
    first, second = final.content
    assert first.type == "thinking"
    assert (first.thinking, first.signature) == ("".join(THOUGHT), "c2lnbmVk")
    assert second.type == "text"
    assert second.text == TEXT


def test_whole_answer(client: anthropic.Anthropic, gateway: Gateway, key: str) -> None:
    message = create(client, "plain")
    assert message.content[0].text == TEXT
    assert message.usage.output_tokens == 52
    assert used(gateway.record(message._request_id, key)) == USED


def test_public_name_is_shown(client: anthropic.Anthropic) -> None:
    assert create(client, "renamed").model == "renamed"
    with client.messages.stream(model="renamed", max_tokens=500, messages=MESSAGES) as stream:
        assert stream.get_final_message().model == "renamed"


def test_tokens_are_counted(client: anthropic.Anthropic) -> None:
    assert client.messages.count_tokens(model="plain", messages=MESSAGES).input_tokens == 2095


def test_beta_query_is_accepted(client: anthropic.Anthropic) -> None:
    message = client.beta.messages.create(
        model="plain", max_tokens=500, messages=MESSAGES, betas=["context-1m-2025-08-07"]
    )
    assert message.content[0].type == "text"


def test_models_are_listed(client: anthropic.Anthropic) -> None:
    names = [model.id for model in client.models.list()]
    assert {"plain", "tools", "renamed"} <= set(names)
    assert client.models.retrieve("plain").display_name == "plain"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "kind", "type_"),
    [
        ("no-such-model", anthropic.NotFoundError, "not_found_error"),
        ("limited", anthropic.RateLimitError, "rate_limit_error"),
        ("fails", anthropic.InternalServerError, "api_error"),
        ("locked-out", anthropic.InternalServerError, "api_error"),
        ("refuses", anthropic.BadRequestError, "invalid_request_error"),
    ],
)
def test_errors_have_right_classes(
    client: anthropic.Anthropic,
    fresh: Fresh,
    stream: bool,
    model: str,
    kind: type[anthropic.APIStatusError],
    type_: str,
) -> None:
    with pytest.raises(kind) as raised:
        create(client, fresh(model), stream=stream)
    body: Any = raised.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == type_
    assert raised.value.request_id
    assert raised.value.response.headers["x-request-id"] == raised.value.request_id


def test_wrong_key_is_authentication_error(gateway: Gateway) -> None:
    client = anthropic.Anthropic(base_url=gateway.url, api_key="sk-hb-wrong", max_retries=0)
    with client, pytest.raises(anthropic.AuthenticationError) as raised:
        create(client, "plain")
    body: Any = raised.value.body
    assert body["error"]["type"] == "authentication_error"
    assert body["request_id"] == raised.value.request_id


def test_bearer_token_is_accepted(gateway: Gateway, key: str) -> None:
    with anthropic.Anthropic(base_url=gateway.url, auth_token=key, api_key=None, max_retries=0) as client:
        assert create(client, "plain").content[0].text == TEXT


@pytest.mark.parametrize(
    ("model", "type_", "message"),
    [
        ("cut", "api_error", "Response stream interrupted, please retry"),
        ("failing-event", "overloaded_error", "model crashed"),
    ],
)
def test_broken_stream_raises(
    client: anthropic.Anthropic, gateway: Gateway, fresh: Fresh, key: str, model: str, type_: str, message: str
) -> None:
    stream = create(client, fresh(model), stream=True)
    got: list[Any] = []
    with pytest.raises(anthropic.APIStatusError) as raised:
        got.extend(stream)
    body: Any = raised.value.body
    assert body["error"] == {"type": type_, "message": message}
    assert "".join(event.delta.text for event in got if event.type == "content_block_delta") == "Der Föhn weht "
    record = gateway.record(stream.response.headers["request-id"], key)
    assert record["usage"]["input"] == 10
    assert record["usage"]["output"] > 0
    assert Decimal(record["cost"]) > 0


def test_broken_helper_stream_raises(client: anthropic.Anthropic, fresh: Fresh) -> None:
    broken = client.messages.stream(model=fresh("cut"), max_tokens=500, messages=MESSAGES)
    with broken as stream, pytest.raises(anthropic.APIStatusError, match="interrupted"):
        stream.get_final_message()
