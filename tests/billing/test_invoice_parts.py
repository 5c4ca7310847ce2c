"""A month's use by invoice: what came late is on a later one, and all parts sum to the month."""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import translation

from billing import invoice_parts, invoices, rollups, statement_pdf, statements, usage_report, usage_sheet
from billing.admin.parts import MOST, part_rows
from billing.invoice_parts import Part
from billing.models import Account, ApiKey, Invoice
from billing.money import parse
from billing.report_query import Query, Span
from billing.sheets import write_csv
from billing.usage import TokenUsage
from tests.billing.admin_site import Login
from tests.billing.factories import make_account, make_adjustment, make_key, make_record, price, utc
from tests.billing.pdf_text import text_of

pytestmark = pytest.mark.django_db
OCTOBER, NOVEMBER, DECEMBER = (dt.date(2026, month, 1) for month in (10, 11, 12))
NOW = utc(2027, 1, 15)
MILLION = TokenUsage(input=1_000_000)
"""5 at the standard price."""
WHOLE = {"from": "2026-10-01", "to": "2026-10-31", "by": "day", "compare": "none"}


@pytest.fixture
def account() -> Account:
    return make_account(timezone="Asia/Kathmandu")


@pytest.fixture
def key(account: Account) -> ApiKey:
    return make_key(account)


def issue(key: ApiKey, month: dt.date) -> Invoice:
    invoices.draft(month, account=key.account, now=NOW)
    return invoices.issue(Invoice.objects.get(api_key=key, month=month, status="draft").pk, now=NOW)


def late_use(key: ApiKey) -> tuple[Invoice, Invoice]:
    """October costs 5 in time, 10 late, and 0.00163 that waits; November 5 in time."""
    make_record(key, utc(2026, 10, 3), MILLION)
    make_adjustment(key, utc(2026, 10, 5), parse("-1.25"))
    first = issue(key, OCTOBER)
    for day in (20, 21):
        make_record(key, utc(2026, 10, day), MILLION)
    make_adjustment(key, utc(2026, 10, 20), parse("-1"))
    make_record(key, utc(2026, 11, 3), MILLION)
    second = issue(key, NOVEMBER)
    make_record(key, utc(2026, 10, 25))
    rollups.rebuild_due()
    return first, second


def told(parts: list[Part]) -> list[tuple[list[str | None], int]]:
    return [([invoice.number for invoice in part.invoices], part.cost_nanos) for part in parts]


def of(key: ApiKey, **given: str) -> usage_report.Report:
    return usage_report.build(Query.parse({**WHOLE, "key": str(key.pk), **given}), NOW)[0]


def test_late_use_is_on_a_later_invoice(key: ApiKey) -> None:
    first, second = late_use(key)
    report = of(key)
    assert told(report.parts) == [
        ([first.number], parse("5")),
        ([second.number], parse("10")),
        ([], parse("0.00163")),
    ]
    assert sum(part.cost_nanos for part in report.parts) == report.totals[0].now.cost_nanos
    assert told(statements.build(key.account, NOVEMBER).parts) == [([second.number], parse("5"))]  # type: ignore[arg-type]


def test_invoices_use_is_its_parts_of_all_months(key: ApiKey) -> None:
    """Lines of records and parts are the same, the other way round."""
    late_use(key)
    make_record(key, utc(2026, 11, 30, 19), MILLION)  # of December in Kathmandu
    issue(key, DECEMBER)
    found = [part for month in (OCTOBER, NOVEMBER, DECEMBER) for part in statements.build(key.account, month).parts]
    for invoice in Invoice.objects.all():
        used = sum(line.exact_nanos for line in invoice.lines.exclude(bucket="adjustment"))
        assert sum(part.cost_nanos for part in found if part.invoices == (invoice,)) == used
    assert all(part.invoices for part in found)


def test_use_of_a_void_invoice_waits(key: ApiKey) -> None:
    first, second = late_use(key)
    invoices.void(first.pk, "wrong address", now=NOW)
    assert told(of(key).parts) == [([second.number], parse("10")), ([], parse("5.00163"))]


@pytest.mark.parametrize(
    "given", [{"from": "2026-10-02"}, {"to": "2026-10-30"}, {"model": "gpt-5.6-sol"}, {"to": "2026-11-30"}]
)
def test_other_days_have_no_parts(key: ApiKey, given: dict[str, str]) -> None:
    late_use(key)
    assert of(key, **given).parts == []


def test_month_that_runs_has_parts(key: ApiKey) -> None:
    _first, second = late_use(key)
    report = usage_report.build(Query.parse({"key": str(key.pk)}), utc(2026, 11, 10))[0]
    assert told(report.parts) == [([second.number], parse("5"))]


def test_parts_are_of_one_customer(key: ApiKey) -> None:
    late_use(key)
    make_record(make_key(key.account, "batch"), utc(2026, 10, 3), MILLION)
    make_record(make_key(make_account("umbrella")), utc(2026, 10, 3), MILLION)
    of_account = usage_report.build(Query.parse({**WHOLE, "account": str(key.account_id)}), NOW)[0]
    assert [part.cost_nanos for part in of_account.parts] == [parse("5"), parse("10"), parse("5.00163")]


def test_everybodys_month_is_by_currency(key: ApiKey) -> None:
    first, second = late_use(key)
    taiwan = make_key(make_account("umbrella", currency="TWD"))
    make_record(taiwan, utc(2026, 10, 3), MILLION, version=price(currency="TWD"))
    other = issue(taiwan, OCTOBER)
    report = usage_report.build(Query.parse(WHOLE), NOW)[0]
    found = {part.invoices: (part.currency, part.cost_nanos) for part in report.parts}
    assert found == {
        (first,): ("USD", parse("5")),
        (second,): ("USD", parse("10")),
        (): ("USD", parse("0.00163")),
        (other,): ("TWD", parse("5")),
    }
    assert usage_report.build(Query.parse({"by": "key"}), utc(2026, 10, 31))[0].parts == []


def test_month_without_use_has_no_parts(key: ApiKey) -> None:
    assert of(key).parts == statements.build(key.account, OCTOBER).parts == []
    assert not invoice_parts.is_month(Span(OCTOBER, NOVEMBER))


def test_pages_name_the_invoices(key: ApiKey, login: Login) -> None:
    first, second = late_use(key)
    query = f"?from=2026-10-01&to=2026-10-31&by=key&account={key.account_id}"
    for url in (f"/admin/usage/{query}", f"/admin/statement/?account={key.account_id}&month=2026-10"):
        content = login("finance").get(url).text
        for words in (first.number, second.number, "USD 10.000000000", "On no invoice yet", "USD 0.001630000"):
            assert str(words) in content, (url, words)


def test_many_invoices_are_one_row(key: ApiKey) -> None:
    first, _second = late_use(key)
    rows = part_rows([*[Part((first,), "USD", 1)] * (MOST + 3), Part((), "USD", 7), Part((), "TWD", 5)])
    assert [row["cost"] for row in rows[-3:]] == ["USD 0.000000003", "USD 0.000000007", "TWD 0.000000005"]
    assert (len(rows), rows[MOST]["words"]) == (MOST + 3, "On 3 more invoices")
    assert part_rows([Part((first,) * 11, "USD", 1)])[0]["words"] == "On 11 invoices together"


def test_files_name_the_invoices(key: ApiKey, tmp_path: Path) -> None:
    first, second = late_use(key)
    numbers = [f"On the invoice {first.number}", f"On the invoice {second.number}", "On no invoice yet"]
    costs = ["5.000000000", "10.000000000", "0.001630000"]
    write_csv(usage_sheet.sheet(of(key), NOW), tmp_path / "usage")
    lines = list(rows_of(tmp_path / "usage"))
    assert [line[-1] for line in lines if line[:1] == ["Total"]] == ["15.001630000"]
    assert [[line[0], line[-1]] for line in lines[-3:]] == [list(pair) for pair in zip(numbers, costs, strict=True)]
    statement = statements.build(key.account, OCTOBER)
    write_csv(statements.sheet(statement, NOW), tmp_path / "statement")
    parts = [line for line in rows_of(tmp_path / "statement") if line[:1] == ["Use by invoice"]]
    assert [line[2] for line in parts] == [first.number, second.number, "On no invoice yet"]
    assert [line[-1] for line in parts] == costs
    with translation.override("en"):
        drawn = text_of(statement_pdf.render(statement, NOW))
    assert all(words in drawn for words in (str(first.number), str(second.number), *costs))


def rows_of(path: Path) -> Iterator[list[str]]:
    return csv.reader(path.read_text("utf-8-sig").splitlines())
