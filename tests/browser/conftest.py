"""One product and one browser for all tests in this folder, and a page for each kind of user.

    def test_operator_sees_it(operator: Page, site: Site) -> None:
        operator.goto("/admin/billing/usagerecord/")

`root`, `operator`, `finance`, `nobody`, `stranger` (not logged in) are pages; `visit("finance", width=390)` opens more.
`language` (en, zh-hant), `theme` (light, dark) and `width` are fixtures that a test may parametrize:

    @pytest.mark.parametrize("language", ["en", "zh-hant"])

A test fails on any error in a page's console; one that causes such errors clears `visit.faults`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests import settings
from tests.browser import stage
from tests.browser.stage import Site, Visits
from tests.conftest import postgresql_database
from tests.end_to_end import scenes
from tests.end_to_end.product import Gateway, Installation
from tests.end_to_end.provider import Provider

expect.set_options(timeout=15_000)  # a busy machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if stage.CHROMIUM is None:
        for item in items:
            if item.nodeid.startswith("tests/browser/"):
                item.add_marker(pytest.mark.skip(reason=stage.NO_CHROMIUM))


@pytest.fixture(scope="package")
def database_url() -> Iterator[str]:
    """One database for the package: PostgreSQL in that run, else "" for the default file."""
    if settings.POSTGRESQL:
        yield from postgresql_database(settings.postgresql_url())
    else:
        yield ""


@pytest.fixture(scope="package")
def provider() -> Iterator[Provider]:
    with Provider(scenes.stage({})) as running:
        yield running


@pytest.fixture(scope="package")
def installation(database_url: str, provider: Provider) -> Iterator[Installation]:
    made = Installation(database_url, role="all", PROVIDER_KEY=stage.PROVIDER_KEY)
    try:
        made.migrate()
        made.apply(stage.configuration(provider.base_url))
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="package")
def site(installation: Installation, provider: Provider) -> Iterator[Site]:
    """Gateway and admin in one process, and everybody's session."""
    sessions = stage.log_everybody_in(installation)
    with installation.serving("uvicorn") as gateway:
        yield Site(installation, provider, gateway, sessions)


@pytest.fixture(scope="package")
def second(site: Site) -> Iterator[Gateway]:
    """Another gateway process of the same installation."""
    with site.installation.serving("uvicorn", "--role", "gateway") as gateway:
        yield gateway


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with stage.chromium() as running:
        yield running


@pytest.fixture
def language() -> str:
    return "en"


@pytest.fixture
def theme() -> str:
    return "light"


@pytest.fixture
def width() -> int:
    return 1440


@pytest.fixture
def visit(browser: Browser, site: Site, language: str, theme: str, width: int) -> Iterator[Visits]:
    visits = Visits(browser, site, language, theme, width)
    yield visits
    visits.close()
    assert visits.faults == []


@pytest.fixture
def root(visit: Visits) -> Page:
    return visit("root")


@pytest.fixture
def operator(visit: Visits) -> Page:
    return visit("operator")


@pytest.fixture
def finance(visit: Visits) -> Page:
    return visit("finance")


@pytest.fixture
def nobody(visit: Visits) -> Page:
    return visit("nobody")


@pytest.fixture
def stranger(visit: Visits) -> Page:
    return visit("")
