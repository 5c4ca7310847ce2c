"""What a client is told when attempts failed."""

import pytest

from streaming.errors import CODES, ApiError, Failure, OriginalAnswer, answer_for, failure_of_status, retry_headers
from streaming.protocols.meter import ProviderError

ORIGINAL = (422, b'{"error":{}}', "application/json")


def of_status(status: int, **error) -> Failure:
    provider_error = ProviderError(status, "words of the provider", **error)
    return failure_of_status(
        status, provider_error, original=(status, b"{}", "application/json"), headers={}, retry_after_s=None
    )


@pytest.mark.parametrize(
    ("status", "error", "code", "answered"),
    [
        (429, {}, "rate_limit_exceeded", 429),
        (503, {}, "upstream_overloaded", 503),
        (529, {}, "upstream_overloaded", 503),
        (408, {}, "upstream_timeout", 504),
        (504, {}, "upstream_timeout", 504),
        (500, {}, "upstream_error", 502),
        (302, {}, "upstream_error", 502),
        (401, {"account_trouble": True}, "upstream_error", 502),
        (429, {"account_trouble": True}, "upstream_error", 502),
    ],
)
def test_last_failure_decides(status, error, code, answered):
    answer = answer_for([of_status(500), of_status(status, **error)])
    assert (answer.error.code, answer.error.status) == (code, answered)
    assert "words of the provider" not in answer.error.message


def test_refusal_keeps_the_first_original():
    answers = [of_status(400, about_request=True), of_status(422, about_request=True)]
    answer = answer_for(answers)
    assert isinstance(answer, OriginalAnswer)
    assert answer.error.status == 400


def test_failure_outweighs_a_refusal():
    assert answer_for([of_status(400, about_request=True), of_status(503)]).error.code == "upstream_overloaded"


def test_final_refusal_is_told():
    answer = answer_for([of_status(500), of_status(400, about_request=True, final=True)])
    assert isinstance(answer, OriginalAnswer)


def test_no_attempt_is_no_route():
    assert answer_for([]).error.code == "no_available_route"


@pytest.mark.parametrize(
    ("after", "whole", "exact"),
    [
        (0.2, "1", "200"),
        (17, "17", "17000"),
        (17.2, "18", "17200"),
        (900, "60", "60000"),
        (1.0000004, "1", "1000"),
        (0, "1", "1"),
    ],
)
def test_retry_after_is_whole_and_bounded(after, whole, exact):
    headers = retry_headers(Failure("rate_limited", "429", retry_after_s=after))
    assert (headers["retry-after"], headers["retry-after-ms"]) == (whole, exact)


def test_incurable_errors_are_not_repeated():
    assert ApiError("insufficient_quota", "spent").headers["x-should-retry"] == "false"
    assert "x-should-retry" not in ApiError("upstream_error", "broke").headers


def test_codes_have_client_or_server_statuses():
    assert all(400 <= status < 600 for status, _ in CODES.values())
