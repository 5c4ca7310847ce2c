"""The usage report as a table: the columns that page and files share, and the whole as a sheet for files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing import money
from billing.invoice_parts import Part, part_words
from billing.models import Account, ApiKey
from billing.report_query import ACCOUNT, DAY, KEY, MODEL, PROVIDER, Periods, Query, Span
from billing.sheets import Cell, Column, Sheet
from billing.usage_report import Lone, Report, Row, change, cost_nanos, share

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

Words = "str | _StrPromise"

DIMENSION_WORDS: dict[str, str | _StrPromise] = {
    DAY: gettext_lazy("day"),
    ACCOUNT: gettext_lazy("account"),
    KEY: gettext_lazy("key"),
    MODEL: gettext_lazy("model"),
    PROVIDER: gettext_lazy("provider"),
}
COUNT, SHARE, MONEY, CHANGE = "count", "share", "money", "change"
PLACES = {COUNT: 0, SHARE: 1, MONEY: money.NANO_PLACES, CHANGE: 1}


@dataclass(frozen=True, slots=True)
class Measure:
    """A column of figures: what kind it is, and its value in a row, exact (money in nanos); None is unknown."""

    name: str
    title: str | _StrPromise
    kind: str
    value: Callable[[Row], Any]


def _of_now(name: str, title: str | _StrPromise) -> Measure:
    return Measure(name, title, COUNT, lambda row: getattr(row.now, name))


MEASURES = (
    _of_now("requests", gettext_lazy("requests")),
    _of_now("input", gettext_lazy("input")),
    _of_now("cache_read", gettext_lazy("cache read")),
    _of_now("cache_write", gettext_lazy("cache write")),
    _of_now("cache_write_1h", gettext_lazy("cache write, 1 h")),
    _of_now("output", gettext_lazy("output")),
    Measure("cached", gettext_lazy("cached %"), SHARE, lambda row: share(row.now.cache_read, row.now.prompt)),
    Measure("estimated", gettext_lazy("estimated %"), SHARE, lambda row: share(row.now.estimated, row.now.requests)),
    Measure(
        "interrupted", gettext_lazy("interrupted %"), SHARE, lambda row: share(row.now.interrupted, row.now.requests)
    ),
    _of_now("unpriced", gettext_lazy("unpriced")),
    Measure("cost", gettext_lazy("cost"), MONEY, lambda row: cost_nanos(row.now)),
)
COMPARED = (
    Measure("before", gettext_lazy("before"), MONEY, lambda row: cost_nanos(row.before) if row.before else None),
    Measure(
        "change",
        gettext_lazy("change %"),
        CHANGE,
        lambda row: change(row.now.cost_nanos, row.before.cost_nanos) if row.before else None,
    ),
)


def measures(report: Report) -> tuple[Measure, ...]:
    """The report's columns of figures, in their order; that of unpriced requests only where there are any."""
    unpriced = any(total.now.unpriced for total in report.totals)
    found = tuple(measure for measure in MEASURES if unpriced or measure.name != "unpriced")
    return found if report.periods.before is None else (*found, *COMPARED)


def place_words(report: Report, row: Row) -> list[str]:
    """What a row is about, one text per dimension."""
    return [_place_word(report, name, part) for name, part in zip(report.query.dimensions, row.place, strict=True)]


def _place_word(report: Report, dimension: str, part: Any) -> str:
    if isinstance(part, Lone):
        return _("%(day)s (before)") % {"day": part.day}
    return report.names.of(dimension, part) or _("none")


def span_words(span: Span) -> str:
    """Days, both included."""
    return _("%(first)s to %(last)s") % {"first": span.first, "last": span.last}


def zone_words(zones: tuple[str, ...]) -> str:
    """Whose days these are."""
    if len(zones) == 1:
        return zones[0]
    return _("Each account's own day: %(zones)s") % {"zones": ", ".join(zones)}


def filter_words(query: Query) -> list[tuple[str, str]]:
    """The filters that are set, as names and values."""
    words: list[tuple[str, str]] = []
    if query.account is not None:
        found = Account.objects.filter(pk=query.account).values_list("name", flat=True).first()
        words.append((_("Account"), found or ""))
    if query.key is not None:
        key = ApiKey.objects.select_related("account").filter(pk=query.key).first()
        words.append((_("Key"), str(key or "")))
    named = ((_("Model"), query.model), (_("Provider"), query.provider), (_("Currency"), query.currency))
    return words + [(name, value) for name, value in named if value]


def head(query: Query, zones: tuple[str, ...], periods: Periods, as_of: dt.datetime) -> list[tuple[str, str]]:
    """What a file says of itself above its columns."""
    compared = [(_("Compared with"), span_words(periods.before))] if periods.before else []
    return [
        (_("Period"), span_words(periods.now)),
        *compared,
        (_("Time zone"), zone_words(zones)),
        *filter_words(query),
        (_("Figures to"), f"{as_of:%Y-%m-%d %H:%M:%S} UTC"),
    ]


def sheet(report: Report, as_of: dt.datetime) -> Sheet:
    """The report as a file: the rows of the page, all of them, in their order, and its totals."""
    shown = measures(report)
    columns = [Column(str(DIMENSION_WORDS[name]), 28) for name in report.query.dimensions]
    columns += [Column(_("currency"), 10)]
    columns += [
        Column(str(measure.title), 24 if measure.kind == MONEY else 15, PLACES[measure.kind]) for measure in shown
    ]
    blank: list[Cell] = [None] * (len(report.query.dimensions) - 1)
    return Sheet(
        title=_("Usage"),
        head=head(report.query, report.zones, report.periods, as_of),
        columns=columns,
        rows=([*place_words(report, row), row.currency, *_cells(row, shown)] for row in report.rows),
        totals=[
            *([_("Total"), *blank, row.currency, *_cells(row, shown)] for row in report.totals),
            *([part_words(part), *blank, part.currency, *_part_cells(part, shown)] for part in report.parts),
        ],
    )


def _cells(row: Row, shown: tuple[Measure, ...]) -> list[Cell]:
    return [_cell(measure, row) for measure in shown]


def _cell(measure: Measure, row: Row) -> Cell:
    value = measure.value(row)
    return money.to_decimal(value) if measure.kind == MONEY and value is not None else value


def _part_cells(part: Part, shown: tuple[Measure, ...]) -> list[Cell]:
    """Of a part only the cost is known."""
    return [money.to_decimal(part.cost_nanos) if measure.name == "cost" else None for measure in shown]
