"""Records that had no price are rated later, those alone, and with all that hangs on them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.db.models import Sum

from billing import invoices, rollups, unpriced
from billing.models import (
    ApiKey,
    AuditEntry,
    BudgetMonth,
    Invoice,
    Price,
    RollupDue,
    UsageRecord,
    UsageRollup,
)
from billing.money import parse
from billing.unpriced import Cause, Terms
from billing.usage import Part, TokenUsage
from tests.billing.admin_world import make_price
from tests.billing.factories import make_account, make_key, make_record, price, utc
from tests.billing.test_credit_notes import at_once

NOW = utc(2026, 12, 2)
NOVEMBER = dt.date(2026, 11, 1)
NEW_MODEL = Cause("nova-1", "", "no price for model nova-1")
NO_TIER = Cause("nova-1", "scale", "no price for service tier scale of model nova-1")
USAGE = TokenUsage(input=200_000)
"""1.00 at the standard price."""


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key(make_account(timezone="Asia/Taipei"))


def make_unpriced(key: ApiKey, day: int = 3, usage: TokenUsage = USAGE, **fields: Any) -> UsageRecord:
    """A record of a model that has no price."""
    return make_record(key, utc(2026, 11, day), usage, **{"model": "nova-1", "version": price("another"), **fields})


def terms(cause: Cause = NEW_MODEL, version: str = "", until: dt.datetime = NOW) -> Terms:
    return Terms(cause, version, until)


def money(of: Any) -> int:
    return of.aggregate(sum=Sum("cost_nanos"))["sum"] or 0


# --- what waits ---


def test_causes_are_listed(key: ApiKey) -> None:
    other = make_key(key.account, "other")
    for owner, day in ((key, 3), (key, 9), (other, 5)):
        make_unpriced(owner, day)
    make_unpriced(key, 4, service_tier="scale", version=price("nova-1"))
    make_record(key, utc(2026, 11, 1))
    invoices.draft(NOVEMBER, now=NOW)
    found = [(each.cause, each.records, each.first.day, each.last.day, each.drafts) for each in unpriced.waiting()]
    assert found == [(NEW_MODEL, 3, 3, 9, 2), (NO_TIER, 1, 4, 4, 1)]


def test_only_drafts_that_bill_them_wait(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    invoices.draft(NOVEMBER, now=NOW)
    make_record(key, utc(2026, 12, 1), model="nova-1", version=price("another"))
    assert [each.drafts for each in unpriced.waiting()] == [0]


def test_nothing_waits(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    assert unpriced.waiting() == []


# --- rating ---


def test_preview_changes_nothing(key: ApiKey) -> None:
    make_unpriced(key)
    make_price("nova-1")
    before = list(UsageRecord.objects.values())
    found = unpriced.preview(terms())
    assert (found.records, dict(found.costs)) == (1, {"USD": parse(1)})
    assert dict(found.versions) == {"nova-1@2026-01-01T00:00:00Z": 1}
    assert list(UsageRecord.objects.values()) == before


def test_rating_gives_all_that_hangs_on_it(key: ApiKey) -> None:
    """The record, its day, its key's month, its draft; and an entry in the audit log."""
    make_record(key, utc(2026, 11, 3))
    make_unpriced(key, 3, TokenUsage(input=200_000, output=2, server_tools={"web_search": 3}))
    rollups.rebuild_due()
    invoices.draft(NOVEMBER, now=NOW)
    make_price("nova-1")
    done = unpriced.rate(terms())
    assert (done.records, dict(done.costs)) == (1, {"USD": parse("1.03006")})
    record = UsageRecord.objects.get(model="nova-1")
    assert (record.unpriced, record.unpriced_reason, record.cost_nanos) == (False, "", parse("1.03006"))
    assert (record.price_version, record.unit_prices["input"]) == ("nova-1@2026-01-01T00:00:00Z", parse(5))
    assert [(item["bucket"], item["amount_nanos"]) for item in record.items] == [("web_search", parse("0.03"))]
    assert list(RollupDue.objects.values_list("api_key", "day")) == [(key.pk, dt.date(2026, 11, 3))]
    rollups.rebuild_due()
    assert money(UsageRollup.objects) == money(UsageRecord.objects) == BudgetMonth.objects.get().spent_nanos
    draft = Invoice.objects.get()
    assert (draft.unpriced, money_of_lines(draft)) == (0, money(UsageRecord.objects))
    assert invoices.issue(draft.pk, now=NOW).number == "2026-000001"
    told = AuditEntry.objects.filter(table="billing.price", message__startswith="rated").values_list(
        "message", flat=True
    )
    assert list(told) == ["rated 1 records of nova-1 (no price for model nova-1), USD 1.030060000 in all"]


def money_of_lines(invoice: Invoice) -> int:
    return sum(line.exact_nanos for line in invoice.lines.all())


def test_priced_and_invoiced_records_stay(key: ApiKey) -> None:
    make_record(key, utc(2026, 10, 3), model="nova-1", version=price("nova-1"))
    (draft,) = invoices.draft(dt.date(2026, 10, 1), now=NOW)
    invoices.issue(draft.pk, now=NOW)
    make_record(key, utc(2026, 11, 3), model="nova-1", version=price("nova-1"))
    kept = list(UsageRecord.objects.order_by("pk").values())
    make_unpriced(key)
    make_price("nova-1", input=7_000_000)
    assert unpriced.rate(terms()).records == 1
    assert list(UsageRecord.objects.exclude(input_nanos=1_400_000).order_by("pk").values()) == kept


def test_missing_price_leaves_it_waiting(key: ApiKey) -> None:
    """The price begins on the tenth: what was used before it stays unpriced."""
    make_unpriced(key, 3)
    make_unpriced(key, 11)
    make_price("nova-1", utc(2026, 11, 10))
    found = unpriced.preview(terms())
    assert (found.records, dict(found.missing)) == (1, {"no price for model nova-1": 1})
    assert unpriced.rate(terms()).records == 1
    assert unpriced.rate(terms()).records == 0
    assert [record.ended_at.day for record in UsageRecord.objects.filter(unpriced=True)] == [3]


def test_other_currency_leaves_it_waiting(db: None) -> None:
    make_unpriced(make_key(make_account(currency="EUR")))
    make_price("nova-1")
    found = unpriced.preview(terms())
    assert unpriced.rate(terms()).records == 0
    assert (found.records, list(found.missing)) == (
        0, ["the price of model nova-1 is in USD, the account's currency is EUR"],
    )  # fmt: skip


def test_other_causes_are_not_rated(key: ApiKey) -> None:
    make_unpriced(key)
    make_unpriced(key, model="nova-2")
    make_unpriced(key, service_tier="flex")
    make_price("nova-1")
    make_price("nova-2")
    assert unpriced.rate(terms()).records == 1


def test_what_comes_later_is_not_rated(key: ApiKey) -> None:
    """Rated is what was seen, though the model is used all the time."""
    for day in (3, 4):
        make_unpriced(key, day)
    make_price("nova-1")
    assert unpriced.rate(terms(until=utc(2026, 11, 3))).records == 1


def test_later_version_can_be_chosen(key: ApiKey) -> None:
    """A tier that a used version lacks comes with one that begins later, which is used from then on."""
    record = make_unpriced(key, service_tier="scale", version=price("nova-1"))
    make_price("nova-1")
    chosen = make_price("nova-1", NOW, tiers={"scale": "3"})
    assert unpriced.candidates(NO_TIER)[0] == chosen
    assert unpriced.preview(terms(NO_TIER)).records == 0
    assert not chosen.is_used()
    done = unpriced.rate(terms(NO_TIER, chosen.label))
    assert dict(done.costs) == {"USD": parse(3)}
    chosen.refresh_from_db()
    assert (chosen.rated_from, chosen.is_used()) == (record.ended_at, True)


def test_unknown_version_is_refused(key: ApiKey) -> None:
    make_unpriced(key)
    with pytest.raises(unpriced.Unknown):
        unpriced.rate(terms(version="nova-1@1999-01-01T00:00:00Z"))


def test_parts_are_rated_too(key: ApiKey) -> None:
    """The advisor had no price: its tokens are on the record all the same."""
    cause = Cause("nova-1", "", "no price for model advisor-1")
    record = make_record(
        key, utc(2026, 11, 3), USAGE, model="nova-1", version=price("nova-1"),
        parts=[Part("advisor-1", TokenUsage(output=1_000_000))],
    )  # fmt: skip
    assert record.unpriced
    make_price("nova-1")
    chosen = make_price("advisor-1", NOW)
    assert {row.model for row in unpriced.candidates(cause)} == {"nova-1", "advisor-1"}
    done = unpriced.rate(terms(cause, chosen.label))
    record.refresh_from_db()
    assert (dict(done.costs), record.cost_nanos, record.input_nanos) == ({"USD": parse(31)}, parse(31), parse(1))
    assert dict(done.versions) == {"nova-1@2026-01-01T00:00:00Z": 1, chosen.label: 1}
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    assert money_of_lines(draft) == parse(31)


def test_prices_of_every_record_count(key: ApiKey) -> None:
    """Not only those of the first hundred records: the last one has another advisor."""
    for day in (*[3] * 100, 4):
        part = Part("advisor-2" if day == 4 else "advisor-1", TokenUsage(input=200_000))
        make_unpriced(key, day, parts=[part], others=(price("advisor-1"),))
    for model in ("nova-1", "advisor-1", "advisor-2"):
        make_price(model)
    found = unpriced.preview(terms())
    assert (found.records, found.costs, found.missing) == (101, {"USD": parse("202")}, {})


def test_many_are_rated_in_batches(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpriced, "BATCH", 3)
    monkeypatch.setattr(unpriced, "AT_ONCE", 7)
    for _ in range(10):
        make_unpriced(key)
    make_price("nova-1")
    assert [unpriced.preview(terms()).records, unpriced.rate(terms()).records, unpriced.rate(terms()).records] == [
        7,
        7,
        3,
    ]
    assert BudgetMonth.objects.get().spent_nanos == parse(10)


def test_those_that_cannot_be_rated_do_not_block(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpriced, "AT_ONCE", 2)
    for day in (3, 4, 5, 11):
        make_unpriced(key, day)
    make_price("nova-1", utc(2026, 11, 10))
    assert unpriced.rate(terms()).records == 1


@pytest.mark.django_db(transaction=True)
def test_rated_at_once_is_rated_once() -> None:
    key = make_key()
    for _ in range(30):
        make_unpriced(key)
    make_price("nova-1")
    results = at_once([lambda: unpriced.rate(terms())] * 3)
    assert sum(result.records for result in results) == 30  # type: ignore[attr-defined]
    assert BudgetMonth.objects.get().spent_nanos == parse(30) == money(UsageRecord.objects)


@pytest.mark.django_db(transaction=True)
def test_issue_and_rating_agree() -> None:
    """An issue in between is blocked, or bills them at their price: never at nothing."""
    key = make_key()
    make_unpriced(key)
    make_price("nova-1")
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    works: list[Callable[[], object]] = [lambda: unpriced.rate(terms()), lambda: invoices.issue(draft.pk, now=NOW)]
    at_once(works)
    invoice = Invoice.objects.get()
    assert invoice.status == "draft" or invoice.total_nanos == parse(1)
    assert UsageRecord.objects.get().cost_nanos == parse(1)
    assert Price.objects.get().is_used()
