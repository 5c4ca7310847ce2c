"""What every wire format offers. Pure: bytes and plain values in, bytes and plain values out.

The modules `chat_completions`, `responses` and `messages` have the same public names, in this order:

    NAME, UPSTREAM_PATH      "chat_completions", "chat/completions" …
    read_request(raw)        what the gateway must know of a request (RequestFacts); BadRequest says what is wrong
    prepare_request(...)     the bytes for the provider: the client's, with `model` and `stream_options` spliced
    input_content(body)      the texts and images of a request, for the estimate of its input
    read_answer(raw, ...)    a non-stream answer: usage, ending, error, and the bytes for the client
    read_error(status, raw)  what a provider's error answer means (ProviderError)
    error_body(error, id)    an error of ours as a JSON body
    Meter                    reads a stream event by event: what to pass on, what it used, how it ended
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from billing.usage import ReportedUsage
from streaming.protocols.sse import SSEEvent

INTERRUPTED = "Response stream interrupted, please retry"
"""The message of a cut or stalled stream where nothing better is known (the customers' page promises it)."""

Ended = Literal["complete", "incomplete", "error", "cut"]
"""How a stream or an answer ended by itself: "error" by the provider's error event, "cut" without a terminal."""


class BadRequest(ValueError):
    """The client's fault. `param` is the field, `code` the OpenAI code, the text says what to change."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.param, self.code = param, code


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What the gateway reads of a request body. `body`: the parsed JSON; `max_output`: the client's token limit."""

    model: str
    stream: bool
    body: Mapping[str, Any]
    max_output: int | None = None
    choices: int = 1
    include_usage: bool = False
    usage_is_ours_to_ask: bool = False
    """Whether we ask for usage, and `stream_options` holds nothing else of the client's that it would have to mend."""
    service_tier: str = ""
    stored: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Stored objects that the request names, by field, with all ids: `previous_response_id`, `container`, `audio.id`,
    `conversation`, `prompt.id`, `file_id`, `vector_store_ids`, `connector_id`, `skill_id`, `item_reference`,
    `previous_message_id`."""


@dataclass(frozen=True, slots=True)
class InputContent:
    """The input of a request as countable things: texts, and tokens of images by the provider's published rule."""

    texts: Sequence[str]
    image_tokens: int = 0


@dataclass(frozen=True, slots=True)
class GatewayError:
    """An error that we make. `code` is the OpenAI code, `anthropic_type` the Messages type."""

    status: int
    code: str
    anthropic_type: str
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True)
class ProviderError:
    """What a provider's error means, from an error answer, an error object in a 200, or an error event.

    `status` is the HTTP status that it means (for events: by code or type; 502 when unknown). `account_trouble`: it
    concerns our account with the provider (401, 402, 403, insufficient_quota, billing_error), not the client's request.
    `final`: no other route would answer better (context length, content policy). `about_request`: 400, 404, 409, 413,
    422.
    """

    status: int
    message: str
    code: str = ""
    kind: str = ""
    param: str = ""
    account_trouble: bool = False
    final: bool = False
    about_request: bool = False
    refused_stream_options: bool = False


class Verdict(NamedTuple):
    """What to do with one event: `raw` goes to the client (b"": nothing); `output`: it is real output; `ended`: the
    stream is over after it."""

    raw: bytes
    output: bool = False
    ended: Ended | None = None


@dataclass(frozen=True, slots=True)
class MeterOptions:
    """How to read a stream or an answer. `rename_from`: the upstream's model name when it differs from `model`.

    `fallback_id`: the id of an error event of ours when the stream has told none (Responses).
    """

    model: str
    rename_from: str | None = None
    include_usage: bool = False
    reasoning_outside: bool = False
    fallback_id: str = "resp_0"


@dataclass(frozen=True, slots=True)
class Answer:
    """A non-stream answer: the bytes for the client, what was used, how it ended.

    `ended` "error" with `error` set: an error object in a 200, or a hollow body (empty, HTML, cut JSON, neither output
    nor usage), which is a failed attempt. `texts` is the output as countable text, for an answer without usage.
    `object_ids`: ids of stored objects that it brought (`resp_…`, containers).
    """

    raw: bytes
    ended: Ended
    usage: ReportedUsage | None = None
    texts: Sequence[str] = ()
    error: ProviderError | None = None
    object_ids: Sequence[str] = ()


class StreamMeter(Protocol):
    """Reads one stream. All state is the stream's own; nothing waits, nothing is shared."""

    produced: bool
    """Whether real output was seen."""
    text_only: bool
    """Whether no output but plain text was seen: no reasoning, refusal, tool, image or sound, hidden or not."""
    error: ProviderError | None
    """The provider's own in-stream error, once seen."""
    patience_s: float | None
    """After this much silence `finish()` is due (Chat after every finish_reason: 5; a Responses `error`: 1)."""
    object_ids: list[str]

    def __init__(self, options: MeterOptions) -> None: ...

    def feed(self, event: SSEEvent) -> Verdict:
        """Read an event with data."""

    def finish(self) -> Verdict:
        """The provider's body ended, or `patience_s` passed: what to add for the client, and how the stream ended."""

    def usage(self) -> ReportedUsage | None:
        """What was reported so far, folded; None when nothing was."""

    def take_texts(self) -> dict[Any, str]:
        """The new output text since the last call, by a key that tells what is joined to what (choice, item, kind)."""

    def error_event(self, error: GatewayError) -> bytes:
        """An error of ours as this stream's last event, with its blank line."""
