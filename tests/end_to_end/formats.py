"""The three wire formats as a provider speaks them: whole answers and streams as lists of events.

All three report the same use (`USED`), each in its own arithmetic.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

CHAT, RESPONSES, MESSAGES = "chat_completions", "responses", "messages"
PATHS = {CHAT: "/v1/chat/completions", RESPONSES: "/v1/responses", MESSAGES: "/v1/messages"}
FORMATS = {path: name for name, path in PATHS.items()}

USED = {"input": 10, "cache_read": 4, "cache_write": 0, "cache_write_1h": 0, "output": 52, "reasoning": 10}
COST = Decimal("0.001612")
"""Of USED at 5, 0.5 and 30 per million."""
ARGUMENTS = {"city": "Zürich", "days": 3}
WORDS = ("Der ", "Föhn ", "weht ", "über ", "die ", "Alpen", ". 🏔️")
TEXT = "".join(WORDS)
THOUGHT = ("First ", "the wind, ", "then the hills.")

CHAT_USAGE = {
    "prompt_tokens": 14,
    "completion_tokens": 52,
    "total_tokens": 66,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 10},
}
RESPONSES_USAGE = {
    "input_tokens": 14,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 52,
    "output_tokens_details": {"reasoning_tokens": 10},
    "total_tokens": 66,
}
MESSAGES_INPUT = {"input_tokens": 10, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0}
MESSAGES_OUTPUT = {"output_tokens": 52, "output_tokens_details": {"thinking_tokens": 10}}


def event(value: dict[str, Any], name: str | None = None) -> bytes:
    """One event of a stream."""
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def body(value: dict[str, Any]) -> bytes:
    """A whole answer's body, in a spelling of its own that nobody would make again."""
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


# --- Chat Completions ---


def chat_chunk(model: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
    head = {"id": "chatcmpl-7Hq", "object": "chat.completion.chunk", "created": 1790000000, "model": model}
    return event({**head, "choices": choices, **more})


def chat_delta(model: str, finish: str | None = None, **delta: Any) -> bytes:
    return chat_chunk(model, [{"index": 0, "delta": delta, "finish_reason": finish}])


def chat_end(model: str, usage: bool, finish: str = "stop") -> list[bytes]:
    last = [chat_chunk(model, [], usage=CHAT_USAGE)] if usage else []
    return [chat_delta(model, finish), *last, b"data: [DONE]\n\n"]


def chat_text(model: str, words: Sequence[str], usage: bool) -> list[bytes]:
    deltas = [chat_delta(model, content=word) for word in words]
    return [chat_delta(model, role="assistant", content=""), *deltas, *chat_end(model, usage)]


def chat_thinking(model: str, usage: bool) -> list[bytes]:
    thoughts = [chat_delta(model, reasoning_content=part) for part in THOUGHT]
    deltas = [chat_delta(model, content=word) for word in WORDS]
    return [chat_delta(model, role="assistant"), *thoughts, *deltas, *chat_end(model, usage)]


def _call(index: int, **function: str) -> dict[str, Any]:
    return {"index": index, "function": function}


def chat_tools(model: str, usage: bool) -> list[bytes]:
    """Two calls, whose arguments come in pieces."""
    events = [chat_delta(model, role="assistant", content=None)]
    for index in (0, 1):
        begin = {**_call(index, name="forecast", arguments=""), "id": f"call_{index}", "type": "function"}
        events.append(chat_delta(model, tool_calls=[begin]))
        for piece in pieces(json.dumps(ARGUMENTS)):
            events.append(chat_delta(model, tool_calls=[_call(index, arguments=piece)]))
    return [*events, *chat_end(model, usage, "tool_calls")]


def chat_whole(model: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": TEXT, "refusal": None}
    head = {"id": "chatcmpl-7Hq", "object": "chat.completion", "created": 1790000000, "model": model}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return {**head, "choices": [choice], "usage": CHAT_USAGE, "service_tier": "default"}


# --- Responses ---


class ResponsesStream:
    """Numbers the events of one stream."""

    def __init__(self, model: str) -> None:
        self._model, self._number = model, 0

    def event(self, kind: str, **fields: Any) -> bytes:
        value = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event(value, kind)

    def response(self, status: str, output: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        done = status == "completed"
        return {
            "id": "resp_7Hq", "object": "response", "created_at": 1790000000, "status": status, "model": self._model,
            "output": list(output), "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
            "parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "tools": [], "top_p": 1.0,
            "usage": RESPONSES_USAGE if done else None,
        }  # fmt: skip

    def begin(self) -> list[bytes]:
        names = ("response.created", "response.in_progress")
        return [self.event(name, response=self.response("in_progress")) for name in names]

    def message(self, place: int, words: Sequence[str]) -> list[bytes]:
        at = {"item_id": "msg_7Hq", "output_index": place, "content_index": 0}
        item, text = message_item(words), "".join(words)
        started = {**item, "status": "in_progress", "content": []}
        return [
            self.event("response.output_item.added", output_index=place, item=started),
            self.event("response.content_part.added", **at, part={**item["content"][0], "text": ""}),
            *(self.event("response.output_text.delta", **at, delta=word, logprobs=[]) for word in words),
            self.event("response.output_text.done", **at, text=text, logprobs=[]),
            self.event("response.content_part.done", **at, part=item["content"][0]),
            self.event("response.output_item.done", output_index=place, item=item),
        ]

    def thought(self, place: int) -> list[bytes]:
        at = {"item_id": "rs_7Hq", "output_index": place, "summary_index": 0}
        item, text = thought_item(), "".join(THOUGHT)
        name = "response.reasoning_summary"
        return [
            self.event("response.output_item.added", output_index=place, item={**item, "summary": []}),
            self.event(f"{name}_part.added", **at, part={"type": "summary_text", "text": ""}),
            *(self.event(f"{name}_text.delta", **at, delta=part) for part in THOUGHT),
            self.event(f"{name}_text.done", **at, text=text),
            self.event(f"{name}_part.done", **at, part=item["summary"][0]),
            self.event("response.output_item.done", output_index=place, item=item),
        ]

    def call(self, place: int) -> list[bytes]:
        item = call_item(place)
        at = {"item_id": item["id"], "output_index": place}
        name = "response.function_call_arguments"
        started = {**item, "arguments": "", "status": "in_progress"}
        return [
            self.event("response.output_item.added", output_index=place, item=started),
            *(self.event(f"{name}.delta", **at, delta=piece) for piece in pieces(item["arguments"])),
            self.event(f"{name}.done", **at, arguments=item["arguments"]),
            self.event("response.output_item.done", output_index=place, item=item),
        ]

    def end(self, output: Sequence[dict[str, Any]]) -> list[bytes]:
        return [self.event("response.completed", response=self.response("completed", output))]


def message_item(words: Sequence[str]) -> dict[str, Any]:
    part = {"type": "output_text", "text": "".join(words), "annotations": [], "logprobs": []}
    return {"id": "msg_7Hq", "type": "message", "status": "completed", "role": "assistant", "content": [part]}


def thought_item() -> dict[str, Any]:
    return {"id": "rs_7Hq", "type": "reasoning", "summary": [{"type": "summary_text", "text": "".join(THOUGHT)}]}


def call_item(place: int) -> dict[str, Any]:
    name = {"id": f"fc_{place}", "type": "function_call", "call_id": f"call_{place}", "name": "forecast"}
    return {**name, "arguments": json.dumps(ARGUMENTS), "status": "completed"}


def responses_text(model: str, words: Sequence[str]) -> list[bytes]:
    stream = ResponsesStream(model)
    return [*stream.begin(), *stream.message(0, words), *stream.end([message_item(words)])]


def responses_thinking(model: str) -> list[bytes]:
    stream = ResponsesStream(model)
    output = [thought_item(), message_item(WORDS)]
    return [*stream.begin(), *stream.thought(0), *stream.message(1, WORDS), *stream.end(output)]


def responses_tools(model: str) -> list[bytes]:
    stream = ResponsesStream(model)
    return [*stream.begin(), *stream.call(0), *stream.call(1), *stream.end([call_item(0), call_item(1)])]


def responses_whole(model: str) -> dict[str, Any]:
    return ResponsesStream(model).response("completed", [message_item(WORDS)])


# --- Messages ---


def named(value: dict[str, Any]) -> bytes:
    return event(value, value["type"])


def messages_begin(model: str) -> list[bytes]:
    message: dict[str, Any] = {
        "id": "msg_7Hq", "type": "message", "role": "assistant", "model": model, "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {**MESSAGES_INPUT, "output_tokens": 1, "service_tier": "standard"},
    }  # fmt: skip
    return [named({"type": "message_start", "message": message}), named({"type": "ping"})]


def messages_block(place: int, block: dict[str, Any], deltas: Sequence[dict[str, Any]]) -> list[bytes]:
    return [
        named({"type": "content_block_start", "index": place, "content_block": block}),
        *(named({"type": "content_block_delta", "index": place, "delta": delta}) for delta in deltas),
        named({"type": "content_block_stop", "index": place}),
    ]


def messages_end(stop: str = "end_turn") -> list[bytes]:
    delta = {"stop_reason": stop, "stop_sequence": None}
    return [named({"type": "message_delta", "delta": delta, "usage": MESSAGES_OUTPUT}), named({"type": "message_stop"})]


def text_block(place: int, words: Sequence[str]) -> list[bytes]:
    return messages_block(place, {"type": "text", "text": ""}, [{"type": "text_delta", "text": word} for word in words])


def messages_text(model: str, words: Sequence[str]) -> list[bytes]:
    return [*messages_begin(model), *text_block(0, words), *messages_end()]


def messages_thinking(model: str) -> list[bytes]:
    deltas = [{"type": "thinking_delta", "thinking": part} for part in THOUGHT]
    signed = [*deltas, {"type": "signature_delta", "signature": "c2lnbmVk"}]
    block = {"type": "thinking", "thinking": "", "signature": ""}
    return [*messages_begin(model), *messages_block(0, block, signed), *text_block(1, WORDS), *messages_end()]


def messages_tools(model: str) -> list[bytes]:
    events = messages_begin(model)
    for place in (0, 1):
        block = {"type": "tool_use", "id": f"toolu_{place}", "name": "forecast", "input": {}}
        parts = ["", *pieces(json.dumps(ARGUMENTS))]
        events += messages_block(place, block, [{"type": "input_json_delta", "partial_json": part} for part in parts])
    return [*events, *messages_end("tool_use")]


def messages_whole(model: str) -> dict[str, Any]:
    head = {"id": "msg_7Hq", "type": "message", "role": "assistant", "model": model}
    usage = {**MESSAGES_INPUT, **MESSAGES_OUTPUT, "service_tier": "standard"}
    content = [{"type": "text", "text": TEXT}]
    return {**head, "content": content, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}


# --- what all three have ---


def pieces(text: str, size: int = 5) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def text_stream(wire: str, model: str, words: Sequence[str] = WORDS, usage: bool = True) -> list[bytes]:
    """A stream of words; `usage` (Chat Completions): with its usage chunk."""
    if wire == CHAT:
        return chat_text(model, words, usage)
    return responses_text(model, words) if wire == RESPONSES else messages_text(model, words)


def thinking_stream(wire: str, model: str, usage: bool = True) -> list[bytes]:
    """A stream of reasoning and then words."""
    if wire == CHAT:
        return chat_thinking(model, usage)
    return responses_thinking(model) if wire == RESPONSES else messages_thinking(model)


def tools_stream(wire: str, model: str, usage: bool = True) -> list[bytes]:
    """A stream of two tool calls."""
    if wire == CHAT:
        return chat_tools(model, usage)
    return responses_tools(model) if wire == RESPONSES else messages_tools(model)


def whole(wire: str, model: str) -> bytes:
    """The words as a whole answer."""
    make = {CHAT: chat_whole, RESPONSES: responses_whole, MESSAGES: messages_whole}[wire]
    return body(make(model))


def request(wire: str, model: str, prompt: str, **more: Any) -> dict[str, Any]:
    """The least that a route takes."""
    if wire == RESPONSES:
        return {"model": model, "input": prompt, **more}
    limit = {"max_tokens": 500} if wire == MESSAGES else {}
    return {"model": model, **limit, "messages": [{"role": "user", "content": prompt}], **more}
