"""The usage report over a DST day in three zones: what the page shows is its records, its CSV and its XLSX."""

from __future__ import annotations

import csv
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.billing import xlsx
from tests.browser.stage import Site, Visits, overflows, run_inside

DST_DAYS = "from=2026-10-31&to=2026-11-02"
FILL = """
import datetime as dt
from zoneinfo import ZoneInfo
from billing import rollups
from billing.usage import TokenUsage
from tests.billing.factories import make_account, make_key, make_record

for at, zone in enumerate(("Asia/Taipei", "America/Los_Angeles", "Asia/Kathmandu"), start=1):
    key = make_key(make_account(f"of {zone}", timezone=zone), "=1+1")
    for day in (dt.date(2026, 10, 31), dt.date(2026, 11, 1), dt.date(2026, 11, 2)):
        begin = dt.datetime.combine(day, dt.time(), ZoneInfo(zone)).astimezone(dt.UTC)
        for minutes in (-1, 0, 90, 150, 24 * 60 - 1):  # 1:30 comes twice in Los Angeles on 1 November
            ended = begin + dt.timedelta(minutes=minutes)
            make_record(key, ended, TokenUsage(input=1000 * at + day.day), model="plain")
    if at == 1:
        rollups.rebuild_due()
"""


@pytest.fixture(scope="module")
def filled(site: Site) -> None:
    run_inside(site.installation, FILL)


def shown(page: Page) -> list[list[str]]:
    """The table's cells, totals included."""
    rows = page.locator(".hb-report tbody tr, .hb-report tfoot tr")
    return [[cell.strip() for cell in row.split("\t")] for row in rows.all_inner_texts()]


def plain(cell: Any) -> str:
    """A cell as the page and the files may write it: without separators, signs of text and trailing zeros."""
    text = "" if cell in (None, "—") else str(cell).replace(",", "").removeprefix("'").removeprefix("+")
    return f"{Decimal(text).normalize():f}" if re.fullmatch(r"-?\d+(\.\d+)?(E[-+]?\d+)?", text) else text


def test_page_is_records_is_files(finance: Page, filled: None, tmp_path: Path) -> None:
    finance.goto(f"/admin/usage/?{DST_DAYS}&by=day&then=key&compare=none")
    expect(
        finance.get_by_text("Each account's own day: America/Los_Angeles, Asia/Kathmandu, Asia/Taipei")
    ).to_be_visible()
    table = [list(map(plain, row)) for row in shown(finance)]
    assert {row[1] for row in table[:-1]} >= {"of Asia/Taipei/=1+1", "of America/Los_Angeles/=1+1"}
    angeles = [row for row in table if row[1].startswith("of America/Los_Angeles") and row[0] == "2026-11-01"]
    assert angeles[0][3] == "5"  # four of its own 25 hours, and the minute before the next day

    files = {}
    for name in ("CSV", "XLSX"):
        with finance.expect_download() as download:
            finance.get_by_role("link", name=name, exact=False).last.click()
        files[name] = tmp_path / download.value.suggested_filename
        download.value.save_as(files[name])
    width = len(table[0])
    lines = [line for line in csv.reader(files["CSV"].read_text("utf-8-sig").splitlines()) if len(line) == width]
    in_csv = [list(map(plain, line)) for line in lines[1:]]
    assert [row for row in in_csv if row[0] != "Total"] == [row for row in table if row[0] != "Total"]
    (sheet,) = xlsx.read(files["XLSX"].read_bytes())
    in_xlsx = [list(map(plain, [*row, *[None] * (width - len(row))])) for row in sheet if len(row) > 5][1:]
    assert in_xlsx == in_csv


def test_figure_leads_to_its_records(finance: Page, filled: None) -> None:
    finance.goto(f"/admin/usage/?{DST_DAYS}&by=day&then=key&compare=none")
    row = finance.locator(".hb-report tbody tr", has_text="of America/Los_Angeles").last
    requests = row.locator("td.hb-right a").first
    count = int(requests.inner_text())
    requests.click()
    expect(finance.locator("#result_list tr.data-row")).to_have_count(count)


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_report_fits_the_window(visit: Visits, filled: None, theme: str, width: int) -> None:
    page = visit("finance", theme=theme, width=width)
    for path in (f"/admin/usage/?{DST_DAYS}", "/admin/statement/", "/admin/billing/export/", "/admin/"):
        page.goto(path)
        assert not overflows(page), path


def test_view_is_saved_by_name(finance: Page, filled: None) -> None:
    finance.goto(f"/admin/usage/?{DST_DAYS}&by=key")
    finance.get_by_text("Save this view").click()
    finance.get_by_label("Name").fill("DST by key")
    finance.get_by_role("button", name="Save").click()
    expect(finance.get_by_text("The view “DST by key” is saved.")).to_be_visible()
    finance.goto("/admin/usage/")
    finance.get_by_role("link", name="DST by key").click()
    expect(finance).to_have_url(re.compile("by=key"))
    expect(finance.get_by_label("From")).to_have_value("2026-10-31")


def test_statement_becomes_a_pdf(finance: Page, site: Site, filled: None, tmp_path: Path) -> None:
    """Asked for, waited for on its page, which moves by itself, and downloaded."""
    finance.goto("/admin/statement/")
    finance.get_by_label("Account").select_option(label="of America/Los_Angeles")
    finance.get_by_role("textbox", name="Month").fill("2026-11")
    finance.get_by_role("button", name="Show").click()
    finance.get_by_role("button", name="Make the PDF").click()
    expect(finance.get_by_text("It waits for a worker.")).to_be_visible()
    run_inside(
        site.installation,
        "from billing import exports\nfrom billing.models import Export\n"
        "[exports.run(one.pk) for one in Export.objects.filter(state='waiting')]",
    )
    expect(finance.get_by_text("The file is ready.")).to_be_visible()
    with finance.expect_download() as download:
        finance.get_by_role("link", name="Download", exact=True).click()
    download.value.save_as(tmp_path / "made.pdf")
    assert (tmp_path / "made.pdf").read_bytes().startswith(b"%PDF-")
