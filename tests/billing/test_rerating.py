"""Which version counts for what had no price, and what it costs by it."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from billing.pricing import parts_of, rate
from billing.rerating import Outcome, Unrated, price_list, rerate
from billing.usage import Part, TokenUsage
from tests.billing.factories import LONG, TIERS, USUAL, per_million, price, priced, utc

NOVEMBER, DECEMBER = utc(2026, 11, 1), utc(2026, 12, 1)
CHEAP = price(effective_from=NOVEMBER, per_million=per_million(input="1", output="1"))
DEAR = price(effective_from=DECEMBER, tiers=TIERS)
VERSIONS = {"gpt-5.6-sol": [DEAR, CHEAP]}


def unrated(usage: TokenUsage = USUAL, **fields: Any) -> Unrated:
    return Unrated(
        **{"model": "gpt-5.6-sol", "tier": "", "started_at": NOVEMBER, "currency": "USD", "usage": usage, **fields}
    )


def test_version_in_force_at_the_start_counts() -> None:
    prices = price_list(VERSIONS)
    found = [rerate(unrated(started_at=at), prices).price_version for at in (NOVEMBER, DECEMBER)]
    assert found == [CHEAP.label, DEAR.label]
    assert rerate(unrated(started_at=utc(2026, 10, 31)), prices).unpriced_reason == "no price for model gpt-5.6-sol"


def test_chosen_version_counts_whenever_it_was() -> None:
    """For its own model; what else was used goes by what was in force."""
    tiered = unrated(tier="priority")
    assert rerate(tiered, price_list(VERSIONS)).unpriced
    assert rerate(tiered, price_list(VERSIONS, DEAR)).price_version == DEAR.label
    advised = unrated(items=rate_nothing(Part("advisor", TokenUsage(output=1))), tier="priority")
    assert rerate(advised, price_list(VERSIONS, DEAR)).unpriced_reason == "no price for model advisor"


def rate_nothing(*parts: Part) -> Any:
    """The items of an unpriced record with these parts."""
    return rate(USUAL, model="x", tier="", at=NOVEMBER, currency="USD", price_of=priced(), parts=parts).items


COUNTS = st.integers(0, 500_000)
TOOLS = st.dictionaries(st.just("web_search"), COUNTS.filter(bool))
USED = st.builds(
    TokenUsage,
    COUNTS,
    COUNTS,
    COUNTS,
    COUNTS,
    COUNTS,
    server_tools=st.dictionaries(st.just("web_search"), COUNTS.filter(bool)),
)


@given(USED, st.lists(USED, max_size=3), st.sampled_from(["", "priority", "flex"]))
@example(TokenUsage(), [TokenUsage(cache_write_1h=272_001), TokenUsage(output=1)], "")  # not one long request
def test_later_costs_as_much_as_at_once(usage: TokenUsage, others: list[TokenUsage], tier: str) -> None:
    """To the nano, other models' parts included: what waits for its price loses nothing."""
    parts = [Part("advisor", other) for other in others]
    tools = {"web_search": 10**7}
    own, advisor = (
        price(model, long_context=LONG, tiers=TIERS, server_tools=tools) for model in ("gpt-5.6-sol", "advisor")
    )
    terms: dict[str, Any] = {"model": own.model, "tier": tier, "at": DECEMBER, "currency": "USD", "parts": parts}
    before = rate(usage, **terms, price_of=priced())
    later = Unrated(own.model, tier, DECEMBER, "USD", usage, before.items)
    at_once = rate(usage, **terms, price_of=priced(own, advisor))
    assert rerate(later, price_list({own.model: [own], "advisor": [advisor]})) == at_once
    assert parts_of(before.items) == [part for part in parts if not part.usage.is_empty] or not before.unpriced


def test_outcome_counts_and_sums() -> None:
    outcome, other = Outcome(), Outcome()
    prices = price_list(VERSIONS)
    outcome.add("USD", rerate(unrated(), prices))
    other.add("USD", rerate(unrated(started_at=DECEMBER), prices))
    other.add("USD", rerate(unrated(tier="scale"), prices))
    outcome.take(other)
    assert (outcome.records, dict(outcome.costs)) == (2, {"USD": 66_000 + 1_630_000})
    assert dict(outcome.versions) == {CHEAP.label: 1, DEAR.label: 1}
    assert dict(outcome.missing) == {"no price for service tier scale of model gpt-5.6-sol": 1}
