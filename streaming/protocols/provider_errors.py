"""What a provider's error means, in whatever vendor's spelling it comes.

    read_error_body(status, raw)     an error answer
    read_error_object(error)         the error of an event, or of a 200

OpenAI: {"error": {"message", "type", "param", "code"}}; Anthropic: {"type": "error", "error": {"type", "message"}};
Google: {"error": {"code": 429, "message", "status": "RESOURCE_EXHAUSTED"}}, also in a list; FastAPI: {"detail": …};
vLLM and Mistral: {"object": "error", "message", "type", "code"}; MiniMax: {"base_resp": {"status_code", "status_msg"}};
others a bare string, or HTML of a proxy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from streaming.protocols import lenient_json
from streaming.protocols.meter import ProviderError

_RATE_LIMIT, _BAD_REQUEST, _ACCOUNT, _OVERLOADED, _UNKNOWN = 429, 400, 402, 503, 502


def _plain(word: str) -> str:
    """A word as the tables have it, so that each vendor's spelling is one: Bedrock's `ThrottlingException`, vLLM's
    `BadRequestError`, DashScope's `Throttling.RateQuota`."""
    letters = re.sub(r"[^a-z0-9]", "", word.lower().partition(".")[0])
    return letters.removesuffix("exception").removesuffix("error")


_FINAL = (
    "context_length_exceeded", "context_window_exceeded", "content_filter", "content_policy_violation",
    "responsible_ai_policy_violation", "data_inspection_failed", "image_content_policy_violation", "bio_policy",
    "cyber_policy", "misalignment_policy_violation", "moderation_blocked",
)  # fmt: skip
"""The request is too long, or what it asks for is refused: no other route would do better."""

_WORDS = {
    _RATE_LIMIT: ("rate_limit_exceeded", "rate_limit", "rate_limited", "too_many_requests", "resource_exhausted",
                  "throttling", "usage_limit_reached", "tokens", "requests"),
    _BAD_REQUEST: ("invalid_request", "invalid_prompt", "bad_request", "invalid_argument", "failed_precondition",
                   "invalid_value", "invalid_parameter", "tool_use_failed", "unsupported_parameter",
                   "unknown_parameter", "missing_required_parameter", "validation", "string_above_max_length",
                   "data_residency_mismatch", "invalid_image", "invalid_image_format", "invalid_base64_image",
                   "invalid_image_url", "invalid_image_mode", "image_too_large", "image_too_small",
                   "image_parse_error", "image_file_too_large", "image_file_not_found", "empty_image_file",
                   "unsupported_image_media_type", "failed_to_download_image", *_FINAL),
    _ACCOUNT: ("insufficient_quota", "billing", "billing_not_active", "billing_hard_limit_reached",
               "insufficient_balance", "exceeded_current_quota", "payment_required", "access_terminated",
               "account_deactivated", "arrearage"),
    401: ("authentication", "invalid_api_key", "invalid_authentication", "unauthorized", "unauthenticated"),
    403: ("permission", "permission_denied", "access_denied", "forbidden"),
    404: ("not_found", "model_not_found"),
    413: ("request_too_large", "payload_too_large"),
    _OVERLOADED: ("overloaded", "server_overloaded", "server_is_overloaded", "engine_overloaded", "slow_down",
                  "service_unavailable", "unavailable", "no_capacity"),
    504: ("timeout", "api_timeout", "deadline_exceeded", "upstream_timeout"),
}  # fmt: skip
_STATUS_OF_WORD = {_plain(word): status for status, words in _WORDS.items() for word in words}
"""The status that a code, type or status word means; any other is a failure of the provider. The image codes and
policies are `ResponseError.code` of openai-python."""

_ABOUT_REQUEST = (400, 404, 409, 413, 422)
_ABOUT_ACCOUNT = (401, 402, 403)

_FINAL_WORDS = frozenset(map(_plain, _FINAL))
_FINAL_TEXT = re.compile(
    r"(?:prompt|input) is too long|maximum context length|context length exceeded"
    r"|exceeds? (?:the )?(?:model'?s )?(?:maximum )?context|content (?:management |filtering )?policy"
    r"|violat\w+ (?:our|the) usage polic|input was flagged",
    re.IGNORECASE,
)
"""For vendors with one type for all bad requests. Anthropic: "prompt is too long: 215000 tokens > 200000 maximum"."""

_ACCOUNT_TEXT = re.compile(
    r"credit balance is too low|insufficient (?:account )?(?:balance|credits?)|specified api usage limits"
    r"|organi[sz]ation has been disabled|account is in arrears|余额不足|欠费"
    r"|api key not valid|incorrect api key provided",
    re.IGNORECASE,
)
"""Anthropic answers 400 invalid_request_error to an account that is without credit, over its own limit or disabled;
MiniMax, GLM and others 429 or 500. Google and xAI answer 400 to a bad key of ours."""

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\u201c[^\u201d]*\u201d")
_STREAM_OPTIONS = re.compile(r"\bstream_options\b(?!\.(?!include_usage))")
_MARKUP = re.compile(rb"\s*<(?:!doctype|html|head|body|\?xml)", re.IGNORECASE)
_LONGEST_MESSAGE = 2000


def read_error_body(status: int, raw: bytes) -> ProviderError:
    """An answer with an error status: that status, and what its body says. 3xx is the provider's failure: 502."""
    error = _read(_error_of(raw))
    return _judged(error, status if 400 <= status <= 599 else _UNKNOWN)


def is_markup(raw: bytes) -> bool:
    """Whether a body is a page of HTML or XML, as proxies send."""
    return _MARKUP.match(raw) is not None


def read_error_object(error: object) -> ProviderError:
    """An error from an event or a 200: its status is what its code or type means, 502 for trouble with our account."""
    found = _read(error)
    judged = _judged(found, _meant_status(found.words))
    return replace(judged, status=_UNKNOWN) if judged.account_trouble else judged


_MESSAGE_KEYS = ("message", "detail", "error_description", "msg", "status_msg", "error_message")
_STATUS_KEYS = ("status_code", "http_status", "http_code", "status")


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
        return "" if is_markup(raw) else raw.decode("utf-8", "replace").strip()


def _read(error: object) -> _Words:
    error = _unwrapped(error)
    if isinstance(error, str):
        return _Words(error[:_LONGEST_MESSAGE])
    if not isinstance(error, Mapping):
        return _Words()
    code, kind = _word(error.get("code")), _word(error.get("type") or error.get("error_type"))
    kind = "" if kind == "error" else kind
    words = tuple(word for word in (code, kind, *(_word(error.get(key)) for key in _STATUS_KEYS)) if word)
    message = _text(next((told for key in _MESSAGE_KEYS if (told := error.get(key))), ""))
    return _Words(message[:_LONGEST_MESSAGE], words, code, kind, _word(error.get("param")))


def _unwrapped(error: object) -> object:
    """The innermost object that looks like the error itself."""
    while True:
        if isinstance(error, list) and error:
            error = error[0]
        elif isinstance(error, Mapping) and isinstance(error.get("error"), Mapping) and error["error"]:
            error = {**{key: error[key] for key in _STATUS_KEYS if key in error}, **error["error"]}
        elif isinstance(error, Mapping) and isinstance(error.get("error"), str) and not error.get("message"):
            return {**error, "message": error["error"]}
        elif isinstance(error, Mapping) and isinstance(error.get("errors"), list) and error["errors"]:
            error = error["errors"]
        elif isinstance(error, Mapping) and isinstance(inner := error.get("detail") or error.get("base_resp"), Mapping):
            error = inner
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
        if (status := _STATUS_OF_WORD.get(_plain(word))) is not None:
            return status
    return _UNKNOWN


def _tells_of_account(error: _Words, refused: bool) -> bool:
    """Whether an error's text is about our account. A refusal may echo what the client sent: a parameter, or quoted."""
    if refused and error.param:
        return False
    said = _QUOTED.sub("", error.message) if refused else error.message
    return bool(_ACCOUNT_TEXT.search(said))


def _judged(error: _Words, status: int) -> ProviderError:
    words = {*map(_plain, error.words)}
    refused = status in _ABOUT_REQUEST or status == 403
    final = refused and (_FINAL_WORDS & words or _FINAL_TEXT.search(error.message))
    account = not final and (
        status in _ABOUT_ACCOUNT
        or any(_STATUS_OF_WORD.get(word) == _ACCOUNT for word in words)
        or _tells_of_account(error, refused)
    )
    about_stream_options = status in (400, 422) and _STREAM_OPTIONS.search(f"{error.param} {error.message}")
    return ProviderError(
        status, error.message, error.code, error.kind, error.param,
        account_trouble=bool(account), final=bool(final),
        about_request=(status in _ABOUT_REQUEST and not account) or bool(final),
        refused_stream_options=bool(about_stream_options),
    )  # fmt: skip
