"""Reports as files: short ones at once, long ones by a worker, after the viewer was told and has said yes."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Callable
from pathlib import Path

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.timezone import now
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from billing import exports, record_export, usage_report, usage_sheet
from billing.admin.access import ask
from billing.admin.display import change_url, number
from billing.admin.faults import fault_words
from billing.admin.pages import page, site_admin
from billing.admin.record_filters import NARROWED_BY, PERIODS, USUAL_PERIOD, keys_named
from billing.exports import CONTENT_TYPES, DIRECT_ROWS, WRITERS, Format, Kind
from billing.models import Export
from billing.record_export import RecordQuery
from billing.report_query import BadQuery, Query
from billing.sheets import Sheet

LIST_STATE = ("p", "period", "o", "key")
"""What a list's URL says besides filters of records, or in words that a file must not depend on."""


@page("usage/file/<slug:format_>/", name="usage_file", right="billing.view_usagerecord")
def usage_file(request: HttpRequest, format_: str) -> HttpResponseBase:
    """The report as CSV or XLSX: GET gives it or asks, POST has it made."""
    as_of, back = now(), f"{reverse('admin:usage')}?{request.GET.urlencode()}"
    try:
        query = Query.parse(request.GET.dict())
        report, _days = usage_report.build(query, as_of)
    except BadQuery as fault:
        messages.error(request, fault_words(fault))
        return redirect(back)
    rows, sheet = len(report.rows), usage_sheet.sheet(report, as_of)
    if rows <= DIRECT_ROWS:
        return direct(sheet, Kind.USAGE, format_, as_of)
    return by_worker(request, Kind.USAGE, format_, query.url, _("%(rows)s rows") % {"rows": number(rows)}, back)


@page("usage/records/<slug:format_>/", name="records_file", right="billing.view_usagerecord")
def records_file(request: HttpRequest, format_: str) -> HttpResponseBase:
    """The records that the list of requests shows, all of them, by the URL's same filters."""
    as_of, back = now(), f"{reverse('admin:billing_usagerecord_changelist')}?{request.GET.urlencode()}"
    try:
        query = RecordQuery.parse(list_filters(request.GET.dict(), as_of))
    except BadQuery as fault:
        messages.error(request, _("There is no file of this list: %(why)s") % {"why": fault_words(fault)})
        return redirect(back)
    if query.records(as_of)[DIRECT_ROWS:].exists():
        rows = _("more than %(rows)s rows") % {"rows": number(DIRECT_ROWS)}
        return by_worker(request, Kind.RECORDS, format_, query.url, rows, back)
    return direct(record_export.sheet(query, as_of), Kind.RECORDS, format_, as_of)


def list_filters(given: dict[str, str], as_of: dt.datetime) -> dict[str, str]:
    """The filters of the list of requests, with what is relative or in a customer's words made exact."""
    filters = {name: value for name, value in given.items() if name not in LIST_STATE}
    narrowed = any(given.get(name) for name in NARROWED_BY)
    period = given.get("period") or ("all" if narrowed else USUAL_PERIOD)
    if period in PERIODS:
        filters["since"] = (as_of - dt.timedelta(days=int(period))).isoformat()
    if text := given.get("key", "").strip():
        filters["api_key__in"] = ",".join(map(str, keys_named(text))) or "0"
    return filters


def direct(sheet: Sheet, kind: str, format_: str, as_of: dt.datetime) -> HttpResponse:
    """A short file at once. 404: there is no such format."""
    if format_ not in WRITERS:
        raise Http404
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made"
        WRITERS[Format(format_)](sheet, path)
        raw = path.read_bytes()
    return attachment(HttpResponse(raw, CONTENT_TYPES[Format(format_)]), exports.file_name(kind, format_, as_of))


def attachment(response: HttpResponse, name: str) -> HttpResponse:
    """An answer that is kept as a file, and nowhere else."""
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "private, no-store"
    return response


def by_worker(
    request: HttpRequest, kind: str, format_: str, query: Callable[[], str], size: str, back: str, language: str = ""
) -> HttpResponseBase:
    """Ask whether a worker shall make the file; at a POST it shall, and its page shows how far it is."""
    if format_ not in Format.values:
        raise Http404
    if request.method == "POST":
        language = language or get_language() or "en"
        export = exports.ask(request.user, kind, format_, query(), language=language)  # type: ignore[arg-type]  # logged in
        return redirect(change_url(export))
    return ask(
        request, site_admin(Export), None, title=_("Export"), verb=_("Make the file"), cancel_url=back,
        question=_("Make a file of %(size)s?") % {"size": size},
        effects=[
            _("A worker makes it in the background; its page shows how far it is, and you may leave it."),
            _("The file is kept for %(days)s days, for you alone.") % {"days": exports.KEPT.days},
        ],
    )  # fmt: skip
