"""A sweep never has the last word: its record gives way to the owner's, or is adjusted once it is invoiced."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db.models import Sum

from billing import invoices, rollups
from billing.ledger import Ledger, Settlement
from billing.models import (
    Adjustment,
    ApiKey,
    Attempt,
    BudgetMonth,
    Invoice,
    OpenStream,
    RollupDue,
    UsageRecord,
    UsageRollup,
)
from billing.periods import next_month
from billing.pricing import Rating
from billing.usage import TokenUsage
from tests.billing.factories import make_adjustment
from tests.billing.ledger.entries import ENDED, attempt, opening, settlement


def swept(row: Any, output: int = 20, **fields: Any) -> Settlement:
    """What a sweep makes of a row: at 1,000 nanos per token of output."""
    nanos = output * 1000
    given: dict[str, Any] = {
        "ending": "gateway_lost", "metering": "checkpoint", "reported": None, "flags": (),
        "attempts": (attempt(outcome="gateway_lost", status=None),),
        "usage": TokenUsage(input=0, output=output), "rating": Rating(nanos, {"output": nanos}, {"output": 10**9}),
        "ended_at": ENDED - dt.timedelta(seconds=5), "object_ids": (),
    }  # fmt: skip
    return settlement(row, **{**given, **fields})


def owned(row: Any, output: int = 52, **fields: Any) -> Settlement:
    """How it really ended."""
    own = swept(row, output, ending="complete", metering="reported", ended_at=ENDED)
    return dataclasses.replace(own, **{"attempts": settlement(row).attempts, **fields})


def told(row: Any) -> list[tuple[int, str, int | None]]:
    """The attempts of a request."""
    return list(Attempt.objects.filter(record_id=row.id).values_list("number", "outcome", "status"))


def invoice(key: ApiKey) -> Invoice:
    [draft] = invoices.draft(dt.date(2026, 12, 1), account=key.account, now=ENDED)  # begun in Taipei
    return invoices.issue(draft.pk, now=ENDED)


def test_owner_replaces_the_record(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key, wished_name="trace-1")
    ledger.open(row).result(5)
    ledger.settle(swept(row)).result(5)
    ledger.settle(owned(row)).result(5)
    record = UsageRecord.objects.get()
    assert (record.id, record.request_name) == (row.id, "trace-1")
    assert (record.ending, record.metering, record.output, record.cost_nanos) == ("complete", "reported", 52, 52_000)
    assert (record.ended_at, Adjustment.objects.count()) == (ENDED, 0)
    assert told(row) == [(1, "answered", 200)]


@pytest.mark.parametrize("order", ["sweep first", "owner first", "one group"])
def test_last_word_is_the_owners(key: ApiKey, transactional_db: None, order: str) -> None:
    row = opening(key)
    ledger = Ledger()
    first, second = (owned(row), swept(row)) if order == "owner first" else (swept(row), owned(row))
    if order != "one group":
        ledger.start()
    ledger.settle(first)
    if order != "one group":
        ledger.settle(swept(row)).result(5)
    for _ in range(2):
        ledger.settle(second)
        ledger.settle(swept(row, 60))
    if order == "one group":
        ledger.start()
    assert ledger.stop(5)
    assert (UsageRecord.objects.get().ending, UsageRecord.objects.get().output) == ("complete", 52)
    assert told(row) == [(1, "answered", 200)]


def test_later_checkpoint_replaces_the_earlier(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    ledger.settle(swept(row, 20)).result(5)
    second = attempt(number=2, outcome="gateway_lost", status=None)
    ledger.settle(swept(row, 35, ended_at=ENDED, attempts=(second,))).result(5)
    ledger.settle(swept(row, 20)).result(5)  # a slow sweeper with what it had read
    assert UsageRecord.objects.get().output == 35
    assert told(row) == [(2, "gateway_lost", None)]


def test_both_days_are_rolled_up(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    ledger.settle(swept(row, ended_at=ENDED - dt.timedelta(minutes=30))).result(5)  # the day before in Taipei
    rollups.rebuild_due()
    ledger.settle(owned(row)).result(5)
    assert RollupDue.objects.count() == 2
    rollups.rebuild_due()
    assert [(rollup.day, rollup.cost_nanos) for rollup in UsageRollup.objects.all()] == [(dt.date(2026, 12, 1), 52_000)]


def test_invoiced_record_is_adjusted(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    ledger.settle(swept(row)).result(5)
    issued = invoice(key)
    for _ in range(3):
        ledger.settle(owned(row)).result(5)
    record, made = UsageRecord.objects.get(), Adjustment.objects.get()
    assert (record.ending, record.cost_nanos, record.invoice_id) == ("gateway_lost", 20_000, issued.pk)
    assert told(row) == [(1, "answered", 200)]
    assert (made.amount_nanos, made.kind, made.record_id, made.api_key_id) == (32_000, "settled", row.id, key.id)
    assert (made.account_id, made.currency, made.invoice_id) == (key.account_id, "USD", None)
    assert "complete, reported" in made.reason


def test_adjustment_may_be_negative(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    ledger.settle(swept(row, 60)).result(5)
    invoice(key)
    ledger.settle(owned(row)).result(5)
    ledger.settle(swept(row, 70, ended_at=ENDED + dt.timedelta(seconds=1))).result(5)
    assert [made.amount_nanos for made in Adjustment.objects.all()] == [-8_000]


def test_adjustments_sum_to_the_last_word(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    ledger.settle(swept(row)).result(5)
    invoice(key)
    for _ in range(2):
        ledger.settle(swept(row, 35, ended_at=ENDED)).result(5)
        ledger.settle(owned(row)).result(5)
    assert [(made.kind, made.amount_nanos) for made in Adjustment.objects.order_by("id")] == [
        ("swept", 15_000), ("settled", 17_000),
    ]  # fmt: skip


def test_voided_invoice_lets_records_go(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    ledger.settle(swept(row)).result(5)
    invoices.void(invoice(key).pk, "by mistake", ENDED)
    ledger.settle(owned(row)).result(5)
    assert (UsageRecord.objects.get().output, Adjustment.objects.count()) == (52, 0)


def test_correction_outlasts_poison(ledger: Ledger, key: ApiKey) -> None:
    """The group that replaces a record holds another that no database would take."""
    row, homeless = opening(key), opening(key, key_id=10**6)
    ledger.settle(swept(row)).result(5)
    settled = [ledger.settle(entry) for entry in (owned(homeless), owned(row))]
    settled[1].result(5)
    assert settled[0].exception(5) is not None
    assert UsageRecord.objects.get().output == 52
    assert OpenStream.objects.count() == 0


def test_void_does_not_double_an_adjustment(ledger: Ledger, key: ApiKey) -> None:
    """Adjusted, its invoice made void, and told once more: the record stays, and the adjustment says the rest."""
    row = opening(key)
    ledger.settle(swept(row)).result(5)
    issued = invoice(key)
    ledger.settle(owned(row)).result(5)
    invoices.void(issued.pk, "by mistake", ENDED)
    ledger.settle(owned(row)).result(5)
    assert (UsageRecord.objects.get().cost_nanos, Adjustment.objects.get().amount_nanos) == (20_000, 32_000)


def test_goodwill_is_not_settled_away(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    ledger.settle(swept(row)).result(5)
    invoice(key)
    make_adjustment(key, ENDED, -7_000, record=UsageRecord.objects.get(), kind="goodwill")
    ledger.settle(owned(row)).result(5)
    assert sorted(made.amount_nanos for made in Adjustment.objects.all()) == [-7_000, 32_000]


def test_unpriced_end_is_not_free(ledger: Ledger, key: ApiKey) -> None:
    """What its owner tells of an invoiced stream has no price: what was billed stands, and is not given back."""
    row = opening(key)
    ledger.settle(swept(row)).result(5)
    invoice(key)
    unpriced = Rating(0, {}, {}, unpriced_reason="no price for service tier scale of model gpt-5.6-sol")
    ledger.settle(owned(row, rating=unpriced)).result(5)
    made = Adjustment.objects.get()
    assert made.amount_nanos == 0
    assert made.reason.endswith("not adjusted: no price for service tier scale of model gpt-5.6-sol")


def test_adjustment_counts_on_its_day(ledger: Ledger, key: ApiKey) -> None:
    """It moves its key's month on the day on which it is made, on the account's clocks."""
    row = opening(key)
    ledger.settle(swept(row)).result(5)
    invoice(key)
    before = dt.datetime.now(ZoneInfo("Asia/Taipei")).date()
    ledger.settle(owned(row)).result(5)
    made = Adjustment.objects.get()
    assert before <= made.day <= dt.datetime.now(ZoneInfo("Asia/Taipei")).date()  # type: ignore[operator]
    assert made.effective_at == made.created_at
    month = made.day.replace(day=1)  # type: ignore[union-attr]
    used = UsageRecord.objects.filter(day__gte=month, day__lt=next_month(month))
    spent = used.aggregate(cost=Sum("cost_nanos"))["cost"] or 0
    assert BudgetMonth.objects.get(api_key=key, month=month).spent_nanos == spent + 32_000
