"""A key in Chinese: made, tried with the SDKs, rotated, its old secret ended, revoked; each secret shown once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from billing.keys import is_well_formed
from tests.billing.admin_world import PASSWORD
from tests.browser.stage import Site, Visits, overflows
from tests.end_to_end.product import Gateway

SOON_S = 10
"""Longer than "within seconds" takes on a busy machine."""


@pytest.fixture
def admin(site: Site) -> Iterator[Gateway]:
    """The admin in a process of its own, which names the gateway as the public address."""
    with site.installation.serving("uvicorn", "--role", "admin", HOPBASE_PUBLIC_URL=site.url) as running:
        yield running


@pytest.mark.parametrize("language", ["zh-hant"])
def test_key_lives_and_ends(visit: Visits, site: Site, second: Gateway, admin: Gateway, tmp_path: Path) -> None:
    page, gateways = visit(""), [site.gateway, second]
    log_in(page, admin)
    first = make_key(page, admin, model="plain")
    snippets = read_snippets(page)
    assert is_well_formed(first)
    assert all(first in text and site.url in text for text in snippets.values())
    assert copied(page) == first
    own_page = assert_gone(page, first)
    assert run(snippets, tmp_path).count("Alpen") == 3  # one answer per SDK and wire format

    page.goto(own_page)
    rotate = page.locator('a[href$="/rotate/"]')
    rotate.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(rotate).to_be_focused()
    rotate.click()
    expect(page.locator('input[name="grace"][value="86400"]')).to_be_checked()
    second_secret = press(page).locator("#hb-secret").inner_text()
    assert second_secret not in ("•••", first)
    assert assert_gone(page, second_secret) == own_page
    assert [status(gateway, secret) for gateway in gateways for secret in (first, second_secret)] == [200] * 4

    page.goto(own_page)
    page.locator('a[href$="/end-old-secret/"]').click()
    press(page)
    wait_until_refused(gateways, first)
    assert [status(gateway, second_secret) for gateway in gateways] == [200, 200]

    page.locator('a[href$="/revoke/"]').click()
    press(page)
    wait_until_refused(gateways, second_secret)
    wait_until_both_are_used(site)
    assert told_of(site, own_page) == [["revoked_at"], ["previous_until"], ["digest", "previous_until", "shown"]]


def log_in(page: Page, admin: Gateway) -> None:
    page.goto(f"{admin.url}/admin/")
    page.locator("#id_username").fill("root")
    page.locator("#id_password").fill(PASSWORD)
    page.locator("#id_password").press("Enter")
    expect(page.locator('a[href="/admin/billing/apikey/"]').first).to_be_visible()


def make_key(page: Page, admin: Gateway, model: str) -> str:
    page.goto(f"{admin.url}/admin/billing/apikey/add/")
    page.locator("#id_account").select_option(label="northwind")
    page.locator("#id_name").fill("made-here")
    page.locator("#id_allowed_models").fill(model)
    page.locator("#id_requests_per_minute").fill("600")
    page.locator('[name="_save"]').click()
    return page.locator("#hb-secret").inner_text()


def read_snippets(page: Page) -> dict[str, str]:
    """The text below each tab, the tabs walked with the arrow key."""
    tabs, found = page.get_by_role("tab"), {}
    tabs.first.focus()
    for _ in range(tabs.count()):
        panel = page.locator("[data-tab]:visible")
        expect(panel).to_have_count(1)
        found[str(panel.get_attribute("id")).removeprefix("hb-panel-")] = panel.locator("pre").inner_text()
        page.keyboard.press("ArrowRight")
    assert len(found) == 6
    return found


def copied(page: Page) -> str:
    page.locator('[data-copy="hb-secret"]').click()
    expect(page.locator("[data-status]")).not_to_be_empty()
    return str(page.evaluate("navigator.clipboard.readText()"))


def assert_gone(page: Page, secret: str) -> str:
    """Reload, Back and Forward show no secret any more; returns the address of the key's own page."""
    assert not overflows(page)
    page.reload()
    expect(page.locator("#hb-secrets")).to_be_visible()
    own_page = page.url
    for step in (page.go_back, page.go_forward):
        assert secret not in page.content()
        step()
    assert secret not in page.content()
    return own_page


def press(page: Page) -> Page:
    """The button of a question."""
    page.locator('form.hb-ask button[type="submit"]').click()
    page.wait_for_load_state()
    return page


def run(snippets: dict[str, str], folder: Path) -> str:
    """Run the Python snippets as they stand, and return what they print; one process, for imports take a second."""
    program = folder / "snippets.py"
    program.write_text("\n".join(text for name, text in snippets.items() if name.startswith("python")))
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def status(gateway: Gateway, secret: str) -> int:
    return httpx.get(f"{gateway.url}/v1/models", headers={"authorization": f"Bearer {secret}"}).status_code


def wait_until_refused(gateways: list[Gateway], secret: str) -> None:
    """By all processes, within seconds."""
    deadline = time.monotonic() + SOON_S
    while [status(gateway, secret) for gateway in gateways] != [401] * len(gateways):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def wait_until_both_are_used(site: Site) -> None:
    """Which secret was last used when is written every few seconds, for each of them."""
    wanted = "SELECT 1 FROM billing_apikey WHERE last_used_at IS NOT NULL AND previous_used_at IS NOT NULL"
    deadline = time.monotonic() + SOON_S
    while not site.installation.query(f"{wanted} AND name = 'made-here'"):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def told_of(site: Site, own_page: str) -> list[list[str]]:
    """The columns of the key's last three changes, by root, as the audit log has them."""
    key_id = own_page.split("/")[-3]
    rows = site.installation.query(
        "SELECT who, changes FROM billing_auditentry WHERE \"table\" = 'billing.apikey'"
        f" AND object_id = '{int(key_id)}' ORDER BY id DESC LIMIT 3"
    )
    assert {who for who, _ in rows} == {"root"}
    return [sorted(changes if isinstance(changes, dict) else json.loads(changes)) for _, changes in rows]
