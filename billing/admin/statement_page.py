"""The statement of an account: what it used, was billed and owes, for a month of its own zone."""

from __future__ import annotations

import datetime as dt
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import override

from billing import statements
from billing.admin.display import badge, change_url, list_url, money, number
from billing.admin.faults import fault_words
from billing.admin.invoices import STATUS_LOOKS
from billing.admin.pages import page, show
from billing.admin.parts import part_rows
from billing.admin.report_files import by_worker, direct
from billing.exports import DIRECT_ROWS, Format, Kind
from billing.models import Account, Adjustment, CreditNote, Invoice, UsageRecord
from billing.money import NANO_PLACES
from billing.periods import local_day
from billing.report_query import BadQuery
from billing.row_ids import row_id
from billing.statements import Billed, Statement, Used
from billing.usage_report import cost_nanos
from billing.words import reason_words

LANGUAGES = {"zh-Hant": "zh-hant"}
"""An account's language -> what Django calls it, where that differs."""


@page("statement/", name="statement", right="billing.view_invoice")
def statement(request: HttpRequest) -> HttpResponseBase:
    """The page; without an account it asks for one."""
    as_of = now()
    given = {name: request.GET.get(name, "") for name in ("account", "month")}
    accounts = list(Account.objects.order_by("name").values_list("pk", "name"))
    if not given["account"] and len(accounts) == 1:
        given["account"] = str(accounts[0][0])
    frame: dict[str, Any] = {
        "title": _("Statement"),
        "accounts": [{"value": str(pk), "word": name, "chosen": str(pk) == given["account"]} for pk, name in accounts],
        "month": given["month"] or _last_month(given["account"], as_of),
    }
    if not given["account"]:
        return show(request, "admin/statement.html", **frame)
    given["month"] = frame["month"]
    try:
        found = statements.build(*statements.parse(given))
    except BadQuery as fault:
        return show(request, "admin/statement.html", status=400, fault=fault_words(fault), **frame)
    return show(request, "admin/statement.html", **frame, **_shown(found, as_of))


@page("statement/file/<slug:format_>/", name="statement_file", right="billing.view_invoice")
def statement_file(request: HttpRequest, format_: str) -> HttpResponseBase:
    """A short CSV at once, a long one and a PDF by a worker; all in the account's language."""
    as_of, back = now(), f"{reverse('admin:statement')}?{request.GET.urlencode()}"
    try:
        account, month = statements.parse(request.GET.dict())
    except BadQuery as fault:
        messages.error(request, fault_words(fault))
        return redirect(back)
    language = LANGUAGES.get(account.language, account.language)
    with override(language):
        if format_ == Format.CSV:
            found = statements.sheet(statements.build(account, month), as_of)
            if len(list(found.rows)) <= DIRECT_ROWS:
                return direct(found, Kind.STATEMENT, format_, as_of)
    query = urlencode({"account": account.pk, "month": f"{month:%Y-%m}"})
    words = _("a file of the statement of %(account)s for %(month)s")
    size = words % {"account": account.name, "month": f"{month:%Y-%m}"}
    return by_worker(request, Kind.STATEMENT, format_, lambda: query, size, back, language=language)


def _last_month(account: str, as_of: dt.datetime) -> str:
    """The month before this one in the account's zone."""
    zones = Account.objects.filter(pk=row_id(account)).values_list("timezone", flat=True) if account else []
    today = local_day(as_of, ZoneInfo(next(iter(zones), "UTC")))
    return f"{today.replace(day=1) - dt.timedelta(days=1):%Y-%m}"


def _shown(found: Statement, as_of: dt.datetime) -> dict[str, Any]:
    currency = found.account.currency
    query = urlencode({"account": found.account.pk, "month": f"{found.month:%Y-%m}"})
    return {
        "account_url": change_url(found.account),
        "heads": statements.head(found, as_of),
        "files": {name: f"{reverse('admin:statement_file', args=[name])}?{query}" for name in ("csv", "pdf")},
        "cards": [
            (_("Use"), money(cost_nanos(found.total), currency)),
            (_("Adjustments"), money(found.adjusted_nanos, currency)),
            (_("Due in all"), money(found.due_nanos, currency)),
        ],
        "used": [_used(found, one) for one in found.used],
        "used_total": _figures(found, Used(0, "", "", found.total)),
        "unpriced": number(found.total.unpriced) if found.total.unpriced else "",
        "parts": part_rows(found.parts),
        "adjustments": [_adjustment(one) for one in found.adjustments],
        "adjusted": money(found.adjusted_nanos, currency, NANO_PLACES),
        "billed": [_billed(one) for one in found.billed],
        "due": money(found.due_nanos, currency),
        "notes": [_note(note) for note in found.notes],
    }


def _used(found: Statement, one: Used) -> dict[str, Any]:
    days = {"day__gte": found.month, "day__lte": found.last_day}
    url = list_url(UsageRecord, api_key=one.key_id, model=one.model, **days)
    return {"key": one.key, "model": one.model, "url": url, "figures": _figures(found, one)}


def _figures(found: Statement, one: Used) -> list[str]:
    figures, currency = one.figures, found.account.currency
    counts = (figures.requests, figures.input, figures.prompt - figures.input, figures.output)
    return [*map(number, counts), money(cost_nanos(figures), currency, NANO_PLACES)]


def _adjustment(one: Adjustment) -> dict[str, Any]:
    return {
        "url": change_url(one), "day": one.day, "key": one.api_key.name, "kind": one.get_kind_display(),
        "reason": reason_words(one), "amount": money(one.amount_nanos, one.currency, NANO_PLACES),
    }  # fmt: skip


def _billed(one: Billed) -> dict[str, Any]:
    invoice = one.invoice
    return {
        "url": change_url(invoice),
        "number": invoice.number,
        "key": invoice.key_name,
        "month": f"{invoice.month:%Y-%m}",
        "issued": statements.issued_on(invoice),
        "status": badge(invoice.get_status_display(), *STATUS_LOOKS[Invoice.Status(invoice.status)]),
        "due_on": invoice.due_on,
        "amounts": [
            money(nanos, invoice.currency) for nanos in (invoice.total_nanos, one.credited_nanos, one.due_nanos)
        ],
    }


def _note(note: CreditNote) -> dict[str, Any]:
    return {
        "url": change_url(note), "number": note.number, "invoice": note.invoice_number, "key": note.key_name,
        "day": note.issued_on, "reason": note.reason, "amount": money(-note.total_nanos, note.currency),
    }  # fmt: skip
