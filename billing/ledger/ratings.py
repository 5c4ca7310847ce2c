"""Records that had no price get one. Only those: whoever has a price, or is on an invoice, keeps what it has."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from django.db.models import QuerySet

from billing.ledger.rows import Row, rating_columns
from billing.ledger.tables import Table
from billing.models import RollupDue, UsageRecord
from billing.pricing import Rating

RECORDS = Table(UsageRecord)


def locked(ids: Sequence[uuid.UUID]) -> QuerySet[UsageRecord]:
    """Those of the records that are still unpriced and on no invoice, locked in the order in which all writers do."""
    records = UsageRecord.objects.select_for_update(of=("self",)).order_by("pk")
    return records.filter(pk__in=ids, unpriced=True, invoice=None)


def rate(records: Sequence[UsageRecord], ratings: Mapping[uuid.UUID, Rating], using: str = "default") -> None:
    """Write the ratings of locked records, and make their days due, in the caller's transaction.

    What their keys have spent moves with the records (`billing.spending`).
    """
    rated = [record for record in records if not ratings[record.pk].unpriced]
    columns: list[str] = []
    rows: list[Row] = []
    for record in rated:
        changed = rating_columns(ratings[record.pk])
        columns = list(changed)
        rows.append({**dict.fromkeys(RECORDS.columns), "id": record.pk, **changed})
    RECORDS.update(rows, columns, using)
    due = sorted({(record.api_key_id, record.day) for record in rated})
    RollupDue.objects.using(using).bulk_create([RollupDue(api_key_id=key, day=day) for key, day in due])
