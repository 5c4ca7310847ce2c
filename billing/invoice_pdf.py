"""An invoice as a PDF, in its customer's language: all from what the invoice itself has copied, so that it can be made
again at any time with the same bytes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.utils import translation
from django.utils.translation import gettext as _

from billing import money
from billing.lines import ADJUSTMENT, CARRIED_OVER
from billing.models import Invoice, InvoiceLine
from billing.pdf import NOT_A_UNIFORM_INVOICE, Document, PdfColumn

PPM_PER_CENT = 10_000


def render(invoice: Invoice) -> bytes:
    """The file. A draft says on every page that it is one; a void invoice's is what it was before."""
    with translation.override(invoice.language):
        return _Writer(invoice).written().to_bytes()


def not_shown(invoice: Invoice) -> str:
    """The characters of the file that it has a box in place of, each once."""
    with translation.override(invoice.language):
        return _Writer(invoice).written().not_shown()


class _Writer:
    """One invoice being written, in the language that is active."""

    def __init__(self, invoice: Invoice) -> None:
        self._invoice = invoice
        self._places = money.currency_places(invoice.currency)
        draft = invoice.status == Invoice.Status.DRAFT
        name = invoice.number or _("draft")
        self._page = Document(
            title=_("Invoice %(number)s") % {"number": name},
            language=invoice.language,
            made_at=invoice.issued_at or invoice.drafted_at,
            footer_words=f"{invoice.seller_name or 'HopBase'} · {name}",
            mark=_("DRAFT") if draft else "",
        )

    def written(self) -> Document:
        invoice, page = self._invoice, self._page
        heading = _("Invoice %(number)s") % {"number": invoice.number} if invoice.number else _("Draft of an invoice")
        page.heading(heading, f"{invoice.account_name} / {invoice.key_name} · {invoice.month:%Y-%m}")
        page.parties((_("Seller"), self._seller()), (_("Customer"), self._customer()))
        page.facts(self._facts())
        self._lines()
        self._sums()
        self._small_print()
        return page

    def _seller(self) -> str:
        invoice = self._invoice
        return _lines_of(invoice.seller_name or "HopBase", invoice.seller_address, self._tax_id(invoice.seller_tax_id))

    def _customer(self) -> str:
        invoice = self._invoice
        return _lines_of(invoice.legal_name or invoice.account_name, invoice.address, self._tax_id(invoice.tax_id))

    def _tax_id(self, number: str) -> str:
        return _("Tax id %(number)s") % {"number": number} if number else ""

    def _facts(self) -> list[tuple[str, str]]:
        invoice = self._invoice
        period = {"start": self._moment(invoice.period_start), "end": self._moment(invoice.period_end)}
        issued = [(_("Issued"), self._moment(invoice.issued_at))] if invoice.issued_at else []
        due = [(_("Due on"), f"{invoice.due_on:%Y-%m-%d}")] if invoice.due_on else []
        return [
            *issued,
            *due,
            (_("Account"), invoice.account_name),
            (_("Key"), invoice.key_name),
            (_("Period"), _("%(start)s up to %(end)s") % period),
            (_("Time zone"), invoice.timezone),
            (_("Currency"), invoice.currency),
        ]

    def _moment(self, when: dt.datetime) -> str:
        return f"{when.astimezone(ZoneInfo(self._invoice.timezone)):%Y-%m-%d %H:%M:%S}"

    def _lines(self) -> None:
        """The period's own use, late usage and adjustments: each with its sum, where there are several of these."""
        parts: dict[str, list[InvoiceLine]] = {}
        for line in self._invoice.lines.all():
            parts.setdefault(_part(line), []).append(line)
        titles = {
            "use": _("Use in the period"),
            "late": _("Late usage: used before the period, and on no invoice until now"),
            "adjustments": _("Adjustments"),
        }
        for part, title in titles.items():
            if found := parts.get(part):
                self._page.section(title)
                sums = [self._sum(found)] if len(parts) > 1 else []
                self._page.table(self._columns(), map(self._row, found), sums)
        if not parts:
            self._page.section(titles["use"])
            self._page.note(_("Nothing is billed: the requests of the period used nothing."))

    def _columns(self) -> list[PdfColumn]:
        return [
            PdfColumn(_("Description"), 5.6),
            PdfColumn(_("Quantity"), 1.9, right=True),
            PdfColumn(_("Unit price"), 1.8, right=True),
            PdfColumn(_("Exact sum"), 2.5, right=True, soft=True),
            PdfColumn(_("Rounding"), 1.8, right=True, soft=True),
            PdfColumn(_("Amount, %(currency)s") % {"currency": self._invoice.currency}, 2.2, right=True),
        ]

    def _row(self, line: InvoiceLine) -> list[str]:
        plain = _part(line) == "adjustments"
        return [
            line.description,
            "" if plain else f"{line.quantity:,}",
            "" if plain else unit_price(line.unit_nanos),
            amount(line.exact_nanos),
            amount(line.rounding_nanos),
            amount(line.amount_nanos, self._places),
        ]

    def _sum(self, lines: Iterable[InvoiceLine]) -> list[str]:
        return [_("Sum"), "", "", "", "", amount(sum(line.amount_nanos for line in lines), self._places)]

    def _sums(self) -> None:
        invoice = self._invoice
        self._page.section(_("Total"))
        rate = percent(invoice.tax_rate_ppm)
        rows = [
            [_("Subtotal"), amount(invoice.subtotal_nanos, self._places)],
            [_("Tax (%(rate)s %%)") % {"rate": rate}, amount(invoice.tax_nanos, self._places)],
        ]
        total = [
            _("Total, %(currency)s") % {"currency": invoice.currency},
            amount(invoice.total_nanos, self._places),
        ]
        self._page.table([PdfColumn("", 5), PdfColumn(invoice.currency, 2, right=True)], rows, [total])

    def _small_print(self) -> None:
        self._page.space()
        self._page.note(
            _(
                "Unit prices are per million tokens, those of tools per request. Each line is the exact sum of its "
                "requests, rounded once; what rounding added or took off is shown beside it."
            )
        )
        if any(line.metering in ("estimated", "checkpoint") for line in self._invoice.lines.all()):
            self._page.note(
                _("Estimated: the provider told no usage for these requests, so their tokens were counted by us.")
            )
        self._page.note(NOT_A_UNIFORM_INVOICE)


def amount(nanos: int, places: int = money.NANO_PLACES) -> str:
    """`1,234.57` in so many places."""
    return f"{Decimal(money.show(nanos, places)):,f}"


def unit_price(nanos: int) -> str:
    """All digits that count, at least two places: `0.075`, `30.00`."""
    whole, _point, fraction = amount(nanos).partition(".")
    return f"{whole}.{fraction.rstrip('0'):0<2}"


def percent(ppm: int) -> str:
    """Millionths as per cent, with no more places than it takes: `5`, `8.25`."""
    whole, rest = divmod(ppm, PPM_PER_CENT)
    return f"{whole}.{rest:04d}".rstrip("0").rstrip(".")


def _part(line: InvoiceLine) -> str:
    if line.bucket in (ADJUSTMENT, CARRIED_OVER):
        return "adjustments"
    return "late" if line.late else "use"


def _lines_of(*parts: str) -> str:
    return "\n".join(part.strip() for part in parts if part.strip())
