"""Numbers of documents: gap-free per series and year, from a counter that stays locked until the commit."""

from __future__ import annotations

from billing.models import InvoiceCounter

INVOICES, CREDIT_NOTES = "invoice", "credit_note"
PREFIXES = {INVOICES: "", CREDIT_NOTES: "CN-"}


def take(series: str, year: int) -> str:
    """The next number of a year (of issue, in the seller's zone), inside the caller's transaction."""
    return take_several(series, year, 1)[0]


def take_several(series: str, year: int, count: int) -> list[str]:
    """So many of the next numbers, in order.

    The last thing that a transaction does, since all others of the series wait for it. Rolled back, the number is free.
    """
    counters = InvoiceCounter.objects.filter(series=series, year=year)
    InvoiceCounter.objects.bulk_create([InvoiceCounter(series=series, year=year)], ignore_conflicts=True)
    counter = counters.select_for_update().get()
    first = counter.last + 1
    counter.last += count
    counter.save(update_fields=["last"])
    return [f"{PREFIXES[series]}{year}-{number:06d}" for number in range(first, counter.last + 1)]
