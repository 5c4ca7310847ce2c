"""A blocked month in the browser: cleared, drafted, issued by two tabs at once, and proved."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.billing.pdf_text import text_of
from tests.browser.stage import Site, Visits, overflows, run_inside

RECORDS = """
from billing.models import Price
from billing.usage import TokenUsage
from tests.billing.factories import STANDARD, make_account, make_key, make_record, utc

account = make_account("closed-monthly", language="en", tax_rate_ppm=50_000)
for name in ("first", "second"):
    make_record(make_key(account, name), utc(2026, 3, 3), TokenUsage(input=1_234_567, output=7), model="plain")
make_record(account.keys.get(name="second"), utc(2026, 3, 4), TokenUsage(input=1_000_000), model="late-priced",
            service_tier="scale")
begin = utc(2026, 1, 1)
Price.objects.create(model="late-priced", currency="USD", effective_from=begin, tiers={"scale": "2"}, **STANDARD)
"""
WORKER = """
from billing import invoice_runs
from billing.models import InvoiceRun
waiting = list(InvoiceRun.objects.filter(state="waiting"))
for run in waiting:
    invoice_runs.run(run.pk)
print(len(waiting))
"""
RUN = "/admin/billing/invoice/run/?month=2026-03"


def work(site: Site) -> int:
    """What a Celery worker would do now; returns how many runs waited for it."""
    return int(run_inside(site.installation, WORKER).split()[-1])


def ask_for(page: Page, words: str) -> None:
    """The question in its dialog, answered with the verb."""
    page.get_by_role("link", name=re.compile(words)).click()
    page.locator("dialog").get_by_role("button", name=re.compile(words)).click()


def test_two_tabs_issue_one_set(finance: Page, visit: Visits, site: Site) -> None:
    run_inside(site.installation, RECORDS)
    finance.goto(RUN)
    ask_for(finance, "Draft March 2026")
    expect(finance.get_by_text("It waits for a worker.")).to_be_visible()
    assert work(site) == 1
    expect(finance.get_by_role("row", name="closed-monthly/second")).to_contain_text("1 unpriced")
    expect(finance.get_by_text("Issue 1 invoice")).to_be_visible()

    finance.get_by_role("link", name="requests without a price").click()
    finance.get_by_role("row", name=re.compile("late-priced")).get_by_role("link", name=re.compile("^Rate")).click()
    finance.get_by_role("button", name=re.compile("^Rate 1 record")).click()

    finance.goto(RUN)
    other = visit("finance")
    other.goto(RUN)
    for tab in (finance, other):
        tab.get_by_role("link", name="Issue 2 invoices").click()
        expect(tab.locator("dialog")).to_contain_text("Issue 2 invoices for March 2026, USD 23.46?")
    for tab in (finance, other):
        tab.locator("dialog").get_by_role("button", name="Issue 2 invoices").click()
        expect(tab.get_by_text("It waits for a worker.")).to_be_visible()
    assert work(site) == 1
    for tab in (finance, other):
        expect(tab.get_by_text("2 invoices are issued.")).to_be_visible()
    numbers = finance.locator("section[aria-labelledby=hb-issued] tbody th").all_inner_texts()
    assert len(set(numbers)) == 2

    all_agree(finance, "closed-monthly/second", "16.98")


def all_agree(page: Page, name: str, total: str) -> None:
    """Page, PDF, CSV and proof of an invoice say the same."""
    row = page.get_by_role("row", name=name)
    expect(row).to_contain_text(f"USD {total}")
    row.get_by_role("link").click()
    expect(page.get_by_text(f"USD {total}").first).to_be_visible()
    files = {kind: page.get_by_role("link", name=kind, exact=True).get_attribute("href") for kind in ("PDF", "CSV")}
    printed = text_of(page.request.get(str(files["PDF"])).body()).splitlines()
    table = page.request.get(str(files["CSV"])).text().splitlines()
    assert total in printed
    assert table[-1].endswith(f",{total}")
    page.get_by_role("link", name="Prove it").click()
    expect(page.get_by_text("it agrees")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile(rf"^Total USD {total} USD {total} 0$"))).to_be_visible()
    expect(page.locator(".hb-badge", has_text="the same")).to_have_count(2)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_run_fits_its_window(operator: Page) -> None:
    operator.goto(RUN)
    expect(operator.get_by_role("heading", name="What stands against March 2026")).to_be_visible()
    assert not overflows(operator)
    expect(operator.get_by_role("link", name=re.compile("Draft"))).to_have_count(0)
