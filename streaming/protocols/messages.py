"""Messages: POST /v1/messages, as Anthropic and its imitators speak it.

https://platform.claude.com/docs/en/build-with-claude/streaming
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from billing.usage import INPUT_ABSENT, OUTPUT_PLACEHOLDER, Part, ReportedUsage, TokenUsage
from streaming.protocols import counts, tokens
from streaming.protocols.answers import compact, failed_answer, is_done, is_filler, read_object, rename
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
from streaming.protocols.spans import Edit, apply_edits
from streaming.protocols.sse import SSEEvent, data_edits

NAME, UPSTREAM_PATH = "messages", "messages"
COUNT_FACTOR_PPM = 1_100_000
"""Claude's tokenizer is not public: about so many of its tokens per million of o200k."""

# --- requests ---


def read_request(raw: bytes) -> RequestFacts:
    """The facts of a request to /v1/messages or /v1/messages/count_tokens."""
    body = read_body(raw, ("max_tokens",))
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: at least one message is required", param="messages")
    return RequestFacts(
        model=body["model"],
        stream=stream_of(body),
        body=body,
        max_output=token_limit(body, ("max_tokens",)),
        service_tier=text_of(body, "service_tier"),
        stored=stored_objects(raw, body),
    )


def prepare_request(raw: bytes, facts: RequestFacts, *, upstream_model: str | None, ask_usage: bool) -> bytes:
    """The client's bytes with the upstream's model name; usage comes unasked, so `ask_usage` changes nothing."""
    return splice_model(raw, upstream_model)


def input_content(body: Mapping[str, Any]) -> InputContent:
    """System prompt, messages and tools. Base64 is no text; a PDF's pages are not counted."""
    texts: list[str] = []
    images = _count_content(body.get("system"), texts)
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        images += _count_content(message.get("content") if isinstance(message, Mapping) else message, texts)
    tools = body.get("tools")
    texts += [compact(tool).decode() for tool in tools] if isinstance(tools, list) else []
    return InputContent(texts, images)


def _count_content(content: object, texts: list[str]) -> int:
    """Append the texts of a content (a text, or a list of blocks); the tokens of its images."""
    if isinstance(content, str):
        texts.append(content)
        return 0
    if isinstance(content, Mapping):
        return _count_block(content, texts)
    return sum(_count_content(block, texts) for block in content) if isinstance(content, list) else 0


def _count_block(block: Mapping[str, Any], texts: list[str]) -> int:
    kind, source = block.get("type"), counts.inner(block, "source")
    if kind == "image":
        return tokens.image_tokens_anthropic(source)
    if kind == "document" and source.get("type") == "text":
        texts.append(str(source.get("data") or ""))
    texts += [value for key in ("title", "text", "thinking", "name") if isinstance(value := block.get(key), str)]
    if isinstance(block.get("input"), Mapping):
        texts.append(compact(block["input"]).decode())
    return _count_content(block.get("content"), texts) + _count_content(source.get("content"), texts)


# --- answers and errors ---


def read_answer(raw: bytes, options: MeterOptions) -> Answer:
    """A message without streaming."""
    body = read_object(raw)
    if body is None or body.get("type") == "error" or isinstance(body.get("error"), Mapping):
        return failed_answer(raw, body)
    folded = _FoldedUsage()
    folded.take("message", body.get("usage"))
    content = body.get("content")
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    produced = any(_is_output(block) for block in blocks)
    stop_reason = body.get("stop_reason")
    usage = folded.reported(_names(options), declined=stop_reason == "refusal", produced=produced)
    if usage is None and not produced:
        return failed_answer(raw, body)
    return Answer(
        raw=apply_edits(raw, _model_edits(raw, options, body.get("model"))),
        ended=_ended(stop_reason),
        usage=usage,
        texts=[text for block in blocks for _, text in _block_texts(block) if text],
        object_ids=_container_ids(body),
    )


def read_error(status: int, raw: bytes) -> ProviderError:
    """What an error answer means."""
    return read_error_body(status, raw)


def error_body(error: GatewayError, request_id: str) -> bytes:
    """An error of ours as the whole answer."""
    return compact({**_error_object(error), "request_id": request_id})


def _error_object(error: GatewayError) -> dict[str, Any]:
    return {"type": "error", "error": {"type": error.anthropic_type, "message": error.message}}


def _names(options: MeterOptions) -> tuple[str, ...]:
    return (options.model, options.rename_from) if options.rename_from else (options.model,)


def _container_ids(holder: object) -> list[str]:
    found = counts.inner(holder, "container").get("id")
    return [found] if isinstance(found, str) and found else []


# --- usage ---

_KNOWN_COUNTERS = {
    "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens",
    "cache_creation.ephemeral_5m_input_tokens", "cache_creation.ephemeral_1h_input_tokens",
    "output_tokens_details.thinking_tokens", "server_tool_use",
}  # fmt: skip
_OWN_ENTRIES = ("message", "compaction")
_SAMPLED = (*_OWN_ENTRIES, "fallback_message")
_DATED = re.compile(r"-\d{8}$")
"""The end of a snapshot's name: claude-haiku-4-5-20251001."""

_INCOMPLETE = ("max_tokens", "refusal", "model_context_window_exceeded")


def _ended(stop_reason: object) -> Ended:
    return "incomplete" if stop_reason in _INCOMPLETE else "complete"


class _FoldedUsage:
    """The usage of `message_start` and of every `message_delta`, folded field by field.

    Deltas are cumulative: the last value that is not null stands, but a zero never takes the place of a positive one
    (vendors send zeros for what they left out). `message_start` tells the input; its output count is a placeholder.
    """

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.raw: dict[str, Any] = {}
        self.output_told = False

    def take(self, event: str, usage: object) -> None:
        """Fold in the usage of an event ("message_start", "message_delta") or of a whole answer ("message")."""
        if not isinstance(usage, Mapping):
            return
        self.raw[event] = usage
        _merge(self.fields, usage)
        told = counts.whole(usage.get("output_tokens")) is not None or bool(usage.get("iterations"))
        self.output_told = self.output_told or (told and event != "message_start")

    def reported(self, names: Sequence[str], *, declined: bool, produced: bool) -> ReportedUsage | None:
        """What was reported in all; `names` are those of the record's own model, `declined`: it ended in a refusal."""
        told = {key: counts.whole(self.fields.get(key)) for key in ("input_tokens", "output_tokens")}
        if all(number is None for number in told.values()) and not self.fields.get("iterations"):
            return None
        own, parts = _own_and_others(self.fields, names, declined)
        own, flags = replace(own, reasoning=self._reasoning(), server_tools=self._server_tools()).checked()
        unknown = counts.unknown_flags(self.fields, _KNOWN_COUNTERS)
        flags += (*unknown, *self._absences(own, produced))
        return ReportedUsage(own, self._tier(), tuple(parts), self.raw.get("message", self.raw), flags)

    def _absences(self, own: TokenUsage, produced: bool) -> Iterator[str]:
        if not self.output_told:
            yield OUTPUT_PLACEHOLDER
        elif produced and not own.output:
            yield counts.ZERO_WITH_OUTPUT
        absent = counts.whole(self.fields.get("input_tokens")) is None
        if not own.total_input and (absent or not self.output_told):  # vendors start with zeros, the delta tells
            yield INPUT_ABSENT

    def _reasoning(self) -> int | None:
        return counts.whole(counts.inner(self.fields, "output_tokens_details").get("thinking_tokens"))

    def _server_tools(self) -> dict[str, int]:
        return counts.server_tools(counts.inner(self.fields, "server_tool_use"))

    def _tier(self) -> str:
        """The tier served. Fast mode has prices of its own but no tier name:
        https://platform.claude.com/docs/en/build-with-claude/fast-mode."""
        return "fast" if self.fields.get("speed") == "fast" else str(self.fields.get("service_tier") or "")


def _merge(fields: dict[str, Any], usage: Mapping[str, Any]) -> None:
    for key, value in usage.items():
        if isinstance(value, Mapping):
            if not isinstance(fields.get(key), dict):
                fields[key] = {}
            _merge(fields[key], value)
        elif value is not None and not (value == 0 and fields.get(key)) and value != []:
            fields[key] = value


def _buckets(entry: Mapping[str, Any]) -> TokenUsage:
    """The five buckets of a usage object. What the 5m/1h split does not hold of a grown total is priced at 5m."""
    split = counts.inner(entry, "cache_creation")
    five_minutes = counts.whole(split.get("ephemeral_5m_input_tokens")) or 0
    one_hour = counts.whole(split.get("ephemeral_1h_input_tokens")) or 0
    written = counts.whole(entry.get("cache_creation_input_tokens")) or 0
    return TokenUsage(
        input=counts.whole(entry.get("input_tokens")) or 0,
        cache_read=counts.whole(entry.get("cache_read_input_tokens")) or 0,
        cache_write=max(five_minutes, written - one_hour) if split else written,
        cache_write_1h=one_hour,
        output=counts.whole(entry.get("output_tokens")) or 0,
    )


def _sum(usages: Sequence[TokenUsage]) -> TokenUsage:
    return TokenUsage(
        input=sum(usage.input for usage in usages),
        cache_read=sum(usage.cache_read for usage in usages),
        cache_write=sum(usage.cache_write for usage in usages),
        cache_write_1h=sum(usage.cache_write_1h for usage in usages),
        output=sum(usage.output for usage in usages),
    )


def _own_and_others(fields: Mapping[str, Any], names: Sequence[str], declined: bool) -> tuple[TokenUsage, list[Part]]:
    """The record's own buckets, and what other models did.

    With `iterations[]` the own ones are the sums of its `message` and `compaction` entries: the totals beside it may or
    may not hold a compaction.
    """
    listed = fields.get("iterations")
    entries = [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
    fallback = _served_fallback(entries, declined)
    others = [entry for entry in entries if entry.get("type") == "advisor_message" or entry is fallback]
    if fallback is not None:
        others += [entry for entry in entries if entry.get("type") == "message" and not _is_named(entry, names)]
    parts = [Part(str(entry.get("model") or ""), _buckets(entry).checked()[0]) for entry in others]
    if not any(entry.get("type") in _SAMPLED for entry in entries):
        return _buckets(fields), parts
    own = [entry for entry in entries if entry.get("type") in _OWN_ENTRIES and entry not in others]
    return _sum([_buckets(entry) for entry in own]), parts


def _served_fallback(entries: Sequence[Mapping[str, Any]], declined: bool) -> Mapping[str, Any] | None:
    """The `fallback_message` entry of another model that served the turn: the last one that sampled, with output.

    One that declined as well is not billed; declined hops before it are ordinary `message` entries.
    https://platform.claude.com/docs/en/build-with-claude/refusals-and-fallback
    """
    sampled = [entry for entry in entries if entry.get("type") in ("message", "fallback_message")]
    last = sampled[-1] if sampled else {}
    served = last.get("type") == "fallback_message" and not declined and counts.whole(last.get("output_tokens"))
    return last if served else None


def _is_named(entry: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether an entry is of the record's own model: it names none, or one of `names`, perhaps with a date behind."""
    model = entry.get("model")
    return not model or any(model == name or _DATED.sub("", str(model)) == name for name in names)


# --- streams ---

_DELTA_FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
    "compaction_delta": "content",
}
"""Where a delta holds what the model said; signatures and citations hold nothing of it."""


_TOOL_USES = ("tool_use", "server_tool_use", "mcp_tool_use")


def _is_output(block: Mapping[str, Any]) -> bool:
    """Whether a block, as it starts or whole, is real output: text, a tool's name or result, hidden reasoning."""
    kind = str(block.get("type"))
    if (delta := f"{kind}_delta") in _DELTA_FIELDS:
        return bool(block.get(_DELTA_FIELDS[delta]) or block.get("encrypted_content"))
    return kind in ("redacted_thinking", "container_upload") or kind.endswith(("tool_use", "tool_result"))


def _block_texts(block: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The countable texts of a block by the delta that goes on with them; a tool's results are not the model's."""
    kind = block.get("type")
    if kind in _TOOL_USES:
        yield "name", str(block.get("name") or "")
        if block.get("input"):
            yield "input_json_delta", compact(block["input"]).decode()
    elif (delta := f"{kind}_delta") in _DELTA_FIELDS:
        yield delta, str(block.get(_DELTA_FIELDS[delta]) or "")


def _model_edits(raw: bytes, options: MeterOptions, seen: object, *holder: str) -> list[Edit]:
    """Give the public name to the `model` of `holder` and to that model's iterations in it (`seen`: its name there)."""
    if options.rename_from is None:
        return []
    same = (options.rename_from, seen)
    iterations = rename(raw, options.model, (*holder, "usage", "iterations", "*", "model"), same)
    return rename(raw, options.model, (*holder, "model")) + iterations


class Meter:
    """Reads one stream from `message_start` to `message_stop`."""

    def __init__(self, options: MeterOptions) -> None:
        self.produced = False
        self.text_only = True
        self.error: ProviderError | None = None
        self.patience_s: float | None = None
        self.object_ids: list[str] = []
        self._options = options
        self._usage = _FoldedUsage()
        self._stop_reason: object = None
        self._model: object = None
        self._texts: dict[tuple[int, str], list[str]] = {}

    def feed(self, event: SSEEvent) -> Verdict:
        body = read_object(event.data)
        if body is None:
            return Verdict(b"", ended="cut") if is_done(event.data) else Verdict(event.raw)
        kind = body.get("type")
        if type(kind) is not str:
            kind = event.name
        if kind == "content_block_delta":
            return self._delta(event, body)
        read = self._READERS.get(kind)
        if read is not None:
            return read(self, event, body)
        if isinstance(body.get("error"), Mapping):
            return self._failed(event, body)
        return Verdict(event.raw)

    def finish(self) -> Verdict:
        return Verdict(b"", ended="cut")

    def usage(self) -> ReportedUsage | None:
        declined = self._stop_reason == "refusal"
        return self._usage.reported(_names(self._options), declined=declined, produced=self.produced)

    def take_texts(self) -> dict[Any, str]:
        taken, self._texts = self._texts, {}
        return {key: "".join(pieces) for key, pieces in taken.items()}

    def error_event(self, error: GatewayError) -> bytes:
        return b"event: error\ndata: " + compact(_error_object(error)) + b"\n\n"

    def _delta(self, event: SSEEvent, body: Mapping[str, Any]) -> Verdict:
        delta = body.get("delta")
        if not isinstance(delta, dict):
            return Verdict(event.raw)
        kind = str(delta.get("type"))
        text = delta.get(_DELTA_FIELDS.get(kind, ""))
        if not text or not isinstance(text, str):
            return Verdict(event.raw, kind == "compaction_delta" and self._produce(delta.get("encrypted_content")))
        if kind == "text_delta" and is_filler(text):
            return Verdict(b"")
        self.produced = True
        self._hear(body.get("index"), kind, text)
        return Verdict(event.raw, True)

    def _hear(self, index: object, kind: str, text: str) -> None:
        """Keep new text for the count, by content block."""
        key = (index if type(index) is int else 0, kind)
        pieces = self._texts.get(key)
        if pieces is None:
            self._texts[key] = [text]
            self.text_only = self.text_only and kind == "text_delta"
        else:
            pieces.append(text)

    def _produce(self, sign: object) -> bool:
        """Note real output if there is any `sign` of it."""
        if sign:
            self.produced = True
        return bool(sign)

    def _message_start(self, event: SSEEvent, body: Mapping[str, Any]) -> Verdict:
        message = counts.inner(body, "message")
        self._model = message.get("model")
        self._usage.take("message_start", message.get("usage"))
        self._note_ids(_container_ids(message))
        return Verdict(self._renamed(event, "message"))

    def _block_start(self, event: SSEEvent, body: Mapping[str, Any]) -> Verdict:
        block = counts.inner(body, "content_block")
        self.text_only = self.text_only and block.get("type") == "text"
        for kind, text in _block_texts(block):
            if text:
                self._hear(body.get("index"), kind, text)
        output = self._produce(_is_output(block))
        raw = event.raw
        if block.get("type") == "fallback":  # it names the model that declined and the one that goes on
            raw = self._renamed(event, "content_block", "from")
        return Verdict(raw, output)

    def _message_delta(self, event: SSEEvent, body: Mapping[str, Any]) -> Verdict:
        self._usage.take("message_delta", body.get("usage"))
        delta = counts.inner(body, "delta")
        self._stop_reason = delta.get("stop_reason") or self._stop_reason
        self._note_ids(_container_ids(delta))
        return Verdict(self._renamed(event))

    def _message_stop(self, event: SSEEvent, body: Mapping[str, Any]) -> Verdict:
        return Verdict(event.raw, ended=_ended(self._stop_reason))

    def _failed(self, event: SSEEvent, body: Mapping[str, Any]) -> Verdict:
        self.error = read_error_object(body)
        return Verdict(event.raw, ended="error")

    def _renamed(self, event: SSEEvent, *holder: str) -> bytes:
        edits = _model_edits(event.data or b"", self._options, self._model, *holder)
        return data_edits(event, edits) if edits else event.raw

    def _note_ids(self, ids: list[str]) -> None:
        self.object_ids += [id for id in ids if id not in self.object_ids]

    _READERS: Mapping[str, Callable[[Meter, SSEEvent, Mapping[str, Any]], Verdict]] = {
        "message_start": _message_start,
        "content_block_start": _block_start,
        "message_delta": _message_delta,
        "message_stop": _message_stop,
        "error": _failed,
    }
