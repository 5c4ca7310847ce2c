"""Providers, models and routes: the credential goes in and never comes out."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from html import unescape
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from streaming import route_states
from streaming.credentials import decrypt
from streaming.health import RouteState
from streaming.models import Model, Provider, Route, take_out
from tests.billing.admin_site import Login
from tests.billing.admin_world import CREDENTIAL, World

pytestmark = pytest.mark.django_db
ADD = "/admin/streaming/provider/add/"


def form(**fields: object) -> dict[str, object]:
    return {
        "name": "acme-cloud",
        "base_url": "https://api.acme.test/v1",
        "auth": "bearer",
        "wire_formats": ["chat_completions", "messages"],
        "stored_objects": "refused",
        "ratelimit_headers": "pass",
        "active": "on",
        **fields,
    }


def page(provider: Provider) -> str:
    return reverse("admin:streaming_provider_change", args=[provider.pk])


def plain(provider: Provider) -> str:
    provider.refresh_from_db()
    return decrypt(provider.credential, settings.ENCRYPTION_KEYS)


def test_credential_is_kept_encrypted(login: Login) -> None:
    response = login("operator").post(ADD, form(new_credential="sk-new-credential"))
    assert response.status_code == 302, response.context["errors"]
    provider = Provider.objects.get()
    assert "sk-new-credential" not in provider.credential
    assert plain(provider) == "sk-new-credential"
    assert provider.wire_formats == ["chat_completions", "messages"]


def test_credential_never_comes_out(login: Login, world: World) -> None:
    client = login("root")
    pages = [
        page(world.provider),
        "/admin/streaming/provider/",
        reverse("admin:streaming_provider_history", args=[world.provider.pk]),
    ]
    faulty = client.post(page(world.provider), form(new_credential="sk-typed", base_url="ftp://x"))
    contents = [client.get(url).text for url in pages] + [faulty.text]
    for secret in (CREDENTIAL, world.provider.credential, "sk-typed"):
        assert all(secret not in content for content in contents)
    client.post(page(world.provider), form(new_credential="sk-typed"))
    assert all("sk-typed" not in str(entry) for entry in LogEntry.objects.values())


def test_empty_keeps_the_old_credential(login: Login, world: World) -> None:
    kept = world.provider.credential
    data = form(base_url="https://api.acme.test/v2", new_credential="")
    assert login("operator").post(page(world.provider), data).status_code == 302
    world.provider.refresh_from_db()
    assert (world.provider.base_url, world.provider.credential) == ("https://api.acme.test/v2", kept)


@pytest.mark.parametrize(
    "fields",
    [
        {"base_url": "http://api.acme.test/v1"},
        {"base_url": "https://evil.test/v1"},
        {"base_url": "https://api.acme.test:8443/v1"},
        {"auth": "x-api-key"},
    ],
)
def test_new_target_needs_the_credential_anew(login: Login, world: World, fields: dict[str, str]) -> None:
    client = login("operator")
    response = client.post(page(world.provider), form(**fields))
    assert "enter it anew" in str(response.context["adminform"].form.errors["new_credential"])
    world.provider.refresh_from_db()
    assert (world.provider.base_url, world.provider.auth) == ("https://api.acme.test/v1", "bearer")
    assert client.post(page(world.provider), form(**fields, new_credential="sk-other")).status_code == 302
    assert plain(world.provider) == "sk-other"


def test_same_target_written_otherwise(login: Login, world: World) -> None:
    data = form(base_url="HTTPS://API.acme.test:443/v1/")
    assert login("operator").post(page(world.provider), data).status_code == 302
    assert plain(world.provider) == CREDENTIAL


@pytest.mark.parametrize(
    "base_url",
    [
        "api.acme.test/v1",
        "ftp://api.acme.test/v1",
        "https://user:pw@api.acme.test/v1",
        "https://api.acme.test/v1?key=1",
        "https://api.acme.test/v1#top",
        "https://api.acme.test:99999/v1",
        "https:///v1",
        "https://api acme.test/v1",
        "https://[broken/v1",
    ],
)
def test_bad_urls_are_refused(login: Login, base_url: str) -> None:
    response = login("operator").post(ADD, form(base_url=base_url))
    assert response.status_code == 200
    assert "base_url" in response.context["adminform"].form.errors
    assert not Provider.objects.exists()


def test_credential_must_fit_a_header(login: Login) -> None:
    response = login("operator").post(ADD, form(new_credential="sk-鑰匙"))
    assert "new_credential" in response.context["adminform"].form.errors


def test_draining_needs_both_figures(login: Login) -> None:
    client = login("operator")
    assert client.post(ADD, form(drain_s="30")).status_code == 200
    assert "must be between 1 and" in client.post(ADD, form(drain_s="30", max_drains="0")).text
    assert client.post(ADD, form(drain_s="30", max_drains="50")).status_code == 302


def test_model_carries_its_routes(login: Login, world: World) -> None:
    inline = {
        "routes-TOTAL_FORMS": "1",
        "routes-INITIAL_FORMS": "0",
        "routes-0-provider": str(world.provider.pk),
        "routes-0-upstream_model": "up",
        "routes-0-priority": "0",
        "routes-0-weight": "1",
        "routes-0-active": "on",
    }
    fields = {"name": "gpt-new", "stall_seconds": "120", "total_timeout_s": "600", "active": "on"}
    response = login("operator").post("/admin/streaming/model/add/", {**fields, **inline})
    assert response.status_code == 302, response.context["errors"]
    assert Route.objects.get(model__name="gpt-new").upstream_model == "up"


def test_routes_cannot_be_deleted(login: Login, world: World) -> None:
    route = Route.objects.get()
    data = {
        "name": "gpt-5.6-sol", "stall_seconds": "120", "total_timeout_s": "600", "active": "on",
        "routes-TOTAL_FORMS": "1", "routes-INITIAL_FORMS": "1", "routes-0-id": str(route.pk),
        "routes-0-model": str(route.model_id), "routes-0-provider": str(world.provider.pk),
        "routes-0-upstream_model": "sol-large", "routes-0-priority": "0", "routes-0-weight": "1",
        "routes-0-DELETE": "on",
    }  # fmt: skip
    response = login("root").post(reverse("admin:streaming_model_change", args=[route.model_id]), data)
    assert response.status_code == 302
    route.refresh_from_db()
    assert not route.active


@pytest.mark.parametrize("seconds", ["60", "151"])
def test_stall_stays_in_its_range(login: Login, seconds: str) -> None:
    data = {"name": "m", "stall_seconds": seconds, "total_timeout_s": "600"}
    data |= {"routes-TOTAL_FORMS": "0", "routes-INITIAL_FORMS": "0"}
    response = login("operator").post("/admin/streaming/model/add/", data)
    assert "Choose from 90 to 150 seconds." in response.text
    assert not Model.objects.exists()


@pytest.mark.parametrize(
    ("field", "value", "said", "said_in_chinese"),
    [
        ("name", "gpt five", "'gpt five' has a space in it; a model's name has none", "含有空格"),
        ("name", "gpt\tfive", "has a space in it; a model's name has none", "含有空格"),
        ("total_timeout_s", "0", "must be between 1 and 86400, not 0", "須介於 1 與 86400 之間，而非 0"),
        ("total_timeout_s", "99999999999", "must be between 1 and 86400", "須介於 1 與 86400 之間"),
        ("routes-0-priority", "32768", "must be between 0 and 32767", "須介於 0 與 32767 之間"),
        ("routes-0-weight", "0", "must be between 1 and 32767", "須介於 1 與 32767 之間"),
    ],
)
def test_model_takes_what_the_file_takes(
    login: Login, world: World, field: str, value: str, said: str, said_in_chinese: str
) -> None:
    data = {
        "name": "m", "stall_seconds": "120", "total_timeout_s": "600", "routes-TOTAL_FORMS": "1",
        "routes-INITIAL_FORMS": "0", "routes-0-provider": str(world.provider.pk), "routes-0-upstream_model": "up",
        "routes-0-priority": "0", "routes-0-weight": "1", field: value,
    }  # fmt: skip
    client = login("operator")
    assert said in unescape(client.post("/admin/streaming/model/add/", data).text)
    chinese = client.post("/admin/streaming/model/add/", data, headers={"accept-language": "zh-Hant"})
    assert said_in_chinese in unescape(chinese.text)
    assert not Model.objects.filter(name__in=("m", value)).exists()


def test_model_keeps_the_name_that_others_bear(login: Login, world: World) -> None:
    """Keys' lists and prices are not renamed with it: customers would get 404, and an export could not be applied."""
    client, bare = login("root"), Model.objects.create(name="bare")
    forms = {"stall_seconds": "120", "total_timeout_s": "600", "active": "on"} | {
        f"routes-{name}_FORMS": "0" for name in ("TOTAL", "INITIAL")
    }
    for model, said in ((world.model, True), (bare, False)):
        answer = client.post(
            reverse("admin:streaming_model_change", args=[model.pk]), {**forms, "name": f"{model.name}-2"}, follow=True
        )
        assert ("Keys or prices name this model" in answer.text) is said
        assert Model.objects.filter(name=f"{model.name}-2").exists() is not said
    world.key.allowed_models = ["bare-2"]
    world.key.save()
    answer = client.post(reverse("admin:streaming_model_change", args=[bare.pk]), {**forms, "name": "bare"})
    assert "Keys or prices name this model" in answer.text


@pytest.mark.parametrize(("field", "value"), [("priority", "32768"), ("weight", "0"), ("weight", "99999999999")])
def test_route_takes_what_the_file_takes(login: Login, world: World, field: str, value: str) -> None:
    route = Route.objects.get()
    data = {
        "model": str(route.model_id), "provider": str(route.provider_id), "upstream_model": "up", "priority": "0",
        "weight": "1", field: value,
    }  # fmt: skip
    response = login("operator").post(reverse("admin:streaming_route_change", args=[route.pk]), data)
    assert "must be between" in str(response.context["adminform"].form.errors[field])


def test_missing_price_is_marked(login: Login, world: World) -> None:
    models = {model.name: model for model in login("operator").get("/admin/streaming/model/").context["cl"].result_list}
    assert models["gpt-5.6-sol"].priced
    assert not models["unpriced-model"].priced
    content = login("operator").get("/admin/streaming/model/").text
    assert content.count("no price") == 1
    assert "no route" in content


# --- route states ---


@pytest.fixture
def shared(valkey: str, settings: Any) -> str:
    settings.VALKEY_URL = valkey
    return valkey


def cool(route: Route, valkey_url: str, for_s: float) -> None:
    state = RouteState(failures=3, level=1, until=time.time() + for_s, since=time.time(), reason="status 503")
    with redis.Redis.from_url(valkey_url) as client:
        client.hset(route_states.KEY, str(route.pk), orjson.dumps(asdict(state)))


def test_cooling_route_shows_reason_and_time(login: Login, world: World, shared: str) -> None:
    route = Route.objects.get()
    cool(route, shared, 40)
    for url in (reverse("admin:streaming_route_changelist"), reverse("admin:streaming_route_change", args=[route.pk])):
        text = login("operator").get(url).text
        assert "cooling down" in text
        assert "status 503" in text
        assert re.search(r"\b(39|40) s\b", text)


def test_reset_asks_first(login: Login, world: World, shared: str) -> None:
    route = Route.objects.get()
    take_out(route.pk, "status 401")
    cool(route, shared, 40)
    url = reverse("admin:streaming_route_reset", args=[route.pk])
    client = login("operator")
    assert "within a second" in client.get(url).text
    route.refresh_from_db()
    assert route.out_reason == "status 401"
    client.post(url)
    route.refresh_from_db()
    assert (route.out_since, route.out_reason) == (None, "")
    assert route_states.read_all() == {}
    assert LogEntry.objects.filter(object_id=str(route.pk)).exists()


def test_finance_cannot_reset(login: Login, world: World) -> None:
    url = reverse("admin:streaming_route_reset", args=[Route.objects.get().pk])
    assert login("finance").post(url).status_code == 403


def test_route_that_is_out_raises_an_alarm(login: Login, world: World) -> None:
    take_out(Route.objects.get().pk, "status 401")
    assert "A provider refuses our account" in login("operator").get("/admin/").text


def test_new_credential_puts_routes_back(login: Login, world: World) -> None:
    take_out(Route.objects.get().pk, "status 401")
    provider = world.provider
    fields = form(name=provider.name, base_url=provider.base_url, new_credential="sk-mended-credential")
    assert login("operator").post(page(provider), fields).status_code == 302
    assert Route.objects.get().out_since is None


def test_routes_are_listed_without_redis(login: Login, world: World, settings: Any, tmp_path: Path) -> None:
    settings.VALKEY_URL = f"unix://{tmp_path}/nobody.sock"
    assert login("operator").get(reverse("admin:streaming_route_changelist")).status_code == 200
