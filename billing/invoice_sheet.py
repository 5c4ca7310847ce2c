"""An invoice's lines as a table for a spreadsheet: the digits of its PDF, in full, so that they can be added up."""

from __future__ import annotations

from decimal import Decimal
from zoneinfo import ZoneInfo

from django.utils import translation
from django.utils.translation import gettext as _

from billing import money
from billing.models import Invoice, InvoiceLine
from billing.sheets import Cell, Column, Sheet


def sheet(invoice: Invoice) -> Sheet:
    """The lines in their order; subtotal, tax and total below. In the customer's language."""
    with translation.override(invoice.language):
        places = money.currency_places(invoice.currency)
        names = (
            (_("Line"), 0), (_("Model"), 0), (_("Description"), 0), (_("Bucket"), 0), (_("Service tier"), 0),
            (_("Metering"), 0), (_("Long context"), 0), (_("Late usage"), 0), (_("Price version"), 0),
            (_("Quantity"), 0), (_("Unit price"), money.NANO_PLACES), (_("Per"), 0),
            (_("Exact sum"), money.NANO_PLACES), (_("Rounding"), money.NANO_PLACES), (_("Amount"), places),
        )  # fmt: skip
        columns = [Column(name, max(12, len(name) + 2), digits) for name, digits in names]
        sums = (
            (_("Subtotal"), invoice.subtotal_nanos), (_("Tax"), invoice.tax_nanos), (_("Total"), invoice.total_nanos),
        )  # fmt: skip
        return Sheet(
            title=_("Invoice %(number)s") % {"number": invoice.number or _("draft")},
            head=_head(invoice),
            columns=columns,
            rows=[_row(line, places) for line in invoice.lines.all()],
            totals=[[name, *[None] * (len(columns) - 2), _amount(nanos, places)] for name, nanos in sums],
        )


def _head(invoice: Invoice) -> list[tuple[str, str]]:
    zone = ZoneInfo(invoice.timezone)
    start, end = (f"{when.astimezone(zone):%Y-%m-%d %H:%M:%S}" for when in (invoice.period_start, invoice.period_end))
    return [
        (_("Status"), str(invoice.get_status_display())),
        (_("Account"), invoice.account_name),
        (_("Key"), invoice.key_name),
        (_("Period"), _("%(start)s up to %(end)s") % {"start": start, "end": end}),
        (_("Time zone"), invoice.timezone),
        (_("Currency"), invoice.currency),
    ]


def _row(line: InvoiceLine, places: int) -> list[Cell]:
    per = _("million tokens") if line.per_million else _("one")
    return [
        line.position, line.model, line.description, line.bucket, line.service_tier, line.metering,
        _yes(line.long_context), _yes(line.late), line.price_version, line.quantity, _amount(line.unit_nanos), per,
        _amount(line.exact_nanos), _amount(line.rounding_nanos), _amount(line.amount_nanos, places),
    ]  # fmt: skip


def _yes(fact: bool) -> str:
    return _("yes") if fact else ""


def _amount(nanos: int, places: int = money.NANO_PLACES) -> Decimal:
    return Decimal(money.show(nanos, places))
