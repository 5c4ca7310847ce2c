"""A month's use by invoice, as rows of the usage report's page and of the statement's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _

from billing.admin.display import UNKNOWN, change_url, money, number
from billing.invoice_parts import Part, part_words
from billing.money import NANO_PLACES

MOST = 50
"""Invoices on a page, one by one; files have them all."""


def part_rows(parts: Sequence[Part], currency: str) -> list[dict[str, Any]]:
    """The parts, those after the first fifty as one; the costs sum to the month's."""
    billed = [part for part in parts if part.invoices]
    rows = [_row(part, currency) for part in billed[:MOST]]
    if rest := billed[MOST:]:
        words = _("On %(count)s more invoices") % {"count": number(len(rest))}
        rows.append(_row(Part((), sum(part.cost_nanos for part in rest)), currency, words))
    return rows + [_row(part, currency) for part in parts if not part.invoices]


def _row(part: Part, currency: str, words: str = "") -> dict[str, Any]:
    (invoice,) = part.invoices if len(part.invoices) == 1 else (None,)
    return {
        "words": words or part_words(part),
        "url": change_url(invoice) if invoice else "",
        "key": invoice.key_name if invoice else UNKNOWN,
        "month": f"{invoice.month:%Y-%m}" if invoice else UNKNOWN,
        "cost": money(part.cost_nanos, currency, NANO_PLACES),
    }
