"""The statement of an account as a PDF, in the language that is active."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from django.utils.translation import get_language
from django.utils.translation import gettext as _

from billing import money
from billing.invoice_parts import Part, part_words
from billing.pdf import Document, PdfColumn
from billing.statements import Billed, Statement, Used, head, issued_on
from billing.usage_report import cost_nanos
from billing.words import reason_words

UNKNOWN = "—"


def render(statement: Statement, as_of: dt.datetime) -> bytes:
    """The file; the same statement as of the same moment makes the same bytes."""
    month = f"{statement.month:%Y-%m}"
    title = _("Statement")
    document = Document(
        title=f"{title} {statement.account.name} {month}",
        language=get_language() or "en",
        made_at=as_of,
        footer_words=f"{statement.account.name} · {month}",
    )
    document.heading(title, _("What was used, billed and paid. It is not an invoice."))
    document.facts(head(statement, as_of))
    _summary(document, statement)
    _use(document, statement)
    _parts(document, statement)
    _adjustments(document, statement)
    _invoices(document, statement)
    _notes(document, statement)
    return document.to_bytes()


def _money(statement: Statement, nanos: int | None, places: int | None = None) -> str:
    if nanos is None:
        return UNKNOWN
    currency = statement.account.currency
    return f"{money.to_decimal(nanos):,.9f}" if places == money.NANO_PLACES else _rounded(nanos, currency)


def _rounded(nanos: int, currency: str) -> str:
    places = money.currency_places(currency)
    return f"{money.to_decimal(money.round_to_places(nanos, places)):,.{places}f}"


def _summary(document: Document, statement: Statement) -> None:
    total, currency = statement.total, statement.account.currency
    document.section(_("Summary"))
    rows = [
        [_("Use in the period"), _money(statement, cost_nanos(total), money.NANO_PLACES)],
        [_("Adjustments in the period"), _money(statement, statement.adjusted_nanos, money.NANO_PLACES)],
    ]
    due = [_("Due in all, %(currency)s") % {"currency": currency}, _money(statement, statement.due_nanos)]
    document.table([PdfColumn("", 3), PdfColumn(currency, 2, right=True)], rows, [due])
    if total.unpriced:
        words = _("%(count)s requests have no price yet; they are not in these amounts.")
        document.note(words % {"count": f"{total.unpriced:,}"})


def _use(document: Document, statement: Statement) -> None:
    document.section(_("Use by key and model"))
    if not statement.used:
        document.note(_("Nothing was used."))
        return
    columns = [
        PdfColumn(_("Key"), 2.2), PdfColumn(_("Model"), 2.6), PdfColumn(_("Requests"), 1.3, right=True),
        PdfColumn(_("Input"), 1.8, right=True), PdfColumn(_("Cached"), 1.8, right=True),
        PdfColumn(_("Output"), 1.8, right=True),
        PdfColumn(_("Cost, %(currency)s") % {"currency": statement.account.currency}, 2.6, right=True),
    ]  # fmt: skip
    total = Used(0, _("Total"), "", statement.total)
    rows = [_use_row(statement, one) for one in statement.used]
    document.table(columns, rows, [_use_row(statement, total)])
    document.note(_("Input: not cached. Cached: input tokens read from the cache or written to it."))


def _use_row(statement: Statement, one: Used) -> list[str]:
    figures = one.figures
    return [
        one.key, one.model, f"{figures.requests:,}", f"{figures.input:,}", f"{figures.prompt - figures.input:,}",
        f"{figures.output:,}", _money(statement, cost_nanos(figures), money.NANO_PLACES),
    ]  # fmt: skip


def _parts(document: Document, statement: Statement) -> None:
    if not statement.parts:
        return
    document.section(_("Use by invoice"))
    cost = PdfColumn(_("Cost, %(currency)s") % {"currency": statement.account.currency}, 2.6, right=True)
    columns = [PdfColumn(_("Invoice"), 3), PdfColumn(_("Key"), 2.2), PdfColumn(_("Month"), 1.2), cost]
    total = [_("Total"), "", "", _money(statement, statement.total.cost_nanos, money.NANO_PLACES)]
    document.table(columns, [_part_row(statement, part) for part in statement.parts], [total])


def _part_row(statement: Statement, part: Part) -> list[str]:
    (invoice,) = part.invoices if len(part.invoices) == 1 else (None,)
    about = [invoice.key_name, f"{invoice.month:%Y-%m}"] if invoice else ["", ""]
    return [part_words(part), *about, _money(statement, part.cost_nanos, money.NANO_PLACES)]


def _adjustments(document: Document, statement: Statement) -> None:
    if not statement.adjustments:
        return
    document.section(_("Adjustments"))
    rows = [
        [f"{one.day}", one.api_key.name, reason_words(one), _money(statement, one.amount_nanos, money.NANO_PLACES)]
        for one in statement.adjustments
    ]
    total = [_("Total"), "", "", _money(statement, statement.adjusted_nanos, money.NANO_PLACES)]
    document.table(_document_columns(statement, _("Reason")), rows, [total])


def _invoices(document: Document, statement: Statement) -> None:
    document.section(_("Invoices"))
    if not statement.billed:
        document.note(_("No invoice was issued, and none is open."))
        return
    columns = [
        PdfColumn(_("Number"), 2), PdfColumn(_("Key"), 2), PdfColumn(_("Month"), 1.2), PdfColumn(_("Issued"), 1.6),
        PdfColumn(_("Status"), 1.2), PdfColumn(_("Due on"), 1.6), PdfColumn(_("Total"), 2, right=True),
        PdfColumn(_("Credited"), 1.8, right=True), PdfColumn(_("Due"), 2, right=True),
    ]  # fmt: skip
    total = [_("Total"), *[""] * 7, _money(statement, statement.due_nanos)]
    document.table(columns, [_invoice_row(statement, one) for one in statement.billed], [total])


def _invoice_row(statement: Statement, one: Billed) -> list[str]:
    invoice = one.invoice
    return [
        invoice.number or "", invoice.key_name, f"{invoice.month:%Y-%m}", f"{issued_on(invoice) or UNKNOWN}",
        str(invoice.get_status_display()), f"{invoice.due_on or UNKNOWN}", _money(statement, invoice.total_nanos),
        _money(statement, one.credited_nanos), _money(statement, one.due_nanos),
    ]  # fmt: skip


def _notes(document: Document, statement: Statement) -> None:
    if not statement.notes:
        return
    document.section(_("Credit notes"))
    rows = [
        [
            f"{note.issued_on}",
            note.key_name,
            _note_words(note.number, note.invoice_number),
            _money(statement, -note.total_nanos),
        ]
        for note in statement.notes
    ]
    document.table(_document_columns(statement, _("Document")), rows)


def _note_words(number: str, invoice: str) -> str:
    return _("%(number)s on the invoice %(invoice)s") % {"number": number, "invoice": invoice}


def _document_columns(statement: Statement, what: str) -> Sequence[PdfColumn]:
    amount = _("Amount, %(currency)s") % {"currency": statement.account.currency}
    return [PdfColumn(_("Date"), 1.2), PdfColumn(_("Key"), 2), PdfColumn(what, 4), PdfColumn(amount, 2, right=True)]
