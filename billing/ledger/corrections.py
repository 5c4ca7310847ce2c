"""The last word on a request: a record made by a sweep is provisional, and gives way to what its owner knows.

A swept record (ending `gateway_lost`) is replaced in place; once it is invoiced it stays as it is, and the difference
becomes an adjustment, which the next invoice bills. Every other record is final. Of the attempts, which bill nothing,
what the sweep knew gives way in both cases.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from zoneinfo import ZoneInfo

from django.db.models import QuerySet, Sum

from billing.ledger.entries import Settlement
from billing.ledger.rows import record_row
from billing.ledger.tables import Table
from billing.models import Adjustment, Attempt, RollupDue, UsageRecord
from billing.periods import local_day
from billing.phrases import gettext_noop, phrase

PROVISIONAL = "gateway_lost"
"""The ending of a record that a sweep made, and the outcome of its attempt."""
KEPT_COLUMNS = ("id", "api_key_id", "account_id", "request_name", "invoice_id", "started_at")
"""Columns of a record that no correction touches."""
MAX_REASON = 200
"""Characters of `Adjustment.reason`."""

LATER = gettext_noop("a later checkpoint of the lost stream was found")
NOT_ADJUSTED = gettext_noop(
    "the stream taken for lost ended after all: %(ending)s, %(metering)s; not adjusted: %(reason)s"
)
ENDED = gettext_noop("the stream taken for lost ended after all: %(ending)s, %(metering)s")
REASONS = (LATER, NOT_ADJUSTED, ENDED)
"""Why the ledger adjusts, as adjustments keep it."""

RECORDS = Table(UsageRecord)


def correct(
    settlements: Sequence[Settlement], records: Mapping[uuid.UUID, UsageRecord], using: str, bare: bool
) -> None:
    """Give each of these settlements, whose records were there before, the last word where it has it."""
    for settlement in settlements:
        record = records[settlement.open.id]
        if not outranks(settlement, record):
            continue
        # The attempts of the settlement are inserted after this, where none of the same number is there.
        Attempt.objects.using(using).filter(record=record, outcome=PROVISIONAL).delete()
        # Once adjusted, always adjusted, though its invoice may be void by now: the difference is billed apart.
        if record.invoice_id is None and not _made(record, using).exists():
            _replace(record, settlement, using, bare)
        else:
            _adjust(record, settlement, using)


def outranks(settlement: Settlement, record: UsageRecord) -> bool:
    """Only a sweep's record gives way: to its owner, or to a sweep that found a later checkpoint."""
    if record.ending != PROVISIONAL:
        return False
    return settlement.ending != PROVISIONAL or settlement.ended_at > record.ended_at


def last_word_first(settlements: Sequence[Settlement], records: Mapping[uuid.UUID, UsageRecord]) -> list[Settlement]:
    """The settlements whose attempts are to be kept: of two that tell of the same attempt, the first one does.

    `records`: those that were there before, as they were. What a sweep says of a request with a later word is nothing.
    """
    telling = [one for one in settlements if not _is_superseded(one, records.get(one.open.id))]
    return sorted(telling, key=lambda one: (one.ending == PROVISIONAL, -one.ended_at.timestamp()))


def _is_superseded(settlement: Settlement, record: UsageRecord | None) -> bool:
    if record is None or settlement.ending != PROVISIONAL:
        return False
    return record.ending != PROVISIONAL or record.ended_at > settlement.ended_at


def _replace(record: UsageRecord, settlement: Settlement, using: str, bare: bool) -> None:
    row = record_row(settlement, record.request_name, bare=bare)
    RECORDS.update([row], [column for column in RECORDS.columns if column not in KEPT_COLUMNS], using)
    if row["day"] != record.day:  # the day that it leaves has one record less
        RollupDue.objects.using(using).create(api_key_id=record.api_key_id, day=record.day)


def _adjust(record: UsageRecord, settlement: Settlement, using: str) -> None:
    """Bill the difference to what is billed already. The owner's word is taken once, a sweep's only if it adds."""
    made = _made(record, using)
    if made.filter(kind=Adjustment.Kind.SETTLED).exists():
        return
    billed = record.cost_nanos + (made.aggregate(sum=Sum("amount_nanos"))["sum"] or 0)
    # What has no price is never taken for free: what was billed stands, and the adjustment of zero says so.
    difference = 0 if settlement.rating.unpriced else settlement.rating.cost_nanos - billed
    swept = settlement.ending == PROVISIONAL
    if swept and difference <= 0:
        return
    now = dt.datetime.now(dt.UTC)
    Adjustment.objects.using(using).create(
        account_id=record.account_id,
        api_key_id=record.api_key_id,
        record=record,
        currency=record.currency,
        amount_nanos=difference,
        kind=Adjustment.Kind.SWEPT if swept else Adjustment.Kind.SETTLED,
        reason=_reason(settlement),
        created_at=now,
        effective_at=now,
        day=local_day(now, ZoneInfo(settlement.zone)),
    )


def _made(record: UsageRecord, using: str) -> QuerySet[Adjustment]:
    """The ledger's adjustments of a record; not those that people made: a goodwill credit for a request stays one."""
    kinds = (Adjustment.Kind.SETTLED, Adjustment.Kind.SWEPT)
    return Adjustment.objects.using(using).filter(record=record, kind__in=kinds)


def _reason(settlement: Settlement) -> str:
    """What happened, for the operator."""
    if settlement.ending == PROVISIONAL:
        return LATER
    told = {"ending": settlement.ending, "metering": settlement.metering}
    if settlement.rating.unpriced:
        return phrase(NOT_ADJUSTED, **told, reason=settlement.rating.unpriced_reason)[:MAX_REASON]
    return phrase(ENDED, **told)
