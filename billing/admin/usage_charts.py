"""The charts of the usage report: cost, requests, tokens and shares over the days, and who leads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

from django.utils.translation import gettext as _

from billing import money
from billing.admin.charts import COLOURS, OTHER, SERIES, Chart, Series, bars, colours, columns, shares
from billing.usage_report import LEADERS, Days, Lone, Report, share
from billing.usage_sheet import DIMENSION_WORDS
from billing.usage_sums import Figures

CURRENCIES = 3
"""Currencies with charts of their own, those with most requests; a filter brings each of the others."""

Measured = Callable[[Figures], int]


def charts(report: Report, days: Days) -> list[Chart]:
    """All charts of a report; none where there is nothing to show."""
    if not report.totals:
        return []
    labels = [_label(day) for day in days.days]
    return [
        *cost_per_day(report, days),
        _requests(report, days, labels),
        _tokens(days, labels),
        _shares(days, labels),
        *(_rank(report, days, currency) for currency in _currencies(report)),
    ]


def cost_per_day(report: Report, days: Days) -> list[Chart]:
    """Cost over the days, a chart per currency."""
    labels = [_label(day) for day in days.days]
    return [_cost(report, days, labels, currency) for currency in _currencies(report)]


def _currencies(report: Report) -> list[str]:
    return [total.currency for total in report.totals[:CURRENCIES]]


def _label(day: dt.date | Lone) -> str:
    return f"({day.day:%m-%d})" if isinstance(day, Lone) else f"{day:%m-%d}"


def _amount(nanos: int) -> str:
    return money.show(nanos)


def _cost(report: Report, days: Days, labels: Sequence[str], currency: str) -> Chart:
    title = _("Cost per day by %(series)s, %(currency)s") % {"series": _series_word(days), "currency": currency}
    series = _stacked(report, days, currency, lambda figures: figures.cost_nanos, _amount)
    before = _before(days, currency, lambda figures: figures.cost_nanos, _amount) if report.periods.before else None
    return columns(title, currency, labels, series, before=before, whole=False)


def _requests(report: Report, days: Days, labels: Sequence[str]) -> Chart:
    title = _("Requests per day by %(series)s") % {"series": _series_word(days)}
    series = _stacked(report, days, None, lambda figures: figures.requests, str)
    before = _before(days, None, lambda figures: figures.requests, str) if report.periods.before else None
    return columns(title, _("requests"), labels, series, before=before, whole=True)


def _series_word(days: Days) -> str:
    return str(DIMENSION_WORDS[days.series])


def _stacked(
    report: Report, days: Days, currency: str | None, measure: Measured, write: Callable[[int], str]
) -> list[Series]:
    """The four largest series and what they leave of the whole, of one currency or of all."""
    largest = _largest(report, days, currency, measure)[:SERIES]
    names = {one: report.names.of(days.series, one) or _("none") for one in largest}
    colour = colours(list(names.values()))
    cells: dict[tuple[object, dt.date], int] = {}
    for (day, series, found), figures in days.leaders.items():
        if currency in (None, found):
            cells[series, day] = cells.get((series, day), 0) + measure(figures)
    stacked = [
        Series(names[one], [write(cells.get((one, day), 0)) for day in _dates(days)], colour[names[one]])
        for one in largest
    ]
    whole = _by_day(days, currency)
    others = [
        measure(figures) - sum(cells.get((one, day), 0) for one in largest)
        for day, figures in zip(_dates(days), whole, strict=True)
    ]
    if any(others):
        stacked.append(Series(_("Other"), list(map(write, others)), OTHER))
    return stacked


def _largest(report: Report, days: Days, currency: str | None, measure: Measured) -> list[object]:
    """The series by their totals, the largest first."""
    totals: dict[object, int] = {}
    for (series, found), figures in days.totals.items():
        if currency in (None, found) and figures.requests:
            totals[series] = totals.get(series, 0) + measure(figures)
    return sorted(totals, key=lambda one: (-totals[one], report.names.of(days.series, one)))


def _dates(days: Days) -> list[dt.date]:
    """The days as keys of what is now; a lone day before has nothing there."""
    return [dt.date.min if isinstance(day, Lone) else day for day in days.days]


def _before(days: Days, currency: str | None, measure: Measured, write: Callable[[int], str]) -> list[str]:
    sums: dict[dt.date | Lone, int] = {}
    for (day, found), figures in days.before.items():
        if currency in (None, found):
            sums[day] = sums.get(day, 0) + measure(figures)
    return [write(sums.get(day, 0)) for day in days.days]


def _by_day(days: Days, currency: str | None = None) -> list[Figures]:
    """Everything of a day, in one currency or in all: of all only what is no money may be read."""
    sums: dict[dt.date, Figures] = {}
    for (day, found), figures in days.whole.items():
        if currency in (None, found):
            sums.setdefault(day, Figures()).add(figures)
    return [sums.get(day, Figures()) for day in _dates(days)]


def _tokens(days: Days, labels: Sequence[str]) -> Chart:
    """Four buckets: what is written to the cache is one."""
    found = _by_day(days)
    parts: tuple[tuple[str, Measured], ...] = (
        (_("input"), lambda figures: figures.input),
        (_("cache read"), lambda figures: figures.cache_read),
        (_("cache write"), lambda figures: figures.cache_write + figures.cache_write_1h),
        (_("output"), lambda figures: figures.output),
    )
    series = [
        Series(name, [str(measure(figures)) for figures in found], COLOURS[at])
        for at, (name, measure) in enumerate(parts)
    ]
    return columns(_("Tokens per day by bucket"), _("tokens"), labels, series, before=None, whole=True)


def _shares(days: Days, labels: Sequence[str]) -> Chart:
    """A day without requests has no share: the line has a gap."""
    found = _by_day(days)
    parts: tuple[tuple[str, Measured, Measured], ...] = (
        (_("cached"), lambda figures: figures.cache_read, lambda figures: figures.prompt),
        (_("estimated"), lambda figures: figures.estimated, lambda figures: figures.requests),
        (_("interrupted"), lambda figures: figures.interrupted, lambda figures: figures.requests),
    )
    series = [
        Series(name, [_share(part(figures), whole(figures)) for figures in found], COLOURS[at])
        for at, (name, part, whole) in enumerate(parts)
    ]
    return shares(_("Cached, estimated, interrupted"), labels, series)


def _share(part: int, whole: int) -> str:
    found = share(part, whole)
    return "" if found is None else str(found)


def _rank(report: Report, days: Days, currency: str) -> Chart:
    """Who leads, of the first dimension that is no day."""
    ranked = _largest(report, days, currency, lambda figures: figures.cost_nanos)
    totals = {series: figures.cost_nanos for (series, found), figures in days.totals.items() if found == currency}
    labels = [report.names.of(days.series, one) or _("none") for one in ranked[:LEADERS]]
    values = [_amount(totals[one]) for one in ranked[:LEADERS]]
    if rest := ranked[LEADERS:]:
        labels.append(_("Other"))
        values.append(_amount(sum(totals[one] for one in rest)))
    title = _("Cost by %(series)s, %(currency)s") % {"series": _series_word(days), "currency": currency}
    return bars(title, currency, labels, values)
