"""Chat Completions: POST /v1/chat/completions, as OpenAI and its many imitators speak it.

https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from billing.usage import INPUT_ABSENT, OUTPUT_PLACEHOLDER, ReportedUsage, TokenUsage
from streaming.protocols import counts, requests, spans, tokens
from streaming.protocols.answers import (
    compact,
    failed_answer,
    is_done,
    is_filler,
    openai_error,
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
from streaming.protocols.sse import SSEEvent, data_edits

NAME, UPSTREAM_PATH = "chat_completions", "chat/completions"

DONE = b"data: [DONE]\n\n"

# --- usage ---

_TOOL_COUNTERS = ("server_tool_use_details", "server_tool_use", "server_side_tool_usage_details")
"""Perplexity and others, OpenRouter, xAI."""

_KNOWN_COUNTERS = frozenset({
    "prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens",
    "prompt_cache_miss_tokens", "reasoning_tokens", *counts.CACHE_COUNTERS,
    *("prompt_tokens_details." + name for name in (
        *counts.CACHE_DETAILS, "text_tokens", "audio_tokens", "image_tokens", "video_tokens")),
    *("completion_tokens_details." + name for name in (
        "reasoning_tokens", "text_tokens", "audio_tokens", "image_tokens", "accepted_prediction_tokens",
        "rejected_prediction_tokens")),
    "input_tokens_details", "output_tokens_details",  # the same again, in the spelling of Responses
    "cost", "cost_details", "cost_in_usd_ticks",  # what the provider charges us
    *_TOOL_COUNTERS,
})  # fmt: skip


def read_usage(usage: Mapping[str, Any], options: MeterOptions, *, tier: str, produced: bool) -> ReportedUsage | None:
    """The buckets of a usage object; None when it counts neither input nor output.

    `prompt_tokens` holds what was read from the cache and written to it (GPT-5.6 bills writes);
    `completion_tokens` holds reasoning, audio and predictions, but see `_is_outside`. Totals are not trusted.
    """
    prompt, completion = _totals(usage)
    if prompt is None and completion is None:
        return None
    given = counts.inner(usage, "prompt_tokens_details") or counts.inner(usage, "input_tokens_details")
    read, written, hour = counts.cached(usage, given)
    made = counts.inner(usage, "completion_tokens_details") or counts.inner(usage, "output_tokens_details")
    reasoning = counts.first(made.get("reasoning_tokens"), usage.get("reasoning_tokens"))
    output = completion or 0
    if reasoning and _is_outside(reasoning, prompt or 0, output, usage, options):
        output += reasoning
    tools = counts.tools_of(usage, _TOOL_COUNTERS)
    fresh = (prompt or 0) - max(0, read) - max(0, written) - hour
    checked, flags = TokenUsage(fresh, read, written, hour, output, reasoning, tools).checked()
    flags += (*counts.unknown_flags(usage, _KNOWN_COUNTERS), *counts.unknown_tools(usage, _TOOL_COUNTERS))
    flags += (INPUT_ABSENT,) if prompt is None else ()
    flags += (OUTPUT_PLACEHOLDER,) if completion is None else ()
    flags += (counts.ZERO_WITH_OUTPUT,) if completion == 0 and not output and produced else ()
    return ReportedUsage(checked, _text(usage.get("service_tier")) or tier, raw=usage, flags=flags)


def _totals(usage: Mapping[str, Any]) -> tuple[int | None, int | None]:
    return (
        counts.first(usage.get("prompt_tokens"), usage.get("input_tokens")),
        counts.first(usage.get("completion_tokens"), usage.get("output_tokens")),
    )


def _is_outside(reasoning: int, prompt: int, output: int, usage: Mapping[str, Any], options: MeterOptions) -> bool:
    """Whether the output count leaves reasoning out: xAI does so, and Gemini behind several proxies.

    A total that holds it besides proves it; without a total, so does more reasoning than output.
    """
    total = counts.whole(usage.get("total_tokens"))
    if options.reasoning_outside:
        return True
    return reasoning > output if total is None else total == prompt + output + reasoning


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


# --- requests ---

_LIMITS = ("max_completion_tokens", "max_tokens")


def read_request(raw: bytes) -> RequestFacts:
    """The facts of a request to /v1/chat/completions."""
    body = requests.read_body(raw, _LIMITS)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("`messages` is missing or empty; send a list of at least one message.", param="messages")
    asked = body.get("stream_options")
    if asked is not None and not isinstance(asked, dict):
        raise BadRequest("`stream_options` is not an object; send one or leave it out.", param="stream_options")
    stream = requests.stream_of(body)
    return RequestFacts(
        model=body["model"],
        stream=stream,
        body=body,
        max_output=requests.token_limit(body, _LIMITS),
        choices=max(1, counts.whole(body.get("n")) or 1),
        include_usage=counts.inner(body, "stream_options").get("include_usage") is True,
        usage_is_ours_to_ask=stream and counts.inner(body, "stream_options").keys() <= {"include_usage"},
        service_tier=requests.text_of(body, "service_tier"),
        stored=requests.stored_objects(raw, body),
    )


def prepare_request(raw: bytes, facts: RequestFacts, *, upstream_model: str | None, ask_usage: bool) -> bytes:
    """The bytes for the provider: the client's, with the upstream's model name, and usage asked of a stream.

    `ask_usage` False: the provider is known to refuse `stream_options`, so a stream goes without.
    """
    edits = [] if upstream_model is None else requests.model_edits(raw, upstream_model)
    if facts.stream:
        edits += _asking(raw, facts.body) if ask_usage else _not_asking(raw)
    return spans.apply_edits(raw, edits) if edits else raw


def _asking(raw: bytes, body: Mapping[str, Any]) -> list[spans.Edit]:
    """The edits that make `stream_options.include_usage` true."""
    if "stream_options" not in body:
        end = raw.rindex(b"}")
        return [(end, end, b',"stream_options":{"include_usage":true}')]
    (options,) = requests.locate(raw, "stream_options")
    if body["stream_options"] is None:
        return [(options.value_start, options.value_end, b'{"include_usage":true}')]
    inside = spans.members(raw, options.value_start)
    told = [member for member in inside if member.key == "include_usage"]
    if not told:
        begin = options.value_start + 1
        return [(begin, begin, b'"include_usage":true' + (b"," if inside else b""))]
    return [(member.value_start, member.value_end, b"true") for member in told]


def _not_asking(raw: bytes) -> list[spans.Edit]:
    top = spans.members(raw)
    return spans.removals(raw, top, [at for at, member in enumerate(top) if member.key == "stream_options"])


def input_content(body: Mapping[str, Any]) -> InputContent:
    """Messages, tools and the answer's schema. Base64 is no text; sound and files are not counted."""
    texts: list[str] = []
    images = 0
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, Mapping):
            images += _count_content(message.get("content"), texts)
            texts += (text for _, text in _message_texts(message) if text)
    for field in ("tools", "functions", "response_format"):
        if body.get(field):
            texts.append(compact(body[field]).decode())
    return InputContent(texts, images)


def _count_content(content: object, texts: list[str]) -> int:
    """Append the texts of a message's parts (a plain text comes with `_message_texts`); the tokens of its images."""
    images = 0
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and "image_url" in part:
            image = part["image_url"]
            url = image.get("url") if isinstance(image, Mapping) else image
            images += tokens.image_tokens_openai(
                _text(url), _text(counts.inner(part, "image_url").get("detail")) or None
            )
    return images


# --- what a message or a delta holds ---

_TEXTS = {
    "content": "content",
    "refusal": "refusal",
    "reasoning_content": "reasoning",  # DeepSeek, xAI, Qwen
    "reasoning": "reasoning",  # OpenRouter, Groq
    "reasoning_text": "reasoning",  # Copilot
    "cot_summary": "reasoning",  # Copilot
    "thinking": "reasoning",
    "thinking_blocks": "reasoning",  # LiteLLM
    "reasoning_details": "reasoning",  # OpenRouter
    "reasoning_steps": "reasoning",  # Perplexity
}

Key = tuple[int, str, int]
"""Choice, kind (content, reasoning, refusal, tool, audio) and the tool call's index (else 0)."""


def _pieces(index: int, delta: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """The output in a delta or message of choice `index`, with "" for output that is no text (an image, sound).

    Reasoning comes in two spellings at once from OpenRouter and others, and is one piece.
    """
    reasoned = False
    for name, value in delta.items():
        kind = _TEXTS.get(name, "")
        if not value or (kind == "reasoning" and reasoned):
            continue
        if kind:
            for part_kind, text in _parts(kind, value):
                reasoned = reasoned or part_kind == "reasoning"
                yield (index, part_kind, 0), text
        elif name == "tool_calls" and isinstance(value, list):
            for position, call in enumerate(value):
                yield from _call_pieces(index, position, call)
        elif name == "function_call":
            yield from _call_pieces(index, 0, {"function": value})
        elif name == "audio" and isinstance(value, Mapping) and (value.get("data") or value.get("transcript")):
            yield (index, "audio", 0), _text(value.get("transcript"))
        elif name == "images":
            yield (index, "image", 0), ""


def _parts(kind: str, value: object) -> Iterator[tuple[str, str]]:
    """The texts of a content: a string, or parts in parts, as Mistral sends its thinking."""
    if isinstance(value, str):
        if value:
            yield kind, value
    elif isinstance(value, list):
        for part in value:
            yield from _parts(kind, part)
    elif isinstance(value, Mapping):
        if value.get("thinking"):
            yield from _parts("reasoning", value["thinking"])
        if value.get("type") == "reasoning":  # Databricks
            kind = "reasoning"
        texts = [text for name in ("text", "refusal", "summary", "content", "thought") if (text := value.get(name))]
        for text in texts:
            yield from _parts(kind, text)
        if not texts and (value.get("data") or value.get("image_url")):
            yield kind, ""


def _call_pieces(index: int, position: int, call: object) -> Iterator[tuple[Key, str]]:
    """A tool call's name and arguments, of a function or a custom tool; Ollama's arguments are an object."""
    if not isinstance(call, Mapping):
        return
    number = call.get("index")
    key = (index, "tool", number if isinstance(number, int) else position)
    for holder in (counts.inner(call, "function"), counts.inner(call, "custom")):
        for name in ("name", "arguments", "input"):
            value = holder.get(name)
            if value:
                yield key, value if isinstance(value, str) else compact(value).decode()


def _message_texts(message: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    return ((key, text) for key, text in _pieces(0, message) if text)


def _audio_ids(message: Mapping[str, Any]) -> list[str]:
    """The id by which a later message can name this one's sound, which the provider keeps for an hour."""
    id = _text(counts.inner(message, "audio").get("id"))
    return [id] if id else []


# --- answers and errors ---

_INCOMPLETE = frozenset({
    "length", "content_filter", "refusal",
    "max_tokens", "model_length",  # Mistral
    "insufficient_system_resource",  # DeepSeek
    "sensitive", "model_context_window_exceeded",  # Zhipu
    "safety", "recitation", "prohibited_content", "blocklist", "spii",  # Google
    "abort",  # vLLM, SGLang
})  # fmt: skip


def _finish(reason: object) -> str:
    """A finish reason without what Google's endpoint says of it: `content_filter: PROHIBITED_CONTENT`."""
    return _text(reason).lower().partition(":")[0]


def read_answer(raw: bytes, options: MeterOptions) -> Answer:
    """A chat.completion without streaming."""
    body = read_object(raw)
    if body is None:
        return failed_answer(raw, body)
    choices = [choice for choice in _list(body.get("choices")) if isinstance(choice, dict)]
    pieces = [piece for choice in choices for piece in _pieces(0, counts.inner(choice, "message"))]
    pieces = [(key, text) for key, text in pieces if not is_filler(text)]
    usage = read_usage(
        counts.inner(body, "usage"), options, tier=_text(body.get("service_tier")), produced=bool(pieces)
    )
    within = next((choice for choice in choices if choice.get("error")), None)
    if body.get("error") or within or (not pieces and (usage is None or usage.is_empty)):
        failed = failed_answer(raw, within or body)
        return Answer(raw, "error", usage, error=failed.error)
    edits = rename(raw, options.model, ("model",)) if options.rename_from else []
    finishes = {_finish(choice.get("finish_reason")) for choice in choices}
    return Answer(
        raw=spans.apply_edits(raw, edits) if edits else raw,
        ended="incomplete" if finishes & _INCOMPLETE else "complete",
        usage=usage,
        texts=[text for _, text in pieces if text],
        object_ids=[id for choice in choices for id in _audio_ids(counts.inner(choice, "message"))],
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def read_error(status: int, raw: bytes) -> ProviderError:
    """What an error answer means."""
    return read_error_body(status, raw)


def error_body(error: GatewayError, request_id: str) -> bytes:
    """An error of ours as the whole answer; the request id is in the headers only."""
    return openai_error_body(error)


# --- streams ---

PATIENCE_S = 5.0
"""So long `[DONE]` is waited for after every choice has finished (Perplexity never sends it)."""

_PLAIN_KEYS = frozenset({
    "id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "obfuscation",
    "provider",
})  # fmt: skip
"""What every chunk repeats: a chunk that has no more, and zero-width text, is filler."""

_USAGE_NULL = b',"usage":null'
"""What OpenAI writes into every chunk once usage is asked for."""
_USAGE_LAST = _USAGE_NULL + b"}\n\n"
"""The same at the end of the one object that an event is: before its last brace stands its last member."""

_new = tuple.__new__  # as in sse: twice as fast as the NamedTuple's own constructor

_PLAIN_TEXT = re.compile(rb'[^"\\\x00-\x1f]+')
"""What stands in JSON for itself."""
_MOST_COMPARED = 8
"""So often the place of a chunk's text is looked for in a stream. Where each has something of its own beside the text
(`obfuscation`, `logprobs`), that would only cost."""


class _Like(NamedTuple):
    """A chunk of text, before and after the text: as it came, and as the client sees it."""

    before: bytes
    after: bytes
    shown_before: bytes
    shown_after: bytes
    key: Key


class Meter:
    """Reads one stream from the role chunk to `[DONE]`."""

    def __init__(self, options: MeterOptions) -> None:
        self.produced = False
        self.text_only = True
        self.error: ProviderError | None = None
        self.patience_s: float | None = None
        self.object_ids: list[str] = []
        self._options = options
        self._begun: set[int] = set()
        self._finishes: dict[int, str] = {}
        self._usage: Mapping[str, Any] | None = None
        self._vendor_usage: Mapping[str, Any] | None = None
        self._tier = ""
        self._texts: dict[Key, list[str]] = {}
        self._public_name = compact(options.model)
        self._renames = options.rename_from is not None
        self._strips = not options.include_usage
        self._like: _Like | None = None
        self._compared = 0
        self._choice_failed = False

    def feed(self, event: SSEEvent) -> Verdict:
        data = event.data
        if self._like is not None:
            if (shown := self._shown_alike(event.raw, self._like)) is not None:
                return _new(Verdict, (shown, True, None))
            self._like = None
        if data == b"[DONE]":
            return self._done(event)
        try:
            chunk = orjson.loads(data or b"")
        except orjson.JSONDecodeError:
            chunk = read_object(data)
        if type(chunk) is not dict:
            return self._done(event) if is_done(data) else self._without_object(event)
        choices, began = chunk.get("choices"), len(self._begun)
        output = filler = False
        if choices and type(choices) is list:
            for choice in choices:
                if type(choice) is dict:
                    said = self._read_choice(choice)
                    output = output or said is True
                    filler = filler or said is None
        if chunk.get("service_tier"):
            self._tier = _text(chunk["service_tier"])
        has_usage = "usage" in chunk or "x_groq" in chunk
        if has_usage and (chunk.get("usage") or "x_groq" in chunk):
            self._read_usage(chunk)
        if (not choices or event.name or "error" in chunk or self._choice_failed) and (
            failed := self._failed(event, chunk, output)
        ):
            return failed
        if filler and not output and self._is_filler(chunk, fresh=len(self._begun) > began):
            return Verdict(b"")
        shown = self._edited(event, chunk) if (has_usage and self._strips) or self._renames else event.raw
        if output and self._compared < _MOST_COMPARED:
            self._compared += 1
            self._like = self._likeness(event, chunk, shown)
        return _new(Verdict, (shown, output, None))

    def finish(self) -> Verdict:
        if not self._has_finished() or "error" in self._finishes.values():
            return Verdict(b"", ended="cut")
        return Verdict(DONE, ended=self._ended())

    def usage(self) -> ReportedUsage | None:
        told = self._usage or self._vendor_usage
        return None if told is None else read_usage(told, self._options, tier=self._tier, produced=self.produced)

    def take_texts(self) -> dict[Any, str]:
        taken, self._texts = self._texts, {}
        return {key: "".join(pieces) for key, pieces in taken.items()}

    def error_event(self, error: GatewayError) -> bytes:
        return b"data: " + compact(openai_error(error)) + b"\n\n"

    # --- chunks that differ in their text alone: nearly all, and read without a parser ---

    def _likeness(self, event: SSEEvent, chunk: dict[str, Any], shown: bytes) -> _Like | None:
        """What the next chunk must be but for its text, if this one holds the text of one choice and nothing else."""
        choices = chunk["choices"]
        if len(choices) != 1 or chunk.get("usage") or "x_groq" in chunk or choices[0].get("finish_reason"):
            return None
        if event.raw != b"data: %b\n\n" % (event.data or b"") or counts.inner(choices[0], "delta").keys() != {
            "content"
        }:
            return None
        came = _around_text(event.raw)
        seen = came if shown is event.raw else _around_text(shown)
        if came is None or seen is None:
            return None
        index = choices[0].get("index")
        return _Like(*came, *seen, (index if type(index) is int else 0, "content", 0))

    def _shown_alike(self, raw: bytes, like: _Like) -> bytes | None:
        """Note the text of a chunk that is like the one before it, and return what the client sees of it; else None."""
        before, after, shown_before, shown_after, key = like
        if not (raw.startswith(before) and raw.endswith(after)):
            return None
        plain = _PLAIN_TEXT.fullmatch(raw, len(before), len(raw) - len(after))
        if plain is None:
            return None
        try:
            text = plain[0].decode()
        except UnicodeDecodeError:
            return None
        if is_filler(text):
            return None
        self._keep(key, text)
        return raw if shown_before is before else shown_before + plain[0] + shown_after

    # --- choices ---

    def _read_choice(self, choice: dict[str, Any]) -> bool | None:
        """Whether a choice has real output; None: zero-width text alone."""
        index = choice.get("index")
        if type(index) is not int:
            index = 0
        if index not in self._begun:
            self._begun.add(index)
            self.patience_s = None
        if choice.get("finish_reason"):
            self._note_finish(index, choice)
        delta = choice.get("delta")
        if delta is None and not self.produced:
            delta = choice.get("message")  # a whole answer sent as a stream of one chunk
        if not delta or type(delta) is not dict:
            return False
        text = delta.get("content")
        if len(delta) == 1 and type(text) is str:  # nearly every chunk
            if not text or is_filler(text):
                return None if text else False
            self._keep((index, "content", 0), text)
            self.produced = True
            return True
        return self._read_delta(index, delta)

    def _read_delta(self, index: int, delta: dict[str, Any]) -> bool | None:
        said: bool | None = False
        self.object_ids += [id for id in _audio_ids(delta) if id not in self.object_ids]
        for key, text in _pieces(index, delta):
            if is_filler(text):
                said = said or None
                continue
            said = self.produced = True
            self.text_only = self.text_only and key[1] == "content" and bool(text)
            if text:
                self._keep(key, text)
        return said

    def _keep(self, key: Key, text: str) -> None:
        pieces = self._texts.get(key)
        if pieces is None:
            self._texts[key] = [text]
        else:
            pieces.append(text)

    def _note_finish(self, index: int, choice: dict[str, Any]) -> None:
        """Note a finish and what Moonshot puts beside it. `finish_reason: ""` is no finish (some send it all along)."""
        if type(choice["finish_reason"]) is str:
            self._finishes[index] = _finish(choice["finish_reason"])
        if choice.get("error"):
            self._choice_failed = True
        if isinstance(choice.get("usage"), dict):
            self._vendor_usage = choice["usage"]
        if self._has_finished():
            self.patience_s = PATIENCE_S

    def _has_finished(self) -> bool:
        return bool(self._begun) and len(self._finishes) == len(self._begun)

    def _is_filler(self, chunk: dict[str, Any], *, fresh: bool) -> bool:
        """Whether a chunk with zero-width text has nothing else. `fresh`: a choice begins here, so its role counts."""
        if any(value and name not in _PLAIN_KEYS for name, value in chunk.items()):
            return False
        if chunk.get("usage") and not self._strips:
            return False
        for choice in chunk["choices"]:
            delta = counts.inner(choice, "delta")
            if any(value and name not in ("content", "role") for name, value in delta.items()):
                return False
            if (fresh and delta.get("role")) or choice.get("finish_reason") or choice.get("logprobs"):
                return False
        return True

    # --- ends ---

    def _done(self, event: SSEEvent) -> Verdict:
        ended = self._ended()
        if ended == "error":
            self.error = ProviderError(502, "the provider ended the answer with finish_reason error")
        return Verdict(event.raw, ended=ended)

    def _ended(self) -> Ended:
        reasons = set(self._finishes.values())
        if "error" in reasons:
            return "error"
        return "incomplete" if reasons & _INCOMPLETE else "complete"

    def _failed(self, event: SSEEvent, chunk: dict[str, Any], output: bool) -> Verdict | None:
        """The end of the stream if an event is the provider's error."""
        told = told_error(event, chunk)
        if self._choice_failed and told is None:  # OpenRouter's stands in the choice
            told = next((choice for choice in _list(chunk.get("choices")) if counts.inner(choice, "error")), chunk)
        if told is None:
            return None
        self.error = read_error_object(told)
        raw = self._renamed(event) if self._renames else event.raw
        return Verdict(raw, output, "error")

    def _without_object(self, event: SSEEvent) -> Verdict:
        told = told_error(event, None)
        if told is None:
            return Verdict(event.raw)
        self.error = read_error_object(told)
        return Verdict(event.raw, ended="error")

    # --- usage, and what the client sees of it ---

    def _read_usage(self, chunk: dict[str, Any]) -> None:
        """Keep the last usage that is not null: counts are running totals, never added."""
        usage = chunk.get("usage")
        if usage and type(usage) is dict and any(number is not None for number in _totals(usage)):
            self._usage = usage
        groq = counts.inner(chunk, "x_groq").get("usage")
        if groq and type(groq) is dict:
            self._vendor_usage = groq

    def _edited(self, event: SSEEvent, chunk: dict[str, Any]) -> bytes:
        """The event for a client that did not ask for usage, or must not see the upstream's model name."""
        if self._strips and not chunk.get("choices"):
            told = (chunk.get("usage"), counts.inner(chunk, "x_groq").get("usage"))
            if any(isinstance(usage, dict) for usage in told):
                return b""
        raw = self._quickly_edited(event, chunk)
        return self._carefully_edited(event) if raw is None else raw

    def _quickly_edited(self, event: SSEEvent, chunk: dict[str, Any]) -> bytes | None:
        """The usual cases without a scan: a quoted name that occurs once, with no letter escaped, is the key."""
        raw = event.raw
        if b"\n" in (event.data or b"") or requests.has_escaped_letters(raw):
            return None
        if self._strips and ("usage" in chunk or "x_groq" in chunk):
            if "x_groq" in chunk or raw.count(b'"usage"') != 1:
                return None
            if raw.endswith(_USAGE_LAST):  # nearly all of OpenAI's
                shorter = raw[: -len(_USAGE_LAST)] + b"}\n\n"
            else:
                shorter = raw.replace(_USAGE_NULL, b"") if chunk["usage"] is None else _without_usage(raw)
            if len(shorter) == len(raw):
                return None
            raw = shorter
        if self._renames and type(model := chunk.get("model")) is str and model:
            if raw.count(b'"model"') != 1:
                return None
            member = spans.member_at(raw, raw.index(b'"model"'))
            raw = raw[: member.value_start] + self._public_name + raw[member.value_end :]
        return raw

    def _carefully_edited(self, event: SSEEvent) -> bytes:
        data = event.data or b""
        edits = rename(data, self._options.model, ("model",)) if self._renames else []
        if self._strips:
            top = spans.members(data)
            edits += spans.removals(data, top, [at for at, member in enumerate(top) if member.key == "usage"])
            for groq in (member for member in top if member.key == "x_groq" and data[member.value_start] == 0x7B):
                inside = spans.members(data, groq.value_start)
                edits += spans.removals(data, inside, [at for at, member in enumerate(inside) if member.key == "usage"])
        return data_edits(event, edits) if edits else event.raw

    def _renamed(self, event: SSEEvent) -> bytes:
        edits = rename(event.data or b"", self._options.model, ("model",))
        return data_edits(event, edits) if edits else event.raw


def _around_text(raw: bytes) -> tuple[bytes, bytes] | None:
    """An event of one data line before and after the text of its only choice; None where that is no plain string."""
    if not (raw.startswith(b"data: ") and raw.endswith(b"\n\n")):
        return None
    found = spans.find(raw[6:], "choices", "*", "delta", "content")
    if len(found) != 1 or not _PLAIN_TEXT.fullmatch(raw, found[0].value_start + 7, found[0].value_end + 5):
        return None
    return raw[: found[0].value_start + 7], raw[found[0].value_end + 5 :]


def _without_usage(raw: bytes) -> bytes:
    """An event without the one `usage` in it and the comma before; unchanged where no comma is."""
    at = raw.index(b'"usage"')
    before = raw[:at].rstrip()
    return before[:-1].rstrip() + raw[spans.member_at(raw, at).value_end :] if before.endswith(b",") else raw
