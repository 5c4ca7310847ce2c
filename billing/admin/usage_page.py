"""The usage report: who spent what. Its whole state is in the URL; files have the same rows, order and totals."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing import usage_report, usage_sheet
from billing.admin.display import money, number
from billing.admin.faults import fault_words
from billing.admin.pages import page, show
from billing.admin.parts import part_rows
from billing.admin.saved_views import views_of
from billing.admin.usage_charts import charts
from billing.admin.usage_table import Table
from billing.models import Account, ApiKey, UsageDay
from billing.money import NANO_PLACES
from billing.report_query import (
    ACCOUNT,
    COMPARISONS,
    CUSTOM,
    DIMENSIONS,
    LAST_MONTH,
    NONE,
    PREVIOUS,
    SAME_DAYS,
    THIS_MONTH,
    BadQuery,
    Query,
    Span,
)
from billing.row_ids import row_id
from billing.usage_report import Days, Report
from billing.usage_sheet import DIMENSION_WORDS

PAGE_ROWS = 50
COMPARISON_WORDS = {
    SAME_DAYS: gettext_lazy("same days before"),
    PREVIOUS: gettext_lazy("period before"),
    NONE: gettext_lazy("nothing"),
}


@page("usage/", name="usage", right="billing.view_usagerecord")
def usage(request: HttpRequest) -> HttpResponseBase:
    """The page; a query that cannot be read is shown again with what is wrong with it."""
    as_of = now()
    given = request.GET.dict()
    frame: dict[str, Any] = {
        "title": _("Usage"),
        "is_fullwidth": "1",  # Unfold's word for a page without side margins
        "given": given,
        "presets": _presets(given),
        "views": views_of(request),
        "here": request.GET.urlencode(),
        "may_save": request.user.has_perm("billing.add_savedview"),
    }
    try:
        query = Query.parse(given)
        report, days = usage_report.build(query, as_of, with_days=True)
    except BadQuery as fault:
        context = {**frame, "fault": fault_words(fault), "controls": _controls(given, None)}
        return show(request, "admin/usage.html", **context, status=400)
    return show(request, "admin/usage.html", **frame, **_shown(request, report, days, as_of))


def _shown(request: HttpRequest, report: Report, days: Days | None, as_of: dt.datetime) -> dict[str, Any]:
    table = Table(report)
    at = _page_number(request, len(report.rows))
    return {
        "controls": _controls(request.GET.dict(), report),
        "heads": usage_sheet.head(report.query, report.zones, report.periods, as_of),
        "charts": charts(report, days) if days is not None else [],
        "columns": table.columns(),
        "rows": [table.row(row) for row in report.rows[at * PAGE_ROWS : (at + 1) * PAGE_ROWS]],
        "totals": [table.row(row) for row in report.totals],
        "parts": part_rows(report.parts),
        "pages": _pages(report, at),
        "files": [(word, _file_url(name, report.query)) for name, word in (("csv", "CSV"), ("xlsx", "XLSX"))],
        "adjusted": _adjusted(report),
        "lacks_prices": any(row.now.unpriced for row in report.totals),
    }


def _file_url(format_: str, query: Query) -> str:
    return f"{reverse('admin:usage_file', args=[format_])}?{query.url()}"


def _page_number(request: HttpRequest, rows: int) -> int:
    """Pages count from 0 here and from 1 in the URL; one that is not there is the nearest."""
    text = request.GET.get("p", "")
    last = max(0, (rows - 1) // PAGE_ROWS)
    return min(last, max(0, int(text) - 1)) if text.isascii() and text.isdecimal() and len(text) < 9 else 0


def _pages(report: Report, at: int) -> dict[str, Any] | None:
    rows = len(report.rows)
    if rows <= PAGE_ROWS:
        return None
    query = report.query.url()

    def url(to: int) -> str:
        return f"?{query}{'&' if query else ''}p={to + 1}#table"

    return {
        "shown": _("Rows %(first)s to %(last)s of %(all)s; files have them all.")
        % {"first": number(at * PAGE_ROWS + 1), "last": number(min(rows, (at + 1) * PAGE_ROWS)), "all": number(rows)},
        "before": url(at - 1) if at else "",
        "after": url(at + 1) if (at + 1) * PAGE_ROWS < rows else "",
    }


def _adjusted(report: Report) -> str:
    """Adjustments in the period are no use of anybody's: they are told, not added."""
    if report.query.model or report.query.provider:
        return ""
    sums = usage_report.adjusted(report)
    return ", ".join(money(nanos, currency, NANO_PLACES) for currency, nanos in sums)


def _presets(given: dict[str, str]) -> list[dict[str, Any]]:
    """The periods with names, as links that keep the rest."""
    kept = {name: value for name, value in given.items() if name not in ("period", "from", "to", "p") and value}
    dated = given.get("from") or given.get("to")
    chosen = CUSTOM if dated else given.get("period") or THIS_MONTH
    named = ((THIS_MONTH, _("This month")), (LAST_MONTH, _("Last month")))
    return [
        {"name": word, "url": f"?{urlencode({**kept, 'period': period})}", "chosen": chosen == period}
        for period, word in named
    ]


def _controls(given: dict[str, str], report: Report | None) -> list[dict[str, Any]]:
    """The drop-downs: name, label, choices, what is chosen. Without a report only what the query itself needs."""
    query = report.query if report else None
    dimensions = [(name, DIMENSION_WORDS[name]) for name in DIMENSIONS]
    chosen = {
        "compare": query.compare if query else given.get("compare", SAME_DAYS),
        "by": query.by if query else given.get("by", ACCOUNT),
        "then": (query.then or NONE) if query else given.get("then", NONE),
    }
    found = [
        _control("compare", _("Compare with"), [(name, COMPARISON_WORDS[name]) for name in COMPARISONS], chosen),
        _control("by", _("By"), dimensions, chosen),
        _control("then", _("Then by"), [(NONE, _("nothing")), *dimensions], chosen),
    ]
    every = [("", _("all"))]
    filters = {name: given.get(name, "") for name in ("account", "key", "model", "provider", "currency")}
    for name, label, choices in _filter_choices(report, filters):
        found.append(_control(name, label, [*every, *choices], filters))
    return found


def _control(name: str, label: str, choices: Sequence[tuple[str, Any]], chosen: dict[str, str]) -> dict[str, Any]:
    options = [{"value": value, "word": word, "chosen": value == chosen[name]} for value, word in choices]
    return {"name": name, "label": label, "options": options}


def _filter_choices(report: Report | None, chosen: dict[str, str]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """What there is to filter by: all accounts, the keys of the chosen one, and the names that were used."""
    accounts = [(str(pk), name) for pk, name in Account.objects.order_by("name").values_list("pk", "name")]
    used = _used(report.periods.now) if report else {}
    named = {
        name: sorted({*used.get(name, ()), *([chosen[name]] if chosen[name] else [])})
        for name in ("model", "provider", "currency")
    }
    return [
        ("account", _("Account"), accounts),
        ("key", _("Key"), _keys(chosen)),
        ("model", _("Model"), [(name, name) for name in named["model"] if name]),
        ("provider", _("Provider"), [(name, name) for name in named["provider"] if name]),
        ("currency", _("Currency"), [(name, name) for name in named["currency"]]),
    ]


def _keys(chosen: dict[str, str]) -> list[tuple[str, str]]:
    """The chosen account's keys; without one only the key that is chosen, for there may be thousands."""
    keys = ApiKey.objects.select_related("account").order_by("account__name", "name")
    if chosen["account"]:
        keys = keys.filter(account_id=row_id(chosen["account"]))
    elif chosen["key"]:
        keys = keys.filter(pk=row_id(chosen["key"]))
    else:
        return []
    return [(str(key.pk), str(key)) for key in keys]


def _used(span: Span) -> dict[str, set[str]]:
    """The models, providers and currencies of the period's daily sums."""
    names = ("model", "provider", "currency")
    days = UsageDay.objects.filter(day__gte=span.first, day__lte=span.last).order_by()
    rows = list(days.values_list(*names).distinct()[:1_000])
    return {name: {row[at] for row in rows} for at, name in enumerate(names)}
