"""A month by another price: as rating would have it, request by request."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from billing.price_preview import AccountPreview, TokenSum, cost, preview
from billing.pricing import rate
from billing.usage import BUCKETS, TokenUsage
from tests.billing.factories import JANUARY, LONG, STANDARD, TIERS, price

NEW = price(tiers=TIERS, long_context=LONG)
TOKENS = {"input": 1_000_000, "cache_read": 0, "cache_write": 0, "cache_write_1h": 0, "output": 2_000_000}


def used(**fields: object) -> TokenSum:
    defaults = {"account": "a", "currency": "USD", "tier": "", "long_context": False, "requests": 3, "tokens": TOKENS}
    return TokenSum(**{**defaults, **fields})  # type: ignore[arg-type]


@given(
    st.fixed_dictionaries({bucket: st.integers(0, 10**7) for bucket in BUCKETS}),
    st.sampled_from(["", "default", "priority", "flex"]),
)
def test_one_request_costs_what_rating_says(counts: dict[str, int], tier: str) -> None:
    usage = TokenUsage(**counts)
    rating = rate(usage, model=NEW.model, tier=tier, at=JANUARY, currency="USD", price_of=lambda model, at: NEW)
    if rating.unpriced:
        return
    one = used(tokens=usage.buckets(), tier=tier, long_context=rating.long_context)
    assert cost(one, NEW) == rating.cost_nanos


def test_accounts_are_summed_over_their_parts() -> None:
    dearer = replace(NEW, label="new", per_million={**STANDARD, "output": 2 * STANDARD["output"]})
    (row,) = preview([used(), used(tier="priority", long_context=True)], NEW, dearer)
    assert row.requests == 6
    assert row.old_nanos == cost(used(), NEW) + cost(used(tier="priority", long_context=True), NEW)
    output = cost(used(tokens={"output": 2_000_000}), NEW)
    assert row.difference_nanos == output + cost(
        used(tokens={"output": 2_000_000}, tier="priority", long_context=True), NEW
    )


def test_missing_prices_are_told_not_zero() -> None:
    bare = replace(NEW, label="bare", tiers={}, per_million={"input": 1})
    rows = preview([used(), used(account="b", tier="priority"), used(account="c", currency="TWD")], NEW, bare)
    assert [row.new_nanos for row in rows] == [None] * 3
    assert [row.old_nanos is None for row in rows] == [False, False, True]
    assert "bucket output" in rows[0].why[0]
    assert "service tier priority" in rows[1].why[0]
    assert "TWD" in rows[2].why[0]


def test_first_version_has_nothing_before() -> None:
    (row,) = preview([used()], None, NEW)
    assert (row.old_nanos, row.difference_nanos) == (None, None)
    assert row.new_nanos


def test_nothing_used_is_nothing_to_show() -> None:
    assert preview([], NEW, NEW) == []
    assert AccountPreview("a", "USD").difference_nanos == 0
