"""The documents are complete: every setting and every error code that exists is in them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = (ROOT / "hopbase_site/settings.py").read_text()
SETTINGS_PAGE = (ROOT / "docs/operations/settings.md").read_text()


def read_settings():
    return sorted(set(re.findall(r'environment\.\w+\(\s*"([A-Z_]+)"', SETTINGS)))


def test_settings_are_found():
    assert {"SECRET_KEY", "DATABASE_URL", "HOPBASE_KEEPALIVE_S"} <= set(read_settings())


@pytest.mark.parametrize("name", read_settings())
def test_setting_is_documented(name):
    assert f"`{name}`" in SETTINGS_PAGE


def test_documented_settings_exist():
    documented = set(re.findall(r"`(HOPBASE_[A-Z_]+)`", SETTINGS_PAGE))
    assert documented <= {*read_settings(), "HOPBASE_ENV_FILE", "HOPBASE_ROLE"}


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize(
    "page", [*sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")), "README.md"]
)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text())
    broken = [link for link in links if "://" not in link and not ((ROOT / page).parent / link).exists()]
    assert not broken
