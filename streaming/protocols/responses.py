"""Responses: POST /v1/responses, as OpenAI and its imitators speak it.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from billing.usage import INPUT_ABSENT, OUTPUT_PLACEHOLDER, ReportedUsage, TokenUsage
from streaming.protocols import counts, tokens
from streaming.protocols.answers import (
    compact,
    failed_answer,
    is_done,
    is_filler,
    openai_error_body,
    read_object,
    rename,
    told_error,
)
from streaming.protocols.meter import (
    Answer,
    BadRequest,
    Ended,
    GatewayError,
    InputContent,
    MeterOptions,
    ProviderError,
    RequestFacts,
    Verdict,
)
from streaming.protocols.provider_errors import read_error_body, read_error_object
from streaming.protocols.requests import read_body, splice_model, stored_objects, stream_of, text_of, token_limit
from streaming.protocols.spans import apply_edits
from streaming.protocols.sse import SSEEvent, data_edits

NAME, UPSTREAM_PATH = "responses", "responses"

# --- requests ---

_INPUT_ELSEWHERE = ("prompt", "previous_response_id", "conversation")
"""With one of these a request may leave `input` out."""


def read_request(raw: bytes) -> RequestFacts:
    """The facts of a request to /v1/responses."""
    body = read_body(raw, ("max_output_tokens",))
    if body.get("background") is True:
        message = "background responses are not offered: their usage could only be polled"
        raise BadRequest(message, param="background", code="unsupported_parameter")
    _check_input(body)
    return RequestFacts(
        model=body["model"],
        stream=stream_of(body),
        body=body,
        max_output=token_limit(body, ("max_output_tokens",)),
        service_tier=text_of(body, "service_tier"),
        stored=stored_objects(raw, body),
    )


def _check_input(body: Mapping[str, Any]) -> None:
    given = body.get("input")
    if not given and not any(body.get(field) for field in _INPUT_ELSEWHERE):
        raise BadRequest("input: a text or a list of items is required", param="input")
    if given is not None and not isinstance(given, str | list):
        raise BadRequest("input: must be a text or a list of items", param="input")


def prepare_request(raw: bytes, facts: RequestFacts, *, upstream_model: str | None, ask_usage: bool) -> bytes:
    """The client's bytes with the upstream's model name; usage comes unasked, so `ask_usage` changes nothing."""
    return splice_model(raw, upstream_model)


_INPUT_TEXTS = ("text", "refusal", "name", "arguments", "code", "diff")
_INPUT_CONTENTS = ("content", "summary", "output", "input", "results")


def input_content(body: Mapping[str, Any]) -> InputContent:
    """Instructions, input items and tools. Base64 is no text; what a stored object holds is not counted."""
    texts: list[str] = []
    images = _count_content(body.get("instructions"), texts) + _count_content(body.get("input"), texts)
    tools = body.get("tools")
    texts += [compact(tool).decode() for tool in tools] if isinstance(tools, list) else []
    schema = counts.inner(counts.inner(body, "text"), "format").get("schema")
    texts += [compact(schema).decode()] if schema else []
    return InputContent(texts, images)


def _count_content(content: object, texts: list[str]) -> int:
    """Append the texts of a content (a text, an item or part, or a list of them); the tokens of its images."""
    if isinstance(content, str):
        texts.append(content)
        return 0
    if isinstance(content, list):
        return sum(_count_content(part, texts) for part in content)
    return _count_part(content, texts) if isinstance(content, Mapping) else 0


def _count_part(part: Mapping[str, Any], texts: list[str]) -> int:
    if str(part.get("type")).endswith("image") or part.get("type") == "computer_screenshot":
        detail = part.get("detail")
        return tokens.image_tokens_openai(str(part.get("image_url") or ""), detail if isinstance(detail, str) else None)
    texts += [value for field in _INPUT_TEXTS if isinstance(value := part.get(field), str)]
    return sum(_count_content(part.get(field), texts) for field in _INPUT_CONTENTS)


# --- answers and errors ---


def read_answer(raw: bytes, options: MeterOptions) -> Answer:
    """A response object without streaming."""
    body = read_object(raw)
    if body is None:
        return failed_answer(raw, body)
    items = _items(body)
    produced = any(_is_output(item, done=True) for item in items)
    usage = read_usage(body, options, searches=sum(map(_is_search, items)), produced=produced)
    if _has_failed(body) or (not produced and (usage is None or usage.is_empty)):
        return replace(failed_answer(raw, body), usage=usage)
    edits = rename(raw, options.model, ("model",)) if options.rename_from else []
    return Answer(
        raw=apply_edits(raw, edits),
        ended="incomplete" if body.get("status") == "incomplete" else "complete",
        usage=usage,
        texts=[text for item in items for _, text in _item_texts(item) if text],
        object_ids=list(dict.fromkeys([*_ids(body), *(id for item in items for id in _container_ids(item))])),
    )


def _has_failed(response: Mapping[str, Any]) -> bool:
    error = response.get("error")
    told = any(error.values()) if isinstance(error, Mapping) else error
    return bool(told) or response.get("status") in ("failed", "cancelled")


def read_error(status: int, raw: bytes) -> ProviderError:
    """What an error answer means."""
    return read_error_body(status, raw)


def error_body(error: GatewayError, request_id: str) -> bytes:
    """An error of ours as the whole answer; the request's id is in the headers alone."""
    return openai_error_body(error)


# --- usage ---

_KNOWN_COUNTERS = {
    "input_tokens", "output_tokens", "total_tokens", "prompt_tokens", "completion_tokens",
    *(f"{holder}_tokens_details.{name}" for holder in ("input", "prompt") for name in (
        *counts.CACHE_DETAILS, "text_tokens", "image_tokens", "audio_tokens",
        "cache_write_tokens_details.ttl_30m_tokens")),
    *(f"{holder}_tokens_details.{name}" for holder in ("output", "completion") for name in (
        "reasoning_tokens", "text_tokens", "image_tokens", "audio_tokens", "accepted_prediction_tokens",
        "rejected_prediction_tokens")),
    "prompt_cache_miss_tokens", *counts.CACHE_COUNTERS, "reasoning_tokens",
    "server_tool_use", "server_tool_use_details", "server_side_tool_usage_details",
    "num_sources_used", "num_server_side_tools_used", "cost_in_usd_ticks", "context_details",
}  # fmt: skip
"""Counters that are read, that repeat one that is, or that are a sum of money (xAI's ticks)."""

_TOOL_COUNTERS = ("server_tool_use", "server_tool_use_details", "server_side_tool_usage_details")
"""Anthropic's spelling, OpenRouter's and xAI's."""


def read_usage(
    response: Mapping[str, Any], options: MeterOptions, *, searches: int, produced: bool
) -> ReportedUsage | None:
    """The usage of a response object; None where it holds no number. `searches`: web_search_call items seen."""
    usage = counts.inner(response, "usage")
    given = counts.first(usage.get("input_tokens"), usage.get("prompt_tokens"))
    output = counts.first(usage.get("output_tokens"), usage.get("completion_tokens"))
    if given is None and output is None:
        return None
    into = counts.inner(usage, "input_tokens_details") or counts.inner(usage, "prompt_tokens_details")
    out = counts.inner(usage, "output_tokens_details") or counts.inner(usage, "completion_tokens_details")
    read, written, hour = counts.cached(usage, into)
    reasoning = counts.first(out.get("reasoning_tokens"), usage.get("reasoning_tokens"))
    folded, flags = TokenUsage(
        input=(given or 0) - max(0, read) - max(0, written) - hour,
        cache_read=read,
        cache_write=written,
        cache_write_1h=hour,
        output=_whole_output(usage, given or 0, output or 0, reasoning or 0, options.reasoning_outside),
        reasoning=reasoning,
        server_tools=_server_tools(response, searches),
    ).checked()
    flags += (*counts.unknown_flags(usage, _KNOWN_COUNTERS), *counts.unknown_tools(usage, _TOOL_COUNTERS))
    tools = counts.inner(response, "tool_usage")
    counted = [f"tool_usage.{name}.num_requests" for name in tools]
    flags += tuple(counts.unknown_flags(tools, counted, "tool_usage."))
    flags += tuple(_absences(given, output, produced))
    return ReportedUsage(folded, str(response.get("service_tier") or ""), (), usage, flags)


def _whole_output(usage: Mapping[str, Any], given: int, output: int, reasoning: int, outside: bool) -> int:
    """The output with its reasoning: some count it outside, by the operator's word or as the provider's total shows."""
    if reasoning > 0 and (outside or counts.whole(usage.get("total_tokens")) == given + output + reasoning):
        return output + reasoning
    return output


def _absences(given: int | None, output: int | None, produced: bool) -> Iterator[str]:
    if output is None:
        yield OUTPUT_PLACEHOLDER
    elif produced and not output:
        yield counts.ZERO_WITH_OUTPUT
    if given is None:
        yield INPUT_ABSENT


def _server_tools(response: Mapping[str, Any], searches: int) -> dict[str, int]:
    """Requests by tool: what the response tells, web searches by its items where it tells nothing of them."""
    usage, told = counts.inner(response, "usage"), dict[str, int | None]()
    for counters in (counts.inner(usage, holder) for holder in _TOOL_COUNTERS):
        searched = (counts.whole(number) for name, number in counters.items() if name.startswith("web_search_"))
        told |= {"web_search": 0} if any(number is not None for number in searched) else {}
        told |= counts.server_tools(counters)
    for name, tool in counts.inner(response, "tool_usage").items():
        requests = counts.whole(counts.inner({"tool": tool}, "tool").get("num_requests"))
        told |= {name: requests} if requests is not None else {}
    told.setdefault("web_search", searches)
    return {name: number for name, number in told.items() if number}


# --- output items ---

_CALL = "_call"
_NAMED_CALLS = ("function_call", "custom_tool_call", "mcp_call", "mcp_approval_request", "program")
"""Functions and MCP tools are named by their item's `name`; the type of any other call is the tool's name itself."""

_ROUTERS_TOOL = "openrouter:"
"""How OpenRouter's own tools begin: `openrouter:web_search`."""

_CALL_TEXTS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
    "mcp_call": ("response.mcp_call_arguments", "arguments"),
    "mcp_approval_request": ("response.mcp_call_arguments", "arguments"),
    "program": ("response.program_code", "code"),
    "code_interpreter_call": ("response.code_interpreter_call_code", "code"),
}
"""Where an item of this type holds what its delta events spelled out: their type less ".delta", and the key."""


def _items(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    output = response.get("output")
    return [item for item in output if isinstance(item, Mapping)] if isinstance(output, list) else []


def _parts(item: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    parts = item.get(key)
    return [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []


def _item_texts(item: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The countable texts of an item, each with the type of the delta events that spell it out, less ".delta"."""
    kind = item.get("type")
    if kind == "message":
        for part in _parts(item, "content"):
            yield "response.output_text", _text(part, "text")
            yield "response.refusal", _text(part, "refusal")
    elif kind == "reasoning":
        for key in ("summary", "content"):
            yield from (("response.reasoning", _text(part, "text")) for part in _parts(item, key))
    elif _is_call(kind):
        yield "name", _text(item, "name")
        spelled, key = _CALL_TEXTS.get(str(kind), ("", ""))
        yield spelled, _text(item, key)
        commands = counts.inner(item, "action").get("commands")
        for command in commands if isinstance(commands, list) else ():
            yield "response.shell_call_command", str(command)
        yield "response.apply_patch_call_operation_diff", _text(counts.inner(item, "operation"), "diff")


def _is_call(kind: object) -> bool:
    return isinstance(kind, str) and (kind.endswith(_CALL) or kind.startswith(_ROUTERS_TOOL) or kind in _NAMED_CALLS)


def _text(holder: Mapping[str, Any], key: str) -> str:
    value = holder.get(key)
    return value if isinstance(value, str) else ""


def _is_output(item: Mapping[str, Any], *, done: bool) -> bool:
    """Whether an item is real output: any text, a tool's name, and once it is done hidden reasoning or an image."""
    kind = item.get("type")
    if any(text for _, text in _item_texts(item)):
        return True
    if _is_call(kind) and kind not in _NAMED_CALLS:
        return True
    return done and bool(item.get("encrypted_content") or item.get("result"))


def _is_search(item: Mapping[str, Any]) -> bool:
    """Whether an item is a web search; opening a page or looking within it is free.

    openai-python, types/responses/response.py, ToolUsage.
    """
    search = item.get("type") in ("web_search_call", _ROUTERS_TOOL + "web_search")
    return search and counts.inner(item, "action").get("type") in (None, "search")


def _ids(response: Mapping[str, Any]) -> list[str]:
    found = response.get("id")
    return [found] if isinstance(found, str) and found else []


def _container_ids(item: Mapping[str, Any]) -> list[str]:
    found = item.get("container_id") or counts.inner(item, "environment").get("container_id")
    return [found] if isinstance(found, str) and found else []


# --- streams ---

_TERMINALS: dict[str, Ended] = {
    "response.completed": "complete",
    "response.incomplete": "incomplete",
    "response.failed": "error",
}
_NO_TEXT = ("response.audio", "response.shell_call_output_content")
"""Deltas that are output, but no text of the model: base64, and what a tool printed."""

_DONE_TEXTS = ("text", "refusal", "arguments", "input", "code", "command", "diff", "transcript")
"""Where the `.done` events repeat what their deltas said."""

PATIENCE_S = 1.0
"""An `error` event waits this long for its `response.failed`."""

_ERROR_CODES = ("rate_limit_exceeded", "server_error", "invalid_prompt")


def _ended(kind: str, response: Mapping[str, Any]) -> Ended | None:
    """How the stream ended, if by this event: vLLM sends `response.completed` whatever the response's status."""
    ended = _TERMINALS.get(kind)
    if ended == "complete" and _has_failed(response):
        return "error"
    return "incomplete" if ended == "complete" and response.get("status") == "incomplete" else ended


class Meter:
    """Reads one stream from `response.created` to its terminal event."""

    def __init__(self, options: MeterOptions) -> None:
        self.produced = False
        self.text_only = True
        self.error: ProviderError | None = None
        self.patience_s: float | None = None
        self.object_ids: list[str] = []
        self._options = options
        self._response = b""
        self._usage: ReportedUsage | None = None
        self._sequence = -1
        self._searches: set[tuple[object, object]] = set()
        self._heard: set[tuple[str, object]] = set()
        self._texts: dict[tuple[str, object, object], list[str]] = {}

    def feed(self, event: SSEEvent) -> Verdict:
        body = read_object(event.data)
        if body is None:
            return self._without_object(event)
        sequence = body.get("sequence_number")
        if type(sequence) is int and sequence > self._sequence:
            self._sequence = sequence
        kind = body.get("type")
        if type(kind) is not str:
            kind = event.name
        if kind.endswith(".delta"):
            return self._delta(event, body, kind[:-6])
        if isinstance(body.get("response"), dict):
            return self._whole_response(event, body["response"], kind)
        if kind in _TERMINALS:  # Perplexity's error stands beside the type
            return self._whole_response(event, body, kind, bare=True)
        told = told_error(event, body) if not kind.startswith("response.") or event.name == "error" else None
        if told is not None or kind == "response.error":  # OpenRouter's
            return self._error(event, told or body)
        if kind.startswith("response.output_item."):
            return Verdict(event.raw, self._item(body, done=kind.endswith(".done")))
        if kind.endswith(".done"):
            return Verdict(event.raw, self._repeated(body, kind[:-5]))
        return Verdict(event.raw, self._produce(body.get("partial_image_b64")))

    def finish(self) -> Verdict:
        if self.error is None:
            return Verdict(b"", ended="cut")
        code = _code(self.error.status, self.error.code)
        return Verdict(self._failed_event(code, self.error.message), ended="error")

    def usage(self) -> ReportedUsage | None:
        if self._usage is not None or not self._searches:
            return self._usage
        searched = TokenUsage(server_tools={"web_search": len(self._searches)})
        return ReportedUsage(searched, flags=(OUTPUT_PLACEHOLDER, INPUT_ABSENT))

    def take_texts(self) -> dict[Any, str]:
        taken, self._texts = self._texts, {}
        return {key: "".join(pieces) for key, pieces in taken.items()}

    def error_event(self, error: GatewayError) -> bytes:
        return self._failed_event(_code(error.status, error.code), error.message)

    def _without_object(self, event: SSEEvent) -> Verdict:
        """`[DONE]` is no terminal here: after an `error` event it ends the wait, else the stream was cut."""
        if event.name == "error":
            return self._error(event, told_error(event, None))
        return self.finish() if is_done(event.data) else Verdict(event.raw)

    def _delta(self, event: SSEEvent, body: Mapping[str, Any], kind: str) -> Verdict:
        delta = body.get("delta")
        if type(delta) is not str:
            return Verdict(event.raw, self._produce(isinstance(delta, dict) and any(delta.values())))
        if not delta:
            return Verdict(event.raw)
        if kind == "response.output_text" and is_filler(delta):
            return Verdict(b"")
        self.produced = True
        if kind in _NO_TEXT:
            self.text_only = False
        else:
            self._hear(kind, body, delta)
        return Verdict(event.raw, True)

    def _hear(self, kind: str, body: Mapping[str, Any], text: str) -> None:
        """Keep new text for the count, by event type, item and part."""
        index, part = _index(body), body.get("content_index")
        if type(part) is not int:
            part = _place(body.get("summary_index"), body.get("command_index"))
        key = (kind, index, part)
        pieces = self._texts.get(key)
        if pieces is None:
            self._texts[key] = [text]
            self.text_only = self.text_only and kind == "response.output_text"
            self._heard.update((_family(kind), place) for place in _places(body))
        else:
            pieces.append(text)

    def _repeated(self, body: Mapping[str, Any], kind: str) -> bool:
        """A `.done` event: output as far as it holds text, counted where no delta came before it."""
        text = next((value for key in _DONE_TEXTS if isinstance(value := body.get(key), str) and value), "")
        if text and not self._was_heard(kind, body):
            self._hear(kind, body, text)
        return self._produce(text or counts.inner(body, "part").get("text"))

    def _was_heard(self, kind: str, body: Mapping[str, Any]) -> bool:
        """Whether the same text came before: by the item's place or its id, for SGLang tells another place when an item
        is done, and Copilot another id each time."""
        return any((_family(kind), place) in self._heard for place in _places(body))

    def _item(self, body: Mapping[str, Any], *, done: bool) -> bool:
        item = counts.inner(body, "item")
        self.text_only = self.text_only and item.get("type") == "message"
        place = {"output_index": body.get("output_index"), "item_id": item.get("id")}
        self._note_ids(_container_ids(item))
        if done and _is_search(item):
            self._searches.add((_place(body.get("output_index")), _place(item.get("id"))))
        told = [(kind, text) for kind, text in _item_texts(item) if text and (done or kind == "name")]
        for kind, text in [(kind, text) for kind, text in told if not self._was_heard(kind, place)]:
            self._hear(kind, place, text)
        return self._produce(_is_output(item, done=done))

    def _produce(self, sign: object) -> bool:
        """Note real output if there is any `sign` of it."""
        if sign:
            self.produced = True
        return bool(sign)

    def _whole_response(
        self, event: SSEEvent, response: Mapping[str, Any], kind: str, *, bare: bool = False
    ) -> Verdict:
        """An event that carries the response object: its id, its model's name, and at the end its usage.

        `bare`: it carries none; the event stands for it.
        """
        assert event.data is not None
        if not bare:
            self._response = event.data
            self._note_ids(_ids(response))
        ended = _ended(kind, response)
        items = _items(response) if ended else []
        output = self._final_output(items)
        searches = max(len(self._searches), sum(map(_is_search, items)))
        usage = read_usage(response, self._options, searches=searches, produced=self.produced)
        if usage and (ended or not usage.is_empty):  # a first event may hold zeros for what is not known yet
            self._usage = usage
        if ended == "error":
            self._note_error(response)
        raw = event.raw
        if self._options.rename_from:
            raw = data_edits(event, rename(event.data, self._options.model, ("response", "model")))
        return Verdict(raw, output, "error" if ended and self.error else ended)

    def _final_output(self, items: list[Mapping[str, Any]]) -> bool:
        """The output of a terminal event; its text counts where no other event held any."""
        silent = not self._heard
        for index, item in enumerate(items):
            self.text_only = self.text_only and item.get("type") == "message"
            self._note_ids(_container_ids(item))
            for kind, text in _item_texts(item) if silent else ():
                if text:
                    self._hear(kind, {"output_index": index}, text)
        return not self.produced and self._produce(any(_is_output(item, done=True) for item in items))

    def _note_ids(self, ids: list[str]) -> None:
        self.object_ids += [id for id in ids if id not in self.object_ids]

    def _error(self, event: SSEEvent, told: object) -> Verdict:
        """An `error` event, its error inside an object of that name or flat beside the type."""
        self._note_error(told)
        self.patience_s = PATIENCE_S
        return Verdict(event.raw)

    def _note_error(self, told: object) -> None:
        """Of an `error` event and its `response.failed`, the last that says what it means."""
        error = read_error_object(told)
        if self.error is None or error.status != 502:
            self.error = error

    def _failed_event(self, code: str, message: str) -> bytes:
        """`response.failed` with the whole response object as far as this stream told it."""
        told = counts.inner(read_object(self._response), "response")
        told = {
            key: value for key, value in told.items() if value not in (None, "") or _BLANK_RESPONSE.get(key) is None
        }
        model = self._options.model if self._options.rename_from else told.get("model") or self._options.model
        response = {
            **_BLANK_RESPONSE, "id": self._options.fallback_id, **told,
            "model": model, "status": "failed", "output": [], "usage": None,
            "error": {"code": code, "message": message},
        }  # fmt: skip
        event = {"type": "response.failed", "sequence_number": self._sequence + 1, "response": response}
        return b"event: response.failed\ndata: " + compact(event) + b"\n\n"


_BLANK_RESPONSE: dict[str, Any] = {
    "id": "", "object": "response", "created_at": 0, "status": "failed", "error": None, "incomplete_details": None,
    "instructions": None, "metadata": {}, "model": "", "output": [], "parallel_tool_calls": True, "temperature": None,
    "tool_choice": "auto", "tools": [], "top_p": None, "usage": None,
}  # fmt: skip
"""What the SDKs want of a response object that no event told us of."""


def _code(status: int, code: str) -> str:
    """The response's error code: one of three, whatever the error was called before."""
    if code in _ERROR_CODES:
        return code
    if status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if 400 <= status < 500 and status not in (401, 402, 403, 408) else "server_error"


def _family(kind: str) -> str:
    """The summary and the content of a reasoning are told by events of several names, and by its item; a call's
    arguments had another name at first: response.mcp_call.arguments."""
    return "reasoning" if kind.startswith("response.reasoning") else kind.replace("_call.", "_call_")


def _index(body: Mapping[str, Any]) -> object:
    """What tells an event's item from the others."""
    index = body.get("output_index")
    return index if type(index) is int else _place(body.get("item_id"))


def _places(body: Mapping[str, Any]) -> list[object]:
    """All that tells an event's item from the others."""
    found = (_place(body.get(key)) for key in ("output_index", "item_id"))
    return [place for place in found if place is not None] or [None]


def _place(*values: object) -> object:
    """The first of these that can stand in a key: a provider may send anything."""
    return next((value for value in values if type(value) in (int, str)), None)
