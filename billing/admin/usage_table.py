"""The usage report's table: its cells as texts, each figure with the way to the records behind it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.utils.translation import gettext as _

from billing import usage_sheet
from billing.admin.display import UNKNOWN, list_url, money, number
from billing.models import UsageRecord
from billing.money import NANO_PLACES
from billing.report_query import ACCOUNT, DAY, KEY, Query, Span
from billing.rollups import ESTIMATED, INTERRUPTED
from billing.usage_report import Lone, Report, Row
from billing.usage_sheet import CHANGE, COUNT, DIMENSION_WORDS, MONEY, Measure


@dataclass(frozen=True, slots=True)
class Table:
    """The report's cells as texts, each figure with the way to its records."""

    report: Report

    def columns(self) -> list[dict[str, Any]]:
        """Heads: dimensions, the currency, measures."""
        places = [{"name": DIMENSION_WORDS[name], "right": False} for name in self.report.query.dimensions]
        figures = [{"name": measure.title, "right": True} for measure in usage_sheet.measures(self.report)]
        return [*places, {"name": _("currency"), "right": False}, *figures]

    def row(self, row: Row) -> dict[str, Any]:
        """A row of the table; a total has no place."""
        links = Links(self.report, row)
        figures = [
            {"text": figure_text(measure, row), "url": links.of(measure.name)}
            for measure in usage_sheet.measures(self.report)
        ]
        narrower = [
            {"text": text, "url": narrowed(self.report.query, name, part)}
            for text, name, part in zip(
                usage_sheet.place_words(self.report, row) if row.place else [],
                self.report.query.dimensions,
                row.place,
                strict=False,
            )
        ]
        return {"places": narrower, "currency": row.currency, "figures": figures}


def figure_text(measure: Measure, row: Row) -> str:
    """A figure as the page writes it; unknown is a dash."""
    value = measure.value(row)
    if value is None:
        return UNKNOWN
    if measure.kind == COUNT:
        return number(value)
    if measure.kind == MONEY:
        return money(value, row.currency, NANO_PLACES).removeprefix(f"{row.currency} ")
    return f"{value:+}" if measure.kind == CHANGE else f"{value}"


def narrowed(query: Query, dimension: str, part: Any) -> str:
    """The same report of one account, key or model alone, by the dimension that is left or by day."""
    if not part or isinstance(part, Lone) or dimension == DAY:
        return ""
    left = [name for name in query.dimensions if name != dimension]
    by = left[0] if left else (KEY if dimension == ACCOUNT else DAY)
    return f"?{query.url(**{dimension: part, 'by': by, 'then': None if by == DAY or left else DAY})}"


NARROWER = {
    "estimated": urlencode({"metering__in": ",".join(ESTIMATED)}),
    "interrupted": urlencode({"ending__in": ",".join(INTERRUPTED)}),
    "unpriced": urlencode({"unpriced": 1}),
}
"""A measure that counts some of the requests -> how the list of requests finds them."""


class Links:
    """From a row's figures to the records behind them."""

    def __init__(self, report: Report, row: Row) -> None:
        self._report, self._row = report, row
        self._now = self._url(report.periods.now)
        self._before = "" if report.periods.before is None else self._url(report.periods.before, before=True)

    def of(self, measure: str) -> str:
        """The URL of the list of records; empty where a figure has none."""
        if measure == "change":
            return ""
        if measure == "before":
            return self._before
        narrower = NARROWER.get(measure)
        return f"{self._now}&{narrower}" if narrower and self._now else self._now

    def _url(self, span: Span, *, before: bool = False) -> str:
        """All records of the row's place; empty where the row has no day there."""
        query = self._report.query
        names = {"account": "account", "key": "api_key", "model": "model", "provider": "provider"}
        params: dict[str, object] = {names[name]: value for name, value in query.filters().items() if name in names}
        days: dict[str, object] = {"day__gte": span.first, "day__lte": span.last}
        for name, part in zip(query.dimensions, self._row.place, strict=False):
            if name != DAY:
                params[names[name]] = part
            elif (day := self._day(span, part, before=before)) is None:
                return ""
            else:
                days = {"day": day}
        return list_url(UsageRecord, **days, **params, currency=self._row.currency)

    def _day(self, span: Span, part: dt.date | Lone, *, before: bool) -> dt.date | None:
        if isinstance(part, Lone):
            return part.day if before else None
        if not before:
            return part
        return next((day for day in span if self._report.periods.counterpart(day) == part), None)
