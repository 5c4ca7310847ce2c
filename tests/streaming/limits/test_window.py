"""The sums of the last minute: never more than the limit, and never longer than a minute to wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streaming.limits.window import MINUTE_MS, Window

STEPS = st.lists(st.tuples(st.integers(0, 45_000), st.integers(1, 7)), max_size=60)


@given(STEPS, st.integers(1, 12))
def test_no_minute_exceeds_the_limit(steps: list[tuple[int, int]], limit: int) -> None:
    window, now, admitted = Window(), 1_000_000, []
    for pause, asked in steps:
        now += pause
        if not window.wait_ms(limit, asked, now):
            window.add(asked, now)
            admitted.append((now, asked))
    for end, _ in admitted:
        assert sum(asked for at, asked in admitted if end - MINUTE_MS < at <= end) <= limit


@given(STEPS, st.integers(7, 12))
def test_waiting_is_enough(steps: list[tuple[int, int]], limit: int) -> None:
    window, now = Window(), 1_000_000
    for pause, asked in steps:
        now += pause
        wait = window.wait_ms(limit, asked, now)
        assert 0 <= wait <= MINUTE_MS
        now += wait
        assert window.wait_ms(limit, asked, now) == 0
        window.add(asked, now)


def test_unused_tokens_are_given_back() -> None:
    window = Window()
    second = window.add(100, 5_000)
    window.take_back(60, second)
    assert window.sum(5_001) == 40
    window.take_back(500, second)
    window.take_back(1, second + 1)
    assert window.sum(5_001) == 0


def test_nothing_passes_a_limit_of_zero() -> None:
    assert Window().wait_ms(0, 1, 5_000) == MINUTE_MS


def test_reset_is_when_all_is_gone() -> None:
    window = Window()
    assert window.reset_ms(0) == 0
    window.add(1, 1_000)
    window.add(1, 9_500)
    assert window.reset_ms(10_000) == MINUTE_MS - 500
    assert window.sum(69_500) == 0
