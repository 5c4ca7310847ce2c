"""An invoice as a file, and its proof: what it says beside what its records come to."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from billing import invoice_documents, invoice_runs, invoice_sheet, jobs, proofs
from billing.admin.display import badge, change_url, list_url, moment, money, number, signed
from billing.admin.month_run import progress
from billing.admin.pages import page, show
from billing.admin.report_files import attachment, by_worker
from billing.exports import Format, Kind
from billing.invoice_runs import Act, State
from billing.models import Invoice, InvoiceRun, UsageRecord
from billing.money import NANO_PLACES
from billing.proofs import Proof, Row
from billing.sheets import as_csv

SEE = "billing.view_invoice"


@page("billing/invoice/<int:pk>/pdf/", name="invoice_pdf", right=SEE)
def pdf(request: HttpRequest, pk: int) -> HttpResponseBase:
    """The kept document; of a draft a preview, marked as such. What takes long to draw a worker draws."""
    invoice = get_object_or_404(Invoice, pk=pk)
    if invoice.status == Invoice.Status.DRAFT:
        return _draft(request, invoice)
    if invoice_documents.made(invoice) is None and invoice_documents.is_long(invoice):
        messages.info(request, _("The document is long, and is being made: it is here within a minute."))
        return redirect(change_url(invoice))
    content = bytes(invoice_documents.of(invoice, now=now()).content)
    return attachment(HttpResponse(content, "application/pdf"), f"invoice-{invoice.number}.pdf")


def _draft(request: HttpRequest, invoice: Invoice) -> HttpResponseBase:
    if invoice_documents.is_long(invoice):
        size = _("a PDF of %(lines)s lines") % {"lines": number(invoice.lines.count())}
        return by_worker(request, Kind.DRAFT, Format.PDF, lambda: f"invoice={invoice.pk}", size, change_url(invoice))
    content = invoice_documents.preview(invoice)
    return attachment(HttpResponse(content, "application/pdf"), f"draft-{invoice.pk}.pdf")


@page("billing/invoice/<int:pk>/csv/", name="invoice_csv", right=SEE)
def csv(request: HttpRequest, pk: int) -> HttpResponse:
    """The lines, with the PDF's digits in full."""
    invoice = get_object_or_404(Invoice, pk=pk)
    name = f"invoice-{invoice.number}.csv" if invoice.number else f"draft-{pk}.csv"
    return attachment(HttpResponse(as_csv(invoice_sheet.sheet(invoice)), "text/csv; charset=utf-8"), name)


@page("billing/invoice/<int:pk>/prove/", name="invoice_prove", right=SEE)
def prove(request: HttpRequest, pk: int) -> HttpResponse:
    """At once, or what the last proof in the background came to. A POST has one made there."""
    invoice = get_object_or_404(Invoice, pk=pk)
    here = reverse("admin:invoice_prove", args=[pk])
    if request.method == "POST":
        invoice_runs.ask_proof(invoice, by=cast(User, request.user))
        return redirect(here)
    frame: dict[str, Any] = {
        "title": _("Prove it: %(invoice)s") % {"invoice": invoice},
        "invoice": invoice,
        "invoice_url": change_url(invoice),
        "here": here,
    }
    if invoice.status == Invoice.Status.VOID:
        return show(request, "admin/billing/invoice/prove.html", void=True, hashes=_hashes(invoice), **frame)
    if not proofs.is_long(invoice):
        found = proofs.prove(invoice, now=now())
        return show(request, "admin/billing/invoice/prove.html", **_shown(invoice, found), **frame)
    runs = InvoiceRun.objects.filter(invoice=invoice, act=Act.PROVE)
    newest, done = runs.first(), runs.filter(state=State.DONE).first()
    told = progress(newest) if newest and newest.state != State.DONE else None
    shown = {} if done is None else _shown(invoice, proofs.read(done.result))
    return show(
        request, "admin/billing/invoice/prove.html", long=number(proofs.AT_ONCE), told=told,
        under_way=newest is not None and newest.state in jobs.OPEN, **shown, **frame,
    )  # fmt: skip


def _shown(invoice: Invoice, found: Proof) -> dict[str, Any]:
    currency = invoice.currency
    names = {"subtotal": _("Subtotal"), "tax": _("Tax"), "total": _("Total")}
    return {
        "verdict": badge(_("it agrees"), "good", "verified") if found.holds else badge(_("it differs"), "bad", "error"),
        "sentence": _sentence(invoice, found),
        "lines": [_row(row, row.name, currency, NANO_PLACES) for row in found.lines],
        "sums": [_row(row, names[row.name], currency, None) for row in found.sums],
        "checks": _checks(found, currency),
        "odd": [{"name": name, "url": list_url(UsageRecord, q=name)} for name in found.odd],
        "hashes": _hashes(invoice, found),
        "as_of": moment(found.at, invoice.timezone),
    }


def _sentence(invoice: Invoice, found: Proof) -> str:
    records = found.records + sum(filed.records for filed in found.filed)
    count = {"count": number(records)}
    if not found.holds:
        return _("What the invoice says and what its records come to differ: see below.")
    if invoice.status == Invoice.Status.DRAFT:
        words = ngettext(
            "The draft is what the %(count)s record that it would bill now comes to.",
            "The draft is what the %(count)s records that it would bill now come to.",
            records,
        )
    else:
        words = ngettext(
            "Each line, the tax and the total are what its %(count)s record comes to, to the last digit.",
            "Each line, the tax and the total are what its %(count)s records come to, to the last digit.",
            records,
        )
    return words % count


def _checks(found: Proof, currency: str) -> list[str]:
    rated = found.records - found.unpriced
    follow = ngettext(
        "Of %(rated)s priced record, %(good)s costs what its own quantities and unit prices make.",
        "Of %(rated)s priced records, %(good)s cost what their own quantities and unit prices make.",
        rated,
    )
    checks = [follow % {"rated": number(rated), "good": number(rated - found.odd_count)}]
    if found.unpriced:
        words = ngettext(
            "%(count)s record has no price, and is on no line.",
            "%(count)s records have no price, and are on no line.",
            found.unpriced,
        )
        checks.append(words % {"count": number(found.unpriced)})
    for filed in found.filed:
        words = ngettext(
            "%(count)s record more, %(cost)s, was dropped: it is in the lines above, and in %(file)s (SHA-256 "
            "%(sha256)s).",
            "%(count)s records more, %(cost)s, were dropped: they are in the lines above, and in %(file)s (SHA-256 "
            "%(sha256)s).",
            filed.records,
        )
        told = {"file": filed.file_name, "sha256": filed.sha256, "count": number(filed.records)}
        checks.append(words % {**told, "cost": money(filed.nanos, currency, NANO_PLACES)})
    return checks


def _row(row: Row, name: str, currency: str, places: int | None) -> dict[str, Any]:
    difference = signed(row.difference_nanos, currency, places) if row.difference_nanos else "0"
    return {
        "name": name,
        "agrees": row.agrees,
        "quantity": number(row.invoice_quantity),
        "records_quantity": number(row.records_quantity),
        "invoice": money(row.invoice_nanos, currency, places),
        "records": money(row.records_nanos, currency, places),
        "difference": difference,
    }


def _hashes(invoice: Invoice, found: Proof | None = None) -> dict[str, Any] | None:
    """Of the document: stored, now, made anew. None for a draft, and as long as there is none."""
    hashes = found.hashes if found else proofs.hashes(invoice)
    if not hashes.stored:
        return None
    same = badge(_("the same"), "good", "check_circle")
    return {
        "stored": hashes.stored,
        "kept": hashes.kept,
        "anew": hashes.anew,
        "kept_badge": same if hashes.intact else badge(_("differs"), "bad", "error"),
        "anew_badge": same if hashes.anew == hashes.stored else badge(_("differs"), "warn", "difference"),
    }
