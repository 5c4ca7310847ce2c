"""What is the same in the answers and streams of all wire formats."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from streaming.protocols import lenient_json, spans
from streaming.protocols.meter import Answer, GatewayError, ProviderError
from streaming.protocols.provider_errors import read_error_object
from streaming.protocols.sse import SSEEvent

compact = lenient_json.dumps

_ZERO_WIDTH = "\u200b\u2060\ufeff"
"""Characters that providers send to keep a connection alive. Joiners (U+200C, U+200D) are none of them: Persian and
emoji need them, and a model may say one alone."""

_OPENAI_TYPES = {402: "insufficient_quota", 429: "rate_limit_error"}


def read_object(raw: bytes | None) -> dict[str, Any] | None:
    """The JSON object of an answer or of an event's data; None where there is none."""
    if not raw:
        return None
    try:
        value = lenient_json.loads(raw, constants=True)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def is_done(data: bytes | None) -> bool:
    """Whether an event's data is the `[DONE]` that ends a stream."""
    return data is not None and data.strip() == b"[DONE]"


def told_error(event: SSEEvent, body: object) -> object:
    """The error that an event tells, for `read_error_object`; None where it tells none. `body`: its object, if any.

    Told by its line `event: error`, whatever its data; by the key `error`, also in a list (Google); by an `error` as
    its type or object (vLLM); by a status of MiniMax's; or by a message where nothing else says what the event is.
    """
    if event.name == "error":
        return body or _said(event.data)
    if not isinstance(body, Mapping):
        said = _said(event.data) if (event.data or b"").lstrip().startswith(b"[") else None
        listed = isinstance(said, list) and said and isinstance(said[0], Mapping) and said[0].get("error")
        return said if listed else None
    kinds = (body.get("type"), body.get("object"))
    base = body.get("base_resp")  # in all that MiniMax sends; its status is 0 else
    failed = isinstance(base, Mapping) and base.get("status_code")
    return body if body.get("error") or "error" in kinds or failed or _is_bare_error(event, body) else None


def _is_bare_error(event: SSEEvent, body: Mapping[str, Any]) -> bool:
    """A message that is part of no answer: DashScope's {"code", "message"}, FastAPI's {"detail"}, {"error_message"}."""
    kind = str(body.get("type") or "")
    if event.name or any(body.get(part) for part in ("object", "choices", "response")):
        return False
    if kind and not kind.lower().endswith("error"):
        return False
    said = isinstance(body.get("message"), str) and (kind or "code" in body)
    return bool(said or body.get("detail") or body.get("error_message"))


def _said(data: bytes | None) -> object:
    """What stands in the place of an error object: JSON of another kind, or plain text."""
    try:
        return lenient_json.loads(data or b"")
    except ValueError:
        return (data or b"").decode("utf-8", "replace")


def is_filler(text: str) -> bool:
    """Whether a text says nothing: not empty, but zero-width characters alone."""
    return not text.isascii() and not text.strip(_ZERO_WIDTH)


def failed_answer(raw: bytes, body: dict[str, Any] | None) -> Answer:
    """An answer with status 200 that is none: an error object, or hollow (empty, HTML, cut JSON, nothing in it)."""
    error = read_error_object(body)
    if not error.message:
        error = ProviderError(error.status, _hollowness(raw, body), error.code, error.kind)
    return Answer(raw, "error", error=error)


def _hollowness(raw: bytes, body: dict[str, Any] | None) -> str:
    if body is not None:
        return "the answer has neither output nor usage"
    return "the answer is not a JSON object" if raw.strip() else "the answer is empty"


def rename(raw: bytes, model: str, path: tuple[str, ...], only: Container[object] | None = None) -> list[spans.Edit]:
    """Edits that give the public name to every text at `path` but an empty one; `only`: just to these names."""
    name, edits = compact(model), []
    for member in spans.find(raw, *path):
        value = lenient_json.loads(raw[member.value_start : member.value_end])
        if isinstance(value, str) and value and (only is None or value in only):
            edits.append((member.value_start, member.value_end, name))
    return edits


def openai_error(error: GatewayError) -> dict[str, Any]:
    """An error of ours in OpenAI's shape."""
    kind = _OPENAI_TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def openai_error_body(error: GatewayError) -> bytes:
    """The same as the whole answer."""
    return compact(openai_error(error))
