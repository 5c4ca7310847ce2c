"""The usage report: rows by one or two dimensions, their totals, and the days for its charts. Read by page and files.

Every sum is of one currency: rows and totals are apart by currency. A day is each account's own.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings

from billing import adjustments, clickhouse, invoice_parts, money, seals
from billing.invoice_parts import Part
from billing.models import Account, ApiKey
from billing.periods import local_day
from billing.report_query import ACCOUNT, DAY, KEY, LAST_MONTH, THIS_MONTH, BadQuery, Periods, Query, Span
from billing.usage_sums import Cut, Figures, MoneySum, one_snapshot, sums

log = logging.getLogger(__name__)

MAX_ROWS = 50_000
"""Rows of one report; more is a matter for the records themselves."""

LEADERS = 10
"""Of each currency."""

SPENT = ("requests", "cost_nanos")
"""The figures that charts have of single series and of the time before."""

NOTHING = Figures()
"""Of a row that has nothing before; it is never added to."""

Place = tuple[Any, ...]
"""A row's dimensions: a day, an account's or a key's id, or a name, each in the order of the query."""


Sums = Callable[..., dict[tuple[Any, ...], Figures]]
"""`usage_sums.sums`, or whoever answers the same from elsewhere."""


@dataclass(frozen=True, slots=True)
class Lone:
    """A day before that has no day beside it: 31 October, compared with November."""

    day: dt.date


@dataclass(slots=True)
class Row:
    """One place in one currency. `before` is None where nothing is compared."""

    place: Place
    currency: str
    now: Figures = field(default_factory=Figures)
    before: Figures | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Rows in their order, and a total per currency (a Row without a place). `parts`: of a month, by invoice."""

    query: Query
    periods: Periods
    zones: tuple[str, ...]
    rows: list[Row]
    totals: list[Row]
    names: Names
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class Names:
    """What ids are called: `northwind`, `northwind/production`."""

    accounts: dict[int, str]
    keys: dict[int, str]

    def of(self, dimension: str, value: Any) -> str:
        """A place's part in words; empty for a request that no provider was called for."""
        if dimension == ACCOUNT:
            return self.accounts.get(value, str(value))
        if dimension == KEY:
            return self.keys.get(value, str(value))
        return str(value.day if isinstance(value, Lone) else value)


@dataclass(frozen=True, slots=True)
class Days:
    """What charts need: figures by day and currency, now and before (on the day now), and those of the leading series.

    `totals` are all series'; the days of the others are what the leaders leave of the whole.
    """

    days: list[dt.date | Lone]
    series: str
    totals: dict[tuple[Any, str], Figures]
    leaders: dict[tuple[dt.date, Any, str], Figures]
    whole: dict[tuple[dt.date, str], Figures]
    before: dict[tuple[dt.date | Lone, str], Figures]


def build(query: Query, now: dt.datetime, *, with_days: bool = False) -> tuple[Report, Days | None]:
    """The report as of a moment, and with `with_days` what its charts need, all of one snapshot.

    BadQuery: a filter that names nothing, or more rows than a report has.
    """
    zones = zones_of(query)
    return _read(query, zones, _periods(query, zones, now), with_days)


def _read(query: Query, zones: tuple[str, ...], periods: Periods, with_days: bool) -> tuple[Report, Days | None]:
    """From ClickHouse where it is set and up to date, else from PostgreSQL; it may lack the records of sealed days."""
    store = clickhouse.store()
    if store is not None and clickhouse.fresh() and not _is_sealed(periods):
        try:
            return _read_from(partial(clickhouse.sums, store), query, zones, periods, with_days)
        except clickhouse.Unavailable as error:
            log.warning("the report is read from PostgreSQL: ClickHouse does not answer (%s)", error)
    with one_snapshot():
        return _read_from(sums, query, zones, periods, with_days)


def _is_sealed(periods: Periods) -> bool:
    last = seals.last_day()
    return last is not None and any(span is not None and span.first <= last for span in (periods.now, periods.before))


def _read_from(
    sums: Sums, query: Query, zones: tuple[str, ...], periods: Periods, with_days: bool
) -> tuple[Report, Days | None]:
    rows = _rows(sums, query, periods)
    days = _days(sums, query, periods, rows.values()) if with_days else None
    names, totals = _names(query, rows, days), _totals(rows.values())
    ordered = _ordered(rows.values(), query, names, totals)
    return Report(query, periods, zones, ordered, totals, names, _parts(query, periods.now, totals)), days


def _parts(query: Query, span: Span, totals: Iterable[Row]) -> list[Part]:
    """By invoice, where the report is of one month with all that an invoice is of; everybody's only once it is over."""
    if query.model or query.provider or not _is_month(query, span):
        return []
    whose = {"account": query.account, "key": query.key}
    return [
        part for total in totals for part in invoice_parts.parts(span, total.currency, total.now.cost_nanos, **whose)
    ]


def _is_month(query: Query, span: Span) -> bool:
    if query.period == THIS_MONTH:
        return query.account is not None or query.key is not None
    return query.period == LAST_MONTH or invoice_parts.is_month(span)


def zones_of(query: Query) -> tuple[str, ...]:
    """The zones in which the report's days begin and end, sorted. BadQuery where the account or key is not there."""
    accounts = Account.objects.order_by("timezone")
    if query.account is not None:
        accounts = accounts.filter(pk=query.account)
    if query.key is not None:
        accounts = accounts.filter(keys=query.key)
    zones = tuple(accounts.values_list("timezone", flat=True).distinct())
    if not zones and (query.account is not None or query.key is not None):
        raise BadQuery("key" if query.key is not None else "account", "absent")
    return zones or ("UTC",)


def adjusted(report: Report) -> list[tuple[str, int]]:
    """What adjustments changed in the report's days, by currency in nanos; they are in none of its rows."""
    query, span = report.query, report.periods.now
    chosen = {"account": query.account, "api_key": query.key, "currency": query.currency}
    wanted = {name: value for name, value in chosen.items() if value is not None}
    made = adjustments.counted().filter(day__gte=span.first, day__lte=span.last, **wanted).order_by("currency")
    sums = made.values_list("currency").annotate(nanos=MoneySum("amount_nanos"))
    return [(currency, int(nanos)) for currency, nanos in sums]


def share(part: int, whole: int) -> Decimal | None:
    """So many per cent, with one place; None of nothing."""
    return Decimal(money.divide_half_even(1000 * part, whole)).scaleb(-1) if whole else None


def change(now: int, before: int) -> Decimal | None:
    """By how many per cent a figure changed, with one place; None where there was nothing before."""
    return Decimal(money.divide_half_even(1000 * (now - before), before)).scaleb(-1) if before > 0 else None


def cost_nanos(figures: Figures) -> int | None:
    """None where no request has a price: that is not nothing."""
    unknown = figures.unpriced and figures.unpriced == figures.requests
    return None if unknown and not figures.cost_nanos else figures.cost_nanos


def cut_of(query: Query, span: Span) -> Cut:
    """The usage that a query asks for, of certain days."""
    return Cut(span.first, span.last, **query.filters())


def _periods(query: Query, zones: Sequence[str], now: dt.datetime) -> Periods:
    """One zone: its own days. Several: the month of the seller's books, up to the latest day that any has begun."""
    latest = max(local_day(now, ZoneInfo(zone)) for zone in zones)
    books = latest if len(zones) == 1 else local_day(now, ZoneInfo(settings.SELLER["zone"] or "UTC"))
    return query.periods(books, latest)


def _rows(sums: Sums, query: Query, periods: Periods) -> dict[tuple[Place, str], Row]:
    by = (*query.dimensions, "currency")
    rows: dict[tuple[Place, str], Row] = {}
    for (*place, currency), figures in sums(cut_of(query, periods.now), by).items():
        rows[tuple(place), currency] = Row(tuple(place), currency, figures)
    if periods.before is None:
        return _bounded(rows)
    for row in rows.values():
        row.before = NOTHING
    for (*place, currency), figures in sums(cut_of(query, periods.before), by).items():
        beside = tuple(
            _beside(periods, part) if name == DAY else part for name, part in zip(query.dimensions, place, strict=True)
        )
        row = rows.setdefault((beside, currency), Row(beside, currency, before=NOTHING))
        row.before = _added(row.before, figures)
    return _bounded(rows)


def _added(before: Figures | None, figures: Figures) -> Figures:
    if before is None or before is NOTHING:
        return figures
    before.add(figures)
    return before


def _bounded(rows: dict[tuple[Place, str], Row]) -> dict[tuple[Place, str], Row]:
    if len(rows) > MAX_ROWS:
        raise BadQuery("then", "rows")
    return rows


def _beside(periods: Periods, day: dt.date) -> dt.date | Lone:
    return periods.counterpart(day) or Lone(day)


def _days(sums: Sums, query: Query, periods: Periods, rows: Iterable[Row]) -> Days:
    """The series are the query's first dimension that is no day; of thousands only the leaders' days are read."""
    rows = [row for row in rows if row.now.requests]
    series = next((name for name in query.dimensions if name != DAY), ACCOUNT)
    cut = cut_of(query, periods.now)
    totals = _of_rows(query, series, rows) or sums(cut, (series, "currency"), figures=SPENT)
    leading = {series: leaders(totals)}
    before: dict[tuple[dt.date | Lone, str], Figures] = {}
    if periods.before is not None:
        for (day, currency), figures in sums(cut_of(query, periods.before), (DAY, "currency"), figures=SPENT).items():
            before.setdefault((_beside(periods, day), currency), Figures()).add(figures)
    shown = {*periods.now, *(day for day, _ in before if not isinstance(day, Lone))}
    lone = sorted({day.day for day, _ in before if isinstance(day, Lone)})
    return Days(
        days=[*sorted(shown), *map(Lone, lone)],
        series=series,
        totals=totals,
        leaders=sums(cut, (DAY, series, "currency"), only=leading, figures=SPENT),
        whole=_of_rows(query, DAY, rows) or sums(cut, (DAY, "currency")),
        before=before,
    )


def _of_rows(query: Query, dimension: str, rows: Iterable[Row]) -> dict[Any, Figures]:
    """What is now by a dimension and currency, from the rows, where it is one of theirs."""
    found: dict[Any, Figures] = {}
    if dimension in query.dimensions:
        at = query.dimensions.index(dimension)
        for row in rows:
            found.setdefault((row.place[at], row.currency), Figures()).add(row.now)
    return found


def leaders(totals: Mapping[tuple[Any, ...], Figures]) -> list[Any]:
    """The series that charts show: of each currency those that cost most, and of all those with most requests."""
    by_cost = sorted(totals, key=lambda place: -totals[place].cost_nanos)
    requests: dict[Any, int] = {}
    for (series, _currency), figures in totals.items():
        requests[series] = requests.get(series, 0) + figures.requests
    found: dict[Any, None] = {}
    for currency in {currency for _series, currency in totals}:
        found.update(dict.fromkeys([series for series, of in by_cost if of == currency][:LEADERS]))
    found.update(dict.fromkeys(sorted(requests, key=lambda series: -requests[series])[:LEADERS]))
    return list(found)


def _totals(rows: Iterable[Row]) -> list[Row]:
    """One per currency, the one with most requests first: the only order that currencies have."""
    totals: dict[str, Row] = {}
    for row in rows:
        total = totals.setdefault(row.currency, Row((), row.currency, before=None if row.before is None else Figures()))
        total.now.add(row.now)
        if row.before and row.before is not NOTHING and total.before is not None:
            total.before.add(row.before)
    return sorted(totals.values(), key=lambda total: (-total.now.requests, total.currency))


def _names(query: Query, rows: Iterable[tuple[Place, str]], days: Days | None) -> Names:
    """The names of the ids in places and series: two queries, whatever their number."""
    ids: dict[str, set[int]] = {ACCOUNT: set(), KEY: set()}
    for at, name in enumerate(query.dimensions):
        if name in ids:
            ids[name].update(place[at] for place, _ in rows)
    if days is not None and days.series in ids:
        ids[days.series].update(leaders(days.totals))
    accounts = Account.objects.filter(pk__in=ids[ACCOUNT]).values_list("pk", "name") if ids[ACCOUNT] else ()
    keys = ApiKey.objects.filter(pk__in=ids[KEY]).values_list("pk", "account__name", "name") if ids[KEY] else ()
    return Names(dict(accounts), {pk: f"{account}/{name}" for pk, account, name in keys})


def _ordered(rows: Iterable[Row], query: Query, names: Names, totals: Sequence[Row]) -> list[Row]:
    """Currencies as their totals; the days newest first, all else by cost, then by requests and name."""
    first = {total.currency: at for at, total in enumerate(totals)}
    leaders: dict[tuple[str, Any], list[int]] = {}
    rows = list(rows)
    for row in rows:
        sum_of = leaders.setdefault((row.currency, row.place[0]), [0, 0])
        sum_of[0] -= row.now.cost_nanos
        sum_of[1] -= row.now.requests

    def rank(at: int, row: Row) -> tuple[Any, ...]:
        value = row.place[at]
        if query.dimensions[at] == DAY:
            lone = isinstance(value, Lone)
            return (lone, -(value.day if isinstance(value, Lone) else value).toordinal())
        cost, requests = leaders[row.currency, value] if at == 0 else (-row.now.cost_nanos, -row.now.requests)
        return (cost, requests, names.of(query.dimensions[at], value), str(value))

    places = range(len(query.dimensions))
    return sorted(rows, key=lambda row: (first[row.currency], *(part for at in places for part in rank(at, row))))
