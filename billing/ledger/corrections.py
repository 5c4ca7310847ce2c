"""The last word on a request: a record made by a sweep is provisional, and gives way to what its owner knows.

A swept record (ending `gateway_lost`) is replaced in place; once it is invoiced it stays as it is, and the difference
becomes an adjustment, which the next invoice bills. Every other record is final.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence

from django.db.models import Sum

from billing.ledger.entries import Settlement
from billing.ledger.rows import record_row
from billing.ledger.tables import Table
from billing.models import Adjustment, RollupDue, UsageRecord

PROVISIONAL = "gateway_lost"
KEPT_COLUMNS = ("id", "api_key_id", "account_id", "request_name", "invoice_id", "started_at")
"""Columns of a record that no correction touches."""

RECORDS = Table(UsageRecord)


def correct(
    settlements: Sequence[Settlement], records: Mapping[uuid.UUID, UsageRecord], using: str, bare: bool
) -> None:
    """Give each of these settlements, whose records were there before, the last word where it has it."""
    for settlement in settlements:
        record = records[settlement.open.id]
        if not outranks(settlement, record):
            continue
        if record.invoice_id is None:
            _replace(record, settlement, using, bare)
        else:
            _adjust(record, settlement, using)


def outranks(settlement: Settlement, record: UsageRecord) -> bool:
    """Only a sweep's record gives way: to its owner, or to a sweep that found a later checkpoint."""
    if record.ending != PROVISIONAL:
        return False
    return settlement.ending != PROVISIONAL or settlement.ended_at > record.ended_at


def _replace(record: UsageRecord, settlement: Settlement, using: str, bare: bool) -> None:
    row = record_row(settlement, record.request_name, bare=bare)
    RECORDS.update([row], [column for column in RECORDS.columns if column not in KEPT_COLUMNS], using)
    if row["day"] != record.day:  # the day that it leaves has one record less
        RollupDue.objects.using(using).create(api_key_id=record.api_key_id, day=record.day)


def _adjust(record: UsageRecord, settlement: Settlement, using: str) -> None:
    """Bill the difference to what is billed already. The owner's word is taken once, a sweep's only if it adds."""
    made = Adjustment.objects.using(using).filter(record=record)
    if made.filter(kind=Adjustment.Kind.SETTLED).exists():
        return
    billed = record.cost_nanos + (made.aggregate(sum=Sum("amount_nanos"))["sum"] or 0)
    difference = settlement.rating.cost_nanos - billed
    swept = settlement.ending == PROVISIONAL
    if swept and difference <= 0:
        return
    Adjustment.objects.using(using).create(
        account_id=record.account_id,
        api_key_id=record.api_key_id,
        record=record,
        currency=record.currency,
        amount_nanos=difference,
        kind=Adjustment.Kind.SWEPT if swept else Adjustment.Kind.SETTLED,
        reason=_reason(settlement),
        created_at=dt.datetime.now(dt.UTC),
    )


def _reason(settlement: Settlement) -> str:
    """What happened, for the operator."""
    if settlement.ending == PROVISIONAL:
        return "a later checkpoint of the lost stream was found"
    return f"the stream taken for lost ended after all: {settlement.ending}, {settlement.metering}"
