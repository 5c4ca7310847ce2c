"""The usage records behind an invoice line: the same cut as `billing.lines` makes, the other way round."""

from __future__ import annotations

import json
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BooleanField, F, Func, Q, QuerySet
from django.db.models.sql.compiler import SQLCompiler

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
        .filter(tier, late if line.late else ~late)
        .filter(unpriced=False, metering=line.metering)
        .filter(_in_bucket(line) | Q(HasItem(line)))
    )


def _in_bucket(line: InvoiceLine) -> Q:
    if line.bucket not in BUCKETS:
        return Q(pk__in=[])
    unit = {f"unit_prices__{line.bucket}": line.unit_nanos} if line.unit_nanos else {}
    same = {"model": line.model, "price_version": line.price_version, "long_context": line.long_context}
    return Q(**same, **{f"{line.bucket}__gt": 0}, **unit)


class HasItem(Func):
    """Whether one of a record's items is on the line: its model, bucket, version and price in the same item."""

    output_field = BooleanField()

    def __init__(self, line: InvoiceLine) -> None:
        super().__init__(F("items"))
        self._item = {
            "model": line.model,
            "bucket": line.bucket,
            "price_version": line.price_version,
            "unit_nanos": line.unit_nanos,
            "per_million": line.per_million,
        }

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        column, params = compiler.compile(self.get_source_expressions()[0])
        return f"{column} @> %s::jsonb", (*params, json.dumps([self._item]))

    def as_sqlite(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_context: Any
    ) -> tuple[str, tuple[Any, ...]]:
        column, params = compiler.compile(self.get_source_expressions()[0])
        same = " AND ".join(f"one.value ->> '{name}' = %s" for name in self._item)
        return f"EXISTS (SELECT 1 FROM json_each({column}) AS one WHERE {same})", (*params, *self._item.values())  # noqa: S608 - names of our own
