"""What a request asks of its key's limits, what they say to it, and what it holds of them until it is settled."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from billing.catalogue import KeyEntry
from billing.reports import KeyMonth
from streaming.errors import ApiError, retry_after_headers
from streaming.limits.estimate import Estimate

Answer = Literal["ok", "unknown", "spent", "requests", "tokens", "concurrency", "reserved"]
Counted = Callable[[], tuple[int, int]]
"""Input and output tokens counted so far."""


NOTHING = Estimate(0, 0)


@dataclass(slots=True, eq=False)
class Hold:
    """A request under its key's limits. `tokens` and `nanos` are what it holds, `second` is where they were counted.

    `uses_tokens` is False for what only counts as a request. `month` is the period of the hold, `billed` that of a bill
    against a budget. Times are the process's own clock, in milliseconds.
    """

    id: str
    key: KeyEntry
    month: dt.date
    uses_tokens: bool = True
    estimate: Estimate = NOTHING
    nanos: int = 0
    cost: Callable[[int, int], int] = lambda input, output: 0
    counted: Counted = lambda: (0, 0)
    headers: Mapping[str, str] = field(default_factory=dict)
    second: int = 0
    ended_ms: int | None = None
    used: int | None = None
    settled_ms: int | None = None
    billed: KeyMonth | None = None

    requests_limit: int | None = field(init=False)
    tokens_limit: int | None = field(init=False)
    concurrency: int | None = field(init=False)
    budget: int | None = field(init=False)

    def __post_init__(self) -> None:
        key, uses_tokens = self.key, self.uses_tokens
        self.requests_limit = key.requests_per_minute
        self.tokens_limit = key.tokens_per_minute if uses_tokens else None
        self.concurrency = key.concurrency if uses_tokens else None
        self.budget = key.monthly_budget_nanos if uses_tokens else None

    @property
    def is_kept(self) -> bool:
        """Whether anything of it is to be given back: a request that only counts as one leaves nothing to settle."""
        return self.tokens_limit is not None or self.concurrency is not None or self.budget is not None

    @property
    def tokens(self) -> int:
        """What is counted before the real use is known; one larger than the limit has a minute of its own."""
        return min(self.estimate.tokens, self.tokens_limit or 0)

    def raised_nanos(self) -> int:
        """What it should hold by now: more than at its beginning, once more was counted than was estimated."""
        input, output = self.counted()
        if input <= self.estimate.input and output <= self.estimate.output:
            return self.nanos
        return max(self.nanos, self.cost(max(input, self.estimate.input), max(output, self.estimate.output)))


def is_limited(key: KeyEntry) -> bool:
    """Whether a key has any limit at all."""
    limits = (key.requests_per_minute, key.tokens_per_minute, key.concurrency, key.monthly_budget_nanos)
    return any(limit is not None for limit in limits)


class Left(NamedTuple):
    """How much a window has room for, and in how many milliseconds it will be empty."""

    remaining: int
    reset_ms: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the limits say to a request. `requests` and `tokens`: None where there is no such limit."""

    answer: Answer
    wait_ms: int = 0
    requests: Left | None = None
    tokens: Left | None = None


def limit_headers(hold: Hold, verdict: Verdict) -> dict[str, str]:
    """`x-ratelimit-*` of our own limits, as OpenAI names them."""
    headers: dict[str, str] = {}
    limits = (("requests", hold.requests_limit, verdict.requests), ("tokens", hold.tokens_limit, verdict.tokens))
    for name, limit, left in limits:
        if left is not None:
            headers[f"x-ratelimit-limit-{name}"] = str(limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(left.remaining)
            headers[f"x-ratelimit-reset-{name}"] = f"{left.reset_ms / 1000:g}s"
    return headers


def refusal(hold: Hold, verdict: Verdict) -> ApiError:
    """The answer to a request that a limit stops."""
    headers = limit_headers(hold, verdict)
    if verdict.answer == "spent":
        return ApiError(
            "insufficient_quota",
            "This API key's budget of the month is spent. Ask for a larger one, or wait for the next month.",
            headers=headers,
        )
    # A millisecond more: the clocks of a window and of a client round differently.
    headers |= retry_after_headers((verdict.wait_ms + 1) / 1000)
    if verdict.answer == "reserved":
        return ApiError(
            "budget_reserved",
            "What is left of this API key's budget is reserved by its running requests. Try again once one has ended.",
            headers=headers | {"retry-after": "1", "retry-after-ms": "1000"},
        )
    told = {
        "requests": f"{hold.requests_limit} requests per minute",
        "tokens": f"{hold.tokens_limit} tokens per minute",
        "concurrency": f"{hold.concurrency} requests at a time",
    }[verdict.answer]
    return ApiError(
        "rate_limit_exceeded",
        f"This API key's limit of {told} is reached. Try again in {headers['retry-after']} s.",
        headers=headers,
    )
