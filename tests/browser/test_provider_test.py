"""A provider tested in the browser: what came back in each wire format, and the credential nowhere."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.stage import PROVIDER_KEY, Site, Visits, overflows, run_inside

PROVIDER = """
from django.conf import settings
from streaming import credentials
from streaming.models import Model, Provider, Route

acme = Provider.objects.get(name="acme")
tested = Provider.objects.create(
    name="tested-cloud", base_url=acme.base_url, wire_formats=["chat_completions", "responses", "messages"],
    credential=credentials.encrypt(%r, settings.ENCRYPTION_KEYS))
for priority, scene in enumerate(("plain", "echoes")):
    model = Model.objects.create(name=f"tested-{scene}")
    Route.objects.create(model=model, provider=tested, upstream_model=scene, priority=priority)
print(tested.pk)
"""
WIRE_FORMATS = ("Chat Completions", "Responses", "Messages")


@pytest.fixture(scope="module")
def provider_page(site: Site) -> str:
    """The page of a provider that answers as the model `plain`, and repeats its credential as the model `echoes`."""
    pk = run_inside(site.installation, PROVIDER % PROVIDER_KEY).split()[-1]
    return f"/admin/streaming/provider/{pk}/change/"


def run_test(page: Page, provider_page: str, upstream_model: str, verb: str = "Test") -> None:
    page.goto(provider_page)
    assert_no_credential(page)
    page.goto(str(page.locator('a[href$="/test/"]').get_attribute("href")))  # in a menu, where the window is narrow
    page.locator("[name=upstream_model]").select_option(upstream_model)
    assert_no_credential(page)
    page.get_by_role("button", name=verb, exact=True).click()
    expect(page.locator(".hb-checks")).to_be_visible()


def assert_no_credential(page: Page) -> None:
    assert PROVIDER_KEY not in page.content()
    assert PROVIDER_KEY[3:] not in page.content()


def test_answers_stand_by_wire_format(operator: Page, site: Site, provider_page: str) -> None:
    asked = len(site.provider.calls)
    run_test(operator, provider_page, "plain")
    for name in WIRE_FORMATS:
        row = operator.locator(".hb-checks tbody tr").filter(has=operator.get_by_role("rowheader", name=name))
        expect(row).to_contain_text("answered")
        expect(row.locator("td").nth(1)).to_have_text("200")
        expect(row.locator("td").nth(4)).to_contain_text(re.compile(r"\d ms"))
        expect(row.locator("td").last).to_contain_text("output")
        said = operator.locator("details", has_text=f"What the provider said in {name}")
        expect(said.locator("pre")).to_be_hidden()
        said.locator("summary").click()
        expect(said.locator("pre")).to_contain_text("Alpen")
    assert len(site.provider.calls) == asked + len(WIRE_FORMATS)
    assert_no_credential(operator)


@pytest.mark.parametrize("language", ["zh-hant"])
@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_echoed_credential_is_scrubbed(operator: Page, site: Site, provider_page: str) -> None:
    run_test(operator, provider_page, "echoes", verb="測試")
    rows = operator.locator(".hb-checks tbody tr")
    expect(rows.filter(has_text="失敗")).to_have_count(len(WIRE_FORMATS))
    expect(rows.filter(has_text="401")).to_have_count(len(WIRE_FORMATS))
    expect(operator.locator("pre", has_text="no such key")).to_have_count(len(WIRE_FORMATS))
    assert PROVIDER_KEY in str(site.provider.calls[-1].headers)
    assert_no_credential(operator)
    assert not overflows(operator)


def test_test_is_kept_without_the_credential(operator: Page, provider_page: str) -> None:
    run_test(operator, provider_page, "plain")
    for path in ("/admin/billing/providertest/", "/admin/audit/"):
        operator.goto(path)
        expect(operator.locator("#result_list tr", has_text="tested-cloud").first).to_contain_text("operator")
        assert_no_credential(operator)


def test_others_cannot_test(visit: Visits, site: Site, provider_page: str) -> None:
    asked, path = len(site.provider.calls), provider_page.replace("/change/", "/test/")
    finance = visit("finance")
    finance.goto(provider_page)
    expect(finance.get_by_text("tested-cloud").first).to_be_visible()
    expect(finance.locator('a[href$="/test/"]')).to_have_count(0)
    assert_no_credential(finance)
    for page in (finance, visit("nobody")):
        assert page.request.get(path).status == 403
    assert len(site.provider.calls) == asked
