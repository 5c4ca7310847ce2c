"""Adjustments made by hand: a large one needs a second person, and nobody approves their own."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from pytest_django import Settings

from billing import adjustments, invoices
from billing.adjustments import AdjustmentError, MadeAlready, SelfApproval
from billing.models import Adjustment, ApiKey, BudgetMonth
from billing.money import parse
from billing.usage import TokenUsage
from tests.billing.factories import make_account, make_key, make_record, utc

NOVEMBER = dt.date(2026, 11, 1)
NOW = utc(2026, 11, 30, 17)
"""The first of December in Taipei."""


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key(make_account(timezone="Asia/Taipei"))


@pytest.fixture
def ann(db: None) -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def ben(db: None) -> User:
    return User.objects.create_user("ben")


def proposed(key: ApiKey, by: User, amount: str = "-150", kind: str = "goodwill", now: dt.datetime = NOW) -> Adjustment:
    return adjustments.propose(key, kind, parse(amount), " the outage of Tuesday ", by=by, now=now)


def spent(key: ApiKey) -> dict[str, int]:
    return {f"{month.month:%m}": month.spent_nanos for month in BudgetMonth.objects.filter(api_key=key)}


def test_small_one_counts_at_once(key: ApiKey, ann: User) -> None:
    made = proposed(key, ann, "-100")
    assert (made.state, made.effective_at, made.day) == ("approved", NOW, dt.date(2026, 12, 1))
    assert (made.account, made.currency, made.reason, made.proposed_by) == (
        key.account, "USD", "the outage of Tuesday", ann,
    )  # fmt: skip
    assert made.decided_by is None
    assert spent(key) == {"12": parse(-100)}


def test_asked_for_once_is_made_once(key: ApiKey, ann: User, ben: User) -> None:
    def ask(by: User, amount: str = "-5", now: dt.datetime = NOW) -> Adjustment:
        return adjustments.propose(key, "goodwill", parse(amount), "an outage ", by=by, now=now, once=True)

    made = ask(ann)
    with pytest.raises(MadeAlready) as again:
        ask(ann, now=NOW + dt.timedelta(hours=23))
    assert again.value.adjustment == made
    ask(ann, "-6")
    ask(ben)
    ask(ann, now=NOW + dt.timedelta(hours=25))
    assert Adjustment.objects.count() == 4


def test_large_one_waits_for_approval(key: ApiKey, ann: User, ben: User) -> None:
    made = proposed(key, ann, "-100.000000001")
    assert (made.state, made.effective_at, made.day, spent(key)) == ("proposed", None, None, {})
    assert invoices.draft(NOVEMBER, now=NOW) == []
    adjustments.approve(made.pk, by=ben, now=utc(2026, 12, 31, 16))
    made.refresh_from_db()
    assert (made.state, made.decided_by, made.day) == ("approved", ben, dt.date(2027, 1, 1))
    assert spent(key) == {"01": parse("-100.000000001")}


def test_limit_is_of_both_directions(key: ApiKey, ann: User, settings: Settings) -> None:
    settings.APPROVAL_ABOVE = Decimal("0.5")
    found = [proposed(key, ann, amount, "correction").state for amount in ("0.5", "-0.5", "0.51", "-0.51")]
    assert found == ["approved", "approved", "proposed", "proposed"]
    settings.APPROVAL_ABOVE = Decimal(0)
    assert adjustments.needs_approval(1, 0)


def test_large_one_is_not_made_of_small_ones(key: ApiKey, ann: User, ben: User, settings: Settings) -> None:
    """What one person does alone in 30 days counts together: per account and direction, and never what another did."""
    settings.APPROVAL_ABOVE = Decimal(100)
    sibling = make_key(key.account, "sibling")
    assert [proposed(one, ann, "-60", "correction").state for one in (key, sibling)] == ["approved", "proposed"]
    assert proposed(key, ann, "-40", "correction").state == "approved"
    assert proposed(key, ann, "-0.000000001", "correction").state == "proposed"
    assert proposed(key, ann, "100", "correction").state == "approved"
    assert proposed(key, ben, "-100", "correction").state == "approved"
    assert proposed(make_key(make_account("other"), "k"), ann, "-100", "correction").state == "approved"
    with_approval = proposed(key, ben, "-1", "correction")
    adjustments.approve(with_approval.pk, by=ann, now=NOW)
    later = NOW + dt.timedelta(days=30)
    assert proposed(key, ann, "-100", "correction", later).state == "approved"


def test_nobody_approves_their_own(key: ApiKey, ann: User) -> None:
    made = proposed(key, ann)
    with pytest.raises(SelfApproval, match=r"^You proposed this; someone else must approve\.$"):
        adjustments.approve(made.pk, by=ann, now=NOW)
    made.refresh_from_db()
    assert made.state == "proposed"
    with pytest.raises(IntegrityError, match="adjustment_not_by_its_proposer"), transaction.atomic():
        Adjustment.objects.filter(pk=made.pk).update(
            state="approved", decided_by=ann, decided_at=NOW, effective_at=NOW, day=NOVEMBER
        )


def test_rejected_one_keeps_its_reason(key: ApiKey, ann: User, ben: User) -> None:
    made = proposed(key, ann)
    with pytest.raises(AdjustmentError, match="for a reason"):
        adjustments.reject(made.pk, "  ", by=ben, now=NOW)
    adjustments.reject(made.pk, " no outage that day ", by=ben, now=NOW)
    made.refresh_from_db()
    assert (made.state, made.decision_reason, made.decided_by) == ("rejected", "no outage that day", ben)
    assert (made.effective_at, spent(key), invoices.draft(NOVEMBER, now=NOW)) == (None, {}, [])


def test_decision_is_final(key: ApiKey, ann: User, ben: User) -> None:
    approved, rejected = proposed(key, ann), proposed(key, ann)
    adjustments.approve(approved.pk, by=ben, now=NOW)
    adjustments.reject(rejected.pk, "twice", by=ann, now=NOW)  # withdrawn
    for made in (approved, rejected):
        with pytest.raises(AdjustmentError, match="already"):
            adjustments.approve(made.pk, by=ben, now=NOW)
        with pytest.raises(AdjustmentError, match="already"):
            adjustments.reject(made.pk, "on second thoughts", by=ben, now=NOW)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"amount_nanos": 0}, "and a reason"),
        ({"reason": " "}, "and a reason"),
        ({"amount_nanos": 1}, "Goodwill is a credit"),
        ({"kind": "settled"}, "kind settled are"),
        ({"kind": "carried"}, "kind carried are"),
    ],
)
def test_nonsense_is_refused(key: ApiKey, ann: User, fields: dict[str, object], told: str) -> None:
    given = {"kind": "goodwill", "amount_nanos": -1, "reason": "an outage", **fields}
    with pytest.raises(AdjustmentError, match=told):
        adjustments.propose(key, **given, by=ann, now=NOW)  # type: ignore[arg-type]


def test_request_is_one_of_the_keys(key: ApiKey, ann: User) -> None:
    record = make_record(make_key(key.account, "other"), NOW)
    with pytest.raises(AdjustmentError, match="made with another key"):
        adjustments.propose(key, "goodwill", -1, "an outage", by=ann, now=NOW, record=record)
    made = adjustments.propose(record.api_key, "goodwill", -1, "an outage", by=ann, now=NOW, record=record)
    assert made.record == record


def test_approved_one_is_billed_once(key: ApiKey, ann: User, ben: User) -> None:
    make_record(key, utc(2026, 11, 3), TokenUsage(output=10_000_000))
    made = proposed(key, ann)
    adjustments.approve(made.pk, by=ben, now=utc(2026, 11, 30))
    [draft] = invoices.draft(NOVEMBER, now=NOW)
    invoice = invoices.issue(draft.pk, now=NOW)
    assert [line.description for line in invoice.lines.all()][1:] == ["adjustment · goodwill · the outage of Tuesday"]
    assert invoice.total_nanos == parse(150)
    made.refresh_from_db()
    assert made.invoice == invoice
