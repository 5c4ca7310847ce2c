"""How providers, models and routes fare, on their pages: states, last attempts, requests of a day, missing prices."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import asdict
from typing import Any

import orjson
import pytest
import redis
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.timezone import now

from billing import rollups
from billing.models import Attempt
from billing.usage import TokenUsage
from streaming import route_states
from streaming.admin import standing
from streaming.health import RouteState
from streaming.models import Model, Provider, Route, take_out
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import make_record

pytestmark = pytest.mark.django_db
PROVIDERS, MODELS, ROUTES = (f"/admin/streaming/{name}/" for name in ("provider", "model", "route"))


def attempt(world: World, number: int, outcome: str, minutes_ago: int, **fields: Any) -> Attempt:
    return Attempt.objects.create(
        record=world.record, number=number, provider="acme-cloud", upstream_model="sol-large", outcome=outcome,
        started_at=now() - dt.timedelta(minutes=minutes_ago), duration_ms=10, **fields,
    )  # fmt: skip


def queries(client: Client, url: str) -> int:
    client.get(url)
    with CaptureQueriesContext(
        connection,
    ) as found:
        assert client.get(url).status_code == 200
    return len(found)


def cell(client: Client, url: str, row: Any, column: str) -> str:
    page = client.get(url).context["cl"]
    shown = next(each for each in page.result_list if each.pk == row.pk)
    return str(getattr(page.model_admin, column)(shown))


def test_provider_shows_last_success_and_failure(login: Login, world: World) -> None:
    Attempt.objects.all().delete()
    client = login("operator")
    assert "None among the last 200" in cell(client, PROVIDERS, world.provider, "last_success")
    attempt(world, 11, "answered", 50)
    attempt(world, 12, "timed_out", 40)
    attempt(world, 13, "client_left", 1)
    assert "50 minutes" in cell(client, PROVIDERS, world.provider, "last_success").replace("\xa0", " ")
    assert "40 minutes" in cell(client, PROVIDERS, world.provider, "last_failure").replace("\xa0", " ")


def test_lists_look_no_further_than_their_window(login: Login, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    Attempt.objects.all().delete()
    monkeypatch.setattr(standing, "LOOKED_THROUGH", 2)
    for number, outcome in enumerate(("failed", "answered", "answered"), 1):
        attempt(world, number, outcome, 60 - number)
    assert "None among" in cell(login("operator"), PROVIDERS, world.provider, "last_failure")


def test_routes_in_and_out_are_counted(login: Login, world: World, settings: Any, valkey: str) -> None:
    settings.VALKEY_URL = valkey
    client = login("operator")
    route = Route.objects.get()
    assert "1 in" in cell(client, PROVIDERS, world.provider, "route_health")
    state = RouteState(failures=3, level=1, until=time.time() + 40, since=time.time(), reason="status 503")
    with redis.Redis.from_url(valkey) as shared:
        shared.hset(route_states.KEY, str(route.pk), orjson.dumps(asdict(state)))
    assert "0 in, 1 cooling down" in cell(client, MODELS, world.model, "route_health")
    take_out(route.pk, "status 401")
    assert "0 in, 1 out" in cell(client, PROVIDERS, world.provider, "route_health")
    assert "0 in, 1 out" in cell(client, MODELS, world.model, "route_health")


def test_lists_ask_as_often_for_many_rows(login: Login, world: World) -> None:
    client = login("operator")
    before = [queries(client, url) for url in (PROVIDERS, MODELS, ROUTES)]
    for number in range(5):
        provider = Provider.objects.create(name=f"p{number}", base_url="http://p.test/v1", wire_formats=["messages"])
        Route.objects.create(model=Model.objects.create(name=f"m{number}"), provider=provider, upstream_model="u")
    assert [queries(client, url) for url in (PROVIDERS, MODELS, ROUTES)] == before
    assert max(before) <= 14


def test_finance_sees_providers_names_alone(login: Login, world: World) -> None:
    page = login("finance").get(PROVIDERS)
    assert page.context["cl"].list_display == ("name",)
    assert "acme.test" not in page.text


def test_model_counts_a_days_requests(login: Login, world: World) -> None:
    moment = now()
    for hours in (2, 3, 30):
        make_record(world.key, moment - dt.timedelta(hours=hours), TokenUsage(input=1), model="gpt-5.6-sol")
    rollups.rebuild_due()
    shown = cell(login("operator"), MODELS, world.model, "requests_figure")
    assert ">4<" in shown  # two of the world's own, of this hour, and two of ours


def test_routes_stand_on_the_models_page(login: Login, world: World) -> None:
    Attempt.objects.all().delete()
    for number in range(1, 24):
        attempt(world, number, "failed" if number == 22 else "answered", 30 - number, reason="status 529 overloaded")
    route = Route.objects.get()
    take_out(route.pk, "status 401")
    text = login("operator").get(reverse("admin:streaming_model_change", args=[world.model.pk])).text
    assert "19 of 20 answered" in text
    assert "last: status 529 overloaded" in text
    assert "status 401" in text
    assert reverse("admin:streaming_route_reset", args=[route.pk]) in text


def test_reset_names_since_when_and_leads_back(login: Login, world: World) -> None:
    route = Route.objects.get()
    take_out(route.pk, "status 401")
    back = reverse("admin:streaming_model_change", args=[world.model.pk])
    url = reverse("admin:streaming_route_reset", args=[route.pk]) + f"?next={back}"
    client = login("operator")
    text = client.get(url).text
    assert "Out since" in text
    assert "(status 401)" in text
    assert client.post(url)["Location"] == back
    for other in ("https://evil.test/", "models"):
        assert client.post(url.replace(back, other))["Location"].startswith("/admin/streaming/route/")


def test_missing_price_is_marked_everywhere(login: Login, world: World) -> None:
    Route.objects.create(model=Model.objects.get(name="unpriced-model"), provider=world.provider, upstream_model="u")
    client = login("operator")
    for url in (MODELS, ROUTES):
        assert client.get(url).text.count("no price") == 1, url
    assert "Models without a price" in client.get("/admin/").text
    key = world.key
    key.allowed_models = ["gpt-5.6-sol", "unpriced-model"]
    key.save()
    assert client.get(reverse("admin:billing_apikey_change", args=[key.pk])).text.count("no price") == 1
