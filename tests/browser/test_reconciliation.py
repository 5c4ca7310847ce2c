"""A provider's file in the browser: uploaded, mapped, compared, remembered; and who cannot do it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import Site, Visits, overflows, run_inside

RECORDS = """
import datetime as dt
from billing import reconciliation, rollups
from billing.models import Attempt
from billing.usage import TokenUsage
from tests.billing.factories import make_account, make_key, make_record, utc

key = make_key(make_account("reconciled"))
fields = {"provider": "counted-cloud", "upstream_model": "sol"}
for day in (3, 4, 5):
    make_record(key, utc(2026, 10, day), TokenUsage(input=1000, output=200), **fields)
tried = make_record(key, utc(2026, 10, 3), TokenUsage(input=500, output=100), **fields)
for number, outcome in ((1, "cut"), (2, "answered")):
    Attempt.objects.create(
        record=tried, number=number, outcome=outcome, status=200, started_at=tried.started_at, duration_ms=9,
        input=500, cache_read=0, cache_write=0, cache_write_1h=0, output=0, **fields)
make_record(key, utc(2026, 10, 4, 0, 5), TokenUsage(input=40), started_at=utc(2026, 10, 3, 23, 50), **fields)
make_record(key, utc(2026, 10, 5), TokenUsage(input=70), metering="estimated", **fields)
at = utc(2026, 10, 4)
reconciliation.keep_test("counted-cloud", "sol", "messages", by="ada", started_at=at, ended_at=at,
                         usage=TokenUsage(input=8))
rollups.rebuild_due()
"""
HEADER = "day;model;into;out of;cost\n"
LINES = (
    "2026-10-03;sol-2026-08-06;2,040;300;0.01\n"  # a failed attempt's 500, and 40 that we count after midnight
    "2026-10-04;sol-2026-08-06;1,008;200;0.01\n"  # a test's 8
    "2026-10-05;sol-2026-08-06;1,075;200;0.01\n"  # 5 more than we estimated
    "2026-10-05;comet;7;7;1\n"
)
KINDS = {
    "2026-10-03": ("failed attempt", "day boundary"),
    "2026-10-04": ("test", "day boundary"),
    "2026-10-05": ("estimate",),
}


@pytest.fixture(scope="module")
def counted(site: Site) -> None:
    """What the provider counted-cloud was asked for in October."""
    run_inside(site.installation, RECORDS)


@pytest.fixture
def october(counted: None, tmp_path: Path) -> Path:
    path = tmp_path / f"october-{tmp_path.name}.csv"
    # Each test has a file of its own: the same bytes are recognised.
    path.write_text(HEADER + LINES + f"2026-10-05;{tmp_path.name};0;1;0\n", encoding="utf-16")
    return path


def upload(page: Page, path: Path) -> None:
    page.goto("/admin/billing/reconciliation/add/")
    page.locator("[name=provider]").select_option("counted-cloud")
    page.locator("[name=file]").set_input_files(path)
    page.get_by_role("button", name="Upload", exact=True).click()


def choose_columns(page: Page) -> None:
    """The two whose names say nothing."""
    page.locator("[name=column_input]").select_option("into")
    page.locator("[name=column_output]").select_option("out of")


def test_file_is_mapped_compared_and_remembered(finance: Page, visit: Visits, october: Path) -> None:
    upload(finance, october)
    expect(finance).to_have_url(re.compile("/mapping/$"))
    choose_columns(finance)
    finance.get_by_role("button", name="Read again").click()
    first = finance.get_by_role("region", name="The first lines, as read").locator("tbody tr").first
    expect(first).to_contain_text("2,040")
    finance.get_by_role("button", name="Compare").click()
    expect(finance).to_have_url(re.compile("/change/$"))
    table = finance.get_by_role("region", name="By day and model")
    for day, kinds in KINDS.items():
        row = (
            table.locator("tbody tr")
            .filter(has_text=day)
            .filter(has=finance.get_by_role("cell", name="sol", exact=True))
        )
        for kind in kinds:
            expect(row).to_contain_text(kind)
        expect(row).not_to_contain_text("unknown")
    finance.get_by_role("link", name="only theirs").click()
    expect(table.locator("tbody tr")).to_have_count(2)
    with finance.expect_download() as download:
        finance.get_by_role("link", name="CSV", exact=True).click()
    assert "comet" in Path(download.value.path()).read_text(encoding="utf-8-sig")
    upload(finance, october)
    expect(finance.get_by_text("The same file was uploaded before")).to_be_visible()
    narrow = visit("operator", width=390, theme="dark")
    narrow.goto(finance.url)
    assert not overflows(narrow)
    expect(narrow.get_by_role("link", name="Map the columns")).to_have_count(0)


def test_next_file_needs_no_mapping(finance: Page, october: Path, tmp_path: Path) -> None:
    upload(finance, october)
    choose_columns(finance)
    finance.get_by_role("button", name="Compare").click()
    november = tmp_path / "november.csv"
    november.write_text(HEADER + f"2026-11-03;sol-2026-08-06;5;5;{tmp_path.name[-1]}\n")
    upload(finance, november)
    finance.get_by_role("button", name="Compare").click()
    expect(finance.get_by_text("november.csv is compared")).to_be_visible()
