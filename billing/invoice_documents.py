"""The PDFs of issued invoices: each made once, right after the issue, and kept in the database with its SHA-256.

Not inside the issue: that holds the counter of numbers, and on SQLite every other writer, and a PDF takes a while. So a
process may die between the two; then the document is made when somebody first needs it, or by beat within a minute.
Which of them makes it makes no difference: it is made of nothing but what the invoice has copied and can never change,
with `issued_at` for a clock and a font of a known hash, so it has the same bytes. Two that make it at once try to
insert the same row; the first one stays, and is what both of them return.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence

from django.db.models import QuerySet, prefetch_related_objects

from billing import invoice_pdf
from billing.models import Invoice, InvoiceDocument

BATCH = 20
"""Documents that one round of beat makes: about a second."""
DIRECT_LINES = 50
"""Of so many lines a document takes a tenth of a second, of 2,000 two: nobody waits for a longer one before a page."""


def of(invoice: Invoice, *, now: dt.datetime) -> InvoiceDocument:
    """The document of an issued invoice, made now if it is not there yet. ValueError for a draft: it has none."""
    if invoice.status == Invoice.Status.DRAFT:
        raise ValueError("a draft has no document: it has a preview")
    if found := made(invoice):
        return found
    make([invoice], now=now)
    return InvoiceDocument.objects.get(pk=invoice.pk)


def make(issued: Sequence[Invoice], *, now: dt.datetime) -> None:
    """Make the documents of these invoices, where they are not there yet."""
    prefetch_related_objects(issued, "lines")
    fresh = []
    for invoice in issued:
        content = invoice_pdf.render(invoice)
        fresh.append(
            InvoiceDocument(
                invoice=invoice, content=content, size_bytes=len(content), sha256=digest(content), made_at=now
            )
        )
    InvoiceDocument.objects.bulk_create(fresh, ignore_conflicts=True)


def is_long(invoice: Invoice) -> bool:
    """Whether a worker should draw it."""
    return invoice.lines.count() > DIRECT_LINES


def made(invoice: Invoice) -> InvoiceDocument | None:
    """The document of an issued invoice, if it is there."""
    return InvoiceDocument.objects.filter(pk=invoice.pk).first()


def preview(invoice: Invoice) -> bytes:
    """The PDF as it would be now; of a draft, marked as one on every page."""
    return invoice_pdf.render(invoice)


def digest(content: bytes) -> str:
    """What a document is known by."""
    return hashlib.sha256(content).hexdigest()


def make_missing(now: dt.datetime) -> int:
    """Make documents that are missing, a batch at a time, the oldest first; returns how many."""
    found = list(missing().order_by("issued_at", "pk")[:BATCH])
    make(found, now=now)
    return len(found)


def missing() -> QuerySet[Invoice]:
    """Issued invoices without a document."""
    return Invoice.objects.exclude(status=Invoice.Status.DRAFT).filter(document=None)
