"""Attempts on one time axis: phases in their order, none outside, round labels."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.admin.timeline import MOST_STEPS, UNITS, axis
from billing.models import Attempt, UsageRecord
from tests.billing.factories import utc

START = utc(2026, 11, 30)


def record(ms: int = 2000) -> UsageRecord:
    return UsageRecord(started_at=START, ended_at=START + dt.timedelta(milliseconds=ms))


def attempt(began_ms: int, duration_ms: int, headers_ms: int | None = None, first_ms: int | None = None) -> Attempt:
    return Attempt(
        number=1, provider="acme", started_at=START + dt.timedelta(milliseconds=began_ms), headers_ms=headers_ms,
        first_output_ms=first_ms, duration_ms=duration_ms,
    )  # fmt: skip


def drawn(*attempts: Attempt, ms: int = 2000) -> list[list[tuple[str, int, int]]]:
    found = axis(record(ms), attempts)
    assert found is not None
    return [[(bar.phase, bar.x, bar.width) for bar in row.bars] for row in found.rows]


def test_phases_follow_each_other() -> None:
    assert drawn(attempt(0, 500), attempt(600, 1400, headers_ms=200, first_ms=400)) == [
        [("headers", 0, 250)],
        [("headers", 300, 100), ("thinking", 400, 100), ("output", 500, 500)],
    ]


@pytest.mark.parametrize(
    ("marks", "phases"),
    [
        ((None, None), ["headers"]),
        ((200, None), ["headers", "thinking"]),
        ((None, 400), ["thinking", "output"]),
        ((0, 0), ["output"]),
        ((200, 200), ["headers", "output"]),
        ((5000, 6000), ["headers"]),
    ],
)
def test_unknown_marks_leave_no_hole(marks: tuple[int | None, int | None], phases: list[str]) -> None:
    [bars] = drawn(attempt(0, 1000, *marks))
    assert [phase for phase, _, _ in bars] == phases
    assert sum(width for _, _, width in bars) == 500


@pytest.mark.parametrize(
    ("ms", "ticks"),
    [
        (812, ["0", "200 ms", "400 ms", "600 ms", "800 ms", "1 s"]),
        (31_200, ["0", "10 s", "20 s", "30 s", "40 s"]),
        (90_000, ["0", "20 s", "40 s", "1 min", "80 s", "100 s"]),
        (0, ["0", "1 ms"]),
        (7_200_000, ["0", "30 min", "60 min", "90 min", "120 min"]),
    ],
)
def test_labels_are_round(ms: int, ticks: list[str]) -> None:
    found = axis(record(ms), [attempt(0, ms)])
    assert found is not None
    assert found.ticks == ticks


def test_no_attempt_has_no_axis() -> None:
    assert axis(record(), []) is None


def test_words_say_what_is_drawn() -> None:
    found = axis(record(), [attempt(300, 1500)])
    assert found is not None
    assert found.rows[0].words == "Attempt 1 began after 300 ms and took 1.5 s."


times = st.integers(0, 10**8)


@given(began=times, took=times, headers=st.none() | times, first=st.none() | times, whole=times)
def test_nothing_leaves_the_axis(began: int, took: int, headers: int | None, first: int | None, whole: int) -> None:
    found = axis(record(whole), [attempt(began, took, headers, first)])
    assert found is not None
    assert len(found.ticks) <= MOST_STEPS + 1
    for row in found.rows:
        assert row.bars
        for bar in row.bars:
            assert 0 <= bar.x <= UNITS
            assert 0 < bar.width <= UNITS
