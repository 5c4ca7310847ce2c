"""The usage records behind an invoice line: the same cut as `billing.lines` makes, the other way round."""

from __future__ import annotations

import json

from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast

from billing.lines import ADJUSTMENT, CARRIED_OVER
from billing.models import Invoice, InvoiceLine, UsageRecord
from billing.pricing import BASE_TIERS
from billing.usage import BUCKETS


def records_of(invoice: Invoice, records: QuerySet[UsageRecord]) -> QuerySet[UsageRecord]:
    """The records that an invoice bills: those it has claimed, or that a draft would claim if it were issued now.

    A void invoice has none: it has freed them.
    """
    if invoice.status == Invoice.Status.DRAFT:
        return records.filter(api_key_id=invoice.api_key_id, invoice=None, ended_at__lt=invoice.period_end)
    return records.filter(invoice=invoice)


def records_behind(line: InvoiceLine, records: QuerySet[UsageRecord]) -> QuerySet[UsageRecord]:
    """Those of the invoice's records whose use the line sums, in one of its own buckets or in an item.

    The lines of adjustments have none.
    """
    if line.bucket in (ADJUSTMENT, CARRIED_OVER):
        return records.none()
    late = Q(ended_at__lt=line.invoice.period_start)
    tier = Q(service_tier__in=BASE_TIERS) if line.service_tier in BASE_TIERS else Q(service_tier=line.service_tier)
    return (
        records_of(line.invoice, records)
        .annotate(items_text=Cast("items", TextField()))
        .filter(tier, late if line.late else ~late)
        .filter(unpriced=False, metering=line.metering)
        .filter(_in_bucket(line) | _in_items(line))
    )


def _in_bucket(line: InvoiceLine) -> Q:
    if line.bucket not in BUCKETS:
        return Q(pk__in=[])
    unit = {f"unit_prices__{line.bucket}": line.unit_nanos} if line.unit_nanos else {}
    same = {"model": line.model, "price_version": line.price_version, "long_context": line.long_context}
    return Q(**same, **{f"{line.bucket}__gt": 0}, **unit)


def _in_items(line: InvoiceLine) -> Q:
    """Items are JSON, compared as text: both databases write a value within its quotes."""
    found = Q()
    for value in (line.model, line.bucket, line.price_version):
        found &= Q(items_text__contains=json.dumps(value, ensure_ascii=False))
    return found
