"""The door of the admin: who logs in gets where he wanted to, who may see nothing is told whom to ask."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.billing.admin_world import PASSWORD


def fill_in(page: Page, user: str, password: str) -> None:
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def test_login_leads_to_the_page_asked_for(stranger: Page) -> None:
    stranger.goto("/admin/billing/usagerecord/?period=7")
    expect(stranger).to_have_url(re.compile("/admin/login/"))
    fill_in(stranger, "operator", "wrong horse battery")
    expect(stranger.get_by_text("Please enter the correct username and password")).to_be_visible()
    fill_in(stranger, "operator", PASSWORD)
    expect(stranger).to_have_url(re.compile(r"/admin/billing/usagerecord/\?period=7$"))


def test_user_without_a_group_is_told_whom_to_ask(nobody: Page) -> None:
    nobody.goto("/admin/")
    expect(nobody.get_by_text("Ask root to put you into Operators or Finance.")).to_be_visible()
