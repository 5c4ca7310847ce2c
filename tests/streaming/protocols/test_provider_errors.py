"""What providers' errors mean, in the spellings of many vendors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streaming.protocols.meter import ProviderError
from streaming.protocols.provider_errors import read_error_body, read_error_object

OPENAI_QUOTA = {
    "error": {"message": "You exceeded your current quota.", "type": "insufficient_quota", "code": "insufficient_quota"}
}
REQUEST, ACCOUNT, FINAL = {"about_request": True}, {"account_trouble": True}, {"about_request": True, "final": True}


def marks(error: ProviderError) -> dict[str, bool]:
    names = ("account_trouble", "final", "about_request", "refused_stream_options")
    return {name: True for name in names if getattr(error, name)}


@pytest.mark.parametrize(
    ("status", "body", "message", "wanted_status", "wanted"),
    [
        (
            400,
            {"error": {"message": "bad", "type": "invalid_request_error", "param": "x", "code": None}},
            "bad",
            400,
            REQUEST,
        ),
        (404, {"error": {"message": "no such model", "code": "model_not_found"}}, "no such model", 404, REQUEST),
        (409, {"error": {"message": "conflict"}}, "conflict", 409, REQUEST),
        (413, {"type": "error", "error": {"type": "request_too_large", "message": "big"}}, "big", 413, REQUEST),
        (422, {"detail": [{"loc": ["body", "n"], "msg": "bad"}]}, '[{"loc":["body","n"],"msg":"bad"}]', 422, REQUEST),
        (422, {"detail": "wrong"}, "wrong", 422, REQUEST),
        (
            400,
            {"object": "error", "message": "vLLM says no", "type": "BadRequestError", "code": 400},
            "vLLM says no",
            400,
            REQUEST,
        ),
        (400, [{"error": {"code": 400, "message": "Google", "status": "INVALID_ARGUMENT"}}], "Google", 400, REQUEST),
        (400, {"errors": [{"message": "first"}, {"message": "second"}]}, "first", 400, REQUEST),
        (400, {"error": "just text"}, "just text", 400, REQUEST),
        (401, {"error": {"message": "key", "code": "invalid_api_key"}}, "key", 401, ACCOUNT),
        (402, {"error": {"message": "pay"}}, "pay", 402, ACCOUNT),
        (403, {"error": {"message": "no", "type": "permission_error"}}, "no", 403, ACCOUNT),
        (429, OPENAI_QUOTA, "You exceeded your current quota.", 429, ACCOUNT),
        (
            400,
            {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": "Your credit balance is too low to go on"},
            },
            "Your credit balance is too low to go on",
            400,
            ACCOUNT,
        ),
        (400, {"error": {"message": "x", "type": "billing_error"}}, "x", 400, ACCOUNT),
        (
            429,
            {"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}},
            "slow down",
            429,
            {},
        ),
        (
            429,
            {"error": {"code": 429, "message": "You exceeded your current quota", "status": "RESOURCE_EXHAUSTED"}},
            "You exceeded your current quota",
            429,
            {},
        ),
        (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}, "too long", 400, FINAL),
        (
            400,
            {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"},
            },
            "prompt is too long: 9 tokens > 8 maximum",
            400,
            FINAL,
        ),
        (
            400,
            {"error": {"message": "This model's maximum context length is 8192 tokens."}},
            "This model's maximum context length is 8192 tokens.",
            400,
            FINAL,
        ),
        (
            400,
            {
                "error": {
                    "message": "filtered",
                    "code": "content_filter",
                    "innererror": {"code": "ResponsibleAIPolicyViolation"},
                }
            },
            "filtered",
            400,
            FINAL,
        ),
        (403, {"error": {"message": "flagged", "code": "content_policy_violation"}}, "flagged", 403, FINAL),
        (
            403,
            {"error": {"message": "a/b requires moderation on Azure. Your input was flagged for x", "code": 403}},
            "a/b requires moderation on Azure. Your input was flagged for x",
            403,
            FINAL,
        ),
        (
            400,
            [{"error": {"code": 400, "message": "API key not valid. Pass one.", "status": "INVALID_ARGUMENT"}}],
            "API key not valid. Pass one.",
            400,
            ACCOUNT,
        ),
        (
            400,
            {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xa***"},
            "Incorrect API key provided: xa***",
            400,
            ACCOUNT,
        ),
        (
            400,
            {"error": {"message": "Unknown parameter: 'stream_options'.", "param": "stream_options"}},
            "Unknown parameter: 'stream_options'.",
            400,
            {**REQUEST, "refused_stream_options": True},
        ),
        (
            422,
            {"error": {"message": "extra inputs", "param": "stream_options.include_usage"}},
            "extra inputs",
            422,
            {**REQUEST, "refused_stream_options": True},
        ),
        (500, {"error": {"message": "stream_options broke us"}}, "stream_options broke us", 500, {}),
        (
            503,
            {"error": {"message": "maximum context length server down"}},
            "maximum context length server down",
            503,
            {},
        ),
        (400, {"error": {"message": "flagged", "code": "bio_policy"}}, "flagged", 400, FINAL),
        (
            400,
            {"message": "Input is too long for requested model."},
            "Input is too long for requested model.",
            400,
            FINAL,
        ),
        (400, {"code": "DataInspectionFailed", "message": "may contain"}, "may contain", 400, FINAL),
        (
            400,
            {"error": {"message": "input length and `max_tokens` exceed context limit: 190000 + 64000 > 200000"}},
            "input length and `max_tokens` exceed context limit: 190000 + 64000 > 200000",
            400,
            FINAL,
        ),
        (
            400,
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "You have reached your specified API usage limits.",
                },
            },
            "You have reached your specified API usage limits.",
            400,
            ACCOUNT,
        ),
        (
            400,
            {"type": "error", "error": {"message": "This organization has been disabled."}},
            "This organization has been disabled.",
            400,
            ACCOUNT,
        ),
        (429, {"error": {"type": "insufficient_balance_error", "message": "x"}}, "x", 429, ACCOUNT),
        (429, {"error": {"type": "exceeded_current_quota_error", "message": "x"}}, "x", 429, ACCOUNT),
        (429, {"error": {"code": "1113", "message": "Insufficient balance"}}, "Insufficient balance", 429, ACCOUNT),
        (
            500,
            {"error": {"type": "api_error", "message": "insufficient balance (1008)"}},
            "insufficient balance (1008)",
            500,
            ACCOUNT,
        ),
        (
            400,
            {"error": {"message": "Invalid value: 'insufficient balance'. Supported values are: 'low'."}},
            "Invalid value: 'insufficient balance'. Supported values are: 'low'.",
            400,
            REQUEST,
        ),
        (
            400,
            {"error": {"message": "no user called insufficient balance", "param": "user"}},
            "no user called insufficient balance",
            400,
            REQUEST,
        ),
        (302, {}, "", 502, {}),
        (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "Overloaded", 529, {}),
    ],
)
def test_error_answers(status: int, body: Any, message: str, wanted_status: int, wanted: dict[str, bool]) -> None:
    error = read_error_body(status, json.dumps(body).encode())
    assert (error.status, error.message, marks(error)) == (wanted_status, message, wanted)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", ""),
        (b"<html><body>502 Bad Gateway</body></html>", ""),
        (b"  <!DOCTYPE html><p>x", ""),
        (b"upstream connect error\n", "upstream connect error"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"null", ""),
        (b"[]", ""),
        (b"5", ""),
        (b"x" * 5000, "x" * 2000),
    ],
)
def test_answers_without_an_error_object(raw: bytes, message: str) -> None:
    assert read_error_body(502, raw) == ProviderError(502, message)


@pytest.mark.parametrize(
    ("error", "status", "wanted"),
    [
        ({"message": "x", "code": "rate_limit_exceeded"}, 429, {}),
        ({"type": "rate_limit_error", "message": "x"}, 429, {}),
        ({"type": "invalid_request_error", "code": "invalid_value", "message": "x"}, 400, REQUEST),
        ({"code": "invalid_prompt", "message": "x"}, 400, REQUEST),
        ({"type": "overloaded_error", "message": "x"}, 503, {}),
        ({"type": "server_error", "code": "overloaded", "message": "x"}, 503, {}),
        ({"type": "server_error", "code": "cap", "message": "x"}, 502, {}),
        ({"type": "api_error", "message": "x"}, 502, {}),
        ({"type": "timeout_error", "message": "x"}, 504, {}),
        ({"type": "insufficient_quota", "code": "insufficient_quota", "message": "x"}, 502, ACCOUNT),
        ({"type": "authentication_error", "message": "x"}, 502, ACCOUNT),
        ({"code": 401, "message": "x"}, 502, ACCOUNT),
        ({"code": 402, "message": "x"}, 502, ACCOUNT),
        ({"code": 400, "message": "Token limit reached"}, 400, REQUEST),
        ({"code": "429", "message": "x"}, 429, {}),
        ({"code": 502, "message": "x"}, 502, {}),
        ({"code": 200, "message": "x"}, 502, {}),
        ({"code": 1234567, "message": "x"}, 502, {}),
        ({"code": True, "message": "x"}, 502, {}),
        ({"message": "tool call failed", "type": "x", "status_code": 400}, 400, REQUEST),
        ({"status": "RESOURCE_EXHAUSTED", "message": "x"}, 429, {}),
        ({"code": "context_length_exceeded", "message": "x"}, 400, FINAL),
        ({"code": "content_filter", "message": "x"}, 400, FINAL),
        ({"error": {"code": "server_overloaded", "message": "x"}, "choices": []}, 503, {}),
        ({"error": "text", "code": 429}, 429, {}),
        ({"type": "error", "code": "rate_limit_exceeded", "message": "x", "param": None}, 429, {}),
        ({"code": "invalid_image", "message": "x"}, 400, REQUEST),
        ({"code": "image_content_policy_violation", "message": "x"}, 400, FINAL),
        ({"code": "misalignment_policy_violation", "message": "x"}, 400, FINAL),
        ({"code": "server_is_overloaded", "message": "x"}, 503, {}),
        ({"type": "service_unavailable_error", "code": None, "message": "x"}, 503, {}),
        ({"type": "engine_overloaded_error", "message": "x"}, 503, {}),
        ({"type": "serviceUnavailableException", "message": "x"}, 503, {}),
        ({"type": "ThrottlingException", "message": "x"}, 429, {}),
        ({"code": "Throttling.RateQuota", "message": "x", "request_id": "1"}, 429, {}),
        ({"type": "RateLimitError", "message": "x"}, 429, {}),
        ({"type": "ValidationException", "message": "x"}, 400, REQUEST),
        ({"type": "ContextWindowExceededError", "message": "x"}, 400, FINAL),
        ({"type": "api_error", "message": "x", "http_code": "529"}, 529, {}),
        ({"type": "error", "status": 429, "error": {"type": "some_limit", "message": "x"}}, 429, {}),
        ({"code": "Arrearage", "message": "x"}, 502, ACCOUNT),
        ({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}, 502, ACCOUNT),
        ("just text", 502, {}),
        (None, 502, {}),
        ({}, 502, {}),
        ([], 502, {}),
    ],
)
def test_error_objects(error: object, status: int, wanted: dict[str, bool]) -> None:
    found = read_error_object(error)
    assert (found.status, marks(found)) == (status, wanted)


def test_code_and_kind_are_kept() -> None:
    error = read_error_object({"type": "server_error", "code": 503, "message": "m"})
    assert (error.code, error.kind, error.message) == ("503", "server_error", "m")
    assert read_error_object({"type": "error", "message": "m"}).kind == ""
