"""Prices: written in amounts, kept in nanos, changed only until they are used."""

from __future__ import annotations

import datetime as dt

import pytest
from django.urls import reverse
from django.utils.timezone import now

from billing.models import Price
from billing.money import parse
from tests.billing.admin_site import Login
from tests.billing.admin_world import World, make_price

pytestmark = pytest.mark.django_db
ADD = "/admin/billing/price/add/"


def form(**fields: object) -> dict[str, object]:
    return {
        "model": "gpt-new",
        "effective_from_0": "2027-01-01",
        "effective_from_1": "00:00:00",
        "currency": "usd",
        "input": "0.075",
        "output": "30",
        **fields,
    }


def test_amounts_become_nanos_exactly(login: Login) -> None:
    tiers = '{"priority": 2.50, "batch": {"input": 0.0375, "output": "15"}}'
    extra = {"tiers": tiers, "server_tools": '{"web_search": 0.01}', "long_context_above": "272000"}
    extra |= {"long_context_input": "2", "long_context_output": "1.5", "cache_read": "0"}
    response = login("finance").post(ADD, form(**extra))
    assert response.status_code == 302, response.context["errors"]
    price = Price.objects.get()
    assert (price.input, price.output, price.cache_read) == (parse("0.075"), parse("30"), 0)
    assert price.cache_write is None
    assert price.tiers == {"priority": "2.5", "batch": {"input": parse("0.0375"), "output": parse("15")}}
    assert price.long_context == {"above": 272000, "input": "2", "output": "1.5"}
    assert price.server_tools == {"web_search": parse("0.01")}
    assert (price.label, price.currency) == ("gpt-new@2027-01-01T00:00:00Z", "USD")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"currency": "XXQ"}, "is no currency"),
        ({"input": "-1"}, "greater than or equal to 0"),
        ({"input": "", "output": ""}, "names no bucket"),
        ({"tiers": "not json"}, "This is not JSON."),
        ({"tiers": "[1]"}, "Write a JSON object"),
        ({"tiers": '{"batch": {"inputs": 1}}'}, "unknown key"),
        ({"tiers": '{"batch": NaN}'}, "cannot be kept"),
        ({"server_tools": '{"web_search": "free"}'}, "is not an amount"),
        ({"long_context_above": "1000"}, "long_context needs input"),
        ({"model": "gpt five"}, "is not a model name"),
    ],
)
def test_bad_prices_are_refused(login: Login, fields: dict[str, str], said: str) -> None:
    response = login("finance").post(ADD, form(**fields))
    assert response.status_code == 200
    assert said in response.text
    assert not Price.objects.exists()


def test_used_price_is_read_only(login: Login, world: World) -> None:
    page = reverse("admin:billing_price_change", args=[world.price.pk])
    client = login("root")
    content = client.get(page).text
    assert "_save" not in content
    assert "it has rated requests, so it never changes" in content
    assert "above 272,000 input tokens: input × 2, output × 1.5" in content
    assert client.post(page, form()).status_code == 403


def test_price_of_items_counts_as_used(login: Login, world: World) -> None:
    advisor = make_price("advisor-1")
    page = reverse("admin:billing_price_change", args=[advisor.pk])
    assert login("root").post(page, form()).status_code == 403


def test_unused_price_survives_a_round_trip(login: Login) -> None:
    kept = make_price("gpt-x", dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
    before = Price.objects.values().get(pk=kept.pk)
    client = login("root")
    page = reverse("admin:billing_price_change", args=[kept.pk])
    bound = client.get(page).context["adminform"].form
    data = {name: bound[name].value() or "" for name in bound.fields if name != "effective_from"}
    data = {name: bound.fields[name].prepare_value(value) for name, value in data.items()}
    data |= {"effective_from_0": "2030-01-01", "effective_from_1": "00:00:00"}
    assert client.post(page, data).status_code == 302
    after = Price.objects.values().get(pk=kept.pk)
    assert {name for name in after if after[name] != before[name]} <= {"changed_in"}
    client.post(page, {**data, "long_context_above": "", "long_context_input": "", "long_context_output": ""})
    assert Price.objects.get(pk=kept.pk).long_context is None


@pytest.mark.parametrize("who", ["operator", "finance"])
def test_groups_cannot_change_prices(login: Login, who: str) -> None:
    kept = make_price("gpt-x", dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
    assert login(who).post(reverse("admin:billing_price_change", args=[kept.pk]), form()).status_code == 403


def test_no_start_within_issued_period(login: Login, world: World) -> None:
    start = world.open.period_start + dt.timedelta(days=3)
    data = form(model="gpt-5.6-sol", effective_from_0=f"{start:%Y-%m-%d}")
    response = login("finance").post(ADD, data)
    assert "has billed this model for that time already" in response.text


def test_states_follow_the_versions(login: Login) -> None:
    past = make_price("m", now() - dt.timedelta(days=20))
    current = make_price("m", now() - dt.timedelta(days=2))
    coming = make_price("m", now() + dt.timedelta(days=2))
    client = login("operator")
    for state, expected in (("past", past), ("in_force", current), ("coming", coming)):
        found = client.get("/admin/billing/price/", {"state": state}).context["cl"].result_list
        assert list(found) == [expected]
