"""An invoice as PDF and CSV: the same digits as its lines, in the customer's language."""

from __future__ import annotations

import csv
import datetime as dt
from decimal import Decimal
from pathlib import Path

import pytest
from pytest_django import Settings

from billing import invoice_pdf, invoice_sheet, invoices
from billing.models import ApiKey, Invoice
from billing.money import parse, to_decimal
from billing.pdf import NOT_A_UNIFORM_INVOICE
from billing.sheets import write_csv
from billing.usage import TokenUsage
from tests.billing.factories import TIERS, make_account, make_adjustment, make_key, make_record, price, utc
from tests.billing.pdf_text import text_of

pytestmark = pytest.mark.django_db
NOVEMBER = dt.date(2026, 11, 1)
NOW = utc(2026, 12, 2)
SELLER = {"name": "HopBase Ltd", "address": "1 Relay Way\nLondon", "tax_id": "GB1", "zone": "Asia/Taipei"}


@pytest.fixture
def key(settings: Settings) -> ApiKey:
    settings.SELLER = SELLER
    account = make_account(
        timezone="Asia/Taipei", legal_name="北風股份有限公司", address="臺北市信義區\n市府路 1 號", tax_id="12345678",
        tax_rate_ppm=82_500, language="zh-Hant",
    )  # fmt: skip
    return make_key(account, "=1+1")


def drafted(key: ApiKey) -> Invoice:
    """With use, late use, an estimate, a tier, a tool and an adjustment."""
    tools = price(server_tools={"web_search": parse("0.01")}, tiers=TIERS)
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1_234_567, output=7, cache_read=9), version=tools)
    make_record(key, utc(2026, 11, 3), TokenUsage(input=10_001, server_tools={"web_search": 3}), version=tools)
    make_record(key, utc(2026, 11, 4), TokenUsage(input=70_001), version=tools, service_tier="flex")
    make_record(key, utc(2026, 11, 5), TokenUsage(output=400_001), metering="estimated")
    make_record(key, utc(2026, 10, 30), TokenUsage(input=33_333))
    make_adjustment(key, utc(2026, 11, 9), -parse("1.234567891"), reason="停機補償")
    (draft,) = invoices.draft(NOVEMBER, account=key.account, now=NOW)
    return draft


def issued(key: ApiKey) -> Invoice:
    return invoices.issue(drafted(key).pk, now=NOW)


def test_same_invoice_makes_same_bytes(key: ApiKey, settings: Settings) -> None:
    """Neither settings, account nor status have a say once it is issued."""
    invoice = issued(key)
    first = invoice_pdf.render(invoice)
    settings.SELLER = {**SELLER, "name": "Another Ltd", "zone": "UTC"}
    key.account.legal_name, key.account.language = "changed", "en"
    key.account.save()
    invoices.mark_paid(invoice.pk, dt.date(2026, 12, 5), "TX-1")
    assert invoice_pdf.render(Invoice.objects.get(pk=invoice.pk)) == first


def test_everything_is_printed(key: ApiKey) -> None:
    invoice = issued(key)
    words = text_of(invoice_pdf.render(invoice))
    for fact in (
        "2026-000001", "HopBase Ltd", "London", "北風股份有限公司", "臺北市信義區", "12345678", "=1+1", "Asia/Taipei",
        "2026-12-01 00:00:00", "8.25 %", f"{invoice.due_on}", NOT_A_UNIFORM_INVOICE, "停機補償",
    ):  # fmt: skip
        assert fact in words, fact
    assert "DRAFT" not in words


def test_draft_says_so_on_each_page(key: ApiKey) -> None:
    for at in range(60):
        make_record(key, utc(2026, 11, 3), model=f"model-{at}")
    key.account.language = "en"
    key.account.save()
    words = text_of(invoice_pdf.render(drafted(key)))
    assert words.count("DRAFT") == words.count("Page ") >= 3


def test_csv_has_the_same_digits(key: ApiKey, tmp_path: Path) -> None:
    invoice = issued(key)
    write_csv(invoice_sheet.sheet(invoice), tmp_path / "made")
    table = list(csv.reader((tmp_path / "made").read_text("utf-8-sig").splitlines()))
    rows, totals = table[-3 - invoice.lines.count() : -3], table[-3:]
    printed = text_of(invoice_pdf.render(invoice)).splitlines()
    for line, row in zip(invoice.lines.all(), rows, strict=True):
        assert [Decimal(cell) for cell in row[-3:]] == [
            to_decimal(nanos) for nanos in (line.exact_nanos, line.rounding_nanos, line.amount_nanos)
        ]
        for cell in row[-3:]:
            assert f"{Decimal(cell):,f}" in printed
    assert sum(Decimal(row[-1]) for row in rows) == Decimal(totals[0][-1])
    assert Decimal(totals[0][-1]) + Decimal(totals[1][-1]) == Decimal(totals[2][-1]) == to_decimal(invoice.total_nanos)
    assert "'=1+1" in {cell for row in table for cell in row}


def test_currency_without_places_prints_none(settings: Settings) -> None:
    settings.SELLER = SELLER
    key = make_key(make_account(currency="JPY"))
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000_000), version=price(currency="JPY"))
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    words = text_of(invoice_pdf.render(draft)).splitlines()
    assert {"1,000,000,000", "5.00", "5,000.000000000", "5,000"} <= set(words)
