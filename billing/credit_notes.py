"""Credit notes: what an issued invoice is owed less, as a document of its own with a number of its own series.

An invoice never changes; what it billed wrongly is taken back by notes that refer to it: whole lines, or an amount, all
notes together never more than its total. They correct the bill, not the use: records, adjustments and months stay.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils import translation
from django.utils.translation import gettext

from billing import money, numbering
from billing.models import CreditNote, CreditNoteLine, Invoice, InvoiceLine
from billing.periods import local_day
from billing.tax import Credit, with_tax, without_tax

if TYPE_CHECKING:
    from django.contrib.auth.models import User

Status = Invoice.Status
COPIED = (
    "account_id", "currency", "tax_rate_ppm", "seller_name", "seller_address", "seller_tax_id", "account_name",
    "key_name", "legal_name", "address", "tax_id", "language",
)  # fmt: skip
"""What a note prints as its invoice does."""


class CreditRefused(Exception):
    """This cannot be credited; the text says why, for the one who asked."""


@dataclass(frozen=True, slots=True)
class Credited:
    """What the notes of an invoice take back, tax inside; of that, what they do since it was paid."""

    total_nanos: int = 0
    after_payment_nanos: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be credited: whole lines of the invoice, or an amount off its total, tax inside."""

    line_ids: Collection[int] = ()
    amount_nanos: int = 0


Taken = tuple[InvoiceLine | None, int]
"""A line of the invoice, or None for an amount off it, and the nanos taken back, before tax."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a note would say, and what the invoice is owed before and after it; below zero: to be paid back."""

    credit: Credit
    lines: Sequence[Taken]
    due_before_nanos: int
    due_after_nanos: int


def credited(invoice_ids: Collection[int]) -> dict[int, Credited]:
    """Of each of these invoices what its credit notes take back."""
    notes = CreditNote.objects.filter(invoice__in=invoice_ids).order_by().values_list("invoice")
    after_payment = Coalesce(Sum("total_nanos", filter=Q(after_payment=True)), 0)
    found = {
        pk: Credited(total, late) for pk, total, late in notes.annotate(sum=Sum("total_nanos"), late=after_payment)
    }
    return {pk: found.get(pk, Credited()) for pk in invoice_ids}


def due_nanos(invoice: Invoice, notes: Credited) -> int:
    """What the customer still owes on an invoice; below zero what we owe, since it was paid before it was credited."""
    if invoice.status == Status.OPEN:
        return invoice.total_nanos - notes.total_nanos
    return -notes.after_payment_nanos if invoice.status == Status.PAID else 0


LESS_DUE = Q(invoice__status=Status.OPEN) | Q(invoice__status=Status.PAID, after_payment=True)
"""The notes that `due_nanos` takes off, for a query over notes."""


def left(invoice: Invoice) -> Credit:
    """What can still be credited: the invoice less its notes."""
    sums = invoice.credit_notes.aggregate(
        subtotal=Coalesce(Sum("subtotal_nanos"), 0), tax=Coalesce(Sum("tax_nanos"), 0)
    )
    return Credit(invoice.subtotal_nanos - sums["subtotal"], invoice.tax_nanos - sums["tax"])


def creditable_lines(invoice: Invoice) -> QuerySet[InvoiceLine]:
    """The lines that bill something and that no note has taken back yet."""
    return invoice.lines.exclude(amount_nanos=0).filter(credit_note_line=None)


def preview(invoice: Invoice, wanted: Wanted) -> Preview:
    """What a note would come to. CreditRefused, with the reason, where it cannot be."""
    if invoice.status not in (Status.OPEN, Status.PAID):
        raise CreditRefused(gettext("Only an open or paid invoice can be credited."))
    if bool(wanted.line_ids) == bool(wanted.amount_nanos):
        raise CreditRefused(gettext("Choose lines, or write an amount."))
    credit, taken = _of_lines(invoice, wanted.line_ids) if wanted.line_ids else _of_amount(invoice, wanted.amount_nanos)
    due_before = due_nanos(invoice, credited([invoice.pk])[invoice.pk])
    return Preview(credit, taken, due_before, due_before - credit.total_nanos)


def make(invoice_id: int, wanted: Wanted, reason: str, *, by: User | None, now: dt.datetime) -> CreditNote:
    """Credit an open or paid invoice, under the next number. CreditRefused, and nothing made, where it cannot be."""
    if not reason.strip():
        raise CreditRefused(gettext("A credit note has a reason: say which."))
    with transaction.atomic():
        # Notes of one invoice are made one after the other, and none beside its payment or its being made void.
        invoice = Invoice.objects.select_for_update().get(pk=invoice_id)
        found = preview(invoice, wanted)
        today = local_day(now, ZoneInfo(settings.SELLER["zone"]))
        note = CreditNote(
            **{name: getattr(invoice, name) for name in COPIED},
            invoice=invoice,
            invoice_number=invoice.number or "",
            subtotal_nanos=found.credit.subtotal_nanos,
            tax_nanos=found.credit.tax_nanos,
            total_nanos=found.credit.total_nanos,
            line_count=len(found.lines),
            reason=reason.strip(),
            after_payment=invoice.status == Status.PAID,
            issued_at=now,
            issued_on=today,
            made_by=by,
        )
        note.number = numbering.take(numbering.CREDIT_NOTES, today.year)
        note.save(force_insert=True)
        CreditNoteLine.objects.bulk_create(_note_lines(note, found.lines))
    return note


def _note_lines(note: CreditNote, lines: Sequence[Taken]) -> list[CreditNoteLine]:
    with translation.override(note.language):
        amount_off = gettext("amount off the invoice %(number)s") % {"number": note.invoice_number}
    return [
        CreditNoteLine(
            credit_note=note,
            invoice_line=line,
            position=position,
            description=line.description if line else amount_off,
            amount_nanos=nanos,
        )
        for position, (line, nanos) in enumerate(lines, start=1)
    ]


def _of_lines(invoice: Invoice, line_ids: Collection[int]) -> tuple[Credit, list[Taken]]:
    lines = list(creditable_lines(invoice).filter(pk__in=line_ids))
    if len(lines) < len(set(line_ids)):
        raise CreditRefused(gettext("One of these lines is credited already, or is on another invoice."))
    net_nanos, rest, places = sum(line.amount_nanos for line in lines), left(invoice), _places(invoice)
    if not 0 < net_nanos <= rest.subtotal_nanos:
        words = gettext("These lines come to %(currency)s %(sum)s; the invoice has %(left)s left before tax.")
        raise CreditRefused(
            words
            % {
                "currency": invoice.currency,
                "sum": money.show(net_nanos, places),
                "left": money.show(rest.subtotal_nanos, places),
            }
        )
    return with_tax(net_nanos, rest, invoice.tax_rate_ppm, places), [(line, line.amount_nanos) for line in lines]


def _of_amount(invoice: Invoice, amount_nanos: int) -> tuple[Credit, list[Taken]]:
    rest, places = left(invoice), _places(invoice)
    whole = money.round_to_places(amount_nanos, places) == amount_nanos
    if not whole or not 0 < amount_nanos <= rest.total_nanos:
        words = gettext(
            "Write an amount above zero with at most %(places)s decimal places: %(currency)s %(left)s is left."
        )
        raise CreditRefused(
            words % {"currency": invoice.currency, "places": places, "left": money.show(rest.total_nanos, places)}
        )
    credit = without_tax(amount_nanos, rest, invoice.tax_rate_ppm, places)
    return credit, [(None, credit.subtotal_nanos)]


def _places(invoice: Invoice) -> int:
    return money.currency_places(invoice.currency)
