"""The statement of an account for a month: what it used, by key and model, what was billed, credited and is due.

All in the account's own zone and currency. Customers read it: no provider's name is in it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.db.models import BooleanField, ExpressionWrapper, F, Q, Sum
from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _

from billing import adjustments, credit_notes, invoice_parts, money
from billing.credit_notes import Credited
from billing.invoice_parts import Part, part_words
from billing.models import Account, Adjustment, ApiKey, CreditNote, Invoice
from billing.periods import local_day, month_bounds, next_month, parse_month
from billing.report_query import BadQuery, Span
from billing.row_ids import row_id
from billing.sheets import Cell, Column, Sheet
from billing.usage_report import cost_nanos
from billing.usage_sums import Cut, Figures, one_snapshot, sums
from billing.words import reason_words

Status = Invoice.Status


@dataclass(frozen=True, slots=True)
class Used:
    """A key's use of a model in the month."""

    key_id: int
    key: str
    model: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class Billed:
    """An issued invoice as it stands now: `due_nanos` below zero is ours to pay back."""

    invoice: Invoice
    credited_nanos: int
    due_nanos: int


@dataclass(frozen=True, slots=True)
class Statement:
    """`used`, `adjustments` and `notes` are the month's; `parts`: its use by invoice, on later ones too.

    `billed`: its invoices, and older ones not settled yet.
    """

    account: Account
    month: dt.date
    used: Sequence[Used]
    parts: Sequence[Part]
    adjustments: Sequence[Adjustment]
    billed: Sequence[Billed]
    notes: Sequence[CreditNote]

    @property
    def total(self) -> Figures:
        """The month's use in all."""
        return _total(self.used)

    @property
    def adjusted_nanos(self) -> int:
        return sum(adjustment.amount_nanos for adjustment in self.adjustments)

    @property
    def due_nanos(self) -> int:
        return sum(one.due_nanos for one in self.billed)

    @property
    def last_day(self) -> dt.date:
        return next_month(self.month) - dt.timedelta(days=1)


def parse(given: Mapping[str, str]) -> tuple[Account, dt.date]:
    """The account (`account`, an id) and the month (`month`, YYYY-MM) that a URL's query names, or BadQuery."""
    known = Account.objects.filter(pk=row_id(given.get("account", ""))).first()
    if known is None:
        raise BadQuery("account", "absent")
    try:
        return known, parse_month(given.get("month", ""))
    except ValueError:
        raise BadQuery("month", "month") from None


def build(account: Account, month: dt.date) -> Statement:
    """The account's statement for the month that begins on a day, exact at the moment of asking."""
    month = month.replace(day=1)
    with one_snapshot():
        adjusted = adjustments.counted().filter(account=account, day__gte=month, day__lt=next_month(month))
        used = _used(account, month)
        span = Span(month, next_month(month) - dt.timedelta(days=1))
        return Statement(
            account=account,
            month=month,
            used=used,
            parts=invoice_parts.parts(span, account.currency, _total(used).cost_nanos, account=account.pk),
            adjustments=list(adjusted.select_related("api_key").order_by("day", "pk")),
            billed=_billed(account, month),
            notes=list(_notes(account, month)),
        )


def _used(account: Account, month: dt.date) -> list[Used]:
    found = sums(Cut(month, next_month(month) - dt.timedelta(days=1), account=account.pk), ("key", "model"))
    names = dict(ApiKey.objects.filter(account=account).values_list("pk", "name"))
    rows = [Used(key, names[key], model, figures) for (key, model), figures in found.items()]
    return sorted(rows, key=lambda row: (row.key, row.model))


def _total(used: Iterable[Used]) -> Figures:
    total = Figures()
    for one in used:
        total.add(one.figures)
    return total


def _billed(account: Account, month: dt.date) -> list[Billed]:
    """Issued invoices of the month or before: the month's own, those paid in it, and those that are not settled."""
    start, end = month_bounds(month, ZoneInfo(account.timezone))
    in_month = Q(month=month) | Q(issued_at__gte=start, issued_at__lt=end)
    in_month |= Q(paid_on__gte=month, paid_on__lt=next_month(month))
    owing = Q(status=Status.OPEN) | Q(status=Status.PAID, credit_notes__after_payment=True)
    issued = Invoice.objects.filter(account=account, status__in=(Status.OPEN, Status.PAID), month__lte=month)
    found = list(issued.filter(in_month | owing).distinct().order_by("month", "number"))
    credited = credit_notes.credited([invoice.pk for invoice in found])
    return [_standing(invoice, credited[invoice.pk]) for invoice in found]


def _standing(invoice: Invoice, credited: Credited) -> Billed:
    return Billed(invoice, credited.total_nanos, credit_notes.due_nanos(invoice, credited))


def _notes(account: Account, month: dt.date) -> list[CreditNote]:
    notes = CreditNote.objects.filter(account=account, issued_on__gte=month, issued_on__lt=next_month(month))
    return list(notes.order_by("number"))


@dataclass(frozen=True, slots=True)
class Dues:
    """What all customers owe in a currency, credit notes taken off: in all, and of that what is past its day."""

    currency: str
    due_nanos: int = 0
    overdue_nanos: int = 0
    overdue: int = 0


def dues(today: dt.date) -> list[Dues]:
    """What is due, by currency; what we owe back on paid invoices is not in it."""
    late = ExpressionWrapper(Q(due_on__lt=today), output_field=BooleanField())
    credits = Coalesce(Sum("credit_notes__total_nanos"), 0)
    owing = Invoice.objects.filter(status=Status.OPEN).annotate(left=F("total_nanos") - credits).order_by()
    found: dict[str, Dues] = {}
    for currency, left, past in owing.filter(left__gt=0).values_list("currency", "left", late):
        known = found.get(currency, Dues(currency))
        found[currency] = Dues(
            currency,
            known.due_nanos + left,
            known.overdue_nanos + (left if past else 0),
            known.overdue + bool(past),
        )
    return [found[currency] for currency in sorted(found)]


def amount(nanos: int | None, currency: str) -> Decimal | None:
    """An amount of a document, in the currency's places."""
    if nanos is None:
        return None
    return Decimal(money.show(nanos, money.currency_places(currency)))


def head(statement: Statement, as_of: dt.datetime) -> list[tuple[str, str]]:
    """What the statement says of itself."""
    account = statement.account
    legal = [(_("Customer"), account.legal_name)] if account.legal_name else []
    period = {"first": statement.month, "last": statement.last_day}
    return [
        (_("Account"), account.name),
        *legal,
        (_("Period"), _("%(first)s to %(last)s") % period),
        (_("Time zone"), account.timezone),
        (_("Currency"), account.currency),
        (_("Figures to"), f"{as_of.astimezone(ZoneInfo(account.timezone)):%Y-%m-%d %H:%M:%S} {account.timezone}"),
    ]


def sheet(statement: Statement, as_of: dt.datetime) -> Sheet:
    """The statement as one table: a section per matter, each with a total. Use has nine places, documents their own."""
    rows = [
        *_used_cells(statement), *_part_cells(statement), *_adjusted_cells(statement), *_billed_cells(statement),
        *_note_cells(statement),
    ]  # fmt: skip
    return Sheet(
        title=_("Statement"),
        head=head(statement, as_of),
        columns=[Column(name, width, places) for name, width, places in _columns()],
        rows=rows,
        totals=[
            _cells(_("Use"), figures=statement.total, amount=money.to_decimal(statement.total.cost_nanos)),
            _cells(_("Adjustments"), amount=money.to_decimal(statement.adjusted_nanos)),
            _cells(_("Due"), amount=amount(statement.due_nanos, statement.account.currency)),
        ],
    )


def _columns() -> list[tuple[str, int, int]]:
    return [
        (_("section"), 16, 0), (_("key"), 24, 0), (_("model or document"), 28, 0), (_("date"), 12, 0),
        (_("status"), 14, 0), (_("requests"), 12, 0), (_("input"), 14, 0), (_("cache read"), 14, 0),
        (_("cache write"), 14, 0), (_("cache write, 1 h"), 14, 0), (_("output"), 14, 0), (_("unpriced"), 10, 0),
        (_("amount"), 24, 9),
    ]  # fmt: skip


def _cells(
    section: str, key: str = "", what: str = "", date: dt.date | None = None, status: str = "",
    figures: Figures | None = None, amount: Decimal | None = None,
) -> list[Cell]:  # fmt: skip
    """A row of the sheet; without figures it is of a document."""
    counts: list[Cell] = [None] * 7
    if figures is not None:
        counts = [
            figures.requests, figures.input, figures.cache_read, figures.cache_write, figures.cache_write_1h,
            figures.output, figures.unpriced,
        ]  # fmt: skip
    return [section, key, what, date, status, *counts, amount]


def _used_cells(statement: Statement) -> list[list[Cell]]:
    return [_used_row(one) for one in statement.used]


def _used_row(one: Used) -> list[Cell]:
    nanos = cost_nanos(one.figures)
    cost = None if nanos is None else money.to_decimal(nanos)
    return _cells(_("Use"), one.key, one.model, figures=one.figures, amount=cost)


def _part_cells(statement: Statement) -> list[list[Cell]]:
    return [_part_row(part) for part in statement.parts]


def _part_row(part: Part) -> list[Cell]:
    cost = money.to_decimal(part.cost_nanos)
    if len(part.invoices) != 1:
        return _cells(_("Use by invoice"), what=part_words(part), amount=cost)
    (invoice,) = part.invoices
    names = (invoice.key_name, invoice.number or "")
    return _cells(_("Use by invoice"), *names, issued_on(invoice), str(invoice.get_status_display()), amount=cost)


def _adjusted_cells(statement: Statement) -> list[list[Cell]]:
    return [
        _cells(
            _("Adjustments"), one.api_key.name, reason_words(one), one.day, str(one.get_kind_display()),
            amount=money.to_decimal(one.amount_nanos),
        )
        for one in statement.adjustments
    ]  # fmt: skip


def _billed_cells(statement: Statement) -> list[list[Cell]]:
    """Each invoice on the day of its issue, and what is due of it, on the day when."""
    currency = statement.account.currency
    rows = []
    for one in statement.billed:
        invoice, status = one.invoice, str(one.invoice.get_status_display())
        names = (invoice.key_name, invoice.number or "")
        issued = issued_on(invoice)
        rows.append(_cells(_("Invoices"), *names, issued, status, amount=amount(invoice.total_nanos, currency)))
        rows.append(_cells(_("Due"), *names, invoice.due_on, status, amount=amount(one.due_nanos, currency)))
    return rows


def issued_on(invoice: Invoice) -> dt.date | None:
    """The day of its issue, in the account's zone."""
    return local_day(invoice.issued_at, ZoneInfo(invoice.timezone)) if invoice.issued_at else None


def _note_cells(statement: Statement) -> list[list[Cell]]:
    return [
        _cells(
            _("Credit notes"), note.key_name, f"{note.number} · {note.invoice_number}", note.issued_on,
            amount=amount(-note.total_nanos, note.currency),
        )
        for note in statement.notes
    ]  # fmt: skip
