"""When a provider wants to be asked again. Pure: headers and the time in, seconds out."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime

_SPAN = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_REMAINING = re.compile(r"(?:x|anthropic)-ratelimit-(?:remaining-(.+)|(.+)-remaining)")


def retry_after_s(headers: Mapping[str, str], now: dt.datetime) -> float | None:
    """Seconds from `retry-after-ms`, `retry-after` (a number or a date), or else from when the limit that is used up is
    reset; None where nothing can be read. `headers`: names in small letters."""
    for name, per_second in (("retry-after-ms", 1000), ("retry-after", 1)):
        value = headers.get(name, "").strip()
        if value.isascii() and value.replace(".", "", 1).isdigit():
            return float(value) / per_second
    dated = _until(headers.get("retry-after", ""), now)
    return dated if dated is not None else max(_resets(headers, now), default=None)


def _resets(headers: Mapping[str, str], now: dt.datetime) -> Iterator[float]:
    """Of each limit with nothing left. OpenAI: x-ratelimit-reset-tokens: 6m0s, 20ms; Anthropic:
    anthropic-ratelimit-tokens-reset: 2026-11-30T12:00:00Z."""
    for name, value in headers.items():
        limit = _REMAINING.fullmatch(name)
        if limit is None or value.strip() != "0":
            continue
        vendor = name.partition("-ratelimit-")[0]
        told = f"{vendor}-ratelimit-reset-{limit[1]}" if limit[1] else f"{vendor}-ratelimit-{limit[2]}-reset"
        after = _until(headers.get(told, ""), now)
        if after is not None:
            yield after


def _until(text: str, now: dt.datetime) -> float | None:
    """Seconds until a date, in the form of HTTP or ISO 8601, or of a span like 1m30.5s."""
    span = _SPAN.fullmatch(text.strip())
    if span is not None and any(span.groups()):
        hours, minutes, seconds, milliseconds = (float(part or 0) for part in span.groups())
        return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    for read in (parsedate_to_datetime, dt.datetime.fromisoformat):
        try:
            return max(0.0, (read(text.strip()) - now).total_seconds())
        except (ValueError, TypeError):  # no such date, or one without its zone
            continue
    return None
