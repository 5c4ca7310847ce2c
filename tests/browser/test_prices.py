"""Prices in the browser: the next version begins as a copy and shows what it would have cost; a used one stays."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import Site, Visits, overflows, run_inside

LISTED = """
import datetime as dt
from django.utils.timezone import now
from billing import rollups
from billing.models import Price
from billing.usage import TokenUsage
from tests.billing.factories import STANDARD, make_account, make_key, make_record, utc

last_month = (now().replace(day=1) - dt.timedelta(days=3)).replace(hour=12)
for name, count in (("previewed-a", 2), ("previewed-b", 1)):
    key = make_key(make_account(name))
    for _ in range(count):
        make_record(key, last_month, TokenUsage(input=1_000_000, output=100_000), model="listed")
rollups.rebuild_due()
price = Price.objects.create(
    model="listed", currency="USD", effective_from=utc(2026, 1, 1, 0), tiers={"priority": "2"}, **STANDARD)
print(price.pk)
"""
LIST = "/admin/billing/price/"


@pytest.fixture(scope="module")
def used(site: Site) -> str:
    """The page of the version in force of the model `listed`, by which two accounts were billed last month."""
    return f"{LIST}{run_inside(site.installation, LISTED).split()[-1]}/change/"


def preview(page: Page, price: str, factor: str) -> None:
    """Begin the next version at the version in force, with another price for input."""
    page.goto(f"{LIST}?model=listed")
    page.locator('a[href*="copy_model=listed"]').click()
    page.locator("#id_input").fill(price)
    page.locator("#id_tiers").fill(f'{{"priority": "{factor}"}}')
    page.locator("[name=_save]").click()


def versions(site: Site) -> list[int]:
    rows = site.installation.query("SELECT input FROM billing_price WHERE model = 'listed' ORDER BY effective_from")
    return [row[0] for row in rows]


def test_next_version_begins_as_a_copy(finance: Page, used: str) -> None:
    finance.goto(f"{LIST}?model=listed")
    finance.get_by_role("link", name="Add the next version").click()
    copied = {name: finance.locator(f"#id_{name}").input_value() for name in ("model", "currency", "input", "output")}
    assert copied == {"model": "listed", "currency": "USD", "input": "5", "output": "30"}
    assert "priority" in finance.locator("#id_tiers").input_value()
    expect(finance.locator("#id_effective_from_0")).to_have_value(re.compile(r"-01$"))


@pytest.mark.parametrize("language", ["zh-hant"])
@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_preview_tells_last_month_by_account(operator: Page, site: Site, used: str) -> None:
    before = versions(site)
    preview(operator, "10.5", "2")
    for account, cells in {
        "previewed-a": ["2", "USD 16.000000000", "USD 27.000000000", "USD +11.000000000"],
        "previewed-b": ["1", "USD 8.000000000", "USD 13.500000000", "USD +5.500000000"],
        "合計": ["3", "USD 24.000000000", "USD 40.500000000", "USD +16.500000000"],
    }.items():
        row = operator.get_by_role("row").filter(has=operator.get_by_role("rowheader", name=account))
        assert row.locator("td").all_inner_texts()[:4] == cells
    expect(operator.get_by_role("button", name=re.compile("^新增 listed@"))).to_be_visible()
    assert not overflows(operator)
    assert versions(site) == before


def test_version_is_added_after_its_preview(finance: Page, site: Site, used: str) -> None:
    preview(finance, "4", "1.5")
    finance.get_by_role("button", name=re.compile("^Add listed@")).click()
    expect(finance).to_have_url(re.compile(rf"{LIST}$|{LIST}\?"))
    assert versions(site) == [5_000_000_000, 4_000_000_000]
    finance.goto(f"{LIST}?model=listed")
    expect(finance.locator(".hb-timeline li").first).to_contain_text("in force")
    expect(finance.locator(".hb-timeline li").last).to_contain_text("coming")


def test_used_version_is_read_only(root: Page, used: str) -> None:
    root.goto(used)
    expect(root.get_by_text("it has rated requests, so it never changes")).to_be_visible()
    expect(root.locator("form#price_form").locator("input:not([type=hidden]), textarea, select")).to_have_count(0)
    expect(root.get_by_role("button", name="Save")).to_have_count(0)


def test_others_do_not_get_in(visit: Visits, used: str) -> None:
    nobody = visit("nobody")
    assert [nobody.request.get(path).status for path in (LIST, f"{LIST}add/", used)] == [403] * 3
