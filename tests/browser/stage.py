"""What the browser tests play on: the product with a fake provider behind it, its users, and a Chromium.

Django's tables are out of reach in these tests: Playwright runs an event loop in the test's own thread. Read them with
`site.installation.query`, change them with `run_inside`.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.end_to_end.product import Gateway, Installation
from tests.end_to_end.provider import Provider

BROWSERS = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
NO_CHROMIUM = "no Chromium on this machine; on Debian: apt-get install chromium"
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
)  # fmt: skip

PROVIDER_KEY = "sk-provider-7f3a9c1e5b-walrus"
KEYS = {"production": "sk-test-production-0123456789abcdef", "batch": "sk-test-batch-0123456789abcdef"}
"""Two keys of the account northwind."""
MODELS = ("plain", "endless", "paced", "never", "quiet", "fails", "refuses")
"""Models, each named after the scene that the fake provider plays (`tests.end_to_end.scenes`)."""
PRICE = {"input": 5, "cache_read": 0.5, "cache_write": 6.25, "cache_write_1h": 10, "output": 30}
USERS = ("root", "operator", "finance", "nobody")
HEIGHTS = {1440: 900, 390: 844}

MAKE_USERS = """
import json
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.conf import settings
from tests.billing.admin_world import make_users

def session_of(user):
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[-1]
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return session.session_key

print(json.dumps({name: session_of(user) for name, user in make_users().items()}))
"""


@dataclass
class Site:
    """The product with its gateway and admin, and the session of each user (`USERS`) by name."""

    installation: Installation
    provider: Provider
    gateway: Gateway
    sessions: dict[str, str]

    @property
    def url(self) -> str:
        return self.gateway.url


@dataclass
class Visits:
    """Opens pages as any user. What a page complains of in its console ends up in `faults`."""

    browser: Browser
    site: Site
    language: str
    theme: str
    width: int
    faults: list[str] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)

    def __call__(self, user: str, **chosen: Any) -> Page:
        """A page of a user's own browser, not opened yet; "" is nobody logged in. `chosen`: language, theme, width."""
        look = {"language": self.language, "theme": self.theme, "width": self.width, **chosen}
        context = self.browser.new_context(
            base_url=self.site.url,
            locale={"en": "en-US", "zh-hant": "zh-TW"}[look["language"]],
            color_scheme=look["theme"],
            viewport={"width": look["width"], "height": HEIGHTS.get(look["width"], 900)},
            permissions=["clipboard-read", "clipboard-write"],
        )
        self.contexts.append(context)
        context.set_default_timeout(15_000)
        cookies = {"django_language": look["language"]}
        if user:
            cookies["sessionid"] = self.site.sessions[user]
        context.add_cookies([{"name": name, "value": value, "url": self.site.url} for name, value in cookies.items()])
        page = context.new_page()
        page.on("console", self._listen)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        return page

    def _listen(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(f"{message.text} {message.location.get('url', '')}")

    def close(self) -> None:
        for context in self.contexts:
            context.close()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A running Chromium, for all tests of the package: starting one costs a second."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


def run_inside(installation: Installation, code: str) -> str:
    """Run Python inside the product's own installation, with Django set up; returns what it printed.

    The code may import `tests.billing.factories` and its like.
    """
    script = f"import django; django.setup()\n{code}"
    path = installation.folder / "inside.py"
    path.write_text(script)
    ended = installation.run(sys.executable, str(path))
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def log_everybody_in(installation: Installation) -> dict[str, str]:
    """Make the users, with their sessions; a login form would cost each a third of a second."""
    sessions: dict[str, str] = json.loads(run_inside(installation, MAKE_USERS).splitlines()[-1])
    return sessions


def configuration(base_url: str) -> dict[str, Any]:
    """A provider, a model for each scene, their prices, an account with two keys."""
    keys = [{"name": name, "secret": secret} for name, secret in KEYS.items()]
    wire_formats = ["chat_completions", "responses", "messages"]
    provider = {"name": "acme", "base_url": base_url, "api_key": "${PROVIDER_KEY}", "wire_formats": wire_formats}
    begin = "2026-01-01T00:00:00Z"
    return {
        "providers": [provider],
        "models": [{"name": name, "routes": [{"provider": "acme", "upstream_model": name}]} for name in MODELS],
        "prices": [
            {"model": name, "effective_from": begin, "currency": "USD", "per_million": PRICE} for name in MODELS
        ],
        "accounts": [{"name": "northwind", "timezone": "Asia/Taipei", "currency": "USD", "keys": keys}],
    }


def overflows(page: Page) -> bool:
    """Whether the page is wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def screenshot(page: Page, folder: Path, name: str) -> None:
    """Keep how a page looks, for people."""
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png", full_page=True)
