"""What a deployment installs is enough, not more than needed, and under licences that may be used as we do."""

import re

import pytest

from tests import packages

ALLOWED = re.compile(r"BSD|MIT|Apache|Python Software Foundation|PSF|MPL|LGPL|Unlicense|OFL|ZPL|TCL", re.IGNORECASE)
FORBIDDEN = re.compile(r"AGPL|Affero|(?<!L)GPL|(?<!Lesser )General Public", re.IGNORECASE)
PINNED = packages.pinned()


def test_versions_are_exact():
    assert [name for name, one in PINNED.items() if not re.fullmatch(r"==[^*,]+", str(one.specifier))] == []


def test_imports_are_pinned():
    assert [module for module in sorted(packages.imported()) if not packages.packages_of(module) & PINNED.keys()] == []


def test_pins_are_complete():
    """A deployment installs without dependencies: the pins are all that its packages need in turn."""
    assert packages.needed(PINNED) - PINNED.keys() == set()


def test_pins_are_needed():
    roots = {name for module in packages.imported() for name in packages.packages_of(module)} & PINNED.keys()
    assert PINNED.keys() - packages.needed(roots) == set()


def may_be_used(licence):
    """MIT, BSD, Apache, MPL, LGPL and their like. Of a choice ("GPL or MIT") one is enough."""
    choices = re.split(r" or ", licence, flags=re.IGNORECASE)
    return any(ALLOWED.search(choice) and not FORBIDDEN.search(choice) for choice in choices)


@pytest.mark.parametrize(
    ("said", "may"),
    [
        ("GPL-3.0-only", False),
        ("MIT AND GPL-2.0-or-later", False),
        ("GNU Affero General Public License v3", False),
        ("UNKNOWN", False),
        ("", False),
        ("GPL-2.0-only OR MIT", True),
        ("GNU Lesser General Public License v3 (LGPLv3)", True),
    ],
)
def test_licences_are_told_apart(said, may):
    assert may_be_used(said) is may


def test_licences_may_be_used():
    assert [name for name in PINNED if not may_be_used(packages.licence(name))] == []


def test_licences_page_is_current():
    assert (packages.ROOT / "docs/operations/licences.md").read_text() == packages.page()
