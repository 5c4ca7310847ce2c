"""Programs that try a new key, ready to be pasted: curl, and the official SDKs in Python and Node. Pure.

The OpenAI SDKs take the base URL with /v1, the Anthropic ones without it: they add the whole path themselves.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

GREETING = "Hello"
CHAT, RESPONSES, MESSAGES = "chat_completions", "responses", "messages"
NO_MODEL = "MODEL"
"""Stands where no model is offered yet."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """`name` is for HTML's ids; `title` names products, and so is the same in every language."""

    name: str
    title: str
    text: str


def snippets(
    base_url: str, secret: str, offer: Mapping[str, Collection[str]], allowed: Collection[str] | None
) -> list[Snippet]:
    """Those that work for a key: each with a model that it may use and that can be asked in the SDK's wire format.

    `offer`: public model -> wire formats; `allowed` None: all models.
    """
    kinds: tuple[tuple[str, str, str, Callable[[str, str, str], str]], ...] = (
        ("curl", "curl", CHAT, _curl),
        ("python-openai", "Python · openai", CHAT, _python_openai),
        ("python-responses", "Python · openai (Responses)", RESPONSES, _python_responses),
        ("python-anthropic", "Python · anthropic", MESSAGES, _python_anthropic),
        ("node-openai", "Node · openai", CHAT, _node_openai),
        ("node-anthropic", "Node · @anthropic-ai/sdk", MESSAGES, _node_anthropic),
    )
    usable = {model: formats for model, formats in offer.items() if allowed is None or model in allowed}
    found = [
        Snippet(name, title, write(base_url.rstrip("/"), secret, model))
        for name, title, wire_format, write in kinds
        if (model := _model(usable, wire_format))
    ]
    if found:
        return found
    return [Snippet("curl", "curl", _curl(base_url.rstrip("/"), secret, next(iter(sorted(allowed or ())), NO_MODEL)))]


def _model(usable: Mapping[str, Collection[str]], wire_format: str) -> str | None:
    return next((model for model, formats in usable.items() if wire_format in formats), None)


def _text(value: Any) -> str:
    """A literal that reads the same in JSON, Python and JavaScript."""
    return json.dumps(value, ensure_ascii=False)


def _curl(base_url: str, secret: str, model: str) -> str:
    body = _text({"model": model, "stream": True, "messages": [{"role": "user", "content": GREETING}]})
    return (
        f"curl -N {shlex.quote(f'{base_url}/v1/chat/completions')} \\\n"
        f"  -H {shlex.quote(f'Authorization: Bearer {secret}')} \\\n"
        f"  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(body)}"
    )


def _python_openai(base_url: str, secret: str, model: str) -> str:
    return f"""from openai import OpenAI

client = OpenAI(
    base_url={_text(f"{base_url}/v1")},
    api_key={_text(secret)},
)
stream = client.chat.completions.create(
    model={_text(model)},
    messages=[{{"role": "user", "content": {_text(GREETING)}}}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
"""


def _python_responses(base_url: str, secret: str, model: str) -> str:
    return f"""from openai import OpenAI

client = OpenAI(
    base_url={_text(f"{base_url}/v1")},
    api_key={_text(secret)},
)
stream = client.responses.create(
    model={_text(model)},
    input={_text(GREETING)},
    stream=True,
)
for event in stream:
    if event.type == "response.output_text.delta":
        print(event.delta, end="", flush=True)
"""


def _python_anthropic(base_url: str, secret: str, model: str) -> str:
    return f"""from anthropic import Anthropic

client = Anthropic(
    base_url={_text(base_url)},
    api_key={_text(secret)},
)
with client.messages.stream(
    model={_text(model)},
    max_tokens=1024,
    messages=[{{"role": "user", "content": {_text(GREETING)}}}],
) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
"""


def _node_openai(base_url: str, secret: str, model: str) -> str:
    return f"""import OpenAI from "openai";

const client = new OpenAI({{
  baseURL: {_text(f"{base_url}/v1")},
  apiKey: {_text(secret)},
}});
const stream = await client.chat.completions.create({{
  model: {_text(model)},
  messages: [{{ role: "user", content: {_text(GREETING)} }}],
  stream: true,
}});
for await (const chunk of stream) {{
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}}
"""


def _node_anthropic(base_url: str, secret: str, model: str) -> str:
    return f"""import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({{
  baseURL: {_text(base_url)},
  apiKey: {_text(secret)},
}});
const stream = client.messages.stream({{
  model: {_text(model)},
  max_tokens: 1024,
  messages: [{{ role: "user", content: {_text(GREETING)} }}],
}});
for await (const event of stream) {{
  if (event.type === "content_block_delta" && event.delta.type === "text_delta") {{
    process.stdout.write(event.delta.text);
  }}
}}
"""
