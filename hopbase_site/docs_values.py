"""What the customers' pages say of this installation: `{{ name }}` in their text, from the settings of this process."""

from __future__ import annotations

import re

from django.conf import settings

from streaming.models import Model

PLACEHOLDER = re.compile(r"\{\{ (\w+) \}\}")
UNITS = ((2**20, "MB"), (2**10, "KB"))

Values = tuple[tuple[str, str], ...]
"""Name -> text, as pairs: pages are kept by them."""


def of_this_process() -> Values:
    """The values of now."""
    least, most = settings.STALL_RANGE_S
    usual = Model()
    return (
        ("base_url", settings.PUBLIC_URL.rstrip("/")),
        ("keepalive_s", _seconds(settings.KEEPALIVE_S)),
        ("keepalive_before_headers_s", _seconds(settings.KEEPALIVE_BEFORE_HEADERS_S)),
        ("stall_s", _seconds(min(max(usual.stall_seconds, least), most))),
        ("least_stall_s", _seconds(least)),
        ("most_stall_s", _seconds(most)),
        ("total_timeout_s", _seconds(usual.total_timeout_s)),
        ("body_timeout_s", _seconds(settings.BODY_TIMEOUT_S)),
        ("slow_reader_s", _seconds(settings.SLOW_READER_S)),
        ("checkpoint_s", _seconds(settings.CHECKPOINT_S)),
        ("max_body", size(settings.MAX_BODY_BYTES)),
        ("max_attempts", str(settings.MAX_ATTEMPTS)),
    )


def filled(text: str, values: Values) -> str:
    """The text with its placeholders filled in; KeyError: it has one of another name."""
    known = dict(values)
    return PLACEHOLDER.sub(lambda found: known[found[1]], text)


def size(count: int) -> str:
    """A number of bytes in the largest unit that it reaches, never more than it is: 32 MB, 195.3 KB, 512 bytes."""
    for unit, name in UNITS:
        if count >= unit:
            return f"{count * 10 // unit / 10:g} {name}"
    return f"{count} bytes"


def _seconds(count: float) -> str:
    return f"{count:g}"
