"""The list at the top of an operator's Home: what is wrong, the worst first, each with the page to act on."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.timezone import now
from pytest_django import DjangoAssertNumQueries

from billing import rollups
from billing.models import ApiKey, BudgetMonth, OpenStream
from billing.money import parse
from hopbase_site.alarm_list import MOST, alarm_list
from streaming.models import Model, Provider, Route, take_out
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import make_account, make_key, make_record, price

pytestmark = pytest.mark.django_db

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)


def texts(at: dt.datetime = NOW) -> list[str]:
    return [item.text for item in alarm_list(at)]


def make_routes(count: int) -> None:
    provider = Provider.objects.create(name="acme", base_url="https://api.acme.test/v1", wire_formats=["messages"])
    model = Model.objects.create(name="sol")
    for number in range(count):
        route = Route.objects.create(model=model, provider=provider, upstream_model=f"sol-{number}")
        take_out(route.pk, "401 from the provider")


def open_streams(key: ApiKey, count: int, started_at: dt.datetime) -> None:
    for _ in range(count):
        id = uuid.uuid4()
        OpenStream.objects.create(
            id=id, api_key=key, account=key.account, key_name=key.name, account_name=key.account.name,
            request_name=id.hex, process=uuid.uuid4(), model="sol", wire_format="messages", stream=True,
            started_at=started_at,
        )  # fmt: skip


def test_quiet_installation_lists_nothing() -> None:
    assert alarm_list(NOW) == []


def test_worst_comes_first() -> None:
    key = make_key(make_account("northwind"), monthly_budget_nanos=parse("100"))
    make_record(key, NOW, model="sol", version=price("another"))
    rollups.rebuild_due()
    BudgetMonth.objects.update_or_create(api_key=key, month=dt.date(2026, 11, 1), defaults={"spent_nanos": parse("85")})
    make_routes(1)
    assert [item.tone for item in alarm_list(NOW)] == ["bad", "bad", "warn"]
    assert texts() == [
        f"Unpriced records: 1 · models: sol · blocked invoices: northwind/{key.name} 2026-11",
        "The route sol → acme/sol-0 is out: 401 from the provider",
        f"northwind/{key.name} has spent 85 % of its budget: USD 85.00 of USD 100.00",
    ]


def test_spent_budget_is_urgent() -> None:
    key = make_key(make_account("northwind"), monthly_budget_nanos=parse("100"))
    BudgetMonth.objects.create(api_key=key, month=dt.date(2026, 11, 1), spent_nanos=parse("100"))
    assert [item.tone for item in alarm_list(NOW)] == ["bad"]


def test_keys_near_a_limit_are_named() -> None:
    account = make_account("northwind")
    busy = make_key(account, "busy", concurrency=5, last_used_at=NOW - dt.timedelta(hours=1))
    calm = make_key(account, "calm", concurrency=5, last_used_at=NOW)
    fast = make_key(account, "fast", requests_per_minute=10, last_used_at=NOW)
    open_streams(busy, 4, NOW - dt.timedelta(minutes=20))
    open_streams(calm, 3, NOW)
    for _ in range(8):
        make_record(fast, NOW - dt.timedelta(seconds=5))
    rollups.rebuild_due()
    assert texts() == [
        "northwind/busy runs 4 of its 5 requests at a time",
        "northwind/fast uses 8 of its 10 requests per minute",
    ]


def test_many_of_a_kind_are_cut_off() -> None:
    account = make_account("northwind")
    for number in range(MOST + 2):
        key = make_key(account, f"key-{number}", monthly_budget_nanos=parse("1"))
        BudgetMonth.objects.create(api_key=key, month=dt.date(2026, 11, 1), spent_nanos=parse("2"))
    make_routes(MOST + 2)
    found = texts()
    assert len(found) == 2 * (MOST + 1)
    assert {"More routes are out.", "And 2 more."} <= set(found)


def test_operators_alone_see_the_list(login: Login, world: World) -> None:
    home = reverse("admin:index")
    response = login("operator").get(home)
    assert [item.tone for item in response.context["alarms"]] == ["bad", "bad"]
    assert "What needs you" in response.text
    assert "What needs you" not in login("finance").get(home).text
    assert "What needs you" not in login("nobody").get(home).text


def test_items_lead_to_pages(login: Login, world: World) -> None:
    BudgetMonth.objects.filter(api_key=world.key).update(spent_nanos=parse("85"))
    Route.objects.update(out_since=now(), out_reason="401")
    client: Client = login("operator")
    items = client.get(reverse("admin:index")).context["alarms"]
    assert len(items) == 4
    for item in items:
        assert client.get(item.url).status_code == 200


def test_list_takes_few_queries(world: World, django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    for number in range(30):
        key = make_key(world.northwind, f"key-{number}", requests_per_minute=1, last_used_at=now())
        make_record(key, now())
    make_routes(30)
    with django_assert_max_num_queries(16):
        alarm_list(now())
