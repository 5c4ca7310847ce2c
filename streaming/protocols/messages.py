"""Messages: POST /v1/messages, as Anthropic and its imitators speak it.

https://platform.claude.com/docs/en/build-with-claude/streaming
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from billing.usage import INPUT_ABSENT, OUTPUT_PLACEHOLDER, Part, ReportedUsage, TokenUsage
from streaming.protocols import counts, spans, tokens
from streaming.protocols.answers import compact, failed_answer, is_done, is_filler, read_object, rename, told_error
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
    blocks = _blocks(body)
    produced = any(_is_output(block) for block in blocks)
    stop_reason = body.get("stop_reason")
    names = _names(options, body.get("model"))
    usage = folded.reported(names, declined=stop_reason == "refusal", produced=produced)
    if not produced and (usage is None or usage.is_empty):
        return failed_answer(raw, body)
    edits = _model_edits(raw, options, body.get("model"))
    return Answer(
        raw=apply_edits(raw, edits + _decline_edits(raw, options, body.get("model"), "content", "*")),
        ended=_ended(stop_reason),
        usage=usage,
        texts=[text for block in blocks for _, text in _block_texts(block) if text],
        object_ids=_container_ids(body),
    )


def read_count(raw: bytes, options: MeterOptions) -> Answer:
    """The answer of /v1/messages/count_tokens; one that counts nothing is none."""
    body = read_object(raw)
    if body is None or counts.whole(body.get("input_tokens")) is None:
        return failed_answer(raw, body)
    edits = rename(raw, options.model, ("model",)) if options.rename_from else []
    return Answer(apply_edits(raw, edits), "complete")


def read_error(status: int, raw: bytes) -> ProviderError:
    """What an error answer means."""
    return read_error_body(status, raw)


def error_body(error: GatewayError, request_id: str) -> bytes:
    """An error of ours as the whole answer."""
    return compact({**_error_object(error), "request_id": request_id})


def _error_object(error: GatewayError) -> dict[str, Any]:
    return {"type": "error", "error": {"type": error.anthropic_type, "message": error.message}}


def _names(options: MeterOptions, seen: object) -> tuple[object, ...]:
    """What the record's own model may be called; `seen`: by the answer itself."""
    return (options.model, options.rename_from or options.model, seen)


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []


def _container_ids(holder: object) -> list[str]:
    found = counts.inner(holder, "container").get("id")
    return [found] if isinstance(found, str) and found else []


# --- usage ---

_TOOL_COUNTERS = ("server_tool_use_details", "server_tool_use")
_KNOWN_COUNTERS = {
    "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens",
    "cache_creation.ephemeral_5m_input_tokens", "cache_creation.ephemeral_1h_input_tokens",
    "output_tokens_details.thinking_tokens", *_TOOL_COUNTERS,
}  # fmt: skip
_OWN_ENTRIES = ("message", "compaction")
_SAMPLED = (*_OWN_ENTRIES, "fallback_message")
_OTHERS = ("advisor_message", "fallback_message")
_DATED = re.compile(r"-\d{8}$")
"""The end of a snapshot's name: claude-haiku-4-5-20251001."""

_INCOMPLETE = ("max_tokens", "refusal", "model_context_window_exceeded")


def _ended(stop_reason: object) -> Ended:
    return "incomplete" if stop_reason in _INCOMPLETE else "complete"


class _FoldedUsage:
    """The usage of `message_start` and of every `message_delta`, folded field by field.

    Deltas are cumulative: the last value that is not null stands, but a zero never takes the place of a positive one
    (vendors send zeros for what they left out). `message_start` tells the input; its output count is a placeholder,
    and so are its `iterations`: they stand only until a delta tells the output.
    """

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.raw: dict[str, Any] = {}
        self.output_told = False
        self._placeholders: dict[str, Any] = {}

    def take(self, event: str, usage: object) -> None:
        """Fold in the usage of an event ("message_start", "message_delta") or of a whole answer ("message")."""
        if not isinstance(usage, Mapping):
            return
        self.raw[event] = usage
        if event == "message_start":
            self._placeholders = {key: usage[key] for key in ("output_tokens", "iterations") if key in usage}
            _merge(self.fields, {key: value for key, value in usage.items() if key not in self._placeholders})
            return
        told = counts.whole(usage.get("output_tokens")) is not None or bool(usage.get("iterations"))
        self.output_told = self.output_told or told
        if _moves_into_cache(self.fields, usage):
            self.fields["input_tokens"] = 0
        _merge(self.fields, usage)

    def reported(self, names: Sequence[object], *, declined: bool, produced: bool) -> ReportedUsage | None:
        """What was reported in all; `names` are those of the record's own model, `declined`: it ended in a refusal."""
        fields = self.fields if self.output_told else {**self._placeholders, **self.fields}
        told = [counts.whole(fields.get(key)) for key in ("input_tokens", "output_tokens")]
        if all(number is None for number in told) and not fields.get("iterations"):
            return None
        own, parts, served = _own_and_others(fields, names, declined)
        reasoning = counts.whole(counts.inner(fields, "output_tokens_details").get("thinking_tokens"))
        if served is not None:  # the thinking was its own
            parts[served] = replace(parts[served], usage=replace(parts[served].usage, reasoning=reasoning))
            reasoning = None
        own, flags = replace(own, reasoning=reasoning, server_tools=counts.tools_of(fields, _TOOL_COUNTERS)).checked()
        flags += (*counts.unknown_flags(fields, _KNOWN_COUNTERS), *counts.unknown_tools(fields, _TOOL_COUNTERS))
        flags += tuple(_unknown_entries(fields))
        flags += tuple(self._absences(own, produced and served is None))
        return ReportedUsage(own, self._tier(), tuple(parts), self.raw.get("message", self.raw), flags)

    def _absences(self, own: TokenUsage, produced: bool) -> Iterator[str]:
        if not self.output_told:
            yield OUTPUT_PLACEHOLDER
        elif produced and not own.output:
            yield counts.ZERO_WITH_OUTPUT
        absent = counts.whole(self.fields.get("input_tokens")) is None
        if not own.total_input and (absent or not self.output_told):  # vendors start with zeros, the delta tells
            yield INPUT_ABSENT

    def _tier(self) -> str:
        """The tier served. Fast mode has prices of its own but no tier name:
        https://platform.claude.com/docs/en/build-with-claude/fast-mode."""
        return "fast" if self.fields.get("speed") == "fast" else str(self.fields.get("service_tier") or "")


def _moves_into_cache(fields: Mapping[str, Any], usage: Mapping[str, Any]) -> bool:
    """Whether a delta's explicit zero moves the whole input into the cache.

    Kimi starts with all of it as `input_tokens`, and tells at the end what came from the cache.
    """
    cached = sum(counts.whole(usage.get(f"cache_{how}_input_tokens")) or 0 for how in ("read", "creation"))
    moved = usage.get("input_tokens") == 0 and 0 < cached == counts.whole(fields.get("input_tokens"))
    return moved and not fields.get("cache_read_input_tokens") and not fields.get("cache_creation_input_tokens")


def _merge(fields: dict[str, Any], usage: Mapping[str, Any]) -> None:
    for key, value in usage.items():
        if key == "cache_creation":  # a split is one thing: what moved from one part to the other is not in both
            if isinstance(value, Mapping) and (any(value.values()) or key not in fields):
                fields[key] = dict(value)
        elif isinstance(value, Mapping):
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


def _entries(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = fields.get("iterations")
    return [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []


def _own_and_others(
    fields: Mapping[str, Any], names: Sequence[object], declined: bool
) -> tuple[TokenUsage, list[Part], int | None]:
    """The record's own buckets, what other models did, and which of those is a fallback that served the turn.

    With `iterations[]` the own ones are the sums of its `message` and `compaction` entries: the totals beside it may or
    may not hold a compaction.
    """
    entries = _entries(fields)
    fallback = _served_fallback(entries, declined)
    others = [entry for entry in entries if entry.get("type") == "advisor_message" or entry is fallback]
    if fallback is not None:
        others += _declined_others(entries, names, fallback)
    parts = [Part(str(entry.get("model") or ""), _buckets(entry).checked()[0]) for entry in others]
    served = next((at for at, entry in enumerate(others) if entry is fallback), None)
    if not any(entry.get("type") in _SAMPLED and _counts_tokens(entry) for entry in entries):
        return _buckets(fields), parts, served
    own = [entry for entry in entries if entry.get("type") in _OWN_ENTRIES and not _is_among(entry, others)]
    return _with_split(_sum([_buckets(entry) for entry in own]), own, fields), parts, served


def _counts_tokens(entry: Mapping[str, Any]) -> bool:
    return any(counts.whole(entry.get(key)) is not None for key in ("input_tokens", "output_tokens"))


def _is_among(entry: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> bool:
    return any(entry is other for other in others)


def _declined_others(
    entries: Sequence[Mapping[str, Any]], names: Sequence[object], fallback: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """The `message` entries of models between the record's own, which was asked first, and the one that served."""
    asked = [entry for entry in entries if entry.get("type") == "message"]
    hops = [entry for entry in asked if not _is_named(entry, names) or entry.get("model") == fallback.get("model")]
    first_is_own = bool(asked) and asked[0].get("model") != fallback.get("model")
    return [entry for entry in hops if not (first_is_own and entry is asked[0])]


def _with_split(own: TokenUsage, entries: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> TokenUsage:
    """`own` with the split of its cache writes that stands beside `iterations[]`, where its entries have none."""
    unsplit = sum(_buckets(entry).cache_write for entry in entries if not counts.inner(entry, "cache_creation"))
    one_hour = max(0, _buckets(fields).cache_write_1h - own.cache_write_1h)
    moved = max(0, min(unsplit, one_hour))
    return replace(own, cache_write=own.cache_write - moved, cache_write_1h=own.cache_write_1h + moved)


def _unknown_entries(fields: Mapping[str, Any]) -> Iterator[str]:
    """A flag for each kind of iteration that counts tokens and that we do not know."""
    kinds = {str(entry.get("type")) for entry in _entries(fields) if any(_buckets(entry).buckets().values())}
    return (f"unknown:iterations.{kind}" for kind in sorted(kinds - {*_SAMPLED, *_OTHERS}))


def _served_fallback(entries: Sequence[Mapping[str, Any]], declined: bool) -> Mapping[str, Any] | None:
    """The `fallback_message` entry of another model that served the turn: the last one that sampled, with output.

    One that declined as well is not billed; declined hops before it are ordinary `message` entries.
    https://platform.claude.com/docs/en/build-with-claude/refusals-and-fallback
    """
    sampled = [entry for entry in entries if entry.get("type") in ("message", "fallback_message")]
    last = sampled[-1] if sampled else {}
    served = last.get("type") == "fallback_message" and not declined and counts.whole(last.get("output_tokens"))
    return last if served else None


def _is_named(entry: Mapping[str, Any], names: Sequence[object]) -> bool:
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


def _hidden_output(kind: str, delta: Mapping[str, Any]) -> object:
    """A sign in a delta without text that the model goes on: its hidden thinking is counted, or comes encrypted."""
    if kind == "thinking_delta":
        return counts.whole(delta.get("estimated_tokens"))
    return kind == "compaction_delta" and delta.get("encrypted_content")


def _model_edits(raw: bytes, options: MeterOptions, seen: object, *holder: str) -> list[Edit]:
    """Give the public name to the `model` of `holder`, to that model's iterations in it (`seen`: its name there), and
    where a refusal recommends it."""
    if options.rename_from is None:
        return []
    same = {options.rename_from, seen}
    edits = rename(raw, options.model, (*holder, "model"))
    entries = spans.find(raw, *holder, "usage", "iterations", "*")
    for entry in (raw[member.value_start : member.value_end] for member in entries):
        told = read_object(entry) or {}
        if told.get("type") in _OTHERS:
            same -= {told.get("model")} - {options.rename_from}
    edits += rename(raw, options.model, (*holder, "usage", "iterations", "*", "model"), same)
    for place in ((), ("delta",)):
        path = (*holder, *place, "stop_details", "recommended_model")
        edits += rename(raw, options.model, path, (options.rename_from,))
    return edits


def _decline_edits(raw: bytes, options: MeterOptions, seen: object, *block: str, first: bool = True) -> list[Edit]:
    """Give the public name to the model that declined, in the `fallback` blocks at `block`: by whatever name it goes in
    the `first` of an answer; later ones may name a model between."""
    if options.rename_from is None:
        return []
    path = (*block, "from", "model")
    edits = rename(raw, options.model, path)
    same = rename(raw, options.model, path, (options.rename_from, seen))
    return [edit for at, edit in enumerate(edits) if (first and at == 0) or edit in same]


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
        self._fell_back = False
        self._texts: dict[tuple[int, str], list[str]] = {}

    def feed(self, event: SSEEvent) -> Verdict:
        body = read_object(event.data)
        if event.name == "error":
            return self._failed(event, body)
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
        return Verdict(event.raw) if told_error(event, body) is None else self._failed(event, body)

    def finish(self) -> Verdict:
        return Verdict(b"", ended="cut")

    def usage(self) -> ReportedUsage | None:
        names, declined = _names(self._options, self._model), self._stop_reason == "refusal"
        return self._usage.reported(names, declined=declined, produced=self.produced)

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
            return Verdict(event.raw, self._produce(_hidden_output(kind, delta)))
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
        self._stop_reason = message.get("stop_reason")
        self._note_ids(_container_ids(message))
        output = False
        for at, block in enumerate(_blocks(message)):  # a turn that goes on may have all of its content here
            output = self._block(at, block) or output
        return Verdict(self._renamed(event, "message"), output)

    def _block_start(self, event: SSEEvent, body: Mapping[str, Any]) -> Verdict:
        block, raw = counts.inner(body, "content_block"), event.raw
        output = self._block(body.get("index"), block)
        if block.get("type") == "fallback":  # it names the model that declined and the one that goes on
            first, self._fell_back = not self._fell_back, True
            edits = _decline_edits(event.data or b"", self._options, self._model, "content_block", first=first)
            raw = data_edits(event, edits) if edits else raw
        return Verdict(raw, output)

    def _block(self, index: object, block: Mapping[str, Any]) -> bool:
        """A block as it starts or whole: keep its texts for the count; whether it is real output."""
        self.text_only = self.text_only and block.get("type") == "text"
        for kind, text in _block_texts(block):
            if text:
                self._hear(index, kind, text)
        return self._produce(_is_output(block))

    def _message_delta(self, event: SSEEvent, body: Mapping[str, Any]) -> Verdict:
        self._usage.take("message_delta", body.get("usage"))
        delta = counts.inner(body, "delta")
        self._stop_reason = delta.get("stop_reason") or self._stop_reason
        self._note_ids(_container_ids(delta))
        return Verdict(self._renamed(event))

    def _message_stop(self, event: SSEEvent, body: Mapping[str, Any]) -> Verdict:
        return Verdict(event.raw, ended=_ended(self._stop_reason))

    def _failed(self, event: SSEEvent, body: Mapping[str, Any] | None) -> Verdict:
        """The provider's error. The SDKs see it by its line alone, and take a stream without for a whole answer."""
        self.error = read_error_object(told_error(event, body))
        raw = event.raw
        if event.name != "error":
            lines = (event.data or b"").split(b"\n")
            raw = b"event: error\n" + (b"".join(b"data: %b\n" % line for line in lines) + b"\n" if event.name else raw)
        return Verdict(raw, ended="error")

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
