"""Home for Finance: can last month be closed? What it cost so far, what stands in the way, what is due, who leads."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.db import DatabaseError
from django.db.models import Exists, OuterRef
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from billing import statements, usage_report
from billing.admin.display import UNKNOWN, list_url, money, number
from billing.admin.usage_charts import cost_per_day
from billing.admin.usage_table import Links, figure_text
from billing.models import Adjustment, ApiKey, Invoice, RollupDue, UsageDay, UsageRecord
from billing.periods import local_day
from billing.report_query import ACCOUNT, Query
from billing.usage_report import Report, Row
from billing.usage_sheet import COMPARED, MEASURES, Measure

LEADERS = 10
"""Accounts per currency."""

Blocker = dict[str, str]
"""`words` (a sentence) and `url`, where it is cleared."""


def is_for(user: User | AnonymousUser) -> bool:
    """Whether this is the viewer's home: those who may bill."""
    return bool(user.has_perm("billing.change_invoice"))


def figures(now: dt.datetime) -> dict[str, Any]:
    """What the page shows. A part that cannot be read says so, and leaves the others."""
    today = local_day(now, ZoneInfo(settings.SELLER["zone"] or "UTC"))
    month = (today.replace(day=1) - dt.timedelta(days=1)).replace(day=1)
    found = _read(lambda: usage_report.build(Query(by=ACCOUNT, then=None), now, with_days=True))
    report, days = found or (None, None)
    return {
        "month": date_format(month, "YEAR_MONTH_FORMAT"),
        "blockers": _read(lambda: blockers(month)),
        "cards": [*_costs(report), *_dues(today)],
        "charts": cost_per_day(report, days) if report and days else [],
        "leaders": leaders(report) if report else None,
        "usage_url": reverse("admin:usage"),
        "as_of": f"{now:%Y-%m-%d %H:%M:%S} UTC",
    }


def _read(part: Callable[[], Any]) -> Any:
    """None where the database does not answer for this part."""
    try:
        return part()
    except DatabaseError:
        return None


def blockers(month: dt.date) -> list[Blocker]:
    """What stands against closing a month: one sentence each, with the way to clear it."""
    found: list[Blocker] = []
    end = (month + dt.timedelta(days=32)).replace(day=1)
    for count, words, url in (_unpriced(end), _undrafted(month, end), _drafts(month), _proposed(), _due(end)):
        if count:
            found.append({"words": words, "url": url})
    return found


Counted = tuple[int, str, str]


def _unpriced(end: dt.date) -> Counted:
    count = UsageRecord.objects.filter(unpriced=True, invoice=None, day__lt=end).count()
    words = ngettext(
        "%(count)s request has no price: it holds up its invoice.",
        "%(count)s requests have no price: they hold up their invoices.",
        count,
    )
    url = list_url(UsageRecord, unpriced=1, invoice__isnull=True, period="all")
    return count, words % {"count": number(count)}, url


def _undrafted(month: dt.date, end: dt.date) -> Counted:
    # Key by key, which is a look-up in an index each: a key may have many models and days.
    used = UsageDay.objects.filter(api_key=OuterRef("pk"), day__gte=month, day__lt=end)
    billed = Invoice.objects.filter(month=month).exclude(status=Invoice.Status.VOID).values("api_key")
    count = ApiKey.objects.filter(Exists(used)).exclude(pk__in=billed).count()
    words = ngettext(
        "%(count)s key has use in the month, and no invoice or draft yet.",
        "%(count)s keys have use in the month, and no invoice or draft yet.",
        count,
    )
    return count, words % {"count": number(count)}, _run_url(month)


def _drafts(month: dt.date) -> Counted:
    count = Invoice.objects.filter(month=month, status=Invoice.Status.DRAFT).count()
    words = ngettext("%(count)s draft is to be issued.", "%(count)s drafts are to be issued.", count)
    return count, words % {"count": number(count)}, _run_url(month)


def _run_url(month: dt.date) -> str:
    return f"{reverse('admin:invoice_run')}?month={month:%Y-%m}"


def _proposed() -> Counted:
    count = Adjustment.objects.filter(state=Adjustment.State.PROPOSED).count()
    words = ngettext(
        "%(count)s adjustment waits for approval.", "%(count)s adjustments wait for approval.", count
    )  # fmt: skip
    return count, words % {"count": number(count)}, list_url(Adjustment)


def _due(end: dt.date) -> Counted:
    """Not in the way of anybody: invoices are made from records. But late usage is still coming in."""
    count = RollupDue.objects.filter(day__lt=end).order_by().values("api_key", "day").distinct().count()
    words = ngettext(
        "%(count)s day of a key has usage that came in just now.",
        "%(count)s days of keys have usage that came in just now.",
        count,
    )
    return count, words % {"count": number(count)}, list_url(RollupDue)


def _costs(report: Report | None) -> list[dict[str, Any]]:
    title = _("Cost this month")
    if report is None:
        return [_card(title, UNKNOWN, _("It could not be read."), reverse("admin:usage"))]
    return [_card(title, *_against(row), reverse("admin:usage")) for row in report.totals] or [
        _card(title, number(0), _("No requests yet."), reverse("admin:usage"))
    ]


def _against(row: Row) -> tuple[str, str]:
    """The cost, and how it stands to the same days before."""
    before = row.before.cost_nanos if row.before else 0
    moved = usage_report.change(row.now.cost_nanos, before)
    cost = money(usage_report.cost_nanos(row.now), row.currency)
    if moved is None:
        return cost, _("nothing in the same days before")
    words = _("%(change)s %% against %(before)s in the same days before")
    return cost, words % {"change": f"{moved:+}", "before": money(before, row.currency)}


def _dues(today: dt.date) -> list[dict[str, Any]]:
    title, url = _("Due"), list_url(Invoice, status=Invoice.Status.OPEN)
    found = _read(lambda: statements.dues(today))
    if found is None:
        return [_card(title, UNKNOWN, _("It could not be read."), url)]
    return [_due_card(title, one, url) for one in found] or [_card(title, number(0), _("No invoice is open."), url)]


def _due_card(title: str, one: statements.Dues, url: str) -> dict[str, Any]:
    words = _("on open invoices, none of them overdue")
    if one.overdue:
        words = ngettext(
            "%(amount)s of it on %(count)s overdue invoice",
            "%(amount)s of it on %(count)s overdue invoices",
            one.overdue,
        ) % {"amount": money(one.overdue_nanos, one.currency), "count": number(one.overdue)}
    return {**_card(title, money(one.due_nanos, one.currency), words, url), "alarm": bool(one.overdue)}


def _card(title: str, value: str, note: str, url: str) -> dict[str, Any]:
    return {"title": title, "figure": value, "note": note, "url": url}


def leaders(report: Report) -> dict[str, Any]:
    """The accounts that spent most, up to ten of each currency, with what they spent in the same days before."""
    shown = [measure for measure in (*MEASURES, *COMPARED) if measure.name in ("requests", "cost", "before", "change")]
    rows: list[dict[str, Any]] = []
    for total in report.totals:
        of_currency = [row for row in report.rows if row.currency == total.currency]
        rows += [_leader(report, row, shown) for row in of_currency[:LEADERS]]
    return {"heads": [measure.title for measure in shown], "rows": rows}


def _leader(report: Report, row: Row, shown: list[Measure]) -> dict[str, Any]:
    links = Links(report, row)
    return {
        "name": report.names.of(ACCOUNT, row.place[0]),
        "url": f"{reverse('admin:usage')}?{report.query.url(account=row.place[0], by='key', then='model')}",
        "currency": row.currency,
        "figures": [{"text": figure_text(measure, row), "url": links.of(measure.name)} for measure in shown],
    }
