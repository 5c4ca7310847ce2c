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


def parse_month(text: str) -> dt.date:
    """`YYYY-MM` as the month's first day; ValueError says what is wrong."""
    try:
        first = dt.date.fromisoformat(f"{text}-01")
    except ValueError:
        first = dt.date.min
    if not 2000 <= first.year <= 2999:
        raise ValueError(
            _(
                "%(text)s is not a month of the years 2000 to 2999: write it as YYYY-MM, for example 2026-11",
                text=repr(text),
            )
        )
    return first


def next_month(first: dt.date) -> dt.date:
    """The first day of the month after the one that begins on `first`."""
    return (first.replace(day=1) + dt.timedelta(days=32)).replace(day=1)


def month_bounds(first: dt.date, zone: ZoneInfo) -> tuple[dt.datetime, dt.datetime]:
    """The half-open period of a month in a zone: its first instant, and the next month's (UTC)."""
    return day_start(first.replace(day=1), zone), day_start(next_month(first), zone)
