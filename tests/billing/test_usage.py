"""What is billed of what was reported and what was counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.usage import (
    INPUT_ABSENT,
    MAX_COUNT,
    OUTPUT_PLACEHOLDER,
    ReportedUsage,
    TokenUsage,
    metered,
    to_be_counted,
)

REPORTED = ReportedUsage(TokenUsage(input=14, output=52, reasoning=8))
STARTED = ReportedUsage(TokenUsage(input=9, cache_read=40, output=1), flags=(OUTPUT_PLACEHOLDER,))
ZEROS = ReportedUsage(TokenUsage(), flags=("zero_with_output",))
OUTPUT_ALONE = ReportedUsage(TokenUsage(output=7), flags=(INPUT_ABSENT,))
SEARCHED = ReportedUsage(TokenUsage(server_tools={"web_search": 2}), flags=(OUTPUT_PLACEHOLDER, INPUT_ABSENT))


@pytest.mark.parametrize(
    ("reported", "produced", "finished", "usage", "metering"),
    [
        (REPORTED, True, True, TokenUsage(input=14, output=52, reasoning=8), "reported"),
        (REPORTED, True, False, TokenUsage(input=14, output=52, reasoning=8), "reported"),
        (REPORTED, False, True, TokenUsage(input=14, output=52, reasoning=8), "reported"),
        (None, True, True, TokenUsage(input=100, output=20), "estimated"),
        (None, True, False, TokenUsage(input=100, output=20), "estimated"),
        (None, False, False, TokenUsage(), "none"),
        (STARTED, True, False, TokenUsage(input=9, cache_read=40, output=20), "estimated"),
        (STARTED, False, False, TokenUsage(input=9, cache_read=40), "reported"),
        (ZEROS, True, True, TokenUsage(), "reported"),
        (ZEROS, True, False, TokenUsage(input=100, output=20), "estimated"),
        (OUTPUT_ALONE, True, True, TokenUsage(input=100, output=7), "estimated"),
        (SEARCHED, True, False, TokenUsage(input=100, output=20, server_tools={"web_search": 2}), "estimated"),
    ],
)
def test_reported_wins_where_it_is_believed(reported, produced, finished, usage, metering):
    bill = metered(reported, (100, 20), produced=produced, finished=finished)
    assert (bill.usage, bill.metering) == (usage, metering)


def test_flags_for_the_operator_stay():
    assert metered(ZEROS, None, produced=True, finished=True).flags == ("zero_with_output",)
    assert metered(SEARCHED, (1, 1), produced=True, finished=False).flags == ()


@given(
    produced=st.booleans(),
    finished=st.booleans(),
    reported=st.sampled_from([None, REPORTED, STARTED, ZEROS, OUTPUT_ALONE]),
)
def test_counts_are_asked_for_when_used(produced, finished, reported):
    """Two different counts give two different bills exactly when they were to be counted."""
    needed = to_be_counted(reported, produced=produced, finished=finished)
    bills = [metered(reported, counted, produced=produced, finished=finished).usage for counted in ((1, 2), (3, 4))]
    assert (bills[0] != bills[1]) == bool(needed)


counts = st.integers(min_value=-(2**70), max_value=2**70)


@given(
    st.builds(
        TokenUsage,
        counts,
        counts,
        counts,
        counts,
        counts,
        st.none() | counts,
        st.dictionaries(st.text(max_size=5), counts),
    )
)
def test_checked_counts_stay_in_range(usage):
    checked, flags = usage.checked()
    everything = [*checked.buckets().values(), *checked.server_tools.values(), checked.reasoning or 0]
    assert all(0 <= count <= MAX_COUNT for count in everything)
    assert (checked != usage) == bool(flags)


def test_total_input_holds_all_input_buckets():
    assert TokenUsage(1, 20, 300, 4000, 50000).total_input == 4321
