"""Hours, days and months in an account's time zone, as instants in UTC."""

from __future__ import annotations

import datetime as dt
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from billing.phrases import phrase as _

NO_PLACE = frozenset({"Factory", "localtime", "posixrules"})
"""Names in the tz database's folder that stand for a host's own zone, or for none."""


@cache
def zones() -> frozenset[str]:
    """The time zones that an account or the seller may have, by their names in the tz database."""
    return frozenset(zone for zone in available_timezones() - NO_PLACE if not zone.startswith(("posix/", "right/")))


YEARS = range(2000, 3000)
"""Years that may be asked for: days and zones before and after any of them are still dates."""


def local_day(instant: dt.datetime, zone: ZoneInfo) -> dt.date:
    """The day of an aware instant in a zone."""
    return instant.astimezone(zone).date()


def local_hour(instant: dt.datetime, zone: ZoneInfo) -> dt.datetime:
    """The instant (UTC) at which the instant's hour began on the zone's clocks (+5:45 and DST days included)."""
    here = instant.astimezone(zone)
    past_the_hour = dt.timedelta(minutes=here.minute, seconds=here.second, microseconds=here.microsecond)
    return (instant - past_the_hour).astimezone(dt.UTC)


def day_start(day: dt.date, zone: ZoneInfo) -> dt.datetime:
    """The instant (UTC) at which a day begins in a zone."""
    return dt.datetime.combine(day, dt.time(), zone).astimezone(dt.UTC)


def parse_day(text: str) -> dt.date:
    """`YYYY-MM-DD` as a day of `YEARS`, or ValueError."""
    day = dt.date.fromisoformat(text)
    if len(text) != len("2026-11-03") or day.year not in YEARS:  # fromisoformat also reads 20261103
        raise ValueError(text)
    return day


def parse_month(text: str) -> dt.date:
    """`YYYY-MM` as the month's first day, of `YEARS`; ValueError says what is wrong."""
    try:
        return parse_day(f"{text}-01")
    except ValueError:
        raise ValueError(
            _(
                "%(text)s is not a month of the years 2000 to 2999: write it as YYYY-MM, for example 2026-11",
                text=repr(text),
            )
        ) from None


def next_month(first: dt.date) -> dt.date:
    """The first day of the month after the one that begins on `first`."""
    return (first.replace(day=1) + dt.timedelta(days=32)).replace(day=1)


def month_bounds(first: dt.date, zone: ZoneInfo) -> tuple[dt.datetime, dt.datetime]:
    """The half-open period of a month in a zone: its first instant, and the next month's (UTC)."""
    return day_start(first.replace(day=1), zone), day_start(next_month(first), zone)
