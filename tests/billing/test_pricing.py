"""Rating: usage x price -> amount."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.money import NANOS, parse, show
from billing.pricing import LongContext, PriceVersion, Rating, parts_of, rate, version_at
from billing.usage import BUCKETS, Part, TokenUsage
from tests.billing.factories import JANUARY, LONG, STANDARD, TIERS, USUAL, per_million, price, priced

WEB_SEARCH = {"web_search": parse("0.01")}
ADVISOR = price(
    "advisor-model",
    per_million=per_million(input="10", cache_read="1", cache_write="12.5", cache_write_1h="20", output="50"),
)


def rated(usage: TokenUsage, *prices: PriceVersion, tier: str = "", currency: str = "USD", **more: Any) -> Rating:
    return rate(usage, model="gpt-5.6-sol", tier=tier, at=JANUARY, currency=currency, price_of=priced(*prices), **more)


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (USUAL, "0.00163"),
        (TokenUsage(input=200, output=100, cache_read=2000, cache_write=400), "0.0075"),
        (TokenUsage(input=3, output=52, cache_write=18011), "0.11414375"),
        (TokenUsage(input=10, output=266, reasoning=261), "0.00803"),
        (TokenUsage(input=10, output=10, cache_write=600, cache_write_1h=400), "0.0081"),
        (TokenUsage(input=10, output=10, cache_write=184_457), "1.15320625"),
        (TokenUsage(input=203_000, output=4500), "1.15"),
        (TokenUsage(), "0"),
    ],
)
def test_buckets_have_their_prices(usage: TokenUsage, cost: str) -> None:
    rating = rated(usage, price())
    assert show(rating.cost_nanos) == show(parse(cost))
    assert not rating.unpriced


def test_version_that_is_used_again_rates_as_a_new_one() -> None:
    """What was worked out for one tier and size is not taken for another's."""
    used = price(tiers=TIERS, long_context=LONG)
    sizes = (USUAL, TokenUsage(input=300_000, output=4500))
    asked = [(usage, tier) for usage in sizes for tier in ("", "priority", "flex", "batch", "unheard-of")]
    for usage, tier in asked * 2:
        assert rated(usage, used, tier=tier) == rated(usage, price(tiers=TIERS, long_context=LONG), tier=tier)


@pytest.mark.parametrize("tier", ["", "default", "standard", "on_demand", "auto"])
def test_base_tiers_pay_base_price(tier: str) -> None:
    assert rated(USUAL, price(tiers=TIERS), tier=tier).cost_nanos == parse("0.00163")


@pytest.mark.parametrize(
    ("tier", "usage", "cost"),
    [
        ("priority", USUAL, "0.00326"),
        ("flex", TokenUsage(input=14, output=58), "0.000905"),
        ("batch", TokenUsage(input=1000, output=10), "0.0021"),
    ],
)
def test_tier_multiplies_or_replaces(tier: str, usage: TokenUsage, cost: str) -> None:
    tiers = {**TIERS, "batch": per_million(input="2", output="10")}
    assert rated(usage, price(tiers=tiers), tier=tier).cost_nanos == parse(cost)


@pytest.mark.parametrize(
    ("usage", "tier", "cost"),
    [
        (TokenUsage(input=272_000, output=100), "", "1.363"),
        (TokenUsage(input=272_001, output=100), "", "2.72451"),
        (TokenUsage(input=1, cache_read=272_000, output=100), "", "0.27651"),
        (TokenUsage(input=50_000, cache_read=200_000, cache_write=50_000, output=100), "priority", "2.659"),
    ],
)
def test_long_context_reprices_whole_request(usage: TokenUsage, tier: str, cost: str) -> None:
    rating = rated(usage, price(long_context=LONG, tiers=TIERS), tier=tier)
    assert show(rating.cost_nanos) == show(parse(cost))
    assert rating.long_context is (usage.total_input > 272_000)


def test_long_tool_goes_by_its_first_characters() -> None:
    """A line of an invoice holds no more of it."""
    usage = TokenUsage(server_tools={"t" * 60 + "x": 1, "t" * 60 + "y": 2})
    items = rated(usage, price(server_tools={"t" * 60: 5})).items
    assert [(item.bucket, item.quantity, item.amount_nanos) for item in items] == [("t" * 60, 1, 5), ("t" * 60, 2, 10)]
    assert rated(usage, price()).unpriced_reason == f"no price for server tool {'t' * 60} of model gpt-5.6-sol"


def test_server_tools_cost_per_request() -> None:
    usage = TokenUsage(input=100, output=50, server_tools={"web_search": 5, "web_fetch": 0})
    rating = rated(usage, price(server_tools=WEB_SEARCH))
    assert rating.cost_nanos == parse("0.052")
    (item,) = rating.items
    assert (item.bucket, item.quantity, item.per_million, item.amount_nanos) == ("web_search", 5, False, parse("0.05"))


def test_advisor_is_priced_apart() -> None:
    part = Part("advisor-model", TokenUsage(input=2543, output=18))
    rating = rated(TokenUsage(input=2411, output=145), price(), ADVISOR, parts=[part])
    assert rating.cost_nanos == parse("0.042735")
    assert rating.buckets["input"] == parse("0.012055")
    assert {(item.model, item.bucket, item.quantity) for item in rating.items} == {
        ("advisor-model", "input", 2543),
        ("advisor-model", "output", 18),
    }
    assert rating.items[0].price_version == ADVISOR.label


@pytest.mark.parametrize(
    ("usage", "options", "named"),
    [
        (USUAL, {"prices": ()}, "model gpt-5.6-sol"),
        (USUAL, {"tier": "scale"}, "service tier scale"),
        (USUAL, {"currency": "EUR"}, "is in USD, the account's currency is EUR"),
        (TokenUsage(input=1, server_tools={"web_search": 2}), {}, "server tool web_search"),
        (
            TokenUsage(cache_write_1h=1),
            {"prices": (price(per_million=per_million(input="5")),)},
            "bucket cache_write_1h",
        ),
        (TokenUsage(output=1), {"prices": (price(tiers={"flex": per_million(input="1")}),), "tier": "flex"}, "output"),
        (USUAL, {"parts": [Part("other", TokenUsage(input=1))]}, "model other"),
        (TokenUsage(output=10**12), {"prices": (price(per_million={"output": 2**62}),)}, "too large"),
        (
            TokenUsage(output=1),
            {"prices": (price(per_million={"output": 2**62}, tiers=TIERS),), "tier": "priority"},
            "too large",
        ),
    ],
)
def test_missing_price_is_named(usage: TokenUsage, options: dict[str, Any], named: str) -> None:
    rating = rated(usage, *options.pop("prices", (price(),)), **options)
    assert rating.unpriced
    assert named in rating.unpriced_reason
    assert rating.cost_nanos == 0
    assert set(rating.buckets.values()) == {0}
    assert not any(item.amount_nanos for item in rating.items)


def test_unpriced_parts_can_be_rated_later() -> None:
    advisor = price("advisor-model", server_tools=WEB_SEARCH, long_context=LONG)
    parts = [
        Part("advisor-model", TokenUsage(input=200_000, cache_read=2, output=3, server_tools={"web_search": 4})),
        Part("advisor-model", TokenUsage(input=200_000, output=3)),
        Part("advisor-model", TokenUsage(input=1, server_tools={"web_search": 1})),
        Part("advisor-model", TokenUsage(server_tools={"web_search": 1})),
        Part("other", TokenUsage(output=5)),
        Part("idle", TokenUsage()),
    ]
    unpriced = rated(USUAL, price(), advisor, parts=parts)
    assert unpriced.unpriced_reason == "no price for model other"
    assert parts_of(unpriced.items) == parts[:-1]
    later = rated(USUAL, price(), advisor, price("other"), parts=parts_of(unpriced.items))
    assert later == rated(USUAL, price(), advisor, price("other"), parts=parts)


def test_reason_fits_its_column() -> None:
    long_name = "m" * 200
    rating = rate(USUAL, model=long_name, tier="", at=JANUARY, currency="USD", price_of=priced())
    assert len(rating.unpriced_reason) == 200


def test_zero_usage_needs_no_price() -> None:
    assert rated(TokenUsage(server_tools={"web_search": 0}), tier="scale") == Rating(0, dict.fromkeys(BUCKETS, 0), {})


def test_unused_bucket_needs_no_price() -> None:
    rating = rated(TokenUsage(input=1_000_000), price(per_million=per_million(input="5")))
    assert rating.cost_nanos == 5 * NANOS
    assert rating.unit_prices == {"input": 5 * NANOS}


def test_amount_keeps_fractions_of_unit() -> None:
    """A third of a nano per million is shown as 0, and still adds up over many tokens."""
    rating = rated(TokenUsage(input=6 * 10**6), price(per_million={"input": 1}, tiers={"x": Fraction(1, 3)}), tier="x")
    assert rating.unit_prices == {"input": 0}
    assert rating.buckets["input"] == 2


def test_halves_go_to_even() -> None:
    half = price(per_million={"input": 500_000})
    assert [rated(TokenUsage(input=count), half).cost_nanos for count in (1, 3, 5)] == [0, 2, 2]


def test_price_changes_at_its_instant() -> None:
    march = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    versions = [price(effective_from=march), price()]
    tick = dt.timedelta(microseconds=1)
    assert version_at(versions, JANUARY - tick) is None
    assert version_at(versions, march - tick) is versions[1]
    assert version_at(versions, march) is versions[0]


COUNTS = st.integers(0, 10**9)
TOKENS = st.builds(
    TokenUsage, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, server_tools=st.dictionaries(st.just("web_search"), COUNTS)
)
FACTORS = st.fractions(min_value=0, max_value=10, max_denominator=1000)
PRICES = st.builds(
    lambda block, tier, above, given, output: price(
        per_million=dict(zip(BUCKETS, block, strict=True)),
        tiers={"x": tier},
        long_context=LongContext(above, given, output),
        server_tools=WEB_SEARCH,
    ),
    st.lists(st.integers(0, 100 * NANOS), min_size=5, max_size=5),
    FACTORS,
    COUNTS,
    FACTORS,
    FACTORS,
)


@given(
    TOKENS, PRICES, st.sampled_from(["", "x"]), st.lists(st.builds(Part, st.just("advisor-model"), TOKENS), max_size=2)
)
def test_parts_sum_to_cost(usage: TokenUsage, version: PriceVersion, tier: str, parts: list[Part]) -> None:
    advisor = price("advisor-model", tiers=TIERS | {"x": Fraction(1, 7)}, server_tools=WEB_SEARCH)
    rating = rated(usage, version, advisor, tier=tier, parts=parts)
    assert not rating.unpriced
    assert rating.cost_nanos == sum(rating.buckets.values()) + sum(item.amount_nanos for item in rating.items)


@given(TOKENS, PRICES, st.sampled_from(["", "x"]))
def test_bucket_is_rounded_once(usage: TokenUsage, version: PriceVersion, tier: str) -> None:
    rating = rated(usage, version, tier=tier)
    assert version.long_context is not None
    for bucket, count in usage.buckets().items():
        exact = Fraction(count * version.per_million[bucket], 10**6) * (version.tiers["x"] if tier else 1)  # type: ignore[operator]
        if usage.total_input > version.long_context.above:
            exact *= version.long_context.output if bucket == "output" else version.long_context.input
        assert abs(rating.buckets[bucket] - exact) <= Fraction(1, 2)


def test_standard_price_is_whole() -> None:
    assert rated(TokenUsage(input=1), price()).unit_prices == STANDARD
