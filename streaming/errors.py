"""What can go wrong, in two trees: what a client is told, and what an attempt ran into.

    ApiError                    answered to the client, in the route's own shape
        OriginalAnswer          the provider's own words about the request, scrubbed
    AttemptFailed               between an attempt and the choice of the next; `Failure` says what it was

`ApiError` is whatever `CODES` lists: the client's fault (401..422), a limit (402, 429), ours or the provider's (5xx).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from streaming.protocols.meter import GatewayError, ProviderError

CODES: Mapping[str, tuple[int, str]] = {
    "missing_api_key": (401, "authentication_error"),
    "invalid_api_key": (401, "authentication_error"),
    "api_key_expired": (401, "authentication_error"),
    "insufficient_quota": (402, "billing_error"),
    "budget_reserved": (429, "rate_limit_error"),
    "previous_response_not_found": (400, "invalid_request_error"),
    "container_not_found": (400, "invalid_request_error"),
    "unsupported_parameter": (400, "invalid_request_error"),
    "account_disabled": (403, "permission_error"),
    "ip_not_allowed": (403, "permission_error"),
    "model_not_found": (404, "not_found_error"),
    "route_not_found": (404, "not_found_error"),
    "request_not_found": (404, "not_found_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "request_timeout": (408, "invalid_request_error"),
    "request_too_large": (413, "request_too_large"),
    "unsupported_content_encoding": (415, "invalid_request_error"),
    "invalid_request_error": (400, "invalid_request_error"),
    "rate_limit_exceeded": (429, "rate_limit_error"),
    "all_routes_rate_limited": (429, "rate_limit_error"),
    "upstream_overloaded": (503, "overloaded_error"),
    "upstream_timeout": (504, "timeout_error"),
    "upstream_error": (502, "api_error"),
    "no_available_route": (503, "api_error"),
    "service_unavailable": (503, "api_error"),
    "internal_error": (500, "api_error"),
}
"""OpenAI code -> HTTP status and Anthropic type, for the errors that we make ourselves."""

FINAL_CODES = frozenset({"insufficient_quota", "internal_error"})
"""Codes whose status the SDKs would send again, though a retry cannot cure them."""

STATUS_CODES = {
    400: "invalid_request_error",
    429: "rate_limit_exceeded",
    503: "upstream_overloaded",
    504: "upstream_timeout",
}
"""The code of an error event's status, where it comes before any output; every other status is `upstream_error`."""


class ApiError(Exception):
    """An answer of ours that is an error. `headers` go out beside the usual ones."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        known_status, anthropic_type = CODES[code]
        self.error = GatewayError(status or known_status, code, anthropic_type, message, param)
        self.headers = dict(headers or {})
        if code in FINAL_CODES:
            self.headers["x-should-retry"] = "false"


class OriginalAnswer(ApiError):
    """The provider refused the request: its own status and body, scrubbed; as an event, its own words."""

    def __init__(
        self, status: int, body: bytes, content_type: str, headers: Mapping[str, str], error: ProviderError | None
    ) -> None:
        message = (error and error.message) or "The provider refused the request."
        super().__init__("invalid_request_error", message, status=status, headers=headers)
        if error is not None and (error.code or error.param):
            self.error = replace(self.error, code=error.code or self.error.code, param=error.param or None)
        self.body, self.content_type = body, content_type


FailureKind = Literal[
    "refused", "account", "rate_limited", "overloaded", "timed_out", "unreachable", "failed", "stream_options"
]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed before any output.

    `message`: what the client may be told (scrubbed); empty: our own words. `original`: status, body and content type
    of the provider's answer. `headers`: the provider's retry headers. `outcome` is the attempt's, for the operator.
    `stays`: the same route may be tried once more when there is no other; `final`: no route would do better.
    """

    kind: FailureKind
    reason: str
    outcome: str = "failed"
    status: int | None = None
    message: str = ""
    retry_after_s: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    original: tuple[int, bytes, str] | None = None
    provider_error: ProviderError | None = None
    stays: bool = False
    final: bool = False


class AttemptFailed(Exception):
    """An attempt ended without any output for the client."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


OVERLOADED = frozenset({503, 529})
TIMED_OUT = frozenset({408, 504})
ONCE_MORE = frozenset({408, 500, 529})
"""Statuses after which the same route is tried once more when there is no other."""


def failure_of_status(
    status: int,
    error: ProviderError,
    *,
    original: tuple[int, bytes, str] | None,
    headers: Mapping[str, str],
    retry_after_s: float | None,
) -> Failure:
    """What a provider's error answer means for the request."""
    reason = f"status {status} {error.code or error.kind}".strip()
    if error.refused_stream_options:
        kind: FailureKind = "stream_options"
    elif error.account_trouble:
        kind = "account"
    elif error.about_request:
        kind = "refused"
    else:
        kind = kind_of_status(status)
    return Failure(
        kind, reason, "refused" if kind == "refused" else "failed", status,
        retry_after_s=retry_after_s, headers=headers, original=original, provider_error=error,
        stays=status in ONCE_MORE, final=error.final,
    )  # fmt: skip


def kind_of_status(status: int) -> FailureKind:
    """The kind of failure that an HTTP status means, where the error itself says nothing better."""
    if status == 429:
        return "rate_limited"
    if status in OVERLOADED:
        return "overloaded"
    return "timed_out" if status in TIMED_OUT else "failed"


def answer_for(failures: list[Failure]) -> ApiError:
    """What the client is told when no attempt brought an answer."""
    if not failures:
        return ApiError("no_available_route", "No route to this model is available at the moment. Try again later.")
    failures = [failure for failure in failures if failure.kind != "stream_options"] or failures
    refusals = [failure for failure in failures if failure.kind in ("refused", "stream_options")]
    if refusals and (len(refusals) == len(failures) or refusals[-1].final):
        return _refused(refusals[-1] if refusals[-1].final else refusals[0])
    last = next((failure for failure in reversed(failures) if failure not in refusals), failures[-1])
    error = _failed(last)
    if all(failure.kind == "account" for failure in failures):  # until an operator has seen to it
        error.headers["x-should-retry"] = "false"
    return error


def _refused(failure: Failure) -> ApiError:
    if failure.original is None:  # an error event before any output, or a body that never came whole
        return ApiError(
            "invalid_request_error", failure.message or "The provider refused the request.", status=failure.status
        )
    status, body, content_type = failure.original
    return OriginalAnswer(status, body, content_type, failure.headers, failure.provider_error)


def _failed(failure: Failure) -> ApiError:
    if failure.kind == "rate_limited":
        message = failure.message or "The provider's rate limit is reached. Try again later."
        return ApiError("rate_limit_exceeded", message, headers=retry_headers(failure))
    if failure.kind == "overloaded":
        message = failure.message or "The provider is overloaded. Try again later."
        return ApiError("upstream_overloaded", message, headers=failure.headers)
    if failure.kind == "timed_out":
        return ApiError(
            "upstream_timeout",
            failure.message or "The provider did not answer in time. Try again.",
            headers=failure.headers,
        )
    return ApiError(
        "upstream_error", failure.message or "The provider failed to answer. Try again.", headers=failure.headers
    )


def retry_headers(failure: Failure, default_s: float = 5.0) -> dict[str, str]:
    """`retry-after` in whole seconds 1..60, and the exact `retry-after-ms`; the provider's other retry headers kept."""
    wait_s = failure.retry_after_s if failure.retry_after_s is not None else default_s
    return {**failure.headers, **retry_after_headers(wait_s)}


def retry_after_headers(wait_s: float) -> dict[str, str]:
    """When to come again: whole seconds in 1..60, and the milliseconds."""
    milliseconds = round(min(max(wait_s, 0.001), 60) * 1000)
    return {"retry-after": str(math.ceil(milliseconds / 1000)), "retry-after-ms": str(milliseconds)}
