"""Which invoices bill the use of a month, and how much of it each.

    parts(Span(first, last), "USD", total_nanos, account=7)     a Part per invoice, then what is on none yet

What an invoice bills of its own month its lines tell: they stay when records are dropped. What it bills of an earlier
one its late records tell. Of those that were dropped the invoices are known and their days are not: where several
invoices may have them, these share a Part.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import F, Q, Sum
from django.utils.translation import gettext as _

from billing.lines import ADJUSTMENT, CARRIED_OVER
from billing.models import DroppedInvoice, Invoice, InvoiceLine, UsageRecord
from billing.periods import next_month
from billing.report_query import Span

Owner = Mapping[str, Any]
"""Whose use it is, and in which currency, by the columns of records and invoices."""

MOST_NAMED = 10
"""Invoices that are named together; of more it is said how many they are."""
ISSUED = (Invoice.Status.OPEN, Invoice.Status.PAID)
LATE = 1
"""Where a row of `DroppedInvoice.sums` says whether it is late."""
APART = dt.timedelta(days=2)
"""A request's start, by which it is in a month's partition, and its day in its own zone are no farther apart."""


@dataclass(frozen=True, slots=True)
class Part:
    """So much of a month's use: on an invoice, on these together, or, without any, on none yet."""

    invoices: tuple[Invoice, ...]
    currency: str
    cost_nanos: int


def is_month(span: Span) -> bool:
    """Whether these days are one month from its first to its last."""
    return span.first.day == 1 and next_month(span.first) - span.last == dt.timedelta(days=1)


def parts(
    span: Span, currency: str, total_nanos: int, *, account: int | None = None, key: int | None = None
) -> list[Part]:
    """The parts of what a month's use in a currency costs, of an account, a key or all: `total_nanos` by daily sums.

    None where they would not sum to it: what comes for a month whose days are sealed is billed by when it ended, and
    counted on a later day.
    """
    named = {"currency": currency, "account": account, "api_key": key}
    owner = {name: value for name, value in named.items() if value is not None}
    costs = _of_own_month(span, owner)
    costs.update(_late(span, owner))
    left_nanos = total_nanos - sum(costs.values())
    filed = _with_dropped_late(span, owner) if left_nanos else []
    waiting_nanos = _waiting(span, owner) if filed else left_nanos
    filed_nanos = left_nanos - waiting_nanos
    if waiting_nanos < 0 or filed_nanos < 0:
        return []
    if len(filed) == 1:
        costs[filed[0]] += filed_nanos
        filed = []
    return _parts(currency, costs, filed, filed_nanos, waiting_nanos)


def part_words(part: Part) -> str:
    """Where a part of a month's use is billed."""
    numbers = [invoice.number or "" for invoice in part.invoices]
    if len(numbers) > MOST_NAMED:
        return _("On %(count)s invoices together") % {"count": len(numbers)}
    if len(numbers) > 1:
        return _("On the invoices %(numbers)s together") % {"numbers": ", ".join(numbers)}
    return _("On the invoice %(number)s") % {"number": numbers[0]} if numbers else _("On no invoice yet")


def _parts(
    currency: str, costs: Mapping[int, int], filed: Iterable[int], filed_nanos: int, waiting_nanos: int
) -> list[Part]:
    invoices = Invoice.objects.filter(pk__in=[*costs, *filed]).order_by("month", "key_name", "number")
    known = {invoice.pk: invoice for invoice in invoices}
    shared = set(filed)
    found = [Part((invoice,), currency, costs[pk]) for pk, invoice in known.items() if costs.get(pk)]
    if shared and filed_nanos:
        found.append(Part(tuple(invoice for pk, invoice in known.items() if pk in shared), currency, filed_nanos))
    if waiting_nanos:
        found.append(Part((), currency, waiting_nanos))
    return found


def _of_own_month(span: Span, owner: Owner) -> Counter[int]:
    """Invoice -> what it bills of the month that it is for, in nanos."""
    issued = Invoice.objects.filter(month=span.first, status__in=ISSUED, **owner)
    own = InvoiceLine.objects.filter(_USE, invoice__in=issued, late=False).order_by()
    return Counter(dict(own.values_list("invoice").annotate(nanos=Sum("exact_nanos"))))


_USE = ~Q(bucket__in=(ADJUSTMENT, CARRIED_OVER))
"""The lines of records."""


def _late(span: Span, owner: Owner) -> dict[int, int]:
    """Invoice -> what late records of the month, as far as they are here, cost on it."""
    issued = Invoice.objects.filter(month__gte=span.first, status__in=ISSUED, **owner)
    late = InvoiceLine.objects.filter(_USE, invoice__in=issued, late=True).order_by()
    if not (with_late := list(late.values_list("invoice", flat=True).distinct())):
        return {}
    records = UsageRecord.objects.filter(
        invoice__in=with_late,
        ended_at__lt=F("invoice__period_start"),
        day__gte=span.first,
        day__lte=span.last,
    )
    return dict(records.order_by().values_list("invoice").annotate(nanos=Sum("cost_nanos")))


def _with_dropped_late(span: Span, owner: Owner) -> list[int]:
    """The invoices with dropped late records that may be of the month."""
    invoices = Invoice.objects.filter(month__gte=span.first, **owner)
    first, last = (dt.datetime.combine(day, dt.time(), dt.UTC) for day in (span.first, span.last))
    begun = Q(month__start=None) | Q(month__start__lt=last + APART)
    near = DroppedInvoice.objects.filter(begun, invoice__in=invoices, month__end__gt=first - APART)
    return sorted({pk for pk, sums in near.values_list("invoice", "sums") if any(line[LATE] for line in sums)})


def _waiting(span: Span, owner: Owner) -> int:
    """What records of the month that are on no invoice yet cost."""
    waiting = UsageRecord.objects.filter(invoice=None, day__gte=span.first, day__lte=span.last, **owner)
    return int(waiting.aggregate(nanos=Sum("cost_nanos"))["nanos"] or 0)
