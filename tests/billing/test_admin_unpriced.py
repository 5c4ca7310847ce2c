"""Unpriced: what blocks the invoices, and rating it once there is a price."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.html import escape
from pytest_django import DjangoAssertNumQueries

from billing import unpriced
from billing.models import AuditEntry, Invoice, UsageRecord
from billing.money import parse
from tests.billing.admin_site import Login
from tests.billing.admin_world import World, make_price
from tests.billing.factories import make_record, price, utc
from tests.billing.test_admin_access import rate_url

pytestmark = pytest.mark.django_db

LIST = "admin:unpriced"


def question(client: Client, url: str, data: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    """What is asked, and the form to confirm it with."""
    response = client.post(url, data) if data else client.get(url)
    assert response.status_code == 200
    return response.context["question"], dict(response.context["form"].data)


def test_list_names_what_waits(login: Login, world: World) -> None:
    page = login("finance").get(reverse(LIST)).text
    assert "unpriced-model" in page
    assert escape("no price for model unpriced-model") in page
    assert rate_url(world.unpriced).replace("&", "&amp;") in page
    assert rate_url(world.unpriced).replace("&", "&amp;") not in login("operator").get(reverse(LIST)).text


def test_empty_list_says_so(login: Login) -> None:
    assert "Every request has its price" in login("finance").get(reverse(LIST)).text


def test_nothing_can_be_rated_without_a_price(login: Login, world: World) -> None:
    client, url = login("finance"), rate_url(world.unpriced)
    asked, data = question(client, url)
    assert asked == "No record of unpriced-model can be rated so far."
    assert question(client, url, data)[0] == asked
    assert UsageRecord.objects.get(pk=world.unpriced.pk).unpriced


def test_rating_is_seen_before_it_is_done(login: Login, world: World) -> None:
    make_price("unpriced-model", currency="TWD", input=parse(1000), output=parse(2000))
    client, url = login("finance"), rate_url(world.unpriced)
    asked, data = question(client, url)
    # 14 in, 52 out: 0.118, in TWD's two places
    assert asked == "Rate 1 record with unpriced-model@2026-01-01T00:00:00Z: TWD 0.12?"
    response = client.post(url, data, follow=True)
    assert "1 record is rated: TWD 0.12." in response.text
    world.unpriced.refresh_from_db()
    assert (world.unpriced.unpriced, world.unpriced.cost_nanos) == (False, parse("0.118"))
    world.draft.refresh_from_db()
    assert world.draft.unpriced == 0
    entry = AuditEntry.objects.filter(who="finance", message__startswith="rated 1 records of unpriced-model").get()
    assert entry.table == "billing.price"
    assert "Nothing is left to rate" in client.get(url, follow=True).text


def test_other_version_is_seen_first(login: Login, world: World) -> None:
    make_price("unpriced-model", currency="TWD")
    later = make_price("unpriced-model", utc(2999, 1, 1), currency="TWD", input=parse(10_000_000))
    client, url = login("finance"), rate_url(world.unpriced)
    _, data = question(client, url)
    asked, data = question(client, url, {**data, "version": later.label})
    assert asked == f"Rate 1 record with {later.label}: TWD 140.00?"
    client.post(url, data)
    world.unpriced.refresh_from_db()
    assert world.unpriced.price_version == later.label


def test_changed_price_is_seen_first(login: Login, world: World) -> None:
    kept = make_price("unpriced-model", currency="TWD", input=parse(1))
    client, url = login("finance"), rate_url(world.unpriced)
    _, data = question(client, url)
    kept.input = parse(1_000_000)
    kept.save()
    assert "TWD 14." in question(client, url, data)[0]
    assert UsageRecord.objects.get(pk=world.unpriced.pk).unpriced


def test_two_currencies_are_not_added(login: Login, world: World) -> None:
    make_record(world.key, world.unpriced.ended_at, model="unpriced-model", version=price("another"))
    make_price("unpriced-model", currency="TWD")
    response = login("finance").get(rate_url(world.unpriced))
    assert "in TWD, the account&#x27;s currency is USD" in response.text


@pytest.mark.parametrize("changes", [{"until": "yesterday"}, {"until": "2026-11-01T00:00:00"}, {"version": "x@y"}])
def test_forged_forms_are_refused(login: Login, world: World, changes: dict[str, str]) -> None:
    client, url = login("finance"), rate_url(world.unpriced)
    _, data = question(client, url)
    response = client.post(url, {**data, **changes}, follow=True)
    assert (response.redirect_chain, "Nothing was rated" in response.text) == ([(url, 302)], True)
    assert UsageRecord.objects.get(pk=world.unpriced.pk).unpriced


def test_list_needs_few_queries(login: Login, world: World, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for model in ("nova-1", "nova-2"):
        make_record(world.key, world.unpriced.ended_at, model=model, version=price("another"))
    with django_assert_num_queries(2):
        assert len(unpriced.waiting()) == 3
    assert Invoice.objects.filter(status="draft").exists()
