"""Silence: keepalives flow between events, and no SDK takes notice of them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai

from tests.end_to_end.formats import PATHS, TEXT, request, text_stream
from tests.end_to_end.product import KEEPALIVE, Gateway
from tests.end_to_end.raw import RawClient
from tests.end_to_end.scenes import SILENCE_BEFORE_HEADERS_S, SILENCE_S

PROMPT: list[Any] = [{"role": "user", "content": "hush"}]


def chat(client: openai.OpenAI) -> str:
    chunks = client.chat.completions.create(model="quiet", messages=PROMPT, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def chat_helper(client: openai.OpenAI) -> str | None:
    with client.chat.completions.stream(model="quiet", messages=PROMPT) as stream:
        return stream.get_final_completion().choices[0].message.content


def responses(client: openai.OpenAI) -> str:
    events = client.responses.create(model="quiet", input="hush", stream=True)
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def responses_helper(client: openai.OpenAI) -> str:
    with client.responses.stream(model="quiet", input="hush") as stream:
        return stream.get_final_response().output_text


def messages(client: anthropic.Anthropic) -> str:
    events = client.messages.create(model="quiet", max_tokens=9, messages=PROMPT, stream=True)
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    return "".join(delta.text for delta in deltas if delta.type == "text_delta")


def messages_helper(client: anthropic.Anthropic) -> str:
    with client.messages.stream(model="quiet", max_tokens=9, messages=PROMPT) as stream:
        return stream.get_final_text()


def test_silence_disturbs_no_client(
    gateway: Gateway, key: str, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
) -> None:
    """All at once, since each of them takes as long as the silence does."""
    sdks: list[tuple[Callable[[Any], str | None], Any]] = [
        *((call, openai_client) for call in (chat, chat_helper, responses, responses_helper)),
        *((call, anthropic_client) for call in (messages, messages_helper)),
    ]
    with ThreadPoolExecutor(len(sdks) + len(PATHS)) as pool:
        bare = [pool.submit(read_quietly, gateway, key, wire) for wire in PATHS]
        spoken = {call.__name__: pool.submit(call, client) for call, client in sdks}
        assert {name: text.result() for name, text in spoken.items()} == dict.fromkeys(spoken, TEXT)
        for read in bare:
            read.result()


def read_quietly(gateway: Gateway, key: str, wire: str) -> None:
    """The bytes, less keepalives, are the provider's; the keepalives came in the silence, between events."""
    with RawClient(gateway, wire, key, request(wire, "quiet", "hush", stream=True)) as client:
        body = client.read_all()
    assert body.replace(KEEPALIVE, b"") == b"".join(text_stream(wire, "quiet", usage=False))
    before, _, after = body.partition(text_stream(wire, "quiet")[0])
    assert 1 <= before.count(KEEPALIVE) <= SILENCE_BEFORE_HEADERS_S / 1 + 1
    assert 1 <= after.count(KEEPALIVE) <= SILENCE_S / 1 + 1
    assert all(data.endswith(b"\n\n") for _, data in client.arrivals)
    first, *_ = client.arrivals
    assert first[1] == KEEPALIVE
