"""What Ctrl/⌘ K finds, and for whom."""

from __future__ import annotations

import datetime as dt
import re
from html import unescape

import pytest
from django.urls import reverse
from django.utils.translation import override
from pytest_django import DjangoAssertNumQueries

from billing import keys
from billing.admin.display import change_url
from billing.models import Attempt
from hopbase_site.navigation import GROUPS
from tests.billing.admin_site import Login
from tests.billing.admin_world import World

pytestmark = pytest.mark.django_db
PAGES = [(title, name) for _group, pages in GROUPS for title, _icon, name, _right in pages]


def links(login: Login, term: str, who: str = "root", language: str = "en") -> list[str]:
    page = login(who).get("/admin/search/", {"s": term, "extended": "1"}, headers={"accept-language": language})
    assert page.status_code == 200
    return re.findall(r'href="([^"]+)"', unescape(page.text))


@pytest.mark.parametrize("language", ["en", "zh-hant"])
def test_every_page_is_found(login: Login, language: str) -> None:
    for title, name in PAGES:
        with override(language):
            term = str(title).upper()
        assert reverse(f"admin:{name}") in links(login, term, language=language), term


def test_words_are_those_of_the_viewer_now(login: Login) -> None:
    assert links(login, "Statement") == [reverse("admin:statement")]
    assert links(login, "Statement", language="zh-hant") == []


@pytest.mark.parametrize(("term", "said"), [("對帳單", "找到：1"), ("沒有的", "找不到。請輸入頁面名稱")])
def test_what_was_found_is_said(login: Login, term: str, said: str) -> None:
    assert said in login("root").get("/admin/search/", {"s": term}, headers={"accept-language": "zh-hant"}).text


@pytest.mark.parametrize("term", ["production", "northwind/prod", "NORTHWIND"])
def test_key_is_found_by_account_and_name(login: Login, world: World, term: str) -> None:
    assert change_url(world.key) in links(login, term)


def test_key_is_found_by_what_is_shown(login: Login, world: World) -> None:
    before = world.key.shown
    new = keys.rotate(world.key, dt.timedelta(hours=1))
    world.key.refresh_from_db()
    assert world.key.shown != before
    for term in (before, before.rstrip("…"), world.key.shown, new[:15]):
        assert links(login, term) == [change_url(world.key)]


def test_request_is_found_by_any_exact_id(login: Login, world: World) -> None:
    Attempt.objects.filter(record=world.record, number=2).update(provider_request_id="chatcmpl-AbC")
    for term in (world.record.request_name, str(world.record.pk), " chatcmpl-AbC "):
        assert links(login, term) == [change_url(world.record)]
    assert links(login, world.record.request_name[:-1]) == []


def test_stream_and_invoice_are_found(login: Login, world: World) -> None:
    assert links(login, world.stream.request_name) == [change_url(world.stream)]
    assert change_url(world.open) in links(login, world.open.number or "")


def test_nobody_finds_what_they_may_not_see(login: Login, world: World) -> None:
    terms = ("Keys", "production", world.record.request_name, world.stream.request_name, world.open.number or "")
    assert [found for term in terms for found in links(login, term, "nobody")] == []
    assert links(login, "Configuration", "finance") == []


@pytest.mark.parametrize("term", ["", " ", "\x00", "no such thing"])
def test_nothing_is_found(login: Login, world: World, term: str) -> None:
    assert links(login, term) == []


def test_queries_are_few(login: Login, world: World, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for number in range(20):
        keys.create(world.northwind, f"another {number}")
    client = login("finance")
    client.get("/admin/search/?s=a")
    with django_assert_num_queries(9):
        found = client.get("/admin/search/?s=another").context["results"]
    assert len(found) == 10
