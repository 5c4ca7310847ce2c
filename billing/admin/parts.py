"""A month's use by invoice, as rows of the usage report's page and of the statement's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from django.utils.translation import gettext as _

from billing.admin.display import UNKNOWN, change_url, money, number
from billing.invoice_parts import Part, part_words
from billing.money import NANO_PLACES

MOST = 50
"""Invoices of a currency on a page, one by one; files have them all."""


def part_rows(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """The parts by currency, of each those after the first fifty as one; the costs sum to the month's."""
    return [row for currency, own in groupby(parts, lambda part: part.currency) for row in _rows(list(own), currency)]


def _rows(parts: Sequence[Part], currency: str) -> Iterator[dict[str, Any]]:
    billed = [part for part in parts if part.invoices]
    yield from map(_row, billed[:MOST])
    if rest := billed[MOST:]:
        words = _("On %(count)s more invoices") % {"count": number(len(rest))}
        yield _row(Part((), currency, sum(part.cost_nanos for part in rest)), words)
    yield from (_row(part) for part in parts if not part.invoices)


def _row(part: Part, words: str = "") -> dict[str, Any]:
    (invoice,) = part.invoices if len(part.invoices) == 1 else (None,)
    return {
        "words": words or part_words(part),
        "url": change_url(invoice) if invoice else "",
        "key": f"{invoice.account_name}/{invoice.key_name}" if invoice else UNKNOWN,
        "month": f"{invoice.month:%Y-%m}" if invoice else UNKNOWN,
        "cost": money(part.cost_nanos, part.currency, NANO_PLACES),
    }
