"""The demo's fake provider speaks the three wire formats as the official SDKs read them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from hopbase_site.demo import script, wire

ROOT = Path(__file__).resolve().parents[3]
PROMPT = "What does a gateway do?"
SCRIPT = script.write(PROMPT)
MODEL = "some-model"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A provider in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "hopbase_site.demo.provider", "--fd", str(listener.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[listener.fileno()])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def openai_client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic_client(address: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=address, api_key="k", max_retries=0) as client:
        yield client


def test_chat_stream_is_read(openai_client: openai.OpenAI) -> None:
    question = [{"role": "user", "content": PROMPT}]
    options = {"stream_options": {"include_usage": True}}
    with openai_client.chat.completions.stream(model=MODEL, messages=question, **options) as stream:  # type: ignore[arg-type]
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == SCRIPT.text
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (SCRIPT.usage.input, SCRIPT.usage.output)
    assert answer.usage.completion_tokens_details.reasoning_tokens == SCRIPT.usage.thought


def test_responses_stream_is_read(openai_client: openai.OpenAI) -> None:
    with openai_client.responses.stream(model=MODEL, input=PROMPT) as stream:
        answer = stream.get_final_response()
    assert answer.output_text == SCRIPT.text
    assert answer.usage.input_tokens_details.cached_tokens == SCRIPT.usage.cached


def test_messages_stream_is_read(anthropic_client: anthropic.Anthropic) -> None:
    question = [{"role": "user", "content": PROMPT}]
    with anthropic_client.messages.stream(model=MODEL, max_tokens=100, messages=question) as stream:  # type: ignore[arg-type]
        answer = stream.get_final_message()
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert answer.content[1].text == SCRIPT.text
    assert answer.usage.cache_creation_input_tokens == SCRIPT.usage.written


def test_bodies_are_read(openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic) -> None:
    question = [{"role": "user", "content": PROMPT}]
    chat = openai_client.chat.completions.create(model=MODEL, messages=question)  # type: ignore[arg-type]
    assert chat.choices[0].message.content == SCRIPT.text
    assert openai_client.responses.create(model=MODEL, input=PROMPT).output_text == SCRIPT.text
    message = anthropic_client.messages.create(model=MODEL, max_tokens=9, messages=question)  # type: ignore[arg-type]
    assert message.content[1].text == SCRIPT.text
    counted = anthropic_client.messages.count_tokens(model=MODEL, messages=question)  # type: ignore[arg-type]
    assert counted.input_tokens == SCRIPT.usage.input


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
def test_prompt_can_break_the_connection(address: str, path: str) -> None:
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "[cut]"}], "input": "[cut]"}
    with pytest.raises(httpx.RemoteProtocolError), httpx.stream("POST", f"{address}/v1/{path}", json=body) as answer:
        for _ in answer.iter_raw():
            pass


@pytest.mark.parametrize(("prompt", "status"), [("[fail]", 500), ("[fail 429]", 429), ("[fail 999]", 500)])
def test_prompt_can_fail(address: str, prompt: str, status: int) -> None:
    assert httpx.post(f"{address}/v1/responses", json={"input": prompt}).status_code == status


def test_unknown_paths_are_refused(address: str) -> None:
    assert httpx.post(f"{address}/v1/embeddings", json={}).status_code == 404


# --- the script and its events, without a server ---


def test_commands_set_the_pace() -> None:
    assert script.write("[slow]").pace_s == script.PACE_S * script.SLOW_FACTOR
    assert script.write("[silent]").silent_s == script.SILENT_S
    assert script.write("x [silent 5] [cut]").silent_s == 5
    assert script.write("[silent 9999]").silent_s == script.LONGEST_SILENCE_S


def test_input_is_counted_once() -> None:
    usage = script.write("x" * 4_000).usage
    assert usage.fresh + usage.cached + usage.written == usage.input == script.SYSTEM_PROMPT + 1_000


def test_prompt_is_found_everywhere() -> None:
    body = {
        "system": [{"type": "text", "text": "one"}],
        "messages": [{"content": "two"}, {"content": [{"type": "text", "text": "three"}, {"type": "image"}]}],
        "instructions": "zero",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "four"}]}],
    }
    assert script.prompt_of(body) == "zero one two three four"


def test_silence_is_in_the_middle() -> None:
    pauses = [pause for pause, _ in wire.messages_stream(script.write("[silent 7]"), MODEL, "i")]
    assert max(pauses) == 7 + script.PACE_S
    assert 0 < pauses.index(max(pauses)) < len(pauses) - 1


@pytest.mark.parametrize("ending", ["whole", "cut", "error"])
def test_streams_end_as_told(ending: str) -> None:
    told = replace(SCRIPT, cut=ending == "cut", error=ending == "error")
    last = {
        "chat": list(wire.chat_stream(told, MODEL, "i", include_usage=True))[-1][1],
        "responses": list(wire.responses_stream(told, MODEL, "i"))[-1][1],
        "messages": list(wire.messages_stream(told, MODEL, "i"))[-1][1],
    }
    wanted = {
        "whole": ("data: [DONE]", "event: response.completed", "event: message_stop"),
        "cut": ('data: {"id"', "event: response.output_text.delta", "event: content_block_delta"),
        "error": ('data: {"error"', "event: response.failed", "event: error"),
    }[ending]
    for event, beginning in zip(last.values(), wanted, strict=True):
        assert event.decode().startswith(beginning)


def test_sequence_numbers_have_no_gaps() -> None:
    events = [event.decode() for _, event in wire.responses_stream(SCRIPT, MODEL, "i")]
    numbers = [json.loads(event.partition("data: ")[2])["sequence_number"] for event in events]
    assert numbers == list(range(len(events)))
