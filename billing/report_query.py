"""What a usage report is asked: days, a comparison, one or two dimensions, filters. As a URL's query and back.

    Query.parse({"period": "last_month", "by": "key"})     BadQuery says which field is wrong
    query.url()                                            the shortest query that parses to the same
    query.periods(books, latest)                           which days that means

Pure: what day it is comes from the caller.
"""

from __future__ import annotations

import calendar
import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from billing.periods import next_month, parse_day
from billing.row_ids import NO_ROW, row_id

DAY, ACCOUNT, KEY, MODEL, PROVIDER = "day", "account", "key", "model", "provider"
DIMENSIONS = (DAY, ACCOUNT, KEY, MODEL, PROVIDER)
THIS_MONTH, LAST_MONTH, CUSTOM = "this_month", "last_month", "custom"
PERIODS = (THIS_MONTH, LAST_MONTH, CUSTOM)
SAME_DAYS, PREVIOUS, NONE = "same_days", "previous", "none"
COMPARISONS = (SAME_DAYS, PREVIOUS, NONE)

MAX_DAYS = 400
"""The longest period: a year and a month."""
LONGEST_TEXT = 200
"""Of a model's or a provider's name, as their columns."""


class BadQuery(ValueError):
    """A fault in the query: its field, and a code for the words: `unknown`, `date`, `month`, `order`, `long` …"""

    def __init__(self, field: str, code: str) -> None:
        super().__init__(f"{field}: {code}")
        self.field, self.code = field, code


@dataclass(frozen=True, slots=True)
class Span:
    """Days from `first` to `last`, both included."""

    first: dt.date
    last: dt.date

    def __iter__(self) -> Iterator[dt.date]:
        for ahead in range(len(self)):
            yield self.first + dt.timedelta(days=ahead)

    def __len__(self) -> int:
        return (self.last - self.first).days + 1


@dataclass(frozen=True, slots=True)
class Periods:
    """The days asked for, and those that they are compared with: so many months or so many days earlier."""

    now: Span
    before: Span | None = None
    months: int = 0
    days: int = 0

    def counterpart(self, day: dt.date) -> dt.date | None:
        """The day that a day before is set beside; None where its month has no such day (31 October in November), or
        the period has not (29 March, of 29 February before 30 March)."""
        beside = add_months(day, self.months) if self.months else day + dt.timedelta(days=self.days)
        return beside if beside is not None and self.now.first <= beside <= self.now.last else None


@dataclass(frozen=True, slots=True)
class Query:
    """A report's whole state. Filters: an account's or a key's id, names; None is all. `first`, `last`: of CUSTOM."""

    period: str = THIS_MONTH
    first: dt.date | None = None
    last: dt.date | None = None
    compare: str = SAME_DAYS
    by: str = ACCOUNT
    then: str | None = MODEL
    account: int | None = None
    key: int | None = None
    model: str | None = None
    provider: str | None = None
    currency: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Query:
        """Read a URL's query; absent or empty fields have their defaults, unknown ones are left alone. Dates win."""
        dated = given.get("from") or given.get("to")
        period = CUSTOM if dated else _one_of(given, "period", PERIODS, THIS_MONTH)
        by = _one_of(given, "by", DIMENSIONS, ACCOUNT)
        then = _one_of(given, "then", (*DIMENSIONS, NONE), MODEL if by == ACCOUNT else NONE)
        if then == by:
            raise BadQuery("then", "twice")
        first, last = _span(given) if period == CUSTOM else (None, None)
        return cls(
            period=period,
            first=first,
            last=last,
            compare=_one_of(given, "compare", COMPARISONS, SAME_DAYS),
            by=by,
            then=None if then == NONE else then,
            account=_id(given, "account"),
            key=_id(given, "key"),
            model=_text(given, "model"),
            provider=_text(given, "provider"),
            currency=_text(given, "currency"),
        )

    @property
    def dimensions(self) -> tuple[str, ...]:
        """One or two."""
        return (self.by,) if self.then is None else (self.by, self.then)

    def url(self, **changes: Any) -> str:
        """The query of a URL, with changes; what has its default is left out."""
        query = dataclasses.replace(self, **changes)
        usual = MODEL if query.by == ACCOUNT else None
        fields: dict[str, object] = {
            "period": query.period if query.period == LAST_MONTH else None,
            "from": query.first,
            "to": query.last,
            "compare": query.compare if query.compare != SAME_DAYS else None,
            "by": query.by if query.by != ACCOUNT else None,
            "then": (query.then or NONE) if query.then != usual else None,
            **query.filters(),
        }
        return urlencode({name: value for name, value in fields.items() if value is not None})

    def filters(self) -> dict[str, Any]:
        """The filters that are set, by name."""
        names = ("account", "key", "model", "provider", "currency")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def periods(self, books: dt.date, latest: dt.date) -> Periods:
        """The days meant: `books` is today where the books are kept, `latest` the latest day that anybody has begun.

        A month that runs is asked for to the latest day, so that no account's own today is missing.
        """
        month = books.replace(day=1)
        if self.period == CUSTOM:
            assert self.first is not None  # parse sets both
            assert self.last is not None
            return self._compared(Span(self.first, self.last))
        if self.period == LAST_MONTH:
            month = (month - dt.timedelta(days=1)).replace(day=1)
        end = next_month(month) - dt.timedelta(days=1)
        return self._compared(Span(month, min(end, max(latest, books))))

    def _compared(self, now: Span) -> Periods:
        if self.compare == NONE:
            return Periods(now)
        if self.compare == PREVIOUS and self.period == CUSTOM:
            length = dt.timedelta(days=len(now))
            return Periods(now, Span(now.first - length, now.last - length), days=length.days)
        if self.compare == PREVIOUS:
            before = now.first - dt.timedelta(days=1)
            return Periods(now, Span(before.replace(day=1), before), months=1)
        return _same_days(now)


def _same_days(now: Span) -> Periods:
    """The same days of the month, as many whole months earlier as it takes not to overlap."""
    for months in range(1, MAX_DAYS):
        before = Span(_clamped(now.first, -months), _clamped(now.last, -months))
        if before.last < now.first:
            return Periods(now, before, months=months)
    raise AssertionError("a period is at most MAX_DAYS long")


def add_months(day: dt.date, months: int) -> dt.date | None:
    """The same day of another month; None where that month is too short."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    try:
        return dt.date(year, month + 1, day.day)
    except ValueError:
        return None


def _clamped(day: dt.date, months: int) -> dt.date:
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    return dt.date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1]))


def _one_of(given: Mapping[str, str], name: str, choices: tuple[str, ...], usual: str) -> str:
    chosen = given.get(name) or usual
    if chosen not in choices:
        raise BadQuery(name, "unknown")
    return chosen


def _span(given: Mapping[str, str]) -> tuple[dt.date, dt.date]:
    """From and to; one alone stands for itself."""
    first = _day(given, "from") or _day(given, "to")
    last = _day(given, "to") or first
    if first is None or last is None:
        raise BadQuery("from", "date")
    if first > last:
        raise BadQuery("from", "order")
    if len(Span(first, last)) > MAX_DAYS:
        raise BadQuery("to", "long")
    return first, last


def _day(given: Mapping[str, str], name: str) -> dt.date | None:
    text = (given.get(name) or "").strip()
    if not text:
        return None
    try:
        return parse_day(text)
    except ValueError:
        raise BadQuery(name, "date") from None


def _id(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name) or ""
    if not text:
        return None
    if (found := row_id(text)) == NO_ROW:
        raise BadQuery(name, "unknown")
    return found


def _text(given: Mapping[str, str], name: str) -> str | None:
    text = given.get(name) or ""
    if len(text) > LONGEST_TEXT or "\0" in text:
        raise BadQuery(name, "unknown")
    return text or None
