"""What a request used, in tokens and server-tool requests: plain values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

BUCKETS = ("input", "cache_read", "cache_write", "cache_write_1h", "output")
"""The five disjoint buckets, in the order in which everything shows them."""

MAX_COUNT = 10**12
"""Counts above this are taken for a provider's fault: clamped and flagged."""

ENDINGS = (
    "complete", "incomplete", "client_left", "provider_cut", "provider_error", "stalled", "timed_out",
    "stopped", "gateway_lost", "shutdown", "refused",
)  # fmt: skip
METERINGS = ("reported", "estimated", "checkpoint", "none")


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Counts in the five buckets; `reasoning` is an "of which" of `output`, None where nobody told."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int | None = None
    server_tools: Mapping[str, int] = field(default_factory=dict)

    @property
    def total_input(self) -> int:
        """All input tokens: uncached, read from the cache and written to it."""
        return self.input + self.cache_read + self.cache_write + self.cache_write_1h

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all was counted."""
        return not (self.total_input or self.output or any(self.server_tools.values()))

    def buckets(self) -> dict[str, int]:
        """The five buckets by name."""
        return {bucket: getattr(self, bucket) for bucket in BUCKETS}

    def checked(self) -> tuple[TokenUsage, tuple[str, ...]]:
        """The same with every count in 0..MAX_COUNT; a flag `negative:NAME` or `too_large:NAME` per change."""
        found = (*self.buckets().values(), self.reasoning or 0, *self.server_tools.values())
        if min(found) >= 0 and max(found) <= MAX_COUNT:
            return self, ()
        flags: list[str] = []
        counts = {bucket: _checked(bucket, count, flags) for bucket, count in self.buckets().items()}
        reasoning = None if self.reasoning is None else _checked("reasoning", self.reasoning, flags)
        tools = {name: _checked(name, count, flags) for name, count in self.server_tools.items()}
        return TokenUsage(**counts, reasoning=reasoning, server_tools=tools), tuple(flags)


def _checked(name: str, count: int, flags: list[str]) -> int:
    if count < 0:
        flags.append(f"negative:{name}")
        return 0
    if count > MAX_COUNT:
        flags.append(f"too_large:{name}")
        return MAX_COUNT
    return count


@dataclass(frozen=True, slots=True)
class Part:
    """What another model did inside the request (an advisor); priced as that model."""

    model: str
    usage: TokenUsage


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """What a provider told of a request: the folded counts, and what it said in its own words.

    `raw` is the provider's usage JSON (Messages: `{"message_start": …, "message_delta": …}`). `flags` are for the
    operator: `negative:…`, `too_large:…`, `zero_with_output`, `unknown:NAME` for a non-zero counter that we do not
    know; and for `metered`: `output_placeholder`, `input_absent`.
    """

    usage: TokenUsage
    service_tier: str = ""
    parts: tuple[Part, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all was reported, of any model."""
        return self.usage.is_empty and all(part.usage.is_empty for part in self.parts)


OUTPUT_PLACEHOLDER = "output_placeholder"
"""Flag of a report whose output count is a placeholder (Messages, before the first `message_delta`) or absent."""

INPUT_ABSENT = "input_absent"
"""Flag of a report that says nothing of the input."""

_TO_BE_COUNTED = frozenset({OUTPUT_PLACEHOLDER, INPUT_ABSENT})


@dataclass(frozen=True, slots=True)
class Metered:
    """What a request is billed for, and how that is known."""

    usage: TokenUsage
    metering: str
    flags: tuple[str, ...] = ()


def to_be_counted(reported: ReportedUsage | None, *, produced: bool, finished: bool) -> frozenset[str]:
    """Which of "input" and "output" our own count decides, since no report of it can be believed.

    Nothing is counted where nothing was produced and nothing reported. `finished`: the stream ended by its terminal.
    An explicit zero of a finished stream is a zero; a running report of zero in an interrupted one tells nothing.
    """
    if reported is None:
        return frozenset({"input", "output"}) if produced else frozenset()
    usage, interrupted = reported.usage, produced and not finished
    counted = set()
    if produced and (OUTPUT_PLACEHOLDER in reported.flags or (interrupted and not usage.output)):
        counted.add("output")
    if (produced or usage.output) and (INPUT_ABSENT in reported.flags or (interrupted and not usage.total_input)):
        counted.add("input")
    return frozenset(counted)


def metered(
    reported: ReportedUsage | None, counted: tuple[int, int] | None, *, produced: bool, finished: bool
) -> Metered:
    """The usage to bill: what was reported where there is any, else what was counted (`counted`: input, output)."""
    by_count = to_be_counted(reported, produced=produced, finished=finished)
    if reported is None and not by_count:
        return Metered(TokenUsage(), "none")
    usage = reported.usage if reported else TokenUsage()
    counted_input, counted_output = counted or (0, 0)
    if "input" in by_count:
        usage = replace(usage, input=counted_input)
    if "output" in by_count:
        usage = replace(usage, output=counted_output, reasoning=None)
    elif reported and OUTPUT_PLACEHOLDER in reported.flags:  # nothing was produced: the placeholder counts nothing
        usage = replace(usage, output=0, reasoning=None)
    checked, flags = usage.checked()
    told = tuple(flag for flag in reported.flags if flag not in _TO_BE_COUNTED) if reported else ()
    return Metered(checked, "estimated" if by_count else "reported", (*told, *flags))
