"""Where operators see how a model's tokens are counted, and by what they were counted before."""

from __future__ import annotations

import datetime as dt
import html
import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.timezone import now
from pytest_django import DjangoAssertNumQueries

from billing.models import CountFactor
from streaming.models import Model, Route
from tests.billing.admin_site import Login
from tests.billing.admin_world import World

pytestmark = pytest.mark.django_db
MODELS, FACTORS = "/admin/streaming/model/", "/admin/billing/countfactor/"


def page(model: Model) -> str:
    return reverse("admin:streaming_model_change", args=[model.pk])


def words(content: str) -> str:
    """What a page says, without its markup."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", content)))


def test_models_page_tells_its_factor(login: Login, world: World) -> None:
    content = login("operator").get(page(world.model)).text
    assert "1.1832 The median of 500 records, in force since" in words(content)
    assert f'href="{FACTORS}?model=gpt-5.6-sol"' in content


def test_new_model_has_the_starting_value(login: Login, world: World) -> None:
    model = Model.objects.create(name="claude-new")
    told = "1.1000 The starting value: fewer than 100 streams of text alone can be compared so far."
    assert told in words(login("finance").get(page(model)).text)


def test_model_to_be_made_tells_nothing(login: Login) -> None:
    assert "Our own count" not in login("operator").get("/admin/streaming/model/add/").text


def test_newest_factor_is_told(login: Login, world: World) -> None:
    CountFactor.objects.create(model="gpt-5.6-sol", factor_ppm=1_240_000, records=133, fitted_at=now())
    assert "1.2400 The median of 133 records" in words(login("operator").get(page(world.model)).text)
    assert "1.2400 133 records" in words(login("operator").get(MODELS).text)


def test_list_tells_where_it_counts(login: Login, world: World) -> None:
    """Models that nobody reaches by Messages have none."""
    started = Model.objects.create(name="claude-new")
    Route.objects.create(model=started, provider=world.provider, upstream_model="claude-new")
    rows = login("operator").get(MODELS).context["cl"].result_list
    admin = login("operator").get(MODELS).context["cl"].model_admin
    assert {model.name: words(str(admin.count_factor(model))).strip() for model in rows} == {
        "gpt-5.6-sol": "1.1832 500 records", "claude-new": "1.1000 starting value", "unpriced-model": "—",
    }  # fmt: skip


def test_factors_cost_the_list_no_query(
    login: Login, world: World, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    client = login("operator")
    with CaptureQueriesContext(connection) as before:
        client.get(MODELS)
    for number in range(20):
        name = f"claude-{number}"
        model = Model.objects.create(name=name)
        Route.objects.create(model=model, provider=world.provider, upstream_model=name)
        CountFactor.objects.create(model=name, factor_ppm=1_200_000, records=500, fitted_at=now())
    with django_assert_num_queries(len(before)):
        client.get(MODELS)


def test_factors_are_a_history(login: Login, world: World) -> None:
    for days, (model, factor_ppm) in enumerate([("gpt-5.6-sol", 1_240_000), ("claude-other", 1_300_000)]):
        CountFactor.objects.create(
            model=model, factor_ppm=factor_ppm, records=500, fitted_at=now() - dt.timedelta(days=days)
        )
    client = login("finance")
    shown = words(client.get(FACTORS).text)
    assert re.findall(r"\b1\.\d{4}\b", shown) == ["1.3000", "1.2400", "1.1832"]
    for query in ("model=gpt-5.6-sol", "q=gpt-5.6-sol"):
        shown = words(client.get(f"{FACTORS}?{query}").text)
        assert re.findall(r"\b1\.\d{4}\b", shown) == ["1.2400", "1.1832"]


@pytest.mark.parametrize("who", ["root", "operator", "finance"])
def test_nobody_writes_a_factor(login: Login, world: World, who: str) -> None:
    client, row = login(who), CountFactor.objects.get()
    url = reverse("admin:billing_countfactor_change", args=[row.pk])
    assert "_save" not in client.get(url).text
    assert client.post(url, {"factor_ppm": 1}).status_code == 403
    assert client.get(f"{FACTORS}add/").status_code == 403
