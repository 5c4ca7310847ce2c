"""The admin in a real browser: log in, make a key, see its secret once."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from billing.keys import is_well_formed
from billing.models import Account, ApiKey
from tests.billing.admin_world import PASSWORD

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; on Debian: apt-get install chromium"),
    pytest.mark.django_db(transaction=True),
]


@contextmanager
def browser_page() -> Iterator[Page]:
    """A page of a fresh browser. Django's tables are out of reach inside, for Playwright runs an event loop."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        context = browser.new_context(locale="en-US", permissions=["clipboard-read", "clipboard-write"])
        yield context.new_page()
        browser.close()


def test_new_key_shows_its_secret_once(live_server: LiveServer) -> None:
    User.objects.create_superuser("root", "root@example.com", PASSWORD)
    Account.objects.create(name="northwind")
    with browser_page() as page:
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        log_in(page, live_server.url)
        secret = make_key(page, live_server.url)
        copied = copy(page)
        page.reload()
        expect(page.get_by_text("It was shown once, when the key was made, and cannot be shown again.")).to_be_visible()
        assert secret not in page.content()
        page.go_back()
        assert secret not in page.content()
        page.go_forward()
        assert secret not in page.content()
        revoke(page)
        expect(page.get_by_text("The key northwind/production is revoked.")).to_be_visible()
    assert copied == secret
    assert is_well_formed(secret)
    assert faults == []
    assert ApiKey.objects.get().revoked_at is not None


def log_in(page: Page, address: str) -> None:
    page.goto(f"{address}/admin/")
    page.get_by_label("Username").fill("root")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("No traffic yet.")).to_be_visible()


def make_key(page: Page, address: str) -> str:
    page.get_by_role("link", name="Make a key.").click()
    page.locator("#id_account").select_option(label="northwind")
    page.locator("#id_name").fill("production")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Store its secret now; it cannot be shown again.")).to_be_visible()
    return page.locator("#hb-secret").inner_text()


def copy(page: Page) -> str:
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    return str(page.evaluate("navigator.clipboard.readText()"))


def revoke(page: Page) -> None:
    page.get_by_role("link", name=re.compile("Revoke")).click()
    expect(page.get_by_role("heading", name="Revoke the key northwind/production?")).to_be_visible()
    page.get_by_role("button", name="Revoke").click()
