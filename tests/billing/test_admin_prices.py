"""Prices: written in amounts, kept in nanos, changed only until they are used."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.timezone import now

from billing import rollups
from billing.models import Price
from billing.money import MAX_NANOS, parse
from billing.usage import Part, TokenUsage
from tests.billing.admin_site import Login
from tests.billing.admin_world import World, make_price
from tests.billing.factories import make_record, price

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
    assert added(login("finance"), form(**extra)).status_code == 302
    price = Price.objects.get()
    assert (price.input, price.output, price.cache_read) == (parse("0.075"), parse("30"), 0)
    assert price.cache_write is None
    assert price.tiers == {"priority": "2.5", "batch": {"input": parse("0.0375"), "output": parse("15")}}
    assert price.long_context == {"above": 272000, "input": "2", "output": "1.5"}
    assert price.server_tools == {"web_search": parse("0.01")}
    assert (price.label, price.currency) == ("gpt-new@2027-01-01T00:00:00Z", "USD")


def test_price_takes_what_a_column_holds(login: Login) -> None:
    assert added(login("finance"), form(input="9223372036.854775807")).status_code == 302
    assert Price.objects.get().input == MAX_NANOS


def added(client: Client, data: dict[str, object]) -> Any:
    """The form posted, its preview seen, and posted again."""
    preview = client.post(ADD, data)
    assert not Price.objects.filter(model=data["model"]).exists()
    return client.post(ADD, dict(preview.context["hidden"]))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"currency": "XXQ"}, "is no currency"),
        ({"input": "-1"}, "greater than or equal to 0"),
        ({"input": "9223372036.854775808"}, "less than or equal to 9223372036.854775807"),
        ({"input": "", "output": ""}, "names no bucket"),
        ({"tiers": "not json"}, "This is not JSON."),
        ({"tiers": "[1]"}, "Write a JSON object"),
        *(({"tiers": '{"a":' * deep + "1" + "}" * deep}, "Write a JSON object") for deep in (3, 900, 2000)),
        ({"server_tools": '{"a":' + "[" * 900 + "]" * 900 + "}"}, "Write a JSON object"),
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
    answer = client.post(page, form(), follow=True)
    assert answer.redirect_chain == [(page, 302)]
    assert "This was changed meanwhile and takes no more changes: nothing was saved." in answer.text


def test_price_of_items_counts_as_used(login: Login, world: World) -> None:
    advisor = make_price("advisor-1")
    page = reverse("admin:billing_price_change", args=[advisor.pk])
    assert "nothing was saved" in login("root").post(page, form(), follow=True).text


def test_item_may_have_any_name(login: Login, world: World) -> None:
    """PostgreSQL gives characters of JSON back as they are, SQLite as they were written."""
    name = "顧問-1"
    part = Part(name, TokenUsage(input=10))
    make_record(world.key, now(), version=price(), others=[price(name)], parts=[part])
    page = reverse("admin:billing_price_change", args=[make_price(name).pk])
    assert "nothing was saved" in login("root").post(page, form(), follow=True).text


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


# --- the preview, the timeline, the next version ---


def test_preview_comes_before_the_version(login: Login, world: World) -> None:
    response = login("finance").post(ADD, form(model="gpt-5.6-sol", output="60"))
    assert response.status_code == 200
    assert Price.objects.filter(model="gpt-5.6-sol").count() == 1
    assert "Add gpt-5.6-sol@2027-01-01T00:00:00Z" in response.text


def test_preview_compares_the_last_month(login: Login, world: World) -> None:
    last_month = (now().replace(day=1) - dt.timedelta(days=3)).replace(hour=12)
    make_record(world.key, last_month, TokenUsage(output=1_000_000), model="gpt-x")
    rollups.rebuild_due()
    make_price("gpt-x", dt.datetime(2026, 1, 1, tzinfo=dt.UTC), output=parse(30))
    response = login("finance").post(ADD, form(model="gpt-x", output="45.5"))
    (row,) = response.context["rows"]
    assert (row["account"], row["requests"]) == ("northwind", "1")
    assert (row["old"], row["new"]) == ("USD 30.000000000", "USD 45.500000000")
    assert row["difference"] == "USD +15.500000000"
    assert response.context["totals"][0]["new"] == "USD 45.500000000"


def test_preview_tells_what_has_no_price(login: Login, world: World) -> None:
    response = login("finance").post(ADD, form(model="gpt-5.6-sol"))  # its records of last month used the cache
    rows = {row["account"]: row for row in response.context["rows"]}
    assert rows["northwind"]["new"] == "—"
    assert "service tier priority" in rows["northwind"]["why"][0]


def test_another_version_needs_its_own_preview(login: Login) -> None:
    client = login("finance")
    preview = client.post(ADD, form())
    changed = {**dict(preview.context["hidden"]), "output": "31"}
    assert client.post(ADD, changed).status_code == 200
    assert not Price.objects.exists()


def test_nobody_without_the_right_sees_previews(login: Login, world: World) -> None:
    assert login("nobody").post(ADD, form()).status_code == 403


def test_next_version_begins_as_a_copy(login: Login, world: World) -> None:
    client = login("finance")
    assert "copy_model=gpt-5.6-sol" in client.get("/admin/billing/price/", {"model": "gpt-5.6-sol"}).text
    bound = client.get(ADD, {"copy_model": "gpt-5.6-sol"}).context["adminform"].form
    data = {name: bound.fields[name].prepare_value(bound[name].value()) or "" for name in bound.fields}
    data |= {"effective_from_0": "2030-02-01", "effective_from_1": "00:00:00"}
    data = dict(client.post(ADD, data).context["hidden"])
    assert client.post(ADD, data).status_code == 302
    old, new = Price.objects.filter(model="gpt-5.6-sol").order_by("effective_from").values()
    unlike = {name for name in old if old[name] != new[name]}
    assert unlike == {"id", "effective_from", "changed_in"}


def test_timeline_stands_on_list_and_page(login: Login) -> None:
    kept = [make_price("m", now() + dt.timedelta(days=days)) for days in (-20, -2, 2)]
    client = login("operator")
    url = reverse("admin:billing_price_change", args=[kept[0].pk])
    for page in (client.get("/admin/billing/price/", {"model": "m"}), client.get(url)):
        states = [str(entry["state"]) for entry in page.context["timeline"]]
        assert ["past" in states[0], "in force" in states[1], "coming" in states[2]] == [True] * 3
    assert "timeline_model" not in client.get("/admin/billing/price/").context
