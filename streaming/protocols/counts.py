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


_READ = ("cached_tokens", "cache_read_input_tokens", "cached_read_tokens")
_READ_BESIDE = ("prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
_WRITTEN = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens", "cached_write_tokens")
_WRITTEN_BESIDE = ("cache_creation_input_tokens",)
_SPLITS = ("cache_creation_token_details", "cache_creation")
"""OpenAI's spellings first; then DeepSeek's, Moonshot's, Anthropic's, LiteLLM's, DashScope's, Perplexity's, …"""
_SPLIT = [f"{split}.ephemeral_{time}_input_tokens" for split in _SPLITS for time in ("5m", "1h")]
CACHE_DETAILS = (*_READ, *_WRITTEN, *_SPLIT)
CACHE_COUNTERS = (*_READ_BESIDE, *_WRITTEN_BESIDE, *_SPLIT)
"""The counters that `cached` reads of the input's details, and of the usage itself."""


def cached(usage: Mapping[str, Any], details: Mapping[str, Any]) -> tuple[int, int, int]:
    """Tokens read from the cache, written to it, and written to it for an hour; `details`: those of the input."""
    read = first(*map(details.get, _READ), *map(usage.get, _READ_BESIDE)) or 0
    written = first(*map(details.get, _WRITTEN), *map(usage.get, _WRITTEN_BESIDE)) or 0
    splits = (inner(holder, split) for holder in (details, usage) for split in _SPLITS)
    hours = (whole(split.get("ephemeral_1h_input_tokens")) for split in splits)
    hour = min(max(0, next(filter(None, hours), 0)), max(0, written))
    return read, written - hour, hour


def server_tools(counters: Mapping[str, Any]) -> dict[str, int]:
    """Requests by tool, of counters named TOOL_requests or TOOL_calls; zeros are left out."""
    found: dict[str, int] = {}
    for name, value in counters.items():
        suffix = next((suffix for suffix in _TOOL_SUFFIXES if name.endswith(suffix)), None)
        number = whole(value)
        if suffix and number:
            found[name.removesuffix(suffix)] = number
    return found


def tools_of(usage: Mapping[str, Any], holders: Collection[str]) -> dict[str, int]:
    """The same of several objects in a usage; of one tool the last that tells."""
    return {name: number for holder in holders for name, number in server_tools(inner(usage, holder)).items()}


def unknown_tools(usage: Mapping[str, Any], holders: Collection[str]) -> Iterator[str]:
    """`unknown:HOLDER.NAME` for each non-zero counter of server tools that `server_tools` does not read."""
    for holder in holders:
        counters = inner(usage, holder)
        yield from unknown_flags(
            {name: value for name, value in counters.items() if not name.endswith(_TOOL_SUFFIXES)}, (), holder + "."
        )


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
