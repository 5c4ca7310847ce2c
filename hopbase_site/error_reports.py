"""Errors to Sentry, where HOPBASE_SENTRY_DSN names one: what the log says at the level of errors, and no more.

Nothing of Sentry's own looking around is used (requests, variables, breadcrumbs, the machine): an event is made of the
log record alone, with the words that the log has.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import sentry_sdk
from django.core.exceptions import ImproperlyConfigured
from sentry_sdk.integrations.atexit import AtexitIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport
from sentry_sdk.utils import BadDsn

from hopbase_site import hidden
from hopbase_site.logs import fields_of

KEPT = ("event_id", "timestamp", "platform", "level", "logger", "release", "environment", "server_name", "exception")
FRAME = ("filename", "abs_path", "function", "module", "lineno", "in_app")
TAGS = ("request_id", "worker", "task", "task_id")


def start(dsn: str, transport: type[Transport] | Transport | None = None) -> None:
    """Send errors from now on, in the background."""
    try:
        sentry_sdk.init(
            dsn, transport=transport, before_send=_shown, default_integrations=False,
            include_local_variables=False, include_source_context=False, max_request_body_size="never",
            auto_session_tracking=False, max_breadcrumbs=0,
            integrations=[
                LoggingIntegration(level=None, event_level=logging.ERROR),
                AtexitIntegration(callback=lambda pending, timeout: None),  # its own would print
            ],
        )  # fmt: skip
    except BadDsn:
        raise ImproperlyConfigured(
            "HOPBASE_SENTRY_DSN is no DSN: copy it from the project's settings in Sentry, or leave it out"
        ) from None


def _shown(event: Any, hint: Mapping[str, Any]) -> Any:
    """The event with what a log line may say; None, and so nothing, for what did not come by the log."""
    record = hint.get("log_record")
    if record is None:
        return None
    fields = fields_of(record)
    shown = {name: event[name] for name in KEPT if name in event}
    shown["message"] = fields["event"]
    shown["tags"] = {name: fields[name] for name in TAGS if name in fields}
    for one in shown.get("exception", {}).get("values", ()):
        one["value"] = hidden.scrub(one.get("value") or "") if hidden.is_telling(record.name) else ""
        frames = one.get("stacktrace", {}).get("frames", ())
        one["stacktrace"] = {"frames": [{name: frame.get(name) for name in FRAME} for frame in frames]}
        one.pop("mechanism", None)
    return shown
