"""A script in the three wire formats: as a stream of (seconds to wait, event), and as one body."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from hopbase_site.demo.script import BREAK_AFTER, FIRST_S, SILENT_AFTER, Script, Usage

Events = Iterator[tuple[float, bytes]]

OVERLOADED = "The model is overloaded right now, please try again"
SIGNATURE = "ZGVtbw=="


def _data(value: Mapping[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def _spoken(script: Script, error: bytes) -> Iterator[tuple[float, str | bytes]]:
    """The words with their pauses; a cut ends them early, an error is the last of them."""
    for position, word in enumerate(script.words):
        pause = script.pace_s + (script.silent_s if position == SILENT_AFTER else 0.0)
        if position == BREAK_AFTER and script.error:
            yield pause, error
        if position == BREAK_AFTER and (script.cut or script.error):
            return
        yield pause, word


def _whole(script: Script) -> bool:
    return not (script.cut or script.error)


# --- Chat Completions ---


def _chat_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.written},
        "completion_tokens_details": {"reasoning_tokens": usage.thought},
    }


def chat_stream(script: Script, model: str, identity: str, include_usage: bool) -> Events:
    base = {
        "id": f"chatcmpl-{identity}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
    }

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _data({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield FIRST_S, chunk({"role": "assistant", "content": ""})
    for thought in script.thoughts:
        yield script.pace_s, chunk({"reasoning_content": thought})
    error = _data({"error": {"message": OVERLOADED, "type": "server_error", "param": None, "code": "overloaded"}})
    for pause, word in _spoken(script, error):
        yield pause, word if isinstance(word, bytes) else chunk({"content": word})
    if _whole(script):
        yield 0, chunk({}, "stop")
        if include_usage:
            yield 0, _data({**base, "choices": [], "usage": _chat_usage(script.usage)})
        yield 0, b"data: [DONE]\n\n"


def chat_body(script: Script, model: str, identity: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": script.text, "reasoning_content": script.thought, "refusal": None}
    return {
        "id": f"chatcmpl-{identity}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": _chat_usage(script.usage),
    }


# --- Responses ---


def _responses_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.written},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.thought},
        "total_tokens": usage.input + usage.output,
    }


def _reasoning_item(identity: str, text: str) -> dict[str, Any]:
    return {"id": f"rs_{identity}", "type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def _message_item(identity: str, status: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"msg_{identity}", "type": "message", "status": status, "role": "assistant", "content": list(parts)}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _response(model: str, identity: str, status: str, **more: Any) -> dict[str, Any]:
    return {
        "id": f"resp_{identity}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
        **more,
    }


def responses_body(script: Script, model: str, identity: str) -> dict[str, Any]:
    output = [
        _reasoning_item(identity, script.thought),
        _message_item(identity, "completed", _text_part(script.text)),
    ]
    return _response(model, identity, "completed", output=output, usage=_responses_usage(script.usage))


def responses_stream(script: Script, model: str, identity: str) -> Events:
    """The events in OpenAI's order, numbered in sequence."""
    for sequence, (pause, name, fields) in enumerate(_responses_events(script, model, identity)):
        yield pause, _data({"type": name, "sequence_number": sequence, **fields}, name)


def _responses_events(script: Script, model: str, identity: str) -> Iterator[tuple[float, str, dict[str, Any]]]:
    running = {"response": _response(model, identity, "in_progress")}
    yield FIRST_S, "response.created", running
    yield 0, "response.in_progress", running
    yield from _reasoning_events(script, identity)
    yield from _message_events(script, identity)
    if script.error:
        failed = _response(model, identity, "failed", error={"code": "server_error", "message": OVERLOADED})
        yield 0, "response.failed", {"response": failed}
    elif not script.cut:
        yield 0, "response.completed", {"response": responses_body(script, model, identity)}


def _reasoning_events(script: Script, identity: str) -> Iterator[tuple[float, str, dict[str, Any]]]:
    where = {"item_id": f"rs_{identity}", "output_index": 0, "summary_index": 0}
    item = _reasoning_item(identity, script.thought)
    yield 0, "response.output_item.added", {"output_index": 0, "item": {**item, "summary": []}}
    yield 0, "response.reasoning_summary_part.added", {**where, "part": {"type": "summary_text", "text": ""}}
    for thought in script.thoughts:
        yield script.pace_s, "response.reasoning_summary_text.delta", {**where, "delta": thought}
    yield 0, "response.reasoning_summary_text.done", {**where, "text": script.thought}
    yield 0, "response.reasoning_summary_part.done", {**where, "part": item["summary"][0]}
    yield 0, "response.output_item.done", {"output_index": 0, "item": item}


def _message_events(script: Script, identity: str) -> Iterator[tuple[float, str, dict[str, Any]]]:
    where = {"item_id": f"msg_{identity}", "output_index": 1, "content_index": 0}
    added = {"output_index": 1, "item": _message_item(identity, "in_progress")}
    yield 0, "response.output_item.added", added
    yield 0, "response.content_part.added", {**where, "part": _text_part("")}
    for pause, word in _spoken(script, b""):
        if isinstance(word, str):
            yield pause, "response.output_text.delta", {**where, "delta": word, "logprobs": []}
    if _whole(script):
        part = _text_part(script.text)
        yield 0, "response.output_text.done", {**where, "text": script.text, "logprobs": []}
        yield 0, "response.content_part.done", {**where, "part": part}
        done = {"output_index": 1, "item": _message_item(identity, "completed", part)}
        yield 0, "response.output_item.done", done


# --- Messages ---


def _messages_usage(usage: Usage, output: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.fresh,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": usage.written,
        "cache_creation": {"ephemeral_5m_input_tokens": usage.written, "ephemeral_1h_input_tokens": 0},
        "output_tokens": output,
        "service_tier": "standard",
    }


def _final_usage(usage: Usage) -> dict[str, Any]:
    return {**_messages_usage(usage, usage.output), "output_tokens_details": {"thinking_tokens": usage.thought}}


def messages_body(script: Script, model: str, identity: str) -> dict[str, Any]:
    content = [
        {"type": "thinking", "thinking": script.thought, "signature": SIGNATURE},
        {"type": "text", "text": script.text},
    ]
    ended = {"stop_reason": "end_turn", "stop_sequence": None, "usage": _final_usage(script.usage)}
    return {
        "id": f"msg_{identity}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **ended,
    }


def messages_stream(script: Script, model: str, identity: str) -> Events:
    for pause, name, fields in _messages_events(script, model, identity):
        yield pause, _data({"type": name, **fields}, name)


def _messages_events(script: Script, model: str, identity: str) -> Iterator[tuple[float, str, dict[str, Any]]]:
    started = {**messages_body(script, model, identity), "content": [], "stop_reason": None}
    yield FIRST_S, "message_start", {"message": {**started, "usage": _messages_usage(script.usage, 1)}}
    yield 0, "ping", {}
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    yield 0, "content_block_start", {"index": 0, "content_block": thinking}
    for thought in script.thoughts:
        yield script.pace_s, "content_block_delta", _delta(0, type="thinking_delta", thinking=thought)
    yield 0, "content_block_delta", _delta(0, type="signature_delta", signature=SIGNATURE)
    yield 0, "content_block_stop", {"index": 0}
    yield 0, "content_block_start", {"index": 1, "content_block": {"type": "text", "text": ""}}
    for pause, word in _spoken(script, b""):
        if isinstance(word, str):
            yield pause, "content_block_delta", _delta(1, type="text_delta", text=word)
    if script.error:
        yield 0, "error", {"error": {"type": "overloaded_error", "message": OVERLOADED}}
    elif not script.cut:
        yield 0, "content_block_stop", {"index": 1}
        ended = {"stop_reason": "end_turn", "stop_sequence": None}
        yield 0, "message_delta", {"delta": ended, "usage": _final_usage(script.usage)}
        yield 0, "message_stop", {}


def _delta(index: int, **fields: str) -> dict[str, Any]:
    return {"index": index, "delta": fields}
