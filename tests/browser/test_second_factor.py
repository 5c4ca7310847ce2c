"""A second factor: set up from the user's menu, asked for at the next login, turned off in a dialog."""

from __future__ import annotations

import re
import time
from base64 import b32decode

import pytest
from django_otp.oath import totp
from playwright.sync_api import Page, expect

from tests.billing.admin_world import PASSWORD
from tests.browser.stage import Site, Visits, overflows, run_inside

MAKE_USER = """
from django.contrib.auth.models import Group, User
from tests.billing.admin_world import PASSWORD
user = User.objects.create_user({name!r}, password=PASSWORD, is_staff=True)
user.groups.add(Group.objects.get(name="Operators"))
"""
WANTED = "/admin/billing/usagerecord/?period=7"


def log_in(page: Page, user: str, wanted: str) -> None:
    page.goto(f"/admin/login/?next={wanted}")
    page.locator('input[name="username"]').fill(user)
    page.locator('input[name="password"]').fill(PASSWORD)
    page.locator('#login-form button[type="submit"]').click()


def give(page: Page, code: str) -> None:
    page.locator('input[name="code"]').fill(code)
    page.locator('input[name="code"]').press("Enter")


@pytest.mark.parametrize(
    ("language", "width", "theme"), [("en", 1440, "light"), ("en", 390, "dark"), ("zh-hant", 390, "light")]
)
def test_second_factor_lives_and_ends(visit: Visits, site: Site, language: str, width: int, theme: str) -> None:
    user = f"otto-{language}-{width}"
    run_inside(site.installation, MAKE_USER.format(name=user))
    page = visit("")
    log_in(page, user, WANTED)
    expect(page).to_have_url(re.compile(re.escape(WANTED) + "$"))
    expect(page.locator('a[href="/admin/second-factor/"]').first).to_be_attached()  # in the user's menu

    page.goto("/admin/second-factor/")
    expect(page.locator("svg.hb-qr")).to_be_visible()
    assert not overflows(page)
    secret = page.locator("#hb-secret").inner_text().replace(" ", "")
    give(page, f"{totp(b32decode(secret)):06d}")
    shown = page.locator("#hb-codes")
    expect(shown).to_be_visible()
    recovery = shown.inner_text().split()
    assert len(recovery) == 10
    assert not overflows(page)
    page.reload()
    expect(page.locator('a[href$="/second-factor/off/"]')).to_be_visible()
    assert recovery[0] not in page.content()
    assert secret not in page.content()

    other = visit("")
    log_in(other, user, WANTED)
    expect(other).to_have_url(re.compile(r"/admin/second-factor/code/\?next="))
    assert not overflows(other)
    give(other, "not a code")
    expect(other.locator("#id_code")).to_have_value("not a code")
    time.sleep(1.1)  # as long as one failure makes one wait
    give(other, recovery[0])
    expect(other).to_have_url(re.compile(re.escape(WANTED) + "$"))

    page.locator('a[href$="/second-factor/off/"]').click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert not overflows(page)
    page.get_by_role("dialog").locator('input[name="code"]').fill(recovery[1])
    page.get_by_role("dialog").locator('button[type="submit"]').click()
    expect(page.locator("svg.hb-qr")).to_be_visible()
    log_in(visit(""), user, WANTED)
    expect(visit.contexts[-1].pages[0]).to_have_url(re.compile(re.escape(WANTED) + "$"))
