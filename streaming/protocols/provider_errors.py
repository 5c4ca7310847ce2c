"""What a provider's error means, in whatever vendor's spelling it comes.

    read_error_body(status, raw)     an error answer
    read_error_object(error)         the error of an event, or of a 200

OpenAI: {"error": {"message", "type", "param", "code"}}; Anthropic: {"type": "error", "error": {"type", "message"}};
Google: {"error": {"code": 429, "message", "status": "RESOURCE_EXHAUSTED"}}, also in a list; FastAPI: {"detail": …};
vLLM and Mistral: {"object": "error", "message", "type", "code"}; others a bare string, or HTML of a proxy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from streaming.protocols import lenient_json
from streaming.protocols.meter import ProviderError

_RATE_LIMIT, _BAD_REQUEST, _ACCOUNT, _OVERLOADED, _UNKNOWN = 429, 400, 402, 503, 502

_STATUS_OF_WORD = {
    **dict.fromkeys(("rate_limit_exceeded", "rate_limit_error", "rate_limited", "rate_limit", "too_many_requests",
                     "resource_exhausted", "throttling_exception", "tokens", "requests"), _RATE_LIMIT),
    **dict.fromkeys(("invalid_request_error", "invalid_request", "invalid_prompt", "bad_request", "bad_request_error",
                     "badrequesterror", "invalid_argument", "failed_precondition", "invalid_value", "tool_use_failed",
                     "unsupported_parameter", "unknown_parameter", "missing_required_parameter", "validation_error",
                     "context_length_exceeded", "string_above_max_length", "content_filter",
                     "content_policy_violation", "responsibleaipolicyviolation"), _BAD_REQUEST),
    **dict.fromkeys(("insufficient_quota", "billing_error", "billing_not_active", "billing_hard_limit_reached",
                     "insufficient_balance", "payment_required", "access_terminated", "account_deactivated"), _ACCOUNT),
    **dict.fromkeys(("authentication_error", "invalid_api_key", "invalid_authentication", "unauthorized",
                     "unauthenticated"), 401),
    **dict.fromkeys(("permission_error", "permission_denied", "forbidden"), 403),
    **dict.fromkeys(("not_found_error", "not_found", "model_not_found"), 404),
    **dict.fromkeys(("request_too_large", "payload_too_large"), 413),
    **dict.fromkeys(("overloaded_error", "overloaded", "server_overloaded", "engine_overloaded", "slow_down",
                     "service_unavailable", "unavailable", "no_capacity"), _OVERLOADED),
    **dict.fromkeys(("timeout_error", "timeout", "deadline_exceeded", "upstream_timeout"), 504),
}  # fmt: skip
"""The status that a code, type or status word means, in small letters; any other is a failure of the provider."""

_ABOUT_REQUEST = (400, 404, 409, 413, 422)
_ABOUT_ACCOUNT = (401, 402, 403)

_FINAL_WORDS = frozenset({
    "context_length_exceeded", "content_filter", "content_policy_violation", "responsibleaipolicyviolation",
})  # fmt: skip
_FINAL_TEXT = re.compile(
    r"prompt is too long|maximum context length|context length exceeded|exceeds? the (?:model'?s )?context"
    r"|content (?:management )?policy|violat\w+ (?:our|the) usage polic",
    re.IGNORECASE,
)
"""For vendors with one type for all bad requests. Anthropic: "prompt is too long: 215000 tokens > 200000 maximum"."""

_ACCOUNT_TEXT = re.compile(r"credit balance is too low|insufficient (?:balance|credits)", re.IGNORECASE)
"""Anthropic answers 400 invalid_request_error to an account without credit."""

_STREAM_OPTIONS = re.compile(r"stream_options|include_usage")
_MARKUP = re.compile(rb"\s*<(?:!doctype|html|head|body|\?xml)", re.IGNORECASE)
_LONGEST_MESSAGE = 2000


def read_error_body(status: int, raw: bytes) -> ProviderError:
    """An answer with an error status: that status, and what its body says. 3xx is the provider's failure: 502."""
    error = _read(_error_of(raw))
    return _judged(error, status if 400 <= status <= 599 else _UNKNOWN)


def read_error_object(error: object) -> ProviderError:
    """An error from an event or a 200: its status is what its code or type means, 502 for trouble with our account."""
    found = _read(error)
    judged = _judged(found, _meant_status(found.words))
    return replace(judged, status=_UNKNOWN) if judged.account_trouble else judged


class _Words(NamedTuple):
    """The texts of an error object; `words`: all that could name a status, most telling first."""

    message: str = ""
    words: tuple[str, ...] = ()
    code: str = ""
    kind: str = ""
    param: str = ""


def _error_of(raw: bytes) -> object:
    """The error object of a body, or its text; markup says nothing to anybody."""
    try:
        return lenient_json.loads(raw)
    except ValueError:
        return "" if _MARKUP.match(raw) else raw.decode("utf-8", "replace").strip()


def _read(error: object) -> _Words:
    error = _unwrapped(error)
    if isinstance(error, str):
        return _Words(error[:_LONGEST_MESSAGE])
    if not isinstance(error, Mapping):
        return _Words()
    code, kind = _word(error.get("code")), _word(error.get("type"))
    kind = "" if kind == "error" else kind
    status = (error.get("status_code"), error.get("http_status"), error.get("status"))
    words = tuple(word for word in (code, kind, *map(_word, status)) if word)
    message = _text(error.get("message") or error.get("detail") or error.get("error_description") or error.get("msg"))
    return _Words(message[:_LONGEST_MESSAGE], words, code, kind, _word(error.get("param")))


def _unwrapped(error: object) -> object:
    """The innermost object that looks like the error itself."""
    while True:
        if isinstance(error, list) and error:
            error = error[0]
        elif isinstance(error, Mapping) and isinstance(error.get("error"), Mapping) and error["error"]:
            error = error["error"]
        elif isinstance(error, Mapping) and isinstance(error.get("error"), str) and not error.get("message"):
            return {**error, "message": error["error"]}
        elif isinstance(error, Mapping) and isinstance(error.get("errors"), list) and error["errors"]:
            error = error["errors"]
        elif isinstance(error, Mapping) and isinstance(error.get("detail"), Mapping):
            error = error["detail"]
        else:
            return error


def _text(value: object) -> str:
    """A message; FastAPI's list of complaints as JSON."""
    if isinstance(value, str):
        return value
    return lenient_json.dumps(value).decode() if isinstance(value, list | Mapping) and value else ""


def _word(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return str(value)


def _meant_status(words: tuple[str, ...]) -> int:
    """The status of the first word that means one: a number from 400 to 599 as it is, a known word by the table."""
    for word in words:
        if word.isdecimal() and 400 <= int(word[:4]) <= 599:
            return int(word)
        if word.lower() in _STATUS_OF_WORD:
            return _STATUS_OF_WORD[word.lower()]
    return _UNKNOWN


def _judged(error: _Words, status: int) -> ProviderError:
    meant = {_STATUS_OF_WORD.get(word.lower()) for word in error.words}
    refused = status in _ABOUT_REQUEST or status == 403
    final = refused and (_FINAL_WORDS.intersection(map(str.lower, error.words)) or _FINAL_TEXT.search(error.message))
    account = not final and (
        status in _ABOUT_ACCOUNT or _ACCOUNT in meant or (refused and _ACCOUNT_TEXT.search(error.message))
    )
    about_stream_options = status in (400, 422) and _STREAM_OPTIONS.search(f"{error.message} {error.param}")
    return ProviderError(
        status, error.message, error.code, error.kind,
        account_trouble=bool(account), final=bool(final),
        about_request=(status in _ABOUT_REQUEST and not account) or bool(final),
        refused_stream_options=bool(about_stream_options),
    )  # fmt: skip
