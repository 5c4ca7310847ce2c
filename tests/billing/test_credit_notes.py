"""Credit notes: numbered without gaps, never more than their invoice, and never changed."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import Settings

from billing import credit_notes, invoices, money
from billing.credit_notes import CreditRefused, Wanted
from billing.models import CreditNote, CreditNoteLine, Invoice
from billing.money import parse
from billing.tax import Credit, with_tax, without_tax
from billing.usage import TokenUsage
from tests.billing.factories import make_account, make_adjustment, make_key, make_record, utc

NOVEMBER = dt.date(2026, 11, 1)
NOW = utc(2026, 12, 2)
CENT = 10**7


def make_invoice(name: str = "northwind", **fields: Any) -> Invoice:
    """An open invoice over three lines: 5.00 of input, 60.00 of output, an adjustment of -1.00; tax 5 %: 3.20."""
    key = make_key(make_account(name, tax_rate_ppm=50_000, **fields))
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000, output=2_000_000))
    make_adjustment(key, utc(2026, 11, 9), parse(-1))
    (draft,) = invoices.draft(NOVEMBER, account=key.account, now=NOW)
    return invoices.issue(draft.pk, now=NOW)


@pytest.fixture
def invoice(db: None) -> Invoice:
    return make_invoice()


def line_ids(invoice: Invoice, *positions: int) -> list[int]:
    return list(invoice.lines.filter(position__in=positions).values_list("pk", flat=True))


def made(invoice: Invoice, amount: str | None = None, lines: Sequence[int] = (), **fields: Any) -> CreditNote:
    wanted = Wanted(lines, parse(amount) if amount else 0)
    return credit_notes.make(invoice.pk, wanted, fields.pop("reason", "a wrong price"), by=None, now=NOW, **fields)


def due(invoice: Invoice) -> str:
    invoice.refresh_from_db()
    return money.show(credit_notes.due_nanos(invoice, credit_notes.credited([invoice.pk])[invoice.pk]), 2)


def parts(note: CreditNote) -> tuple[str, str, str]:
    return tuple(money.show(nanos, 2) for nanos in (note.subtotal_nanos, note.tax_nanos, note.total_nanos))  # type: ignore[return-value]


def test_whole_lines_are_taken_back(invoice: Invoice) -> None:
    note = made(invoice, lines=line_ids(invoice, 1, 3))
    assert parts(note) == ("4.00", "0.20", "4.20")
    assert [(line.position, line.description, line.amount_nanos) for line in note.lines.all()] == [
        (1, "gpt-5.6-sol · input tokens", parse(5)), (2, "adjustment · correction · as agreed", parse(-1)),
    ]  # fmt: skip
    assert due(invoice) == "63.00"


def test_amount_has_its_tax_inside(invoice: Invoice) -> None:
    note = made(invoice, "10.50")
    assert parts(note) == ("10.00", "0.50", "10.50")
    assert [line.description for line in note.lines.all()] == ["amount off the invoice 2026-000001"]
    assert due(invoice) == "56.70"


def test_rest_is_credited_to_the_cent(invoice: Invoice) -> None:
    """Whatever rounding did to the tax of the notes before."""
    for amount in ("0.01", "0.03", "33.33"):
        made(invoice, amount)
    rest = credit_notes.left(invoice)
    note = made(invoice, money.show(rest.total_nanos, 2))
    assert Credit(note.subtotal_nanos, note.tax_nanos) == rest
    assert (credit_notes.left(invoice), due(invoice)) == (Credit(0, 0), "0.00")
    with pytest.raises(CreditRefused, match=r"USD 0\.00 is left"):
        made(invoice, "0.01")


@pytest.mark.parametrize(
    ("amount", "told"),
    [
        ("67.21", "USD 67.20 is left"),
        ("-1", "above zero"),
        ("0.001", "at most 2 decimal places"),
        (None, "Choose lines"),
    ],
)
def test_no_more_than_the_invoice(invoice: Invoice, amount: str | None, told: str) -> None:
    with pytest.raises(CreditRefused, match=told):
        made(invoice, amount)
    assert not CreditNote.objects.exists()


def test_lines_are_credited_once(invoice: Invoice) -> None:
    made(invoice, lines=line_ids(invoice, 1))
    with pytest.raises(CreditRefused, match="credited already"):
        made(invoice, lines=line_ids(invoice, 1, 2))
    other = make_invoice("southwind")
    with pytest.raises(CreditRefused, match="on another invoice"):
        made(invoice, lines=line_ids(other, 2))


def test_lines_fit_what_is_left(invoice: Invoice) -> None:
    made(invoice, "10.50")
    for lines in ((1, 2), (3,)):  # 65.00 of 54.00, and a credit of its own
        with pytest.raises(CreditRefused, match=r"the invoice has 54\.00 left before tax"):
            made(invoice, lines=line_ids(invoice, *lines))


def test_lines_or_amount_not_both(invoice: Invoice) -> None:
    with pytest.raises(CreditRefused, match="Choose lines, or write an amount"):
        made(invoice, "1", line_ids(invoice, 1))


def test_note_has_a_reason(invoice: Invoice) -> None:
    with pytest.raises(CreditRefused, match="has a reason"):
        made(invoice, "1", reason="  ")


def test_drafts_and_void_ones_are_not_credited(invoice: Invoice) -> None:
    invoices.void(invoice.pk, "wrong", NOW)
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    for each in (invoice, draft):
        with pytest.raises(CreditRefused, match="Only an open or paid invoice"):
            made(each, "1")


def test_credited_invoice_is_not_made_void(invoice: Invoice) -> None:
    made(invoice, "1")
    with pytest.raises(invoices.InvoiceError, match="has credit notes"):
        invoices.void(invoice.pk, "wrong", NOW)


def test_paid_invoice_is_paid_back(invoice: Invoice) -> None:
    made(invoice, "7.20")
    invoices.mark_paid(invoice.pk, dt.date(2026, 12, 3), "60.00 by bank")
    assert due(invoice) == "0.00"
    note = made(invoice, "10")
    assert (note.after_payment, due(invoice)) == (True, "-10.00")


def test_preview_is_what_is_made(invoice: Invoice) -> None:
    found = credit_notes.preview(invoice, Wanted(amount_nanos=parse("10.50")))
    assert (found.due_before_nanos, found.due_after_nanos) == (parse("67.20"), parse("56.70"))
    assert not CreditNote.objects.exists()
    note = made(invoice, "10.50")
    assert (note.subtotal_nanos, note.tax_nanos) == (found.credit.subtotal_nanos, found.credit.tax_nanos)


def test_note_copies_what_it_prints(db: None, settings: Settings) -> None:
    settings.SELLER = {"name": "HopBase Ltd", "address": "1 Relay Way", "tax_id": "GB1", "zone": "Asia/Taipei"}
    invoice = make_invoice(legal_name="Northwind Ltd", language="zh-hant")
    invoice.account.legal_name = "Southwind Ltd"
    invoice.account.save()
    ann = User.objects.create_user("ann")
    note = credit_notes.make(invoice.pk, Wanted(amount_nanos=CENT), "a gift", by=ann, now=utc(2026, 12, 31, 20))
    # 20:00 UTC on New Year's Eve is New Year's Day where the seller is.
    assert (note.number, note.issued_on, note.made_by) == ("CN-2027-000001", dt.date(2027, 1, 1), ann)
    assert (note.seller_name, note.legal_name, note.language) == ("HopBase Ltd", "Northwind Ltd", "zh-hant")
    assert (note.invoice_number, note.account_name, note.key_name) == ("2026-000001", "northwind", "production")


def test_series_are_apart(invoice: Invoice) -> None:
    assert [made(invoice, "1").number for _ in range(2)] == ["CN-2026-000001", "CN-2026-000002"]
    assert make_invoice("southwind").number == "2026-000002"


def test_refused_note_takes_no_number(invoice: Invoice) -> None:
    with pytest.raises(CreditRefused):
        made(invoice, "1000")
    assert made(invoice, "1").number == "CN-2026-000001"


STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 10**6)), min_size=1, max_size=20)


@given(st.integers(0, 10**6), st.integers(0, 10**6), STEPS)
def test_notes_never_exceed_either_part(subtotal: int, rate_ppm: int, steps: list[tuple[bool, int]]) -> None:
    """By lines or by amount, in any order: no part is overdrawn, and the last note leaves nothing."""
    whole = Credit(subtotal * CENT, money.share(subtotal * CENT, rate_ppm, 2))
    rest = whole
    for by_lines, cents in [*steps, (False, 10**12)]:
        if by_lines and rest.subtotal_nanos:
            credit = with_tax(min(cents * CENT, rest.subtotal_nanos), rest, rate_ppm, 2)
        elif rest.total_nanos:
            credit = without_tax(min(cents * CENT, rest.total_nanos), rest, rate_ppm, 2)
        else:
            continue
        assert credit.subtotal_nanos % CENT == credit.tax_nanos % CENT == 0
        assert 0 <= credit.subtotal_nanos <= rest.subtotal_nanos
        assert 0 <= credit.tax_nanos <= rest.tax_nanos
        rest = Credit(rest.subtotal_nanos - credit.subtotal_nanos, rest.tax_nanos - credit.tax_nanos)
    assert rest == Credit(0, 0)


@hypothesis_settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.integers(1, 8000), st.sets(st.integers(1, 3), min_size=1)), min_size=1, max_size=6))
def test_notes_sum_to_what_was_credited(db: None, steps: list[int | set[int]]) -> None:
    invoice = make_invoice(f"account-{Invoice.objects.count()}")
    for step in steps:
        wanted = Wanted(line_ids(invoice, *step)) if isinstance(step, set) else Wanted(amount_nanos=step * CENT)
        try:
            note = credit_notes.make(invoice.pk, wanted, "an example", by=None, now=NOW)
        except CreditRefused:
            continue
        assert sum(line.amount_nanos for line in note.lines.all()) == note.subtotal_nanos
    total = credit_notes.credited([invoice.pk])[invoice.pk].total_nanos
    assert total == invoice.total_nanos - credit_notes.left(invoice).total_nanos <= invoice.total_nanos


# --- many at once ---


def at_once(works: Sequence[Callable[[], object]]) -> list[object]:
    """Run functions in threads that begin together; a result is what one returned, or how it was refused."""
    start = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> object:
        start.wait()
        try:
            return work()
        except (CreditRefused, invoices.InvoiceError) as refused:
            return refused
        finally:
            connection.close()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))


@pytest.mark.django_db(transaction=True)
def test_parallel_notes_leave_no_gap() -> None:
    issued = [make_invoice(f"account-{number}") for number in range(4)]
    at_once([lambda invoice=invoice: made(invoice, "1") for invoice in issued for _ in range(2)])  # type: ignore[misc]
    numbers = sorted(CreditNote.objects.values_list("number", flat=True))
    assert numbers == [f"CN-2026-{number:06d}" for number in range(1, 9)]


@pytest.mark.django_db(transaction=True)
def test_parallel_notes_do_not_overdraw() -> None:
    invoice = make_invoice()
    results = at_once([lambda: made(invoice, "20") for _ in range(8)])
    assert sum(isinstance(result, CreditNote) for result in results) == 3
    assert due(invoice) == "7.20"
    assert sorted(CreditNote.objects.values_list("number", flat=True))[-1] == "CN-2026-000003"


@pytest.mark.django_db(transaction=True)
def test_same_line_credited_at_once_is_one_note() -> None:
    invoice = make_invoice()
    lines = line_ids(invoice, 1)
    results = at_once([lambda: made(invoice, lines=lines) for _ in range(4)])
    assert sum(isinstance(result, CreditNote) for result in results) == 1
    assert CreditNoteLine.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_void_and_credit_exclude_each_other() -> None:
    invoice = make_invoice()
    results = at_once([lambda: made(invoice, "1"), lambda: invoices.void(invoice.pk, "wrong", NOW)])
    assert sum(isinstance(result, Exception) for result in results) == 1
    invoice.refresh_from_db()
    assert (invoice.status == "void") != CreditNote.objects.exists()
