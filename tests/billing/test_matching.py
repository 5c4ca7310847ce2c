"""A provider's figures against ours: each kind of difference, and sums that hold whatever comes."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from billing.matching import KINDS, Compared, Ours, Terms, Theirs, compare, total, totals_by_model
from billing.usage import BUCKETS

FIRST = dt.date(2026, 10, 1)
TERMS = Terms(FIRST, FIRST + dt.timedelta(days=2), BUCKETS, "USD", has_cost=True)
NANOS_EACH = {"input": 5_000, "cache_read": 500, "cache_write": 6_250, "cache_write_1h": 10_000, "output": 30_000}


def day(number: int) -> dt.date:
    return FIRST + dt.timedelta(days=number - 1)


def their(number: int = 1, model: str = "sol", cost_nanos: int | None = None, **tokens: int) -> Theirs:
    return Theirs(day(number), model, tokens, cost_nanos=cost_nanos, lines=1)


def our(number: int = 1, use: str = "billed", model: str = "sol", **fields: Any) -> Ours:
    """Attempts billed at five dollars a million of input, thirty of output."""
    tokens = {name: fields.pop(name) for name in BUCKETS if name in fields}
    if use in ("billed", "estimated"):
        nanos = {name: NANOS_EACH[name] * count for name, count in tokens.items()}
        fields = {"currency": "USD", "nanos": nanos, "billed_nanos": sum(nanos.values()), **fields}
    return Ours(day(number), model, use, tokens, **fields)


def kinds(row: Compared) -> dict[str, int]:
    """What is not zero: kind -> tokens."""
    sums = {kind: sum(tokens.values()) for kind, tokens in row.kinds.items()}
    return {kind: tokens for kind, tokens in sums.items() if tokens}


def only(rows: Sequence[Compared]) -> Compared:
    [row] = rows
    return row


# --- states ---


def test_same_tokens_are_matched() -> None:
    row = only(compare([their(input=10, output=5)], [our(input=10, output=5, attempts=3)], TERMS))
    assert (row.state, kinds(row), row.attempts, row.unexplained) == ("matched", {}, 3, 0)


def test_day_that_only_they_have() -> None:
    row = only(compare([their(input=10)], [], TERMS))
    assert (row.state, kinds(row)) == ("only_theirs", {"unknown": 10})


def test_day_that_only_we_have() -> None:
    row = only(compare([], [our(input=10)], TERMS))
    assert (row.state, kinds(row)) == ("only_ours", {"unknown": -10})


def test_days_outside_make_no_rows() -> None:
    assert compare([], [our(0, input=10), our(4, input=10)], TERMS) == []


def test_failures_that_nobody_counts_are_no_row() -> None:
    assert compare([their()], [our(use="failed", attempts=9)], TERMS) == []


def test_tokens_in_another_bucket_differ() -> None:
    """The same sum, but cached tokens cost a tenth: both halves are unexplained."""
    row = only(compare([their(input=4, cache_read=6)], [our(input=10)], TERMS))
    assert (row.state, kinds(row), row.unexplained) == ("differs", {}, 12)


# --- kinds ---


def test_failed_attempts_explain_more() -> None:
    row = only(compare([their(input=17)], [our(input=10), our(use="failed", input=7)], TERMS))
    assert (row.state, kinds(row), row.ours["input"]) == ("differs", {"failed": 7}, 10)


def test_failed_attempts_not_counted_there() -> None:
    """A provider that forgives failed attempts differs in nothing."""
    row = only(compare([their(input=10)], [our(input=10), our(use="failed", input=7)], TERMS))
    assert (row.state, kinds(row)) == ("matched", {})


def test_tests_explain_more() -> None:
    row = only(compare([their(input=13)], [our(input=10), our(use="test", input=3)], TERMS))
    assert kinds(row) == {"test": 3}


def test_estimates_explain_both_ways() -> None:
    for counted, expected in ((14, {"estimate": 4}), (6, {"estimate": -4}), (25, {"estimate": 10, "unknown": 5})):
        row = only(compare([their(input=counted)], [our(use="estimated", input=10)], TERMS))
        assert kinds(row) == expected


def test_rest_is_unknown() -> None:
    row = only(compare([their(input=30)], [our(input=10), our(use="failed", input=7)], TERMS))
    assert kinds(row) == {"failed": 7, "unknown": 13}


def test_stream_over_midnight_counts_before() -> None:
    """We count it where it ended, they where it began."""
    rows = compare(
        [their(1, input=15), their(2, input=20)], [our(1, input=10), our(2, input=20), our(2, input=5, edge=-1)], TERMS
    )
    assert [kinds(row) for row in rows] == [{"boundary": 5}, {"boundary": -5}]


def test_late_count_goes_to_the_day_after() -> None:
    rows = compare(
        [their(1, input=10), their(2, input=25)], [our(1, input=10), our(1, input=5, edge=1), our(2, input=20)], TERMS
    )
    assert [kinds(row) for row in rows] == [{"boundary": -5}, {"boundary": 5}]


def test_boundary_proves_no_more_than_its_tokens() -> None:
    rows = compare(
        [their(1, input=18), their(2, input=12)], [our(1, input=10), our(2, input=17), our(2, input=3, edge=-1)], TERMS
    )
    assert [kinds(row) for row in rows] == [{"boundary": 3, "unknown": 5}, {"boundary": -3, "unknown": -5}]


def test_boundary_needs_both_halves() -> None:
    """Nothing is missing on the day before, so the surplus comes from elsewhere."""
    rows = compare([their(1, input=15), their(2, input=5)], [our(1, input=10), our(2, input=5, edge=-1)], TERMS)
    assert [kinds(row) for row in rows] == [{"unknown": 5}, {}]


def test_boundary_and_test_on_one_day() -> None:
    """Forty tokens too few and eight of a test show as thirty-two too few."""
    ours = [our(1, input=10), our(2, input=50, edge=-1), our(2, "test", input=8)]
    rows = compare([their(1, input=50), their(2, input=18)], ours, TERMS)
    assert [kinds(row) for row in rows] == [{"boundary": 40}, {"test": 8, "boundary": -40}]


def test_boundary_beside_forgiven_failures() -> None:
    """The provider forgives a failed attempt of the first day; it could explain what is another day's."""
    ours = [our(1, input=10), our(1, "failed", input=99), our(2, input=50, edge=-1)]
    rows = compare([their(1, input=50), their(2, input=10)], ours, TERMS)
    assert [kinds(row) for row in rows] == [{"boundary": 40}, {"boundary": -40}]


def test_boundary_over_the_periods_ends() -> None:
    rows = compare(
        [their(1, input=5), their(3, input=8)],
        [our(1, input=10, edge=-1), our(3, input=5), our(4, input=9, edge=-1)],
        TERMS,
    )
    assert [kinds(row) for row in rows] == [{"boundary": -5}, {"boundary": 3}]


def test_models_are_apart() -> None:
    rows = compare([their(model="a", input=1)], [our(model="b", input=1)], TERMS)
    assert [(row.model, row.state) for row in rows] == [("a", "only_theirs"), ("b", "only_ours")]


# --- what a file tells ---


def test_untold_buckets_are_folded() -> None:
    """A file with input and output alone has the cache within its input."""
    terms = dataclasses.replace(TERMS, buckets=("input", "output"))
    ours = our(input=1, cache_read=2, cache_write=3, cache_write_1h=4, output=5)
    row = only(compare([their(input=10, output=5)], [ours], terms))
    assert (row.state, row.ours) == ("matched", {"input": 10, "output": 5})


def test_costs_alone_compare_no_tokens() -> None:
    terms = dataclasses.replace(TERMS, buckets=())
    row = only(compare([their(cost_nanos=7)], [our(input=10)], terms))
    assert (row.state, row.cost_nanos, row.margin_nanos, row.price_nanos) == ("matched", 7, 49_993, None)
    assert row.ours["input"] == 10


# --- money ---


def test_margin_is_billed_less_cost() -> None:
    row = only(compare([their(cost_nanos=40_000, input=10)], [our(input=10)], TERMS))
    assert (row.billed, row.margin_nanos, row.price_nanos) == ({"USD": 50_000}, 10_000, -10_000)


def test_differences_are_valued_at_our_price() -> None:
    """Four failed tokens of output are 120,000 at our price; the rest of what they ask is price."""
    ours = [our(input=10, output=2), our(use="failed", output=4)]
    row = only(compare([their(cost_nanos=200_000, input=10, output=6)], ours, TERMS))
    assert (row.margin_nanos, row.price_nanos) == (-90_000, 200_000 - 110_000 - 120_000)


def test_unpriced_difference_has_no_price() -> None:
    row = only(compare([their(cost_nanos=9, input=10, output=6)], [our(input=10)], TERMS))
    assert (row.margin_nanos, row.price_nanos) == (49_991, None)


def test_other_currencies_have_no_margin() -> None:
    ours = [our(input=10), our(input=10, currency="TWD")]
    row = only(compare([their(cost_nanos=9, input=20)], ours, TERMS))
    assert (row.billed, row.cost_nanos, row.margin_nanos) == ({"USD": 50_000, "TWD": 50_000}, 9, None)


def test_file_without_costs_has_no_margin() -> None:
    row = only(compare([their(input=10)], [our(input=10)], dataclasses.replace(TERMS, has_cost=False)))
    assert (row.cost_nanos, row.margin_nanos, row.billed) == (None, None, {"USD": 50_000})


def test_days_that_they_leave_out_cost_nothing() -> None:
    row = only(compare([], [our(input=10)], TERMS))
    assert (row.cost_nanos, row.margin_nanos) == (0, 50_000)


# --- laws ---

TOKENS = st.dictionaries(st.sampled_from(BUCKETS), st.integers(0, 50))
MODELS = st.sampled_from("ab")
THEIRS = st.lists(
    st.builds(
        lambda number, model, tokens, cost: their(number, model, cost, **tokens),
        number=st.integers(1, 3),
        model=MODELS,
        tokens=TOKENS,
        cost=st.integers(-9, 10**6),
    ),
    max_size=6,
    unique_by=lambda row: (row.day, row.model),
)
OURS = st.lists(
    st.builds(
        lambda number, model, use, tokens, edge: our(number, use, model, edge=edge, **tokens),
        number=st.integers(0, 4),
        model=MODELS,
        use=st.sampled_from(("billed", "estimated", "failed", "test")),
        tokens=TOKENS,
        edge=st.sampled_from((-1, 0, 1)),
    ),
    max_size=12,
)
SOME_BUCKETS = st.sampled_from([BUCKETS, ("input", "output"), ("input", "cache_read", "output"), ("output",), ()])


def billed_in_period(ours: Sequence[Ours]) -> list[Ours]:
    return [one for one in ours if one.use in ("billed", "estimated") and TERMS.first <= one.day <= TERMS.last]


@given(THEIRS, OURS)
def test_rows_sum_to_both_inputs(theirs: list[Theirs], ours: list[Ours]) -> None:
    rows = compare(theirs, ours, TERMS)
    assert len({(row.day, row.model) for row in rows}) == len(rows)
    for bucket in BUCKETS:
        assert sum(row.ours[bucket] for row in rows) == sum(one.tokens.get(bucket, 0) for one in billed_in_period(ours))
        assert sum(row.theirs.tokens.get(bucket, 0) for row in rows if row.theirs) == sum(
            one.tokens.get(bucket, 0) for one in theirs
        )
    sums = total(rows)
    assert sums.cost_nanos == sum(one.cost_nanos or 0 for one in theirs)
    assert sums.billed.get("USD", 0) == sum(one.billed_nanos for one in billed_in_period(ours))


@given(THEIRS, OURS, SOME_BUCKETS)
def test_kinds_sum_to_the_difference(theirs: list[Theirs], ours: list[Ours], buckets: tuple[str, ...]) -> None:
    theirs = [dataclasses.replace(one, tokens={b: one.tokens.get(b, 0) for b in buckets}) for one in theirs]
    for row in compare(theirs, ours, dataclasses.replace(TERMS, buckets=buckets)):
        for bucket in buckets:
            there = row.theirs.tokens[bucket] if row.theirs else 0
            difference = there - row.ours[bucket]
            parts = [row.kinds[kind][bucket] for kind in KINDS]
            assert sum(parts) == difference
            # No kind takes more than is left: all parts point one way, but for a boundary's.
            others = [row.kinds[kind][bucket] for kind in KINDS if kind != "boundary"]
            assert all(part >= 0 for part in others) or all(part <= 0 for part in others)
        if (
            row.margin_nanos is not None
            and row.price_nanos is not None
            and not any(map(any, (k.values() for k in row.kinds.values())))
        ):
            assert row.price_nanos == -row.margin_nanos


@given(THEIRS, OURS)
def test_no_kind_proves_too_much(theirs: list[Theirs], ours: list[Ours]) -> None:
    for row in compare(theirs, ours, TERMS):
        same = [one for one in ours if (one.day, one.model) == (row.day, row.model)]
        for bucket in BUCKETS:
            most = {
                use: sum(one.tokens.get(bucket, 0) for one in same if one.use == use)
                for use in ("failed", "test", "estimated")
            }
            assert 0 <= row.kinds["failed"][bucket] <= most["failed"]
            assert 0 <= row.kinds["test"][bucket] <= most["test"]
            assert abs(row.kinds["estimate"][bucket]) <= most["estimated"]


@given(THEIRS, OURS)
def test_boundary_only_moves_tokens(theirs: list[Theirs], ours: list[Ours]) -> None:
    """Within the period what one day gains its neighbour loses: only the two ends can be left over."""
    rows = compare(theirs, ours, TERMS)
    for model in "ab":
        for bucket in BUCKETS:
            moved = sum(row.kinds["boundary"][bucket] for row in rows if row.model == model)
            ends = [
                one.tokens.get(bucket, 0)
                for one in ours
                if one.model == model and (one.day, one.edge) in ((day(1), -1), (day(0), 1), (day(4), -1), (day(3), 1))
            ]
            assert abs(moved) <= sum(ends)


@given(THEIRS, OURS)
def test_midnight_leaves_less_unexplained(theirs: list[Theirs], ours: list[Ours]) -> None:
    """What may count on another day explains something or nothing, but unsettles no day."""
    settled = [dataclasses.replace(one, edge=0) for one in ours]
    for model in "ab":
        with_midnight, without = (
            sum(row.unexplained for row in compare(theirs, found, TERMS) if row.model == model)
            for found in (ours, settled)
        )
        assert with_midnight <= without


@given(THEIRS, OURS)
def test_models_sum_to_the_total(theirs: list[Theirs], ours: list[Ours]) -> None:
    rows = compare(theirs, ours, TERMS)
    whole, parts = total(rows), list(totals_by_model(rows).values())
    assert (whole.theirs, whole.ours, whole.rows) == tuple(
        sum(getattr(part, name) for part in parts) for name in ("theirs", "ours", "rows")
    )
    assert whole.theirs == whole.ours + whole.explained + whole.kinds["unknown"]
    assert whole.kinds["unknown"] == whole.too_many + whole.too_few
    assert whole.margin_nanos == sum(part.margin_nanos or 0 for part in parts)
