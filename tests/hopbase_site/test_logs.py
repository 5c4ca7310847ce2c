"""Log lines: what each holds in JSON, and what none may hold."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from celery import Task
from django.conf import LazySettings

from billing.request_ids import REQUEST_ID, request_id
from hopbase_site.celery import _keep_own_logging, app
from hopbase_site.logs import ConsoleFormatter, JsonFormatter
from streaming.credentials import decrypt, encrypt
from tests.hopbase_site.broken_gateway import fail

ID = UUID("019a0000-0000-7000-8000-000000000001")
Lines = Callable[[], list[dict[str, str]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What is logged from here on, as a collector reads it: line by line."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logging.getLogger().removeHandler(handler)


def record(logger: str, message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord(logger, logging.ERROR, "file.py", 1, message, arguments, exc_info)


def told(logger: str, message: str, *arguments: object, error: BaseException | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(JsonFormatter().format(record(logger, message, *arguments, error=error)))
    return fields


def test_every_line_has_its_fields(lines: Lines) -> None:
    logging.getLogger("streaming.health").error("route %d\nis out", 7)
    (line,) = lines()
    assert {"level": "error", "logger": "streaming.health", "event": "route 7\nis out"}.items() <= line.items()
    assert line["time"].endswith("Z")
    assert line["worker"].rpartition(":")[2].isdigit()
    assert "request_id" not in line


def test_request_is_named(lines: Lines) -> None:
    token = REQUEST_ID.set("req_1")
    try:
        logging.getLogger("streaming.gateway").error("it failed")
        logging.getLogger("streaming.checkpoints").error("none", extra={"request_id": request_id(ID)})
    finally:
        REQUEST_ID.reset(token)
    assert [line["request_id"] for line in lines()] == ["req_1", f"req_{ID.hex}"]


def test_task_is_named(lines: Lines) -> None:
    @app.task(name="tests.speak")
    def speak() -> None:
        logging.getLogger("billing.rollups").error("said within a task")

    task: Task = speak
    done = task.apply()
    (line,) = [line for line in lines() if line["logger"] == "billing.rollups"]
    assert (line["task"], line["task_id"]) == ("tests.speak", done.id)


@pytest.mark.django_db(transaction=True)
async def test_failing_request_tells_nothing(settings: LazySettings, valkey: str, tmp_path: Path, lines: Lines) -> None:
    async def at_once() -> None:
        pass

    name, *hidden = await fail(settings, valkey, tmp_path, at_once)
    mine = [line for line in lines() if line.get("request_id") == name]
    assert [line["event"].partition(" of ")[0] for line in mine] == ["relay"]
    assert mine[0]["exception"].endswith("\nValueError")
    assert "in post" in mine[0]["exception"]
    assert [text for text in [*hidden, "sk-acme"] if text in json.dumps(lines())] == []


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


@pytest.mark.parametrize(
    ("logger", "error", "shown"),
    [
        ("streaming.gateway", ValueError("words of a prompt"), "ValueError"),
        ("uvicorn.error", ValueError("words of a prompt"), "ValueError"),
        ("asyncio", ValueError("words of a prompt"), "ValueError"),
        ("streaming.gateway", OSError("no space left"), "OSError: no space left"),
        ("billing.rollups", ValueError("not a day"), "ValueError: not a day"),
        ("django.request", KeyError("model"), "KeyError: 'model'"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_messages_are_shown_where_no_text_is_at_hand(logger: str, error: BaseException, shown: str) -> None:
    assert told(logger, "it failed", error=raised(error))["exception"].splitlines()[-1] == shown


def test_causes_are_told_in_order() -> None:
    error = raised(RuntimeError("second"), raised(ValueError("first")))
    names = [line for line in told("streaming.x", "", error=error)["exception"].splitlines() if line[:1].isupper()]
    assert [name for name in names if "Traceback" not in name] == ["ValueError", "RuntimeError"]


def test_tasks_exception_is_left_out() -> None:
    """asyncio's own report of a task that nobody waited for."""
    message = "Task exception was never retrieved\nfuture: <Task finished exception=ValueError('words of a prompt')>"
    assert told("asyncio", message)["event"] == "Task exception was never retrieved"


def test_secrets_are_taken_out(settings: LazySettings) -> None:
    credential, encrypted_under = "an-odd-credential-of-a-provider", settings.ENCRYPTION_KEYS
    decrypt(encrypt(credential, encrypted_under), encrypted_under)
    settings.ALARM_WEBHOOK_SECRET = "webhook-secret"
    secrets = [
        credential, settings.SECRET_KEY, settings.KEY_PEPPER, *settings.ENCRYPTION_KEYS, "webhook-secret",
        "sk-hb-0123456789abcdef", "Bearer abc.def-ghi", "x-api-key: abcdefgh", "api_key='abcdefgh'",
        "postgresql://hopbase:pass-word@db/hopbase",
    ]  # fmt: skip
    text = told("billing.x", "%s", " | ".join(secrets))["event"]
    assert [secret for secret in secrets if secret in text or secret.split(" ")[-1] in text] == []
    assert text.count("[hidden]") == len(secrets)


def test_console_hides_the_same() -> None:
    line = ConsoleFormatter().format(record("streaming.x", "a key: %s", "sk-hb-0123456789", error=ValueError("prompt")))
    first, *rest = line.splitlines()
    assert first.endswith("ERROR streaming.x: a key: [hidden]")
    assert rest == ["Traceback (most recent call last):", "ValueError"]


def test_worker_logs_as_everybody_does() -> None:
    """Celery would put its own handlers and format in the place of ours."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        _keep_own_logging(loglevel=logging.WARNING)
        ours = [handler for handler in root.handlers if handler not in before]
        assert [type(handler.formatter) for handler in ours] == [ConsoleFormatter]
        assert root.level == logging.WARNING
        held = len(root.handlers)
        assert app.log.setup_logging_subsystem(loglevel=logging.INFO)  # somebody heard it, so it adds nothing
        assert len(root.handlers) == held
    finally:
        root.handlers[:] = before
        root.setLevel(level)
