"""Reading counters out of a provider's usage JSON, whatever stands there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

_TOOL_SUFFIXES = ("_requests", "_calls")
"""web_search_requests (Anthropic, OpenRouter), web_search_calls (xAI's server_side_tool_usage_details)."""

ZERO_WITH_OUTPUT = "zero_with_output"
"""Flag: an explicit zero as the output count, though output was delivered."""


def whole(value: object) -> int | None:
    """A counter as an integer; None where it is no number (absent, null, text, NaN). 14.0 is 14."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        return int(value)
    return None


def inner(value: object, key: str) -> Mapping[str, Any]:
    """The object under `key`; an empty one where there is none."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def first(*values: object) -> int | None:
    """The first of several spellings that holds a number."""
    return next((number for number in map(whole, values) if number is not None), None)


def server_tools(counters: Mapping[str, Any]) -> dict[str, int]:
    """Requests by tool, of counters named TOOL_requests or TOOL_calls; zeros are left out."""
    found: dict[str, int] = {}
    for name, value in counters.items():
        suffix = next((suffix for suffix in _TOOL_SUFFIXES if name.endswith(suffix)), None)
        number = whole(value)
        if suffix and number:
            found[name.removesuffix(suffix)] = number
    return found


def unknown_flags(usage: Mapping[str, Any], known: Collection[str], inside: str = "") -> Iterator[str]:
    """`unknown:NAME` for each non-zero integer whose dotted name is not among `known`.

    Objects are looked into, but those that are `known` as a whole. `inside` is put before every name.
    """
    for key, value in usage.items():
        name = inside + key
        if isinstance(value, Mapping) and name not in known:
            yield from unknown_flags(value, known, name + ".")
        elif isinstance(value, int) and not isinstance(value, bool) and value and name not in known:
            yield f"unknown:{name}"
