"""A statement is the records of the account's own month, to the last digit, in each of its forms; no month leaves a
record out or has another's. What it says of invoices is what they say, less their credit notes."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from billing import credit_notes, invoices, money, rollups, statement_pdf, statements, usage_report
from billing.credit_notes import Wanted
from billing.models import Account, Adjustment, ApiKey, CreditNote, Invoice, UsageRecord
from billing.periods import day_start
from billing.report_query import Query
from billing.sheets import write_csv
from billing.statements import Statement
from billing.usage import BUCKETS, TokenUsage
from tests.billing.factories import make_account, make_adjustment, make_key, make_record, price
from tests.billing.pdf_text import text_of

pytestmark = pytest.mark.django_db

ZONES = ("Asia/Taipei", "America/Los_Angeles", "Asia/Kathmandu")
MIDNIGHTS = (
    dt.date(2026, 3, 1),
    dt.date(2026, 3, 8),  # Los Angeles: a day of 23 hours
    dt.date(2026, 4, 1),
    dt.date(2026, 11, 1),  # Los Angeles: a day of 25 hours, and a month's begin everywhere
    dt.date(2026, 12, 1),
)
MONTHS = tuple(dt.date(2026, month, 1) for month in range(1, 13))
JANUARY = dt.date(2027, 1, 1)
AS_OF = dt.datetime(2027, 1, 20, 12, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
MOMENTS = (-26 * 3600, -3600, -2, -1, 0, 1, 2, 3600, 2 * 3600, 26 * 3600)
"""Seconds from a midnight on the account's clocks."""


class Asked(NamedTuple):
    """A request: whose, how long after which midnight it ended, what it used, and how long it took."""

    zone: int
    key: int
    midnight: dt.date
    seconds: int
    just_before: bool
    tokens: int
    model: str
    took_s: int

    def ended(self, zone: ZoneInfo) -> dt.datetime:
        instant = day_start(self.midnight, zone) + self.seconds * SECOND
        return instant - dt.timedelta(microseconds=self.just_before)


requests = st.lists(
    st.builds(
        Asked,
        zone=st.integers(0, len(ZONES) - 1),
        key=st.integers(0, 1),
        midnight=st.sampled_from(MIDNIGHTS),
        seconds=st.sampled_from(MOMENTS),
        just_before=st.booleans(),
        tokens=st.integers(1, 3_000_000),
        model=st.sampled_from(["gpt-5.6-sol", "claude-sonnet-5"]),
        took_s=st.sampled_from([0, 1, 3, 7200]),  # streams across midnight, and across the hour that comes twice
    ),
    min_size=1,
    max_size=12,
)
credits = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 100), st.booleans()), max_size=4)
"""Which invoice, how many per cent of what is left of it, and whether it is paid first."""

quietly = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=(Phase.explicit, Phase.generate),
)  # fmt: skip
"""What fails is not made smaller: an example takes seconds, and that would take many."""


@contextmanager
def own_world() -> Iterator[list[list[ApiKey]]]:
    """Three accounts, one per zone, with two keys each, that are gone afterwards."""
    with transaction.atomic():
        accounts = [make_account(f"of {zone}", timezone=zone, tax_rate_ppm=50_000) for zone in ZONES]
        yield [[make_key(account, name) for name in ("=1+1", "production")] for account in accounts]
        transaction.set_rollback(True)


def write(keys: Sequence[Sequence[ApiKey]], asked: Sequence[Asked]) -> None:
    """Some are rolled up, the others' days are due; now and then there is an adjustment beside a request."""
    for at, one in enumerate(asked):
        key, ended = keys[one.zone][one.key], one.ended(ZoneInfo(ZONES[one.zone]))
        usage = TokenUsage(input=one.tokens, cache_read=at, output=7)
        began = ended - one.took_s * SECOND
        make_record(key, ended, usage, model=one.model, version=price(one.model), started_at=began)
        if at % 5 == 1:
            make_adjustment(key, ended, one.tokens)
        if at == len(asked) // 2:
            rollups.rebuild_due()


@dataclass
class Month:
    """What the records and adjustments of an account's month come to, added up here by the zone's own clock."""

    figures: dict[tuple[int, str], Counter[str]]
    adjusted_nanos: int

    @property
    def cost_nanos(self) -> int:
        return sum(figures["cost_nanos"] for figures in self.figures.values())


def month_of(account: Account, month: dt.date) -> Month:
    zone = ZoneInfo(account.timezone)

    def is_in(instant: dt.datetime | None) -> bool:
        assert instant is not None
        return instant.astimezone(zone).date().replace(day=1) == month

    found: dict[tuple[int, str], Counter[str]] = {}
    for record in UsageRecord.objects.filter(account=account):
        if is_in(record.ended_at):
            figures = found.setdefault((record.api_key_id, record.model), Counter())
            figures.update({name: getattr(record, name) for name in (*BUCKETS, "cost_nanos")}, requests=1)
    made = Adjustment.objects.filter(account=account)
    return Month(found, sum(one.amount_nanos for one in made if is_in(one.effective_at)))


def used(statement: Statement) -> dict[tuple[int, str], Counter[str]]:
    names = ("requests", *BUCKETS, "cost_nanos")
    return {
        (one.key_id, one.model): Counter({name: getattr(one.figures, name) for name in names}) for one in statement.used
    }


def accounts_of(keys: Sequence[Sequence[ApiKey]]) -> list[Account]:
    return [own[0].account for own in keys]


@quietly
@given(asked=requests)
def test_months_part_the_records(asked: list[Asked]) -> None:
    """Each record is in exactly one month: that of its account's clock when it ended. The usage page says the same."""
    with own_world() as keys:
        write(keys, asked)
        for account in accounts_of(keys):
            told = 0
            for month in MONTHS:
                found, expected = statements.build(account, month), month_of(account, month)
                assert used(found) == expected.figures
                assert (found.total.cost_nanos, found.adjusted_nanos) == (expected.cost_nanos, expected.adjusted_nanos)
                told += found.total.requests
                query = Query.parse({"from": f"{month}", "to": f"{found.last_day}", "account": str(account.pk)})
                totals = usage_report.build(query, AS_OF)[0].totals
                shown = sum(total.now.requests for total in totals), sum(total.now.cost_nanos for total in totals)
                assert shown == (found.total.requests, found.total.cost_nanos)
            assert told == UsageRecord.objects.filter(account=account).count()


def issue_all() -> list[Invoice]:
    """All months, one after the other, each with what is its own."""
    issued = []
    for month in MONTHS:
        issued += [invoices.issue(draft.pk, now=AS_OF) for draft in invoices.draft(month, now=AS_OF)]
    return issued


def credit(issued: Sequence[Invoice], wanted: Sequence[tuple[int, int, bool]]) -> None:
    for which, percent, paid in wanted:
        invoice = Invoice.objects.get(pk=issued[which % len(issued)].pk)
        if paid and invoice.status == Invoice.Status.OPEN:
            invoices.mark_paid(invoice.pk, AS_OF.date(), "wire")
        left = credit_notes.left(invoice).total_nanos
        nanos = money.round_to_places(left * percent // 100, 2)
        if 0 < nanos <= left:
            credit_notes.make(invoice.pk, Wanted(amount_nanos=nanos), "as agreed", by=None, now=AS_OF)


def due_of(invoice: Invoice) -> int:
    notes = CreditNote.objects.filter(invoice=invoice)
    if invoice.status == Invoice.Status.OPEN:
        return invoice.total_nanos - sum(note.total_nanos for note in notes)
    return -sum(note.total_nanos for note in notes if note.after_payment)


@quietly
@given(asked=requests, wanted=credits)
def test_use_is_invoiced_and_due_is_less_credits(asked: list[Asked], wanted: list[tuple[int, int, bool]]) -> None:
    """The lines of a month's invoices bill what its statement says was used; what is due is theirs less the notes."""
    with own_world() as keys:
        write(keys, asked)
        credit(issue_all(), wanted)
        for account in accounts_of(keys):
            for month in MONTHS:
                found = statements.build(account, month)
                mine = Invoice.objects.filter(account=account, month=month)
                exact = sum(line.exact_nanos for invoice in mine for line in invoice.lines.all())
                assert exact == found.total.cost_nanos + found.adjusted_nanos
                until = Invoice.objects.filter(account=account, month__lte=month)
                assert found.due_nanos == sum(map(due_of, until))
                assert {one.invoice.pk for one in found.billed} >= {invoice.pk for invoice in mine}
                for one in found.billed:
                    notes = CreditNote.objects.filter(invoice=one.invoice)
                    assert one.credited_nanos == sum(note.total_nanos for note in notes)
                    assert one.due_nanos == due_of(one.invoice)
            noted = [note.pk for month in (*MONTHS, JANUARY) for note in statements.build(account, month).notes]
            assert sorted(noted) == sorted(CreditNote.objects.filter(account=account).values_list("pk", flat=True))


Rows = list[list[str]]


def csv_of(found: Statement, folder: Path) -> tuple[Rows, dict[str, Decimal]]:
    """A file's rows below its names, and its totals."""
    write_csv(statements.sheet(found, AS_OF), folder / "made")
    rows = list(csv.reader(io.StringIO((folder / "made").read_text("utf-8-sig"))))
    at = next(number for number, row in enumerate(rows) if "requests" in row)
    return rows[at + 1 : -3], {row[0]: Decimal(row[-1]) for row in rows[-3:]}


def amounts(rows: Rows, section: str) -> list[Decimal]:
    return [Decimal(row[-1]) for row in rows if row[0] == section]


@settings(parent=quietly, max_examples=3)
@given(asked=requests, wanted=credits)
def test_files_have_the_same_digits(asked: list[Asked], wanted: list[tuple[int, int, bool]], tmp_path: Path) -> None:
    with own_world() as keys:
        write(keys, asked)
        credit(issue_all(), wanted)
        busiest = max(accounts_of(keys), key=lambda account: UsageRecord.objects.filter(account=account).count())
        for month in (dt.date(2026, 3, 1), dt.date(2026, 11, 1)):
            found, expected = statements.build(busiest, month), month_of(busiest, month)
            rows, totals = csv_of(found, tmp_path)
            cost = money.to_decimal(expected.cost_nanos)
            assert sum(amounts(rows, "Use")) == totals["Use"] == cost
            assert sum(amounts(rows, "Adjustments")) == totals["Adjustments"] == money.to_decimal(found.adjusted_nanos)
            assert sum(amounts(rows, "Due")) == totals["Due"] == money.to_decimal(found.due_nanos)
            requests_told = sum(int(row[5]) for row in rows if row[0] == "Use")
            assert requests_told == found.total.requests

            drawn = Counter(text_of(statement_pdf.render(found, AS_OF)).split())
            wanted_digits = Counter(f"{amount:,.9f}" for amount in amounts(rows, "Use"))
            wanted_digits.update([f"{cost:,.9f}"] * (2 if found.used else 1))  # the summary and the table's total
            wanted_digits.update(f"{amount:,.2f}" for amount in (*amounts(rows, "Due"), totals["Due"]))
            wanted_digits.update(f"{amount:,.2f}" for amount in amounts(rows, "Invoices"))
            assert {digits: count for digits, count in wanted_digits.items() if drawn[digits] < count} == {}


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("clean", [False, True], ids=["due", "rolled up"])
def test_stream_across_midnight_is_of_its_end(zone: str, clean: bool) -> None:
    """All of a stream is in the month in which it ended, however long before it began; the invoice agrees."""
    key = make_key(make_account(timezone=zone))
    midnight = day_start(dt.date(2026, 11, 1), ZoneInfo(zone))
    make_record(key, midnight, started_at=midnight - dt.timedelta(hours=3))
    make_record(key, midnight - dt.timedelta(microseconds=1), started_at=midnight - dt.timedelta(days=2))
    if clean:
        rollups.rebuild_due()
    told: Callable[[dt.date], int] = lambda month: statements.build(key.account, month).total.requests  # noqa: E731
    assert [told(dt.date(2026, month, 1)) for month in (9, 10, 11, 12)] == [0, 1, 1, 0]
    for month in (dt.date(2026, 10, 1), dt.date(2026, 11, 1)):
        (draft,) = invoices.draft(month, account=key.account, now=AS_OF)
        issued = invoices.issue(draft.pk, now=AS_OF)
        assert issued.records.count() == 1
