"""Against a provider that others made: llmock, in the dialects of the companies that it plays."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import anthropic
import openai
import pytest
from llmock.scenarios import Fail, StreamFault
from llmock.simulation import MockResponseSettings
from llmock.testing import LLMockServer

from tests.end_to_end.conftest import PRICE, PROVIDER_KEY
from tests.end_to_end.product import Gateway, Installation

CHAT_DIALECTS = {
    "openai": "/v1",
    "mistral": "/mistral/v1",
    "groq": "/groq/openai/v1",
    "together": "/together/v1",
    "perplexity": "/perplexity/v1",
    "ai21": "/ai21/v1",
    "xai": "/xai/v1",
}
DIALECTS = {**CHAT_DIALECTS, "anthropic": "/anthropic/v1"}
FAULTS = ("disconnect", "truncate", "limited", "failing")
SERVERS = ("uvicorn", "daphne")


def own(fault: str, server: str) -> str:
    """A model with a route of its own: what fails there cools no other test's route down."""
    return f"mock-openai-{fault}-{server}"


OWN = [own(fault, server) for fault in FAULTS for server in SERVERS]
PROMPT: list[Any] = [{"role": "user", "content": "Where does the wind come from, and where does it go to?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.fixture(scope="session")
def llmock() -> Iterator[LLMockServer]:
    with LLMockServer(responses=MockResponseSettings(response_style="varied")) as server:
        yield server


@pytest.fixture(scope="session")
def dialects(installation: Installation, uvicorn: Gateway, llmock: LLMockServer) -> None:
    """Every dialect as a provider with one model, added while the gateways run."""
    installation.apply(
        {
            "providers": [
                {
                    "name": f"llmock-{name}", "base_url": llmock.url + path, "api_key": PROVIDER_KEY,
                    "auth": "x-api-key" if name == "anthropic" else "bearer",
                    "wire_formats": ["messages"] if name == "anthropic" else ["chat_completions", "responses"],
                }
                for name, path in DIALECTS.items()
            ],
            "models": [
                {"name": f"mock-{name}", "routes": [{"provider": f"llmock-{name}", "upstream_model": f"mock-{name}"}]}
                for name in DIALECTS
            ]
            + [
                {"name": name, "routes": [{"provider": "llmock-openai", "upstream_model": "mock-openai"}]}
                for name in OWN
            ],
            "prices": [
                {"model": f"mock-{name}", "effective_from": "2026-01-01T00:00:00Z", "currency": "USD",
                 "per_million": PRICE}
                for name in DIALECTS
            ]
            + [
                {"model": name, "effective_from": "2026-01-01T00:00:00Z", "currency": "USD", "per_million": PRICE}
                for name in OWN
            ],
        }
    )  # fmt: skip


@pytest.fixture(autouse=True)
def known(dialects: None, gateway: Gateway, llmock: LLMockServer, key: str) -> None:
    """The gateway knows the dialects: a change is seen within a second or two."""
    llmock.state.scenarios.clear()
    deadline = time.monotonic() + 5
    while gateway.get("/v1/models/mock-xai", key).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def assert_billed(gateway: Gateway, key: str, request_id: str | None, input_tokens: int, output_tokens: int) -> None:
    assert request_id is not None
    record = gateway.record(request_id, key)
    assert (record["ending"], record["metering"], record["unpriced"]) == ("complete", "reported", False)
    assert (record["usage"]["input"], record["usage"]["output"]) == (input_tokens, output_tokens)
    assert input_tokens > 0
    assert output_tokens > 0


@pytest.mark.parametrize("dialect", CHAT_DIALECTS)
def test_chat_dialects(openai_client: openai.OpenAI, gateway: Gateway, key: str, dialect: str) -> None:
    model = f"mock-{dialect}"
    whole = openai_client.chat.completions.create(model=model, messages=PROMPT)
    assert whole.usage is not None
    figures = (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert_billed(gateway, key, whole._request_id, *figures)

    stream = openai_client.chat.completions.create(model=model, messages=PROMPT, stream=True)
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert all(chunk.usage is None for chunk in chunks)
    assert_billed(gateway, key, stream.response.headers["x-request-id"], *figures)


def test_chat_helper_assembles_tools(openai_client: openai.OpenAI) -> None:
    function: Any = {"name": "wind", "parameters": {**PARAMETERS, "additionalProperties": False}, "strict": True}
    tools: list[Any] = [{"type": "function", "function": function}]
    with openai_client.chat.completions.stream(model="mock-openai", messages=PROMPT, tools=tools) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls or []
    assert [call.function.name for call in calls] == ["wind"]
    assert isinstance(json.loads(calls[0].function.arguments)["city"], str)


def test_responses_dialect(openai_client: openai.OpenAI, gateway: Gateway, key: str) -> None:
    whole = openai_client.responses.create(model="mock-openai", input="Where is the wind?")
    assert whole.usage is not None
    figures = (whole.usage.input_tokens, whole.usage.output_tokens)
    assert_billed(gateway, key, whole._request_id, *figures)
    with openai_client.responses.stream(model="mock-openai", input="Where is the wind?") as stream:
        final = stream.get_final_response()
        request_id = stream._response.headers["x-request-id"]
    assert final.output_text == whole.output_text
    assert_billed(gateway, key, request_id, *figures)


def test_messages_dialect(anthropic_client: anthropic.Anthropic, gateway: Gateway, key: str) -> None:
    whole = anthropic_client.messages.create(model="mock-anthropic", max_tokens=1000, messages=PROMPT)
    figures = (whole.usage.input_tokens, whole.usage.output_tokens)
    assert_billed(gateway, key, whole._request_id, *figures)
    with anthropic_client.messages.stream(model="mock-anthropic", max_tokens=1000, messages=PROMPT) as stream:
        final = stream.get_final_message()
        request_id = stream.request_id
    assert final.content[0].to_dict() == whole.content[0].to_dict()
    assert_billed(gateway, key, request_id, *figures)


def test_messages_helper_assembles_tool_use(anthropic_client: anthropic.Anthropic) -> None:
    tools: list[Any] = [{"name": "wind", "input_schema": PARAMETERS}]
    with anthropic_client.messages.stream(
        model="mock-anthropic", max_tokens=1000, messages=PROMPT, tools=tools
    ) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert [block.name for block in final.content if block.type == "tool_use"] == ["wind"]


@pytest.mark.parametrize("kind", ["disconnect", "truncate"])
def test_broken_streams_are_no_success(
    openai_client: openai.OpenAI, gateway: Gateway, llmock: LLMockServer, key: str, kind: Any
) -> None:
    """A silent truncation too, which no SDK notices by itself."""
    llmock.state.scenarios.add(StreamFault(kind, after_chunks=4))
    model = own(kind, gateway.server)
    stream = openai_client.chat.completions.create(model=model, messages=PROMPT, stream=True)
    with pytest.raises(openai.APIError, match="interrupted"):
        list(stream)
    record = gateway.record(stream.response.headers["x-request-id"], key)
    assert (record["ending"], record["metering"]) == ("provider_cut", "estimated")
    assert Decimal(record["cost"]) > 0


def test_rate_limit_is_passed_on(openai_client: openai.OpenAI, gateway: Gateway, llmock: LLMockServer) -> None:
    llmock.state.scenarios.add(Fail(429, retry_after=9))
    with pytest.raises(openai.RateLimitError) as raised:
        openai_client.chat.completions.create(model=own("limited", gateway.server), messages=PROMPT)
    assert raised.value.response.headers["retry-after"] == "9"


def test_short_failure_is_tried_again(openai_client: openai.OpenAI, gateway: Gateway, llmock: LLMockServer) -> None:
    """The provider fails once; the client sees nothing of it."""
    llmock.state.scenarios.add(Fail(500, times=1))
    whole = openai_client.chat.completions.create(model=own("failing", gateway.server), messages=PROMPT)
    assert whole.choices[0].message.content
