"""The statement of an account: its own zone and month, what is due, and nothing of our providers."""

from __future__ import annotations

import csv
import datetime as dt
from decimal import Decimal
from pathlib import Path

import pytest
from django.utils import translation

from billing import credit_notes, invoices, rollups, statement_pdf, statements
from billing.credit_notes import Wanted
from billing.models import Account, ApiKey, Invoice
from billing.money import parse
from billing.report_query import BadQuery
from billing.sheets import write_csv
from billing.statements import Statement, build, dues
from billing.usage import TokenUsage
from tests.billing.factories import make_account, make_adjustment, make_key, make_record, utc

pytestmark = pytest.mark.django_db
OCTOBER, NOVEMBER = dt.date(2026, 10, 1), dt.date(2026, 11, 1)
NOW = utc(2026, 12, 2)


@pytest.fixture
def account() -> Account:
    return make_account(timezone="Asia/Taipei", legal_name="北風有限公司", language="zh-Hant")


@pytest.fixture
def key(account: Account) -> ApiKey:
    return make_key(account, "=1+1")


def issued(key: ApiKey, month: dt.date, now: dt.datetime = NOW) -> Invoice:
    invoices.draft(month, account=key.account, now=now)
    return invoices.issue(Invoice.objects.get(api_key=key, month=month).pk, now=now)


def test_month_is_the_accounts_own(key: ApiKey) -> None:
    make_record(key, utc(2026, 10, 31, 15))
    make_record(key, utc(2026, 10, 31, 17))
    make_record(key, utc(2026, 11, 30, 17))
    for month, requests in ((OCTOBER, 1), (NOVEMBER, 1)):
        assert build(key.account, month).total.requests == requests
    rollups.rebuild_due()
    assert build(key.account, NOVEMBER).total.requests == 1


def test_use_is_by_key_and_model(key: ApiKey) -> None:
    other = make_key(key.account, "batch")
    make_record(make_key(make_account("umbrella")), utc(2026, 11, 3))
    for one, model in ((key, "b"), (key, "a"), (other, "b"), (key, "b")):
        make_record(one, utc(2026, 11, 3), model=model)
    found = build(key.account, NOVEMBER)
    assert [(one.key, one.model, one.figures.requests) for one in found.used] == [
        ("=1+1", "a", 1), ("=1+1", "b", 2), ("batch", "b", 1),
    ]  # fmt: skip


def test_statement_is_the_invoices_sum(key: ApiKey) -> None:
    """Use and adjustments of a month are what its invoice bills, to the currency's places."""
    make_record(key, utc(2026, 11, 3), TokenUsage(input=2_000_001, output=1))
    make_adjustment(key, utc(2026, 11, 5), parse("-1.25"))
    found = build(key.account, NOVEMBER)
    exact = found.total.cost_nanos + found.adjusted_nanos
    invoice = issued(key, NOVEMBER)
    assert sum(line.exact_nanos for line in invoice.lines.all()) == exact


def test_due_follows_payment_and_credit(key: ApiKey) -> None:
    make_record(key, utc(2026, 10, 3), TokenUsage(input=2_000_000))
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000))
    first, second = issued(key, OCTOBER), issued(key, NOVEMBER)
    assert (first.total_nanos, second.total_nanos) == (parse("10"), parse("5"))
    assert build(key.account, NOVEMBER).due_nanos == parse("15")
    assert build(key.account, OCTOBER).due_nanos == parse("10")
    credit_notes.make(second.pk, Wanted(amount_nanos=parse("2")), "as agreed", by=None, now=NOW)
    found = build(key.account, NOVEMBER)
    assert [(one.invoice.pk, one.credited_nanos, one.due_nanos) for one in found.billed] == [
        (first.pk, 0, parse("10")),
        (second.pk, parse("2"), parse("3")),
    ]
    invoices.mark_paid(first.pk, dt.date(2026, 12, 2), "wire")
    assert build(key.account, NOVEMBER).due_nanos == parse("3")


def test_void_and_draft_owe_nothing(key: ApiKey) -> None:
    make_record(key, utc(2026, 10, 3), TokenUsage(input=2_000_000))
    invoices.void(issued(key, OCTOBER).pk, "wrong address", now=NOW)
    invoices.draft(OCTOBER, account=key.account, now=NOW)
    assert build(key.account, OCTOBER).billed == []


def test_credit_notes_are_of_their_month(key: ApiKey) -> None:
    make_record(key, utc(2026, 10, 3), TokenUsage(input=2_000_000))
    invoice = issued(key, OCTOBER)
    credit_notes.make(invoice.pk, Wanted(amount_nanos=parse("2")), "as agreed", by=None, now=NOW)
    assert build(key.account, NOVEMBER).notes == []
    assert [note.total_nanos for note in build(key.account, dt.date(2026, 12, 1)).notes] == [parse("2")]


def test_dues_are_by_currency(key: ApiKey) -> None:
    make_record(key, utc(2026, 10, 3), TokenUsage(input=2_000_000))
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000))
    first, second = issued(key, OCTOBER), issued(key, NOVEMBER)
    credit_notes.make(second.pk, Wanted(amount_nanos=parse("5")), "all of it", by=None, now=NOW)
    assert first.due_on is not None
    assert [(one.currency, one.due_nanos, one.overdue) for one in dues(first.due_on)] == [("USD", parse("10"), 0)]
    (late,) = dues(first.due_on + dt.timedelta(days=1))
    assert (late.overdue_nanos, late.overdue) == (parse("10"), 1)


@pytest.mark.parametrize(
    "given", [{}, {"account": "x"}, {"account": "999", "month": "2026-11"}, {"account": "1", "month": "November"}]
)
def test_question_must_be_whole(given: dict[str, str]) -> None:
    with pytest.raises(BadQuery):
        statements.parse(given)


def full(key: ApiKey) -> Statement:
    make_record(key, utc(2026, 11, 3), TokenUsage(input=2_000_000), upstream_model="acme-hidden")
    make_record(key, utc(2026, 11, 4), service_tier="scale")
    make_adjustment(key, utc(2026, 11, 5), parse("-1.25"))
    return build(key.account, NOVEMBER)


def test_csv_adds_up_and_is_harmless(key: ApiKey, tmp_path: Path) -> None:
    found = full(key)
    write_csv(statements.sheet(found, NOW), tmp_path / "made")
    lines = list(csv.reader((tmp_path / "made").read_text("utf-8-sig").splitlines()))
    assert ["Time zone", "Asia/Taipei"] in lines
    at = next(number for number, line in enumerate(lines) if "amount" in line)
    rows, totals = lines[at + 1 : -3], lines[-3:]
    use = [Decimal(row[-1]) for row in rows if row[0] == "Use" and row[-1]]
    assert sum(use) == Decimal(totals[0][-1]) == Decimal("10")
    assert totals[1][-1] == "-1.250000000"
    assert all(row[1] == "'=1+1" for row in rows if row[0] != "Use by invoice")
    assert "acme" not in (tmp_path / "made").read_text("utf-8-sig")


def test_pdf_is_the_same_each_time(key: ApiKey) -> None:
    found = full(key)
    with translation.override("zh-hant"):
        raw = statement_pdf.render(found, NOW)
        assert raw.startswith(b"%PDF-")
        assert statement_pdf.render(found, NOW) == raw
