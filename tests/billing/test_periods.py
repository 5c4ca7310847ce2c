"""Hours, days and months where clocks do odd things."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.periods import day_start, local_day, local_hour, month_bounds, next_month, parse_month
from tests.billing.factories import utc

ZONES = ["UTC", "Asia/Taipei", "Asia/Kathmandu", "America/Los_Angeles", "Australia/Lord_Howe", "Pacific/Kiritimati"]


@pytest.mark.parametrize(
    ("zone", "instant", "hour"),
    [
        ("Asia/Kathmandu", utc(2026, 11, 3, 6, 20), utc(2026, 11, 3, 6, 15)),
        ("Asia/Kathmandu", utc(2026, 11, 3, 6, 14), utc(2026, 11, 3, 5, 15)),
        ("Asia/Taipei", utc(2026, 11, 3, 6, 59), utc(2026, 11, 3, 6)),
        # Los Angeles sets its clocks back on 2026-11-01: two hours are called 1 o'clock, and stay two.
        ("America/Los_Angeles", utc(2026, 11, 1, 8, 30), utc(2026, 11, 1, 8)),
        ("America/Los_Angeles", utc(2026, 11, 1, 9, 30), utc(2026, 11, 1, 9)),
    ],
)
def test_hours_begin_on_local_clocks(zone: str, instant: dt.datetime, hour: dt.datetime) -> None:
    assert local_hour(instant, ZoneInfo(zone)) == hour


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("America/Los_Angeles", dt.date(2026, 3, 8), 23),
        ("America/Los_Angeles", dt.date(2026, 11, 1), 25),
        ("Asia/Kathmandu", dt.date(2026, 11, 1), 24),
        ("Africa/Cairo", dt.date(2026, 4, 24), 23),  # its midnight does not exist
    ],
)
def test_dst_days_have_their_length(zone: str, day: dt.date, hours: int) -> None:
    begin, end = (day_start(at, ZoneInfo(zone)) for at in (day, day + dt.timedelta(days=1)))
    assert end - begin == dt.timedelta(hours=hours)
    assert local_day(begin, ZoneInfo(zone)) == day
    assert local_day(begin - dt.timedelta(seconds=1), ZoneInfo(zone)) == day - dt.timedelta(days=1)


@pytest.mark.parametrize(
    ("zone", "start", "end"),
    [
        ("Asia/Taipei", utc(2026, 10, 31, 16), utc(2026, 11, 30, 16)),
        ("America/Los_Angeles", utc(2026, 11, 1, 7), utc(2026, 12, 1, 8)),
        ("Asia/Kathmandu", utc(2026, 10, 31, 18, 15), utc(2026, 11, 30, 18, 15)),
    ],
)
def test_months_follow_the_zone(zone: str, start: dt.datetime, end: dt.datetime) -> None:
    assert month_bounds(dt.date(2026, 11, 1), ZoneInfo(zone)) == (start, end)


@given(
    st.datetimes(dt.datetime(2024, 1, 1), dt.datetime(2029, 1, 1), timezones=st.just(dt.UTC)),  # noqa: DTZ001
    st.sampled_from(ZONES),
)
def test_instant_is_in_its_day_and_month(instant: dt.datetime, name: str) -> None:
    zone = ZoneInfo(name)
    day = local_day(instant, zone)
    assert day_start(day, zone) <= instant < day_start(day + dt.timedelta(days=1), zone)
    begin, end = month_bounds(day, zone)
    assert begin <= instant < end
    assert dt.timedelta(0) <= instant - local_hour(instant, zone) < dt.timedelta(hours=1)


def test_year_ends_in_december() -> None:
    assert next_month(dt.date(2026, 12, 1)) == dt.date(2027, 1, 1)


@pytest.mark.parametrize(
    "text", ["2026-13", "2026", "november", "2026-11-01", "", "0001-01", "1999-12", "3000-01", "9999-12"]
)
def test_bad_month_names_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="YYYY-MM"):
        parse_month(text)
