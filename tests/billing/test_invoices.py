"""Invoices: drafted, issued, paid, made void; each record on exactly one."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from django.db import connection, transaction
from django.db.models import Sum
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import Settings

from billing import invoices, money, reports
from billing.models import Adjustment, ApiKey, BudgetMonth, Invoice, InvoiceLine, UsageRecord
from billing.money import parse
from billing.pricing import Rating
from billing.usage import BUCKETS, Part, TokenUsage
from tests.billing.factories import (
    LONG,
    make_account,
    make_adjustment,
    make_key,
    make_record,
    per_million,
    price,
    unsaved_record,
    utc,
)

OCTOBER, NOVEMBER, DECEMBER = (dt.date(2026, month, 1) for month in (10, 11, 12))
NOW = utc(2026, 12, 2)


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key()


def drafted(month: dt.date = NOVEMBER, now: dt.datetime = NOW) -> Invoice:
    (invoice,) = invoices.draft(month, now=now)
    return invoice


def issued(month: dt.date = NOVEMBER, now: dt.datetime = NOW) -> Invoice:
    return invoices.issue(drafted(month, now).pk, now=now)


def cost_of(records: object) -> int:
    return records.aggregate(cost=Sum("cost_nanos"))["cost"] or 0  # type: ignore[attr-defined]


def sum_of(adjustments: object) -> int:
    return adjustments.aggregate(nanos=Sum("amount_nanos"))["nanos"] or 0  # type: ignore[attr-defined]


# --- drafts ---


def test_one_draft_per_key_with_usage(key: ApiKey) -> None:
    other = make_key(key.account, "other")
    make_key(key.account, "idle")
    make_record(key, utc(2026, 11, 3))
    make_record(other, utc(2026, 11, 4))
    assert [invoice.key_name for invoice in invoices.draft(NOVEMBER, now=NOW)] == ["other", "production"]


def test_draft_again_is_made_anew(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000))
    first = drafted()
    make_record(key, utc(2026, 11, 4), TokenUsage(input=1_000_000))
    second = drafted()
    assert (second.pk, second.total_nanos, second.lines.count()) == (first.pk, parse(10), 1)
    assert not UsageRecord.objects.exclude(invoice=None).exists()


def test_draft_copies_what_it_prints(db: None, settings: Settings) -> None:
    settings.SELLER = {"name": "HopBase Ltd", "address": "1 Relay Way", "tax_id": "GB1", "zone": "Asia/Taipei"}
    account = make_account(
        legal_name="Northwind Ltd", address="2 Dock Rd", tax_id="TW2", language="zh-hant", due_days=14
    )
    make_record(make_key(account), utc(2026, 11, 3))
    invoice = issued(now=utc(2026, 12, 31, 20))
    account.legal_name, account.address = "Southwind Ltd", "elsewhere"
    account.save()
    invoice.refresh_from_db()
    assert (invoice.seller_name, invoice.seller_address, invoice.seller_tax_id) == ("HopBase Ltd", "1 Relay Way", "GB1")
    assert (invoice.legal_name, invoice.address, invoice.tax_id) == ("Northwind Ltd", "2 Dock Rd", "TW2")
    assert (invoice.account_name, invoice.key_name, invoice.language) == ("northwind", "production", "zh-hant")
    # 20:00 UTC on New Year's Eve is New Year's Day where the seller is.
    assert (invoice.number, invoice.due_on) == ("2027-000001", dt.date(2027, 1, 15))


@pytest.mark.parametrize("zone", ["Asia/Taipei", "America/Los_Angeles", "Asia/Kathmandu"])
def test_month_is_half_open_in_zone(db: None, zone: str) -> None:
    key = make_key(make_account(timezone=zone))
    begin = dt.datetime(2026, 11, 1, tzinfo=ZoneInfo(zone)).astimezone(dt.UTC)
    end = dt.datetime(2026, 12, 1, tzinfo=ZoneInfo(zone)).astimezone(dt.UTC)
    tick = dt.timedelta(microseconds=1)
    at = {
        name: make_record(key, when)
        for name, when in (("before", begin - tick), ("first", begin), ("last", end - tick), ("after", end))
    }
    assert set(issued(OCTOBER).records.all()) == {at["before"]}
    assert set(issued(NOVEMBER).records.all()) == {at["first"], at["last"]}
    assert set(issued(DECEMBER).records.all()) == {at["after"]}


def test_month_to_come_is_not_drafted(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    assert invoices.draft(DECEMBER, now=utc(2026, 11, 30, 23)) == []


def test_one_account_can_be_drafted(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    other = make_key(make_account("southwind"))
    make_record(other, utc(2026, 11, 3))
    (invoice,) = invoices.draft(NOVEMBER, account=other.account, now=NOW)
    assert invoice.api_key == other


def test_emptied_draft_goes_away(key: ApiKey) -> None:
    """November's issue claims what October never billed; October's draft has nothing left."""
    make_record(key, utc(2026, 10, 31))
    assert drafted(OCTOBER).lines.count() == 2
    issued(NOVEMBER)
    assert invoices.draft(OCTOBER, now=NOW) == []
    assert [invoice.month for invoice in Invoice.objects.all()] == [NOVEMBER]


# --- lines ---


def test_dimensions_make_lines_of_their_own(key: ApiKey) -> None:
    dear = price(tiers={"priority": Fraction(2)}, long_context=LONG)
    for fields in (
        {},
        {"service_tier": "default"},
        {"service_tier": "priority", "version": dear},
        {"metering": "estimated"},
        {"model": "claude-sonnet-5"},
        {"version": price(effective_from=utc(2026, 11, 2))},
    ):
        make_record(key, utc(2026, 11, 3), TokenUsage(input=10), **fields)  # type: ignore[arg-type]
    make_record(key, utc(2026, 11, 3), TokenUsage(input=300_000), version=dear)
    lines = drafted().lines.all()
    assert len({line.description for line in lines}) == 5  # the two price versions read alike
    assert {(line.model, line.metering, line.service_tier, line.long_context, line.quantity) for line in lines} == {
        ("gpt-5.6-sol", "reported", "default", False, 20),
        ("gpt-5.6-sol", "reported", "default", False, 10),
        ("gpt-5.6-sol", "reported", "priority", False, 10),
        ("gpt-5.6-sol", "estimated", "default", False, 10),
        ("gpt-5.6-sol", "reported", "default", True, 300_000),
        ("claude-sonnet-5", "reported", "default", False, 10),
    }
    assert lines.count() == 6


def test_tools_and_advisors_have_lines(key: ApiKey) -> None:
    advisor = price("advisor-model", per_million=per_million(input="10", output="50"))
    for _ in range(3):
        make_record(
            key,
            utc(2026, 11, 3),
            TokenUsage(input=1_000_000, server_tools={"web_search": 5}),
            version=price(server_tools={"web_search": parse("0.01")}),
            others=[advisor],
            parts=[Part("advisor-model", TokenUsage(output=2_000_000))],
        )
    invoice = drafted()
    assert [
        (line.model, line.bucket, line.per_million, line.quantity, line.unit_nanos, line.amount_nanos)
        for line in invoice.lines.all()
    ] == [
        ("advisor-model", "output", True, 6_000_000, parse(50), parse(300)),
        ("gpt-5.6-sol", "input", True, 3_000_000, parse(5), parse(15)),
        ("gpt-5.6-sol", "web_search", False, 15, parse("0.01"), parse("0.15")),
    ]
    assert invoice.total_nanos == parse("315.15")


def test_line_shows_exact_sum_and_rounding(key: ApiKey) -> None:
    thirds = price(per_million=per_million(input="3.333333"))
    for _ in range(4):
        make_record(key, utc(2026, 11, 3), TokenUsage(input=1000), version=thirds)
    (line,) = invoices.as_json(issued())["lines"]  # type: ignore[misc]
    assert line["exact"] == "0.013333332"  # type: ignore[index]
    assert (line["amount"], line["rounding"], line["unit_price"]) == ("0.01", "-0.003333332", "3.333333000")  # type: ignore[index]


@pytest.mark.parametrize(
    ("currency", "per_million_price", "amount"),
    [("JPY", "750.5", "751"), ("BHD", "0.0015", "0.002"), ("USD", "0.005", "0.01")],
)
def test_currencies_round_to_their_places(db: None, currency: str, per_million_price: str, amount: str) -> None:
    key = make_key(make_account(currency=currency))
    version = price(currency=currency, per_million=per_million(input=per_million_price))
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000), version=version)
    shown = invoices.as_json(issued())
    assert (shown["total"], shown["lines"][0]["amount"]) == (amount, amount)  # type: ignore[index]


def test_tax_is_rounded_half_up(db: None) -> None:
    key = make_key(make_account(tax_rate_ppm=50_000))
    make_record(key, utc(2026, 11, 3), TokenUsage(input=20_000))  # 0.10, and 5 % of it is half a cent
    invoice = issued()
    assert [money.show(nanos, 2) for nanos in (invoice.subtotal_nanos, invoice.tax_nanos, invoice.total_nanos)] == [
        "0.10",
        "0.01",
        "0.11",
    ]


def test_records_without_use_are_claimed(key: ApiKey) -> None:
    empty = make_record(key, utc(2026, 11, 3), TokenUsage(), metering="none", ending="refused")
    invoice = issued()
    assert (list(invoice.records.all()), invoice.lines.count(), invoice.total_nanos) == ([empty], 0, 0)
    assert invoice.number == "2026-000001"


COUNTS = st.integers(0, 10**7)
USAGES = st.lists(
    st.tuples(
        st.builds(
            TokenUsage,
            COUNTS,
            COUNTS,
            COUNTS,
            COUNTS,
            COUNTS,
            server_tools=st.dictionaries(st.just("web_search"), COUNTS),
        ),
        st.sampled_from(["reported", "estimated"]),
        st.sampled_from(["", "default", "x"]),
        st.sampled_from([utc(2026, 10, 30), utc(2026, 11, 3)]),
    ),
    min_size=1,
    max_size=6,
)


@hypothesis_settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(USAGES)
def test_lines_sum_to_total_and_records(key: ApiKey, usages: list[tuple[TokenUsage, str, str, dt.datetime]]) -> None:
    version = price(tiers={"x": Fraction(1, 7)}, long_context=LONG, server_tools={"web_search": parse("0.0123")})
    if previous := Invoice.objects.filter(status="open").first():
        invoices.void(previous.pk, "the example before", NOW)
        UsageRecord.objects.update(ended_at=utc(2027, 1, 1))
    records = [
        make_record(key, ended_at, usage, version=version, metering=metering, service_tier=tier)
        for usage, metering, tier, ended_at in usages
    ]
    invoice = issued()
    lines = list(invoice.lines.all())
    assert sum(line.exact_nanos for line in lines) == sum(record.cost_nanos for record in records)
    assert sum(line.amount_nanos for line in lines) == invoice.subtotal_nanos == invoice.total_nanos
    assert all(line.exact_nanos + line.rounding_nanos == line.amount_nanos for line in lines)
    for bucket in BUCKETS:
        assert sum(line.quantity for line in lines if line.bucket == bucket) == sum(
            getattr(row, bucket) for row in records
        )
    for line in lines:
        cents = money.to_decimal(line.exact_nanos).quantize(Decimal("0.01"), ROUND_HALF_UP)
        assert money.to_decimal(line.amount_nanos) == cents


@hypothesis_settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 50_000), min_size=1, max_size=8))
def test_splitting_requests_keeps_sums(key: ApiKey, hundreds: list[int]) -> None:
    """A hundred tokens at 5 per million are whole nanos: one request or many, the month costs the same."""
    split, whole = make_key(key.account, f"split-{len(Invoice.objects.all())}"), key
    UsageRecord.objects.filter(api_key=whole).update(ended_at=utc(2027, 1, 1))
    for count in hundreds:
        make_record(split, utc(2026, 11, 3), TokenUsage(input=count * 100))
    make_record(whole, utc(2026, 11, 3), TokenUsage(input=sum(hundreds) * 100))
    drafts = {invoice.api_key_id: invoice for invoice in invoices.draft(NOVEMBER, now=NOW)}
    assert drafts[split.pk].total_nanos == drafts[whole.pk].total_nanos
    assert cost_of(split.records) == cost_of(whole.records.filter(ended_at__lt=NOW))


# --- adjustments ---


def test_adjustments_are_claimed_as_lines(key: ApiKey) -> None:
    record = make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000))
    for record_of_it in (None, record):
        make_adjustment(key, utc(2026, 11, 9), -1_234_567_891, record=record_of_it)
    invoice = issued()
    assert set(Adjustment.objects.values_list("invoice", flat=True)) == {invoice.pk}
    assert [
        (line.bucket, line.model, line.quantity, line.unit_nanos, line.exact_nanos, line.rounding_nanos, line.late)
        for line in invoice.lines.all()
    ] == [
        ("input", "gpt-5.6-sol", 1_000_000, parse(5), parse(5), 0, False),
        ("adjustment", "gpt-5.6-sol", 1, -1_234_567_891, -1_234_567_891, 4_567_891, False),
        ("adjustment", "", 1, -1_234_567_891, -1_234_567_891, 4_567_891, False),
    ]
    assert [line.description for line in invoice.lines.all()][1:] == [
        "gpt-5.6-sol · adjustment · requests that ended after they were billed", "adjustment · correction · as agreed",
    ]  # fmt: skip
    assert money.show(invoice.subtotal_nanos, 2) == "2.54"


def test_tiny_adjustments_are_not_rounded_away(key: ApiKey) -> None:
    """A hundred times 0.004 of the ledger's are 0.40: one line, not a hundred of nothing."""
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000))
    for _ in range(100):
        lost = make_record(key, utc(2026, 11, 3), TokenUsage())
        make_adjustment(key, utc(2026, 11, 9), parse("0.004"), record=lost, kind="swept")
    assert [line.amount_nanos for line in drafted().lines.all()] == [parse(5), parse("0.40")]


def test_adjustments_alone_make_a_draft(key: ApiKey) -> None:
    make_adjustment(key, utc(2026, 11, 9), parse(2))
    invoice = issued()
    assert (invoice.number, invoice.total_nanos, invoice.records.count()) == ("2026-000001", parse(2), 0)
    assert invoices.draft(NOVEMBER, now=NOW) == []


def test_only_what_counts_is_billed(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000))
    unapproved: dict[str, object] = {"effective_at": None, "day": None}
    for state in ("proposed", "rejected"):
        make_adjustment(key, utc(2026, 11, 9), parse(-1), state=state, **unapproved)
    after = make_adjustment(key, utc(2026, 12, 1), parse(-1))
    assert issued().total_nanos == parse(5)
    assert list(issued(DECEMBER).adjustments.exclude(kind="carried")) == [after]


def test_late_adjustment_says_so(key: ApiKey) -> None:
    """Made in October for a key whose October was issued by then."""
    make_record(key, utc(2026, 10, 3))
    issued(OCTOBER, now=utc(2026, 10, 20))
    make_adjustment(key, utc(2026, 10, 25), parse(3))
    (line,) = issued(NOVEMBER).lines.all()
    assert (line.late, line.description) == (True, "adjustment · correction · as agreed · of an earlier month")


def test_void_frees_adjustments(key: ApiKey) -> None:
    made = make_adjustment(key, utc(2026, 11, 9), parse(2))
    invoices.void(issued().pk, "wrong", NOW)
    made.refresh_from_db()
    assert made.invoice is None
    assert issued().total_nanos == parse(2)


def test_foreign_adjustment_blocks_the_issue(key: ApiKey) -> None:
    make_adjustment(key, utc(2026, 11, 9), parse(2), currency="EUR")
    with pytest.raises(invoices.IssueBlocked, match="another currency"):
        issued()


def test_credit_beyond_the_bill_is_carried_over(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000))
    credit = make_adjustment(key, utc(2026, 11, 9), parse("-12.005"))
    draft = drafted()
    assert ([line.bucket for line in draft.lines.all()], draft.total_nanos) == (
        ["input", "adjustment", "carried_over"], 0,
    )  # fmt: skip
    assert list(Adjustment.objects.all()) == [credit]  # a draft changes nothing
    invoice = invoices.issue(draft.pk, now=NOW)
    assert [line.amount_nanos for line in invoice.lines.all()] == [parse(5), parse("-12.01"), parse("7.01")]
    assert (invoice.subtotal_nanos, invoice.tax_nanos, invoice.total_nanos) == (0, 0, 0)
    make_record(key, utc(2026, 12, 1), TokenUsage(input=3_000_000))
    (billed, carried) = issued(DECEMBER).lines.all()
    assert (billed.amount_nanos, carried.amount_nanos, carried.late) == (parse(15), parse("-7.01"), False)
    assert carried.description == "adjustment · credit carried over from an earlier invoice"
    assert BudgetMonth.objects.get(month=NOVEMBER).spent_nanos == parse("-7.005")
    assert sum_of(Adjustment.objects.filter(kind="carried")) == 0


def test_carried_credit_waits_for_use(key: ApiKey) -> None:
    """A key without use gets one invoice over zero that shows the credit, and not another one each month."""
    make_adjustment(key, utc(2026, 10, 9), parse(-5))
    assert issued(OCTOBER, now=utc(2026, 11, 2)).total_nanos == 0
    assert invoices.draft(NOVEMBER, now=NOW) == []
    make_record(key, utc(2026, 11, 3), TokenUsage(input=2_000_000))
    assert issued(NOVEMBER).total_nanos == parse(5)


def test_void_gives_carried_credit_back_once(key: ApiKey) -> None:
    """Its successor has billed the carried credit by then."""
    make_adjustment(key, utc(2026, 10, 9), parse(-5))
    first = issued(OCTOBER, now=utc(2026, 11, 2))
    make_record(key, utc(2026, 11, 3), TokenUsage(input=2_000_000))
    assert issued(NOVEMBER).total_nanos == parse(5)
    invoices.void(first.pk, "wrong address", NOW)
    again = issued(OCTOBER)
    assert (again.total_nanos, again.lines.count()) == (0, 2)
    make_record(key, utc(2026, 12, 1), TokenUsage(input=2_000_000))
    december = issued(DECEMBER)
    assert [line.amount_nanos for line in december.lines.all()] == [parse(10)]  # +5 freed, -5 carried anew
    standing = InvoiceLine.objects.exclude(invoice__status="void")
    assert standing.aggregate(nanos=Sum("exact_nanos"))["nanos"] == cost_of(UsageRecord.objects) + parse(-5)


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["use", "adjust", "settle", "issue", "void"]),
        st.integers(-(10**10), 10**10),
        st.sampled_from([utc(2026, month, day) for month in (10, 11) for day in (1, 15, 30)]),
    ),
    min_size=2,
    max_size=14,
)


@hypothesis_settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MOVES)
def test_lines_are_records_and_adjustments(db: None, moves: list[tuple[str, int, dt.datetime]]) -> None:
    """Whatever is used, adjusted, issued and made void, in whatever order: nothing is lost, nothing is billed twice."""
    key = make_key(make_account(f"account-{ApiKey.objects.count()}", timezone="Asia/Taipei"))
    for act, number, at in moves:
        move(key, act, number, at)
        check_invoices(key)
    for month in (OCTOBER, NOVEMBER, DECEMBER):
        move(key, "issue", 0, dt.datetime.combine(month, dt.time(), dt.UTC))
    check_invoices(key)
    waiting = Adjustment.objects.filter(api_key=key, invoice=None)
    assert set(waiting.values_list("kind", flat=True)) <= {"carried"}
    billed = sum(InvoiceLine.objects.filter(invoice__in=standing(key)).values_list("exact_nanos", flat=True))
    made = Adjustment.objects.filter(api_key=key).exclude(kind="carried")
    assert billed + sum_of(waiting) == cost_of(key.records) + sum_of(made) == spent_by(key)


def move(key: ApiKey, act: str, number: int, at: dt.datetime) -> None:
    match act:
        case "use":
            make_record(key, at, TokenUsage(input=abs(number) % 10**6, output=7))
        case "adjust":
            make_adjustment(key, at, number)
        case "settle":
            if record := key.records.first():
                make_adjustment(key, at, number, record=record, kind="swept")
        case "issue":
            for draft in invoices.draft(at.date().replace(day=1), account=key.account, now=NOW):
                invoices.issue(draft.pk, now=NOW)
        case "void":
            if first := key.invoices.filter(status="open").order_by("number").first():
                invoices.void(first.pk, "an example", NOW)


def standing(key: ApiKey) -> list[Invoice]:
    return list(key.invoices.filter(status="open"))


def spent_by(key: ApiKey) -> int:
    return sum(BudgetMonth.objects.filter(api_key=key).values_list("spent_nanos", flat=True))


def check_invoices(key: ApiKey) -> None:
    """Each invoice bills what is on it, to the nano, and is not below zero; the customer is told the same figure."""
    for invoice in standing(key):
        lines = list(invoice.lines.all())
        assert sum(line.exact_nanos for line in lines) == cost_of(invoice.records) + sum_of(invoice.adjustments)
        assert sum(line.amount_nanos for line in lines) == invoice.subtotal_nanos >= 0
        for line in lines:
            assert line.exact_nanos + line.rounding_nanos == line.amount_nanos
            assert abs(line.rounding_nanos) <= parse("0.005")
    told = reports.usage_by_day_and_model(key.pk, OCTOBER, dt.date(2027, 1, 1))
    assert sum(row.cost_nanos for row in told) == spent_by(key)


# --- issue ---


def test_issue_claims_and_numbers(key: ApiKey) -> None:
    records = {make_record(key, utc(2026, 11, day)) for day in (3, 4)}
    invoice = issued()
    assert (invoice.status, invoice.number, invoice.issued_at) == ("open", "2026-000001", NOW)
    assert set(invoice.records.all()) == records


def test_late_usage_goes_onto_next_invoice(key: ApiKey) -> None:
    make_record(key, utc(2026, 10, 30), TokenUsage(input=1_000_000))
    issued(OCTOBER)
    make_record(key, utc(2026, 10, 31), TokenUsage(input=2_000_000))
    make_record(key, utc(2026, 11, 3), TokenUsage(input=3_000_000))
    assert invoices.draft(OCTOBER, now=NOW) == []
    invoice = issued(NOVEMBER)
    assert [(line.late, line.quantity) for line in invoice.lines.all()] == [(False, 3_000_000), (True, 2_000_000)]
    assert cost_of(UsageRecord.objects) == sum(Invoice.objects.values_list("total_nanos", flat=True))


def test_late_usage_alone_makes_an_invoice(key: ApiKey) -> None:
    make_record(key, utc(2026, 10, 30))
    issued(OCTOBER)
    late = make_record(key, utc(2026, 10, 31))
    assert list(issued(NOVEMBER).records.all()) == [late]


def test_running_month_issues_with_warning(key: ApiKey) -> None:
    now = utc(2026, 11, 15)
    make_record(key, utc(2026, 11, 3))
    invoice = issued(now=now)
    assert "2026-11 is still running for northwind/production, until 2026-12-01T00:00:00+00:00" in invoices.warning(
        invoice, now=now
    )
    after = make_record(key, utc(2026, 11, 20))
    assert invoices.draft(NOVEMBER, now=NOW) == []
    assert list(issued(DECEMBER).records.all()) == [after]


def test_past_month_has_no_warning(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    assert invoices.warning(issued(), now=NOW) == ""


def test_unpriced_record_blocks_the_issue(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    unpriced = make_record(key, utc(2026, 11, 3), service_tier="scale")
    invoice = drafted()
    assert (invoice.unpriced, [line.quantity for line in invoice.lines.all()]) == (1, [14, 52])
    with pytest.raises(invoices.IssueBlocked) as blocked:
        invoices.issue(invoice.pk, now=NOW)
    assert blocked.value.reasons == (
        "northwind/production 2026-11: 1 unpriced requests (no price for service tier scale of model gpt-5.6-sol)",
    )
    invoice.refresh_from_db()
    unpriced.refresh_from_db()
    assert (invoice.status, invoice.number, unpriced.invoice) == ("draft", None, None)


def test_blocked_issue_takes_no_number(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), service_tier="scale")
    other = make_key(key.account, "other")
    make_record(other, utc(2026, 11, 3))
    drafts = {invoice.api_key_id: invoice.pk for invoice in invoices.draft(NOVEMBER, now=NOW)}
    with pytest.raises(invoices.IssueBlocked):
        invoices.issue(drafts[key.pk], now=NOW)
    assert invoices.issue(drafts[other.pk], now=NOW).number == "2026-000001"


def test_damaged_record_blocks_the_issue(key: ApiKey) -> None:
    odd = Rating(10, {**dict.fromkeys(BUCKETS, 0), "input": 7}, {"input": parse(5)})
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1), rating=odd)
    with pytest.raises(invoices.IssueBlocked, match=r"sum to 0\.000000007, the records cost 0\.000000010"):
        issued()


def test_foreign_currency_blocks_the_issue(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), currency="EUR")
    with pytest.raises(invoices.IssueBlocked, match="1 requests are in another currency than the account, USD"):
        issued()


def test_issued_invoice_cannot_be_issued_again(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    invoice = issued()
    with pytest.raises(invoices.IssueBlocked, match="invoice 2026-000001 is open already"):
        invoices.issue(invoice.pk, now=NOW)


def test_draft_without_records_is_blocked(key: ApiKey) -> None:
    make_record(key, utc(2026, 10, 30))
    october = drafted(OCTOBER)
    issued(NOVEMBER)
    with pytest.raises(invoices.IssueBlocked, match="nothing is left to bill"):
        invoices.issue(october.pk, now=NOW)


def test_years_count_from_one(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    make_record(key, utc(2026, 12, 3))
    numbers = [issued(NOVEMBER).number, issued(DECEMBER, now=utc(2027, 1, 1)).number]
    assert numbers == ["2026-000001", "2027-000001"]


# --- together ---


def keys_of_two_zones() -> list[ApiKey]:
    """Two months of use each, with a credit that is more than the first month's."""
    yen = make_account("southwind", timezone="Asia/Kathmandu", currency="JPY", language="zh-Hant", tax_rate_ppm=50_000)
    owners = [make_key(make_account("northwind"), "a"), make_key(yen, "b"), make_key(yen, "c")]
    for at, owner in enumerate(owners, start=1):
        for month in (10, 11):
            usage = TokenUsage(input=at * 1_000_000, server_tools={"web_search": month})
            tools = price(currency=owner.account.currency, server_tools={"web_search": parse("0.01")})
            make_record(owner, utc(2026, month, 3), usage, version=tools)
    make_adjustment(owners[2], utc(2026, 10, 4), -(10**12))
    return owners


def told() -> list[tuple[object, ...]]:
    """What invoices say, but for their numbers' order and the moments of their making."""
    columns = ("month", "status", "subtotal_nanos", "tax_nanos", "total_nanos", "currency")
    lines = ("lines__position", "lines__description", "lines__quantity", "lines__exact_nanos", "lines__amount_nanos")
    return list(Invoice.objects.order_by("key_name", "month", "lines__position").values_list(*columns, *lines))


def test_together_is_as_one_by_one(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several keys, zones, currencies and months; numbers in the order that was asked for."""
    keys_of_two_zones()
    monkeypatch.setattr(invoices, "at_once", lambda: 20)
    drafts = [*invoices.draft(OCTOBER, now=NOW), *invoices.draft(NOVEMBER, now=NOW)][::-1]
    order = sorted(drafts, key=lambda draft: (draft.month, draft.key_name))
    before = set(UsageRecord.objects.values_list("pk", flat=True))
    with transaction.atomic():
        together = invoices.issue_together([draft.pk for draft in order], now=NOW)
        assert [invoice.number for invoice in together] == [f"2026-{at:06d}" for at in range(1, 7)]
        assert {(record.invoice.api_key_id, record.invoice.month) for record in UsageRecord.objects.all()} == {
            (draft.api_key_id, draft.month) for draft in drafts
        }  # type: ignore[union-attr]
        assert Adjustment.objects.filter(kind="carried").count() == 2
        found = told()
        transaction.set_rollback(True)
    for draft in order:
        invoices.issue(draft.pk, now=NOW)
    assert (told(), set(UsageRecord.objects.values_list("pk", flat=True))) == (found, before)


def test_one_that_is_blocked_blocks_all_together(key: ApiKey) -> None:
    other = make_key(key.account, "other")
    make_record(key, utc(2026, 11, 3), service_tier="scale")
    make_record(other, utc(2026, 11, 3))
    drafts = invoices.draft(NOVEMBER, now=NOW)
    with pytest.raises(invoices.IssueBlocked, match="northwind/production 2026-11: 1 unpriced requests"):
        invoices.issue_together([draft.pk for draft in drafts], now=NOW)
    assert set(Invoice.objects.values_list("status", "number")) == {("draft", None)}
    assert not UsageRecord.objects.exclude(invoice=None).exists()


def test_more_drafts_take_no_more_queries(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invoices, "at_once", lambda: 20)
    make_record(key, utc(2026, 11, 3))
    with CaptureQueriesContext(connection) as one:
        invoices.draft(NOVEMBER, now=NOW)
    for at in range(9):
        make_record(make_key(key.account, f"key-{at}"), utc(2026, 12, 1))
    with CaptureQueriesContext(connection) as ten:
        assert len(invoices.draft(DECEMBER, now=NOW)) == 10
    assert len(ten) == len(one)


# --- paid and void ---


def test_void_frees_its_records(key: ApiKey) -> None:
    record = make_record(key, utc(2026, 11, 3))
    invoice = invoices.void(issued().pk, " wrong address ", NOW)
    record.refresh_from_db()
    assert (invoice.status, invoice.number, invoice.void_reason) == ("void", "2026-000001", "wrong address")
    assert (record.invoice, invoice.lines.count()) == (None, 2)
    again = issued()
    assert (again.number, list(again.records.all())) == ("2026-000002", [record])


def test_void_needs_a_reason(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    with pytest.raises(invoices.InvoiceError, match="for a reason"):
        invoices.void(issued().pk, "  ", NOW)


def test_payment_is_noted(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    invoice = invoices.mark_paid(issued().pk, dt.date(2026, 12, 5), "TX-1")
    invoice.refresh_from_db()
    assert (invoice.status, invoice.paid_on, invoice.payment_reference) == ("paid", dt.date(2026, 12, 5), "TX-1")


def test_only_open_invoices_are_paid_or_void(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    draft = drafted()
    with pytest.raises(invoices.InvoiceError, match="only an open invoice can be marked as paid"):
        invoices.mark_paid(draft.pk, dt.date(2026, 12, 5), "")
    invoices.issue(draft.pk, now=NOW)
    invoices.mark_paid(draft.pk, dt.date(2026, 12, 5), "")
    with pytest.raises(invoices.InvoiceError, match="only an open invoice can be made void"):
        invoices.void(draft.pk, "too late", NOW)


def test_json_has_the_documented_shape(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), TokenUsage(output=1_000_000))
    shown = invoices.as_json(issued())
    assert {
        name: shown[name]
        for name in ("number", "status", "key", "account", "currency", "subtotal", "total", "unpriced")
    } == {
        "number": "2026-000001",
        "status": "open",
        "key": "production",
        "account": "northwind",
        "currency": "USD",
        "subtotal": "30.00",
        "total": "30.00",
        "unpriced": 0,
    }
    assert (shown["period_start"], shown["period_end"]) == ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z")
    assert shown["lines"] == [
        {
            "model": "gpt-5.6-sol",
            "description": "gpt-5.6-sol · output tokens",
            "bucket": "output",
            "metering": "reported",
            "service_tier": "default",
            "long_context": False,
            "price_version": "gpt-5.6-sol@2026-01-01T00:00:00Z",
            "quantity": 1_000_000,
            "unit_price": "30.000000000",
            "per_million": True,
            "exact": "30.000000000",
            "rounding": "0.000000000",
            "late": False,
            "amount": "30.00",
        }
    ]


# --- many at once ---


def at_once(works: list[object]) -> list[object]:
    """Run functions in threads that begin together; a result is what one returned or raised."""
    start = threading.Barrier(len(works))

    def run(work: object) -> object:
        start.wait()
        try:
            return work()  # type: ignore[operator]
        except invoices.InvoiceError as refused:
            return refused
        finally:
            connection.close()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))


@pytest.mark.django_db(transaction=True)
def test_parallel_issues_leave_no_gap() -> None:
    account, many = make_account(), 50 if connection.vendor == "postgresql" else 10
    for at in range(many):
        make_record(make_key(account, f"key-{at}"), utc(2026, 11, 3))
    drafts = invoices.draft(NOVEMBER, now=NOW)
    at_once([lambda pk=draft.pk: invoices.issue(pk, now=NOW) for draft in drafts])
    numbers = sorted(Invoice.objects.values_list("number", flat=True))
    assert numbers == [f"2026-{at:06d}" for at in range(1, many + 1)]


@pytest.mark.django_db(transaction=True)
def test_same_draft_issued_at_once_is_one_invoice() -> None:
    make_record(make_key(), utc(2026, 11, 3))
    draft = drafted()
    results = at_once([lambda: invoices.issue(draft.pk, now=NOW)] * 4)
    assert sum(isinstance(result, Invoice) for result in results) == 1
    assert list(Invoice.objects.values_list("number", flat=True)) == ["2026-000001"]


@pytest.mark.django_db(transaction=True)
def test_overlapping_months_share_no_record() -> None:
    """October and November, issued at once, both may claim October's usage: one does."""
    key = make_key()
    UsageRecord.objects.bulk_create(
        unsaved_record(key, when) for when in [utc(2026, 10, 30), utc(2026, 11, 3)] for _ in range(20)
    )
    drafts = [drafted(OCTOBER), drafted(NOVEMBER)]
    at_once([lambda pk=draft.pk: invoices.issue(pk, now=NOW) for draft in drafts])
    assert not UsageRecord.objects.filter(invoice=None).exists()
    for invoice in Invoice.objects.exclude(status="draft"):
        assert sum(line.exact_nanos for line in invoice.lines.all()) == cost_of(invoice.records)


@pytest.mark.django_db(transaction=True)
def test_parallel_drafts_are_one() -> None:
    make_record(make_key(), utc(2026, 11, 3))
    at_once([lambda: invoices.draft(NOVEMBER, now=NOW)] * 4)
    assert [(invoice.status, invoice.lines.count()) for invoice in Invoice.objects.all()] == [("draft", 2)]


@pytest.mark.django_db(transaction=True)
def test_records_during_issue_are_on_one_invoice() -> None:
    """Usage that settles while the month is issued is on that invoice or free for the next, in whole."""
    key = make_key()
    make_record(key, utc(2026, 11, 3))
    draft = drafted()

    def write() -> None:
        for _ in range(20):
            make_record(key, utc(2026, 11, 3))

    at_once([write, lambda: invoices.issue(draft.pk, now=NOW)])
    if UsageRecord.objects.filter(invoice=None).exists():
        issued(DECEMBER)
    assert not UsageRecord.objects.filter(invoice=None).exists()
    for invoice in Invoice.objects.all():
        assert sum(line.exact_nanos for line in invoice.lines.all()) == cost_of(invoice.records)
