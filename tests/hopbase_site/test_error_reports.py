"""Errors to Sentry: those of the log, and of them no more than the log says."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
from django.conf import LazySettings
from django.core.exceptions import ImproperlyConfigured
from sentry_sdk.transport import Transport

from hopbase_site import error_reports
from tests.hopbase_site.broken_gateway import fail

Events = Callable[[], list[dict[str, Any]]]


class Kept(Transport):
    """Sends nothing; keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.bodies.append(envelope.serialize())


@pytest.fixture
def kept() -> Iterator[Kept]:
    """What Sentry would get from here on."""
    transport = Kept()
    error_reports.start("https://public@sentry.invalid/1", transport)
    yield transport
    sentry_sdk.init(default_integrations=False)  # to nowhere; its defaults would patch half of what is installed


def events(kept: Kept) -> list[dict[str, Any]]:
    """An envelope is lines of JSON: its own head, an item's head, the item."""
    return [json.loads(body.split(b"\n")[2]) for body in kept.bodies]


@pytest.mark.django_db(transaction=True)
async def test_failing_request_is_told_without_its_text(
    settings: LazySettings, valkey: str, tmp_path: Path, kept: Kept
) -> None:
    name, *hidden = await fail(settings, valkey, tmp_path, lambda: asyncio.sleep(0))
    event = next(event for event in events(kept) if event["logger"] == "streaming.gateway")
    (error,) = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "")
    assert error["stacktrace"]["frames"][-1]["function"] == "post"
    assert event["tags"]["request_id"] == name
    assert [text for text in [*hidden, "sk-acme"] if text.encode() in b"".join(kept.bodies)] == []


def test_event_holds_what_is_listed_and_no_more(kept: Kept) -> None:
    aside = {"request": "POST /admin/?password=hunter2"}
    logging.getLogger("django.request").error("key %s", "sk-hb-0123456789", extra=aside)
    (event,) = events(kept)
    assert set(event) <= {*error_reports.KEPT, "message", "tags"}
    assert event["message"] == "key [hidden]"
    assert b"hunter2" not in kept.bodies[0]


def test_what_is_no_error_stays_here(kept: Kept) -> None:
    logging.getLogger("streaming.health").warning("route 7 cools down")
    sentry_sdk.capture_message("not by the log", level="error")
    assert kept.bodies == []


def test_ill_formed_dsn_is_refused_unread() -> None:
    with pytest.raises(ImproperlyConfigured, match=r"^HOPBASE_SENTRY_DSN is no DSN") as refused:
        error_reports.start("secret-words")
    assert "secret-words" not in str(refused.value)
