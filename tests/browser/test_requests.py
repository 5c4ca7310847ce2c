"""Requests: found by every name that a customer may have for one, and taken apart on its page."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import KEYS, Site, Visits, overflows, run_inside
from tests.end_to_end.formats import CHAT, PATHS, request

LIST = "/admin/billing/usagerecord/"
OLD = """
import datetime as dt
from django.utils.timezone import now
from billing.models import ApiKey, Attempt
from tests.billing.factories import make_record

ended = now() - dt.timedelta(days=40)
key = ApiKey.objects.get(name="production", account__name="northwind")
record = make_record(key, ended, model="plain", request_name="customers-own-name", raw_usage={"prompt_tokens": 14})
for number, outcome, began, took in ((1, "failed", 0, 400), (2, "answered", 700, 1300)):
    Attempt.objects.create(
        record=record, number=number, provider="acme", upstream_model="plain", outcome=outcome, status=200,
        provider_request_id=f"prov-old-{number}", started_at=record.started_at + dt.timedelta(milliseconds=began),
        headers_ms=100, first_output_ms=300 if number == 2 else None, duration_ms=took,
    )
print(record.pk)
"""

WIDE = """
from django.utils.timezone import now
from billing.usage import TokenUsage
from tests.billing.factories import make_account, make_key, make_record

key = make_key(make_account("harbour-labs", timezone="America/Los_Angeles"), "nightly-batch")
make_record(key, now(), TokenUsage(input=44_670, cache_read=12_000, cache_write=1_500, output=5_299), model="plain",
            ending="gateway_lost", metering="checkpoint", request_name="req_7f3a9c1e5b2077cf52dc45c0")
"""
SCROLLS = "table => table.scrollWidth > table.parentElement.clientWidth"


@pytest.fixture(scope="module")
def old(site: Site) -> dict[str, str]:
    """A request of forty days ago, by its ids."""
    billing_id = run_inside(site.installation, OLD).splitlines()[-1]
    return {"ours": "customers-own-name", "billing": billing_id, "provider's": "prov-old-1"}


@pytest.mark.parametrize("name", ["ours", "billing", "provider's"])
def test_old_request_is_found_by_each_id(operator: Page, old: dict[str, str], name: str) -> None:
    operator.goto(LIST)
    expect(operator.get_by_text("customers-own-name")).to_have_count(0)
    operator.get_by_placeholder("Request id, ours or the provider's").fill(old[name])
    operator.keyboard.press("Enter")
    operator.get_by_role("link", name="customers-own-name").click()
    expect(operator.get_by_role("heading", name="Usage and cost")).to_be_visible()
    assert added_up(operator) == Decimal("0.001630000")


def added_up(page: Page) -> Decimal:
    """The amounts of a request's page, which are its cost."""
    table = page.locator("section", has=page.get_by_role("heading", name="Usage and cost"))
    amounts = [Decimal(text.removeprefix("USD ")) for text in table.locator("tbody td:nth-child(5)").all_inner_texts()]
    total = Decimal(table.locator("tfoot td").first.inner_text().removeprefix("USD "))
    assert sum(amounts) == total
    return total


def test_request_is_found_by_key_and_moment(operator: Page, site: Site) -> None:
    answer = site.gateway.post(PATHS[CHAT], KEYS["batch"], request(CHAT, "plain", "Hello?"))
    name = answer.headers["x-request-id"]
    site.gateway.record(name, KEYS["batch"])
    operator.goto(LIST)
    row = operator.locator("tr.data-row", has_text=name)
    moment = row.locator("time small").inner_text()  # as the admin writes it
    operator.locator("#changelist a", has_text="Filters").click()
    operator.locator("#changelist-filter input[name=key]").fill("northwind/batch")
    operator.locator("#changelist-filter input[name=at]").fill(moment)
    operator.get_by_role("button", name="Apply Filters").click()
    expect(row).to_be_visible()
    expect(operator.get_by_text("northwind/production")).to_have_count(0)


def test_nothing_found_leads_to_live_streams(operator: Page) -> None:
    operator.goto(f"{LIST}?q=never-heard-of")
    expect(operator.get_by_text("No record. Refusals (401, 402, 429) leave none")).to_be_visible()
    operator.locator(".hb-empty").get_by_role("link", name="Live streams").click()
    expect(operator).to_have_url(re.compile(r"/openstream/\?q=never-heard-of"))


def test_list_shows_its_costs_without_scrolling(visit: Visits, site: Site) -> None:
    run_inside(site.installation, WIDE)
    for language in ("en", "zh-hant"):
        page = visit("operator", language=language)
        page.goto(LIST)
        expect(page.locator("tr.data-row", has_text="harbour-labs/nightly-batch")).to_be_visible()
        assert page.locator("#result_list").evaluate(SCROLLS) is False


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_page_shows_attempts_in_time(operator: Page, old: dict[str, str]) -> None:
    operator.goto(f"{LIST}{old['billing']}/change/")
    axis = operator.locator(".hb-axis ol svg")
    first, second = (axis.nth(at).locator("rect").first.bounding_box() for at in (0, 1))
    assert first is not None
    assert second is not None
    width = (axis.nth(0).bounding_box() or {})["width"]
    assert round((second["x"] - first["x"]) / width, 2) == 0.35  # 700 ms of two seconds
    expect(axis.nth(0)).to_have_attribute("aria-label", "Attempt 1 began after 0 ms and took 400 ms.")
    raw = operator.get_by_text('"prompt_tokens": 14')
    expect(raw).to_be_hidden()
    operator.get_by_text("The provider's raw usage").click()
    expect(raw).to_be_visible()
    assert not overflows(operator)
