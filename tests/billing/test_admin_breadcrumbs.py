"""The way that a page's head shows is the sidebar's: group, entry, object."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse
from django.utils.html import strip_tags
from django.utils.translation import override

from hopbase_site.navigation import GROUPS
from tests.billing.admin_site import Login
from tests.billing.admin_world import World

pytestmark = pytest.mark.django_db

ENTRIES = [(group, title, name) for group, pages in GROUPS for title, _icon, name, _permission in pages]


def way(login: Login, url: str, language: str = "en") -> list[str]:
    """The parts of the way in the head of a page."""
    client = login("root")
    client.cookies["django_language"] = language
    page = client.get(url)
    assert page.status_code == 200
    head = re.search(r"<h1.*?</h1>", page.content.decode(), re.DOTALL)
    assert head is not None
    parts = strip_tags(head[0].replace("</span>", "</span>\n").replace("</a>", "</a>\n")).split("\n")
    return [text for part in parts if (text := part.strip()) not in ("", "chevron_right")]


@pytest.mark.parametrize("language", ["en", "zh-hant"])
def test_entries_stand_in_their_group(login: Login, world: World, language: str) -> None:
    for group, title, name in ENTRIES:
        with override(language):
            wanted = [str(group), str(title)]
        assert way(login, reverse(f"admin:{name}"), language) == wanted, name


def test_object_follows_its_entry(login: Login, world: World) -> None:
    assert way(login, reverse("admin:billing_apikey_rotate", args=[world.key.pk])) == [
        "Gateway", "Keys", "northwind/production",
    ]  # fmt: skip
    proof = reverse("admin:invoice_prove", args=[world.open.pk])
    assert way(login, proof) == ["Money", "Invoices", f"Prove it: {world.open.number}"]


def test_page_without_entry_keeps_its_name(login: Login, world: World) -> None:
    assert way(login, reverse("admin:index")) == ["Home"]
    assert way(login, reverse("admin:billing_savedview_changelist")) == ["Money", "Saved views"]
