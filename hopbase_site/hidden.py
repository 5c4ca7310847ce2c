"""What no log line and no error report may hold: secrets, and anything of a request's or an answer's text.

Secrets are taken out of every text: those of the settings, provider credentials that this process has decrypted, and
whatever looks like a key. A request's text can only come in by the message of an exception that was raised over it, so
messages are shown where no such text is at hand: of exceptions that others than the gateway report, and of those that
tell of files and databases.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseFault

from streaming.credentials import DECRYPTED

HIDDEN = "[hidden]"
SHORTEST = 8
"""Shorter secrets are left: taken out, they would take words apart."""
SHAPES = re.compile(
    r"""
    \bsk-[\w-]{8,}                                     # keys, ours and of most providers
    | (?i:\bbearer\s+)[^\s'"]+
    | (?i:\b(?:x-)?api[-_]?key['"]?\s*[:=]\s*['"]?)[^\s'",}]+
    | (?<=://)[^\s/@]*:[^\s/@]+(?=@)                   # a user and a password in a URL
    """,
    re.VERBOSE,
)
TELLING = ("billing", "celery", "django", "hopbase", "hopbase_site")
"""Loggers whose exceptions come from code that has no text of a request."""
PLAIN = (OSError, DatabaseFault, ImproperlyConfigured, ImportError)


def scrub(text: str) -> str:
    """A text without secrets."""
    for secret in _secrets():
        text = text.replace(secret, HIDDEN)
    return SHAPES.sub(HIDDEN, text)


def _secrets() -> Iterator[str]:
    database = settings.DATABASES["default"]
    known = (
        settings.SECRET_KEY, settings.KEY_PEPPER, *settings.ENCRYPTION_KEYS, settings.ALARM_WEBHOOK_SECRET,
        settings.ALARM_WEBHOOK_URL, str(database.get("PASSWORD") or ""), *DECRYPTED,
    )  # fmt: skip
    yield from (secret for secret in known if len(secret) >= SHORTEST)


def is_telling(logger: str) -> bool:
    """Whether exceptions that a logger reports may be shown with their messages."""
    return logger.partition(".")[0] in TELLING


def message_of(record: logging.LogRecord) -> str:
    """What a record says. asyncio adds a task's exception in full from the second line on."""
    text = record.getMessage()
    return scrub(text if record.name != "asyncio" else text.partition("\n")[0])


def exception_text(error: BaseException, logger: str) -> str:
    """A traceback as Python writes it, without what may hold a request's text."""
    parts: list[str] = []
    following: BaseException | None = error
    seen: set[int] = set()
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        frames = "".join(traceback.format_tb(following.__traceback__))
        parts.append(f"Traceback (most recent call last):\n{frames}{_named(following, logger)}")
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
    return scrub("\n\nwhich led to:\n\n".join(reversed(parts)))


def _named(error: BaseException, logger: str) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    shown = str(error) if isinstance(error, PLAIN) or is_telling(logger) else ""
    return f"{name}: {shown}" if shown else name
