"""Closing a month: what stands against it, what jumps, and one set of invoices whoever issues them."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from billing import invoices, month_close, overflow
from billing.meter_health import Readings
from billing.meter_health.readings import Journals
from billing.models import ApiKey, AuditEntry, Invoice, InvoiceDocument, OpenStream, RollupDue, UsageRecord, UsageRollup
from billing.money import parse
from billing.month_close import Compared, Kind
from billing.usage import TokenUsage
from tests.billing.factories import make_account, make_adjustment, make_key, make_record, price, utc

OCTOBER, NOVEMBER = dt.date(2026, 10, 1), dt.date(2026, 11, 1)
NOW = utc(2026, 12, 2)
MILLION = TokenUsage(input=1_000_000)


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key()


def make_stream(key: ApiKey, started_at: dt.datetime) -> OpenStream:
    return OpenStream.objects.create(
        id=uuid.uuid4(), api_key=key, account=key.account, key_name=key.name, account_name=key.account.name,
        request_name=f"req-{uuid.uuid4()}", process=uuid.uuid4(), model="gpt-5.6-sol", wire_format="messages",
        stream=True, started_at=started_at,
    )  # fmt: skip


def stands(month: dt.date = NOVEMBER, readings: Readings | None = None) -> dict[Kind, int]:
    found = month_close.blockers(month, readings or Readings(at=NOW))
    return {blocker.kind: blocker.count for blocker in found}


def test_draft_rolls_up_first(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), MILLION)
    make_record(make_key(make_account("southwind")), utc(2026, 11, 4), MILLION)
    told: list[tuple[int, int]] = []
    drafted = month_close.draft(NOVEMBER, now=NOW, tell=lambda done, total: told.append((done, total)))
    assert [invoice.total_nanos for invoice in drafted] == [parse(5), parse(5)]
    assert (UsageRollup.objects.count(), RollupDue.objects.count()) == (2, 0)
    assert told == [(2, 4), (3, 4), (4, 4)]


def make_overflow(key: ApiKey, month: int = 11) -> None:
    """Two requests that a column holds one by one, and not together."""
    dear = price(currency=key.account.currency, per_million={"input": parse(5 * 10**9)})
    for hour in range(2):
        make_record(key, utc(2026, month, 3, hour, 30), MILLION, version=dear)


@pytest.fixture
def beside(key: ApiKey) -> ApiKey:
    """A key of the same account whose month no column holds."""
    found = make_key(key.account, "beside")
    make_record(key, utc(2026, 11, 3), MILLION)
    make_record(make_key(make_account("southwind")), utc(2026, 11, 4), MILLION)
    make_overflow(found)
    return found


def test_key_past_every_column_holds_up_no_other(beside: ApiKey) -> None:
    refused: list[str] = []
    drafted = month_close.draft(NOVEMBER, now=NOW, refuse=refused.append)
    assert [str(invoice.api_key) for invoice in drafted] == ["northwind/production", "southwind/production"]
    assert refused == [
        f"northwind/beside: its days cannot be rolled up: {overflow.TOO_LARGE}",
        f"northwind/beside 2026-11: the invoice cannot be kept: {overflow.TOO_LARGE}",
    ]
    assert (UsageRollup.objects.count(), RollupDue.objects.values("api_key").distinct().count()) == (2, 1)
    assert len(month_close.issue(drafted, now=NOW).issued) == 2


def test_drafts_past_every_column_are_not_issued(beside: ApiKey) -> None:
    late = UsageRecord.objects.filter(api_key=beside, ended_at__gte=utc(2026, 11, 3, 1))
    late.update(ended_at=utc(2026, 12, 3))
    drafted = invoices.draft(NOVEMBER, now=NOW, refuse=pytest.fail)
    late.update(ended_at=utc(2026, 11, 3))
    outcome = month_close.issue(drafted, now=NOW)
    assert len(outcome.issued) == 2
    assert outcome.reasons == [f"northwind/beside 2026-11: the invoice cannot be kept: {overflow.TOO_LARGE}"]


def test_line_that_no_column_holds_stops_one_key(key: ApiKey) -> None:
    """A unit price alone may be too large: such a record is from before that was looked at when it was rated."""
    record = make_record(key, utc(2026, 11, 3), TokenUsage(input=1))
    UsageRecord.objects.filter(pk=record.pk).update(unit_prices={"input": 2**63})
    make_record(make_key(key.account, "other"), utc(2026, 11, 3), MILLION)
    refused: list[str] = []
    (drafted,) = invoices.draft(NOVEMBER, now=NOW, refuse=refused.append)
    assert drafted.key_name == "other"
    assert refused == [f"northwind/production 2026-11: the invoice cannot be kept: {overflow.TOO_LARGE}"]


def test_tool_of_any_length_is_drafted(key: ApiKey) -> None:
    priced = price(server_tools={"t" * 60: parse(1)})
    make_record(key, utc(2026, 11, 3), TokenUsage(server_tools={"t" * 300: 2}), version=priced)
    (drafted,) = invoices.draft(NOVEMBER, now=NOW, refuse=pytest.fail)
    assert [(line.bucket, line.amount_nanos) for line in drafted.lines.all()] == [("t" * 60, parse(2))]


def test_draft_made_again_may_fail(key: ApiKey, caplog: pytest.LogCaptureFixture) -> None:
    make_overflow(key)
    Invoice.objects.create(
        account=key.account, api_key=key, month=NOVEMBER, currency="USD", timezone="UTC",
        period_start=utc(2026, 11, 1, 0), period_end=utc(2026, 12, 1, 0),
    )  # fmt: skip
    invoices.draft_again([key.pk])
    assert overflow.TOO_LARGE in caplog.text


def test_clean_month_has_no_blocker(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), MILLION)
    month_close.draft(NOVEMBER, now=NOW)
    assert stands() == {}


def test_blockers_are_of_the_month(key: ApiKey) -> None:
    for month in (11, 12):
        make_record(key, utc(2026, month, 3), service_tier="scale")
        make_stream(key, utc(2026, month, 3))
    make_adjustment(key, utc(2026, 11, 9), -parse(250), state="proposed", effective_at=None, day=None)
    assert stands() == {Kind.UNPRICED: 1, Kind.PROPOSED: 1, Kind.STREAMS: 1, Kind.ROLLUPS: 1}
    assert stands(OCTOBER) == {}


def test_streams_count_in_their_zone(db: None) -> None:
    """Noon UTC on the last of November is December in Kiritimati, which is 14 hours ahead."""
    make_stream(make_key(make_account(timezone="Pacific/Kiritimati")), utc(2026, 11, 30))
    assert stands() == {}
    make_stream(make_key(make_account("west", timezone="America/Los_Angeles")), utc(2026, 12, 1, 3))
    assert stands() == {Kind.STREAMS: 1}


def test_journals_and_dead_stand_against(key: ApiKey) -> None:
    waiting = Journals(files=1, bytes=10, entries=3)
    readings = Readings(at=NOW, living_journals=waiting, dead_journals=waiting, dead=2, dead_since=NOW)
    assert stands(readings=readings) == {Kind.JOURNALS: 6, Kind.DEAD: 2}
    assert stands(readings=Readings(at=NOW, dead=2)) == {}  # they left no stream behind


def test_unpriced_alone_holds_up(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), service_tier="scale")
    make_stream(key, utc(2026, 11, 3))
    found = month_close.blockers(NOVEMBER, Readings(at=NOW))
    assert {blocker.kind for blocker in found if blocker.holds_up} == {Kind.UNPRICED}


def test_blocked_draft_stays_behind(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), service_tier="scale")
    make_record(make_key(key.account, "other"), utc(2026, 11, 3), MILLION)
    outcome = month_close.issue(month_close.draft(NOVEMBER, now=NOW), now=NOW)
    assert [invoice.key_name for invoice in outcome.issued] == ["other"]
    assert [(invoice.key_name, len(reasons)) for invoice, reasons in outcome.blocked] == [("production", 1)]
    assert "1 unpriced requests" in outcome.reasons[0]


def test_issue_makes_the_document(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), MILLION)
    (draft,) = month_close.draft(NOVEMBER, now=NOW)
    issued = month_close.issue_one(draft.pk, now=NOW)
    assert InvoiceDocument.objects.get().invoice == issued
    assert AuditEntry.objects.filter(table="billing.invoice", message="issued").count() == 1


def test_emptied_draft_is_passed_over(key: ApiKey) -> None:
    make_record(key, utc(2026, 10, 3), MILLION)
    (october,) = month_close.draft(OCTOBER, now=NOW)
    invoices.issue(invoices.draft(NOVEMBER, now=NOW)[0].pk, now=NOW)
    invoices.draft(OCTOBER, now=NOW)
    outcome = month_close.issue([october], now=NOW)
    assert (outcome.issued, outcome.blocked) == ([], [])


@pytest.mark.parametrize(
    ("before", "total", "jumps"),
    [
        (None, 100, False),
        (100, 149, False),
        (100, 150, True),
        (100, 51, False),
        (100, 50, True),
        (0, 1, True),
        (0, 0, False),
    ],
)
def test_jumps_are_half_or_more(before: int | None, total: int, jumps: bool) -> None:
    assert Compared(Invoice(total_nanos=total), before).jumps is jumps


def test_drafts_stand_beside_month_before(key: ApiKey) -> None:
    make_record(key, utc(2026, 10, 3), MILLION)
    month_close.issue(month_close.draft(OCTOBER, now=NOW), now=NOW)
    make_record(key, utc(2026, 11, 3), MILLION)
    make_record(make_key(key.account, "new"), utc(2026, 11, 3), MILLION)
    month_close.draft(NOVEMBER, now=NOW)
    assert [(each.invoice.key_name, each.before_nanos) for each in month_close.compared(NOVEMBER)] == [
        ("new", None), ("production", parse(5)),
    ]  # fmt: skip


def test_currencies_are_never_added(db: None) -> None:
    for name, currency in (("a", "USD"), ("b", "JPY"), ("c", "USD")):
        key = make_key(make_account(name, currency=currency))
        make_record(key, utc(2026, 11, 3), MILLION, version=price(currency=currency))
    assert month_close.totals(month_close.draft(NOVEMBER, now=NOW)) == {"JPY": parse(5), "USD": parse(10)}


@pytest.mark.django_db(transaction=True)
def test_two_at_once_issue_one_set() -> None:
    account = make_account()
    for at in range(2):
        make_record(make_key(account, f"key-{at}"), utc(2026, 11, 3), MILLION)
    drafts, start = month_close.draft(NOVEMBER, now=NOW), threading.Barrier(2)

    def issue() -> month_close.Outcome:
        start.wait()
        try:
            return month_close.issue(drafts, now=NOW)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        outcomes = [one.result() for one in [pool.submit(issue), pool.submit(issue)]]
    assert sorted(Invoice.objects.values_list("number", flat=True)) == ["2026-000001", "2026-000002"]
    assert sum(len(outcome.issued) for outcome in outcomes) == 2
    assert [outcome.reasons for outcome in outcomes] == [[], []]
    assert InvoiceDocument.objects.count() == 2
