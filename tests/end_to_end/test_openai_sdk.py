"""The official OpenAI SDK against the running product: streams, helpers, tools, reasoning, whole answers, errors."""

from __future__ import annotations

import json
import uuid
from decimal import Decimal
from typing import Any

import openai
import pytest

from tests.end_to_end.conftest import Fresh
from tests.end_to_end.formats import ARGUMENTS, CHAT, PATHS, TEXT, THOUGHT, USED
from tests.end_to_end.product import Gateway, used
from tests.end_to_end.provider import Provider

MESSAGES: list[Any] = [{"role": "user", "content": "What does the Föhn do?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "forecast", "parameters": PARAMETERS, "strict": True}}
RESPONSES_TOOL: Any = {"type": "function", "name": "forecast", "parameters": PARAMETERS, "strict": True}


@pytest.fixture
def client(openai_client: openai.OpenAI) -> openai.OpenAI:
    return openai_client


def texts(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


# --- Chat Completions ---


@pytest.mark.parametrize("model", ["plain", "in-pieces"])
def test_chat_stream_iterates(client: openai.OpenAI, gateway: Gateway, key: str, model: str) -> None:
    stream = client.chat.completions.create(model=model, messages=MESSAGES, stream=True)
    chunks = list(stream)
    assert texts(chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    record = gateway.record(stream.response.headers["x-request-id"], key)
    assert used(record) == USED
    assert (record["ending"], record["metering"], record["cost"]) == ("complete", "reported", "0.001612000")


def test_usage_chunk_comes_when_asked(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    stream = client.chat.completions.create(model="plain", messages=MESSAGES, stream=True, stream_options=options)
    *chunks, last = stream
    assert texts(chunks) == TEXT
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == 66


def test_chat_helper_gives_final_completion(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="plain", messages=MESSAGES) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == TEXT


def test_chat_tools_are_assembled(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tools", messages=MESSAGES, tools=[CHAT_TOOL]) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    calls = final.choices[0].message.tool_calls or []
    assert [call.id for call in calls] == ["call_0", "call_1"]
    assert [call.function.parsed_arguments for call in calls] == [ARGUMENTS, ARGUMENTS]


def test_chat_reasoning_deltas_arrive(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="thinking", messages=MESSAGES, stream=True))
    thoughts = [getattr(chunk.choices[0].delta, "reasoning_content", None) for chunk in chunks if chunk.choices]
    assert [thought for thought in thoughts if thought] == list(THOUGHT)
    assert texts(chunks) == TEXT


def test_chat_whole_answer(client: openai.OpenAI, gateway: Gateway, key: str) -> None:
    completion = client.chat.completions.create(model="plain", messages=MESSAGES)
    assert completion.choices[0].message.content == TEXT
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 52
    assert completion._request_id is not None
    record = gateway.record(completion._request_id, key)
    assert used(record) == USED
    assert record["stream"] is False


def test_public_name_is_shown(client: openai.OpenAI, provider: Provider) -> None:
    mark = uuid.uuid4().hex
    asked: list[Any] = [{"role": "user", "content": mark}]
    whole = client.chat.completions.create(model="renamed", messages=asked)
    streamed = list(client.chat.completions.create(model="renamed", messages=asked, stream=True))
    assert {whole.model, *(chunk.model for chunk in streamed)} == {"renamed"}
    assert {call.model for call in provider.calls_with(mark)} == {"acme-internal-7b"}


# --- Responses ---


def test_responses_stream_iterates(client: openai.OpenAI, gateway: Gateway, key: str) -> None:
    stream = client.responses.create(model="plain", input="What does the Föhn do?", stream=True)
    events = list(stream)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert used(gateway.record(stream.response.headers["x-request-id"], key)) == USED


def test_responses_helper_gives_final_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="in-pieces", input="What does the Föhn do?") as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == TEXT
    assert final.usage is not None
    assert final.usage.output_tokens_details.reasoning_tokens == 10


def test_responses_tools_are_assembled(client: openai.OpenAI) -> None:
    with client.responses.stream(model="tools", input="Zürich?", tools=[RESPONSES_TOOL]) as stream:
        final = stream.get_final_response()
    assert [json.loads(item.arguments) for item in final.output if item.type == "function_call"] == [ARGUMENTS] * 2


def test_responses_reasoning_deltas_arrive(client: openai.OpenAI) -> None:
    with client.responses.stream(model="thinking", input="Zürich?") as stream:
        deltas = [event.delta for event in stream if event.type == "response.reasoning_summary_text.delta"]
        final = stream.get_final_response()
    assert deltas == list(THOUGHT)
    assert [item.type for item in final.output] == ["reasoning", "message"]


def test_responses_whole_answer(client: openai.OpenAI, gateway: Gateway, key: str) -> None:
    response = client.responses.create(model="plain", input="What does the Föhn do?")
    assert response.output_text == TEXT
    assert response._request_id is not None
    assert used(gateway.record(response._request_id, key)) == USED


# --- errors ---


def ask(client: openai.OpenAI, model: str, stream: bool = False) -> Any:
    answer = client.chat.completions.create(model=model, messages=MESSAGES, stream=stream)
    return list(answer) if stream else answer


def ask_responses(client: openai.OpenAI, model: str, stream: bool = False) -> Any:
    answer: Any = client.responses.create(model=model, input="Zürich?", stream=stream)
    return list(answer) if stream else answer


@pytest.mark.parametrize("asking", [ask, ask_responses])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "kind", "code"),
    [
        ("no-such-model", openai.NotFoundError, "model_not_found"),
        ("limited", openai.RateLimitError, "rate_limit_exceeded"),
        ("fails", openai.InternalServerError, "upstream_error"),
        ("locked-out", openai.InternalServerError, "upstream_error"),
    ],
)
def test_errors_have_right_classes(
    client: openai.OpenAI,
    fresh: Fresh,
    asking: Any,
    stream: bool,
    model: str,
    kind: type[openai.APIStatusError],
    code: str,
) -> None:
    with pytest.raises(kind) as raised:
        asking(client, fresh(model), stream)
    assert raised.value.code == code
    assert raised.value.request_id
    assert raised.value.response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("asking", [ask, ask_responses])
def test_refusal_keeps_providers_words(client: openai.OpenAI, gateway: Gateway, key: str, asking: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature: must be at most 2") as raised:
        asking(client, "refuses")
    assert raised.value.param == "temperature"
    assert raised.value.request_id is not None
    record = gateway.record(raised.value.request_id, key)
    assert (record["ending"], record["metering"], record["cost"]) == ("refused", "none", "0.000000000")


def test_retry_after_is_passed(client: openai.OpenAI, fresh: Fresh) -> None:
    with pytest.raises(openai.RateLimitError) as raised:
        ask(client, fresh("limited"))
    assert raised.value.response.headers["retry-after"] == "7"


def test_wrong_key_is_authentication_error(gateway: Gateway) -> None:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="sk-hb-wrong", max_retries=0)
    with client, pytest.raises(openai.AuthenticationError) as raised:
        ask(client, "plain")
    assert raised.value.code == "invalid_api_key"


def test_missing_input_is_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model="plain", messages=[])
    assert raised.value.param == "messages"


@pytest.mark.parametrize("model", ["cut", "failing-event"])
def test_broken_chat_stream_raises(client: openai.OpenAI, gateway: Gateway, fresh: Fresh, key: str, model: str) -> None:
    stream = client.chat.completions.create(model=fresh(model), messages=MESSAGES, stream=True)
    got: list[Any] = []
    with pytest.raises(openai.APIError) as raised:
        got.extend(stream)
    assert texts(got) == "Der Föhn weht "
    assert not isinstance(raised.value, openai.APIConnectionError)
    record = gateway.record(stream.response.headers["x-request-id"], key)
    assert record["ending"] == {"cut": "provider_cut", "failing-event": "provider_error"}[model]
    assert record["metering"] == "estimated"
    assert Decimal(record["cost"]) > 0


@pytest.mark.parametrize("model", ["cut", "failing-event"])
def test_broken_responses_stream_fails(client: openai.OpenAI, fresh: Fresh, model: str) -> None:
    events = list(client.responses.create(model=fresh(model), input="Zürich?", stream=True))
    failed = events[-1]
    assert failed.type == "response.failed"
    assert failed.response.status == "failed"
    assert failed.response.error is not None
    assert failed.response.error.code == "server_error"


def test_broken_whole_answer_is_upstream_error(client: openai.OpenAI, fresh: Fresh) -> None:
    with pytest.raises(openai.InternalServerError) as raised:
        ask(client, fresh("cut"))
    assert raised.value.status_code == 502


# --- the rest ---


def test_models_are_listed(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert {"plain", "tools", "renamed"} <= set(names)
    assert "acme-internal-7b" not in names
    assert client.models.retrieve("plain").id == "plain"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("acme-internal-7b")


def test_own_request_id_is_kept(client: openai.OpenAI, gateway: Gateway, key: str) -> None:
    name = f"mine-{uuid.uuid4().hex}"
    sent = {"X-Request-Id": name}
    completion = client.chat.completions.create(model="plain", messages=MESSAGES, extra_headers=sent)
    assert completion._request_id == name
    assert gateway.record(name, key)["request_id"] == name


def test_body_reaches_provider_unchanged(gateway: Gateway, key: str, provider: Provider) -> None:
    mark = uuid.uuid4().hex
    raw = b'{ "messages":[{"role":"user","content":"%s \\u0041"}], "big": 12345678901234567890123, "model":"plain" }'
    gateway.post(PATHS[CHAT], key, raw % mark.encode())
    assert provider.call_with(mark).body == raw % mark.encode()
