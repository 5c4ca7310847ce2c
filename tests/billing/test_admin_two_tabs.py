"""Two people on the same page: who saves last takes nothing back unseen."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.http import HttpResponse
from django.urls import reverse
from django.utils.timezone import now

from billing import keys
from billing.models import Account, ApiKey
from billing.money import parse
from streaming.models import Model, Provider, Route
from tests.billing.admin_site import Login
from tests.billing.admin_world import World

pytestmark = pytest.mark.django_db
SAID = "Somebody has changed this to %s since the page was opened. Save again to keep yours."


def marks(page: HttpResponse) -> dict[str, str]:
    """The hidden fields of a page that say what it shows."""
    found = re.findall(r'<input type="hidden" name="([\w-]*as_shown)" value="([^"]*)"', page.text)
    return {name: unescape(value) for name, value in found}


def key_page(key: ApiKey) -> str:
    return reverse("admin:billing_apikey_change", args=[key.pk])


def key_form(page: HttpResponse, **fields: str) -> dict[str, str]:
    return {"name": "production", "requests_per_minute": "600", "monthly_budget_nanos": "100", **marks(page), **fields}


def test_change_of_another_is_not_taken_back(login: Login, world: World) -> None:
    client = login("operator")
    opened = client.get(key_page(world.key))
    world.key.monthly_budget_nanos = parse("2.5")
    world.key.save(update_fields=["monthly_budget_nanos"])
    told = client.post(key_page(world.key), key_form(opened, concurrency="7"))
    assert told.context["adminform"].form.errors == {"monthly_budget_nanos": [SAID % "2.5"]}
    assert 'value="7"' in told.text
    assert ApiKey.objects.get(pk=world.key.pk).monthly_budget_nanos == parse("2.5")
    assert client.post(key_page(world.key), key_form(told, concurrency="7")).status_code == 302
    key = ApiKey.objects.get(pk=world.key.pk)
    assert (key.monthly_budget_nanos, key.concurrency) == (parse("100"), 7)


def test_what_the_page_does_not_hold_may_change(login: Login, world: World) -> None:
    client = login("operator")
    opened = client.get(key_page(world.key))
    keys.rotate(world.key, now() - now())
    assert client.post(key_page(world.key), key_form(opened, concurrency="7")).status_code == 302


def test_same_change_twice_is_none(login: Login, world: World) -> None:
    client = login("operator")
    opened = client.get(key_page(world.key))
    for _person in range(2):
        assert client.post(key_page(world.key), key_form(opened, concurrency="7")).status_code == 302


def test_route_of_the_inline_stays_disabled(login: Login, world: World) -> None:
    client, route = login("operator"), Route.objects.get()
    url = reverse("admin:streaming_model_change", args=[route.model_id])
    opened = client.get(url)
    route.active = False
    route.save(update_fields=["active"])
    data = {
        "name": route.model.name, "stall_seconds": "120", "total_timeout_s": "900", "active": "on",
        "routes-TOTAL_FORMS": "1", "routes-INITIAL_FORMS": "1", "routes-0-id": str(route.pk),
        "routes-0-model": str(route.model_id), "routes-0-provider": str(route.provider_id),
        "routes-0-upstream_model": "sol-large", "routes-0-priority": "0", "routes-0-weight": "1",
        "routes-0-active": "on",
    }  # fmt: skip
    told = client.post(url, {**data, **marks(opened)})
    assert SAID % "no" in unescape(told.text)
    assert not Route.objects.get().active
    assert Model.objects.get(pk=route.model_id).total_timeout_s == 600
    assert client.post(url, {**data, **marks(told)}).status_code == 302
    assert Route.objects.get().active


@pytest.mark.parametrize("table", [Account, ApiKey, Model, Provider, Route])
def test_every_page_is_marked(login: Login, world: World, table: type) -> None:
    row = table.objects.first()  # type: ignore[attr-defined]
    url = reverse(f"admin:{table._meta.app_label}_{table._meta.model_name}_change", args=[row.pk])  # type: ignore[attr-defined]
    assert "as_shown" in marks(login("root").get(url))


def test_mark_tells_no_more_than_the_page(login: Login, world: World) -> None:
    url = reverse("admin:streaming_provider_change", args=[world.provider.pk])
    assert "as_shown" not in login("finance").get(url).text


@pytest.mark.parametrize("mark", ["", "{", "[]", '{"name": 1}', "[" * 100_000])
def test_odd_marks_harm_nothing(login: Login, world: World, mark: str) -> None:
    response = login("operator").post(key_page(world.key), {"name": "production", "as_shown": mark})
    assert response.status_code == 302
