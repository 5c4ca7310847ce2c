"""Amounts: exact in and out, and rounded by one rule."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing import money

NANOS = st.integers(-(10**18), 10**18)


@pytest.mark.parametrize(
    ("nanos", "places", "text"),
    [
        (1_630_000, 9, "0.001630000"),
        (0, 9, "0.000000000"),
        (-5, 9, "-0.000000005"),
        (12_345_678_901, 9, "12.345678901"),
        (12_345_678_901, 2, "12.35"),
        (5_000_000, 2, "0.01"),
        (-5_000_000, 2, "-0.01"),
        (-4_999_999, 2, "0.00"),
        (1_500_000_000, 0, "2"),
    ],
)
def test_shows_fixed_places(nanos: int, places: int, text: str) -> None:
    assert money.show(nanos, places) == text


@pytest.mark.parametrize(
    ("value", "nanos"),
    [
        ("0.00163", 1_630_000),
        (5, 5_000_000_000),
        (Decimal("6.25"), 6_250_000_000),
        ("-1", -1_000_000_000),
        ("0.000000001", 1),
        ("1.1000000000000", 1_100_000_000),
        ("123456789012345678901234567890", 123456789012345678901234567890 * 10**9),
        ("1e-9", 1),
    ],
)
def test_parses_exact_amounts(value: str | int | Decimal, nanos: int) -> None:
    assert money.parse(value) == nanos


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (0.1, "as text or as a Decimal"),
        (True, "as text or as a Decimal"),
        (None, "as text or as a Decimal"),
        ("0.0000000001", "round it to nine"),
        (Decimal("3.33333333333"), "round it to nine"),
        ("five", "plain number"),
        ("", "plain number"),
        ("NaN", "plain number"),
        ("Infinity", "plain number"),
        ("1e999999999", "plain number"),
    ],
)
def test_refusal_names_the_remedy(value: object, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        money.parse(value)  # type: ignore[arg-type]


@given(NANOS)
def test_text_gives_the_amount_back(nanos: int) -> None:
    assert money.parse(money.show(nanos)) == nanos
    assert money.parse(money.to_decimal(nanos)) == nanos


@given(NANOS, st.integers(0, 9))
def test_rounds_half_up_like_decimal(nanos: int, places: int) -> None:
    wanted = money.to_decimal(nanos).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    assert money.to_decimal(money.round_to_places(nanos, places)) == wanted


@given(st.integers(-(10**12), 10**12), st.sampled_from([1, 2, 4, 10, 1000, 10**6]))
def test_divides_half_even_like_decimal(numerator: int, denominator: int) -> None:
    wanted = (Decimal(numerator) / denominator).quantize(Decimal(1), ROUND_HALF_EVEN)
    assert money.divide_half_even(numerator, denominator) == wanted


@given(NANOS, st.integers(0, 10**6), st.sampled_from([0, 2, 3]))
def test_tax_is_rounded_once(nanos: int, ppm: int, places: int) -> None:
    exact = money.to_decimal(nanos) * ppm / 10**6
    wanted = exact.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    assert money.to_decimal(money.share(nanos, ppm, places)) == wanted


@pytest.mark.parametrize(
    ("code", "places"), [("JPY", 0), ("KRW", 0), ("TWD", 2), ("USD", 2), ("BHD", 3), ("CLF", 4), ("???", 2)]
)
def test_currencies_have_their_places(code: str, places: int) -> None:
    assert money.currency_places(code) == places


@pytest.mark.parametrize(("code", "known"), [("USD", True), ("JPY", True), ("usd", False), ("XXX", False), ("", False)])
def test_only_real_currencies_count(code: str, known: bool) -> None:
    assert money.is_currency(code) is known
