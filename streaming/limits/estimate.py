"""What a request will use, as far as its body tells before anything was counted. Pure."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any, NamedTuple

from billing.pricing import PriceOf, rate
from billing.usage import TokenUsage
from streaming.protocols.meter import RequestFacts

BYTES_PER_TOKEN = 4
UNSAID_OUTPUT = 4096
"""Output tokens of a request that sets no limit of its own."""

MAX_NANOS = 10**18
"""No hold is larger: a thousand million units of a currency."""

_BASE64 = re.compile(r"(?:data:[^,]{0,200},)?[A-Za-z0-9+/_-]{256,}={0,2}\Z")
"""No text runs for so long without a space or a full stop."""


class Estimate(NamedTuple):
    """Tokens, over all choices."""

    input: int
    output: int

    @property
    def tokens(self) -> int:
        return self.input + self.output


def estimate(raw: bytes, facts: RequestFacts) -> Estimate:
    """The body's bytes less its base64, by four; and the client's own limit of the output, else 4,096, per choice."""
    text_bytes = max(0, len(raw) - base64_bytes(facts.body))
    output = facts.max_output if facts.max_output is not None else UNSAID_OUTPUT
    return Estimate(text_bytes // BYTES_PER_TOKEN, output * max(1, facts.choices))


def base64_bytes(body: Any) -> int:
    """The bytes of images, sound and files that stand in a body as base64, wherever they stand."""
    found = 0
    pending = [body]
    for node in pending:  # grows while it is walked: no recursion, so depth costs nothing
        if isinstance(node, str):
            found += len(node) if len(node) >= 256 and _BASE64.match(node) else 0
        elif isinstance(node, dict):
            pending += node.values()
        elif isinstance(node, list):
            pending += node
    return found


def cost_nanos(
    input: int, output: int, *, model: str, tier: str, at: dt.datetime, currency: str, price_of: PriceOf
) -> int:
    """What so many tokens cost at the price in force: by the tier asked for, or the base price where that has none."""
    usage = TokenUsage(input=input, output=output)
    for wanted in dict.fromkeys((tier, "")):
        rating = rate(usage, model=model, tier=wanted, at=at, currency=currency, price_of=price_of)
        if not rating.unpriced:
            return min(rating.cost_nanos, MAX_NANOS)
    return 0
