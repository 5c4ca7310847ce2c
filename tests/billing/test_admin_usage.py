"""Requests: found by each id, filtered, itemised, and listed with a bounded number of queries."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.utils.timezone import now
from pytest_django import DjangoAssertNumQueries

from billing.admin.display import ago, duration, money, number, price_per_million, signed
from billing.models import Attempt, OpenStream, UsageRecord
from billing.money import parse
from billing.usage import TokenUsage
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import make_record

pytestmark = pytest.mark.django_db
LIST = "/admin/billing/usagerecord/"


def found(client: Client, **query: object) -> list[UsageRecord]:
    response = client.get(LIST, query)
    assert response.status_code == 200, response.headers
    return list(response.context["cl"].result_list)


def test_list_looks_back_a_day(login: Login, world: World) -> None:
    client = login("operator")
    make_record(world.key, now() - dt.timedelta(hours=25), request_name="old-one")
    names = {record.request_name for record in found(client)}
    assert "old-one" not in names
    assert world.unpriced.request_name in names
    for period in ("7", "all"):
        assert "old-one" in {record.request_name for record in found(client, period=period)}


def test_search_finds_each_id(login: Login, world: World) -> None:
    client = login("operator")
    for term in (world.record.request_name, "prov-req-77", str(world.record.pk), f"  {world.record.request_name} "):
        assert found(client, q=term) == [world.record]
    assert found(client, q=world.record.request_name[:-1]) == []
    assert found(client, q="'; drop table") == []


@pytest.mark.parametrize(
    ("query", "others"),
    [
        ({"ending": "client_left"}, {"ending": "complete"}),
        ({"metering": "estimated"}, {"metering": "reported"}),
        ({"unpriced": "1"}, {"unpriced": "0"}),
        ({"model": "unpriced-model"}, {"model": "gpt-5.6-sol"}),
        ({"wire_format": "chat_completions"}, {"wire_format": "messages"}),
    ],
)
def test_filters_divide_the_records(
    login: Login,
    world: World,
    query: dict[str, str],
    others: dict[str, str],
) -> None:
    client = login("operator")
    chosen, rest = found(client, period="all", **query), found(client, period="all", **others)
    assert chosen
    assert not set(chosen) & set(rest)
    assert {*chosen, *rest} == set(UsageRecord.objects.all())


def test_account_filter_and_links(login: Login, world: World) -> None:
    client = login("operator")
    assert {record.account for record in found(client, account=world.umbrella.pk)} == {world.umbrella}
    assert {record.api_key for record in found(client, api_key=world.key.pk)} == {world.key}
    assert found(client, invoice=world.open.pk) == [world.record]
    assert world.record in found(client, day=world.record.day)


@pytest.mark.parametrize(
    "query", ["?account=x", "?line=x", "?period=x", "?unpriced=x", "?ending=x", "?p=0", "?p=x", "?day=x"]
)
def test_odd_filters_do_no_harm(login: Login, world: World, query: str) -> None:
    assert login("operator").get(LIST + query).status_code in (200, 302)


def test_page_itemises_the_cost(login: Login, world: World) -> None:
    response = login("operator").get(f"{LIST}{world.record.pk}/change/")
    content = response.text
    amounts = [parse(part["amount"].split()[1].replace(",", "")) for part in response.context["parts"]]
    assert sum(amounts) == world.record.cost_nanos
    assert len(response.context["parts"]) == 5 + len(world.record.items)
    for text in ("advisor-1", "web_search", "prov-req-77", "overloaded", "Of the output, 700 tokens are reasoning."):
        assert text in content
    assert f"{world.record.ended_at.astimezone(dt.UTC):%Y}" in content
    assert world.northwind.timezone in content


def test_unpriced_is_never_zero(login: Login, world: World) -> None:
    response = login("operator").get(f"{LIST}{world.unpriced.pk}/change/")
    assert response.context["parts_total"] == "—"
    assert {part["amount"] for part in response.context["parts"]} == {"—"}
    assert "no price for model unpriced-model" in response.text


def fill(world: World, count: int) -> None:
    for index in range(count):
        record = make_record(world.key, now(), request_name=f"fill-{index}")
        Attempt.objects.create(
            record=record, number=1, provider="acme-cloud", upstream_model="m", outcome="answered",
            started_at=now(), duration_ms=5,
        )  # fmt: skip
        OpenStream.objects.create(
            id=record.pk, api_key=world.key, account=world.northwind, key_name="production", account_name="northwind",
            request_name=f"open-{index}", process=record.pk, model="m", wire_format="messages", stream=True,
            started_at=now(),
        )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["usagerecord", "attempt", "openstream", "apikey", "invoice", "usagerollup", "rollupdue"]
)
def test_lists_take_few_queries(
    login: Login,
    world: World,
    name: str,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    fill(world, 25)
    client = login("operator")
    with django_assert_max_num_queries(12) as seen:
        client.get(f"/admin/billing/{name}/")
    if name not in ("apikey", "invoice"):
        assert not any("COUNT(" in query["sql"].upper() for query in seen.captured_queries)


@pytest.mark.parametrize(
    ("amount", "currency", "shown"),
    [
        ("12.5", "USD", "USD +12.50"),
        ("-12.5", "USD", "USD -12.50"),
        ("-0.004", "USD", "USD -0.004000000"),
        ("0.004", "USD", "USD +0.004000000"),
        ("-1.005", "USD", "USD -1.005000000"),
        ("-0.5", "JPY", "JPY -0.500000000"),
    ],
)
def test_signed_amount_is_exact(amount: str, currency: str, shown: str) -> None:
    assert signed(parse(amount), currency) == shown


def test_numbers_read_the_same_everywhere() -> None:
    assert number(1234567) == "1,234,567"
    assert number(None) == "—"
    assert money(parse("1234.565"), "USD") == "USD 1,234.57"
    assert money(parse("1234.5"), "TWD", 0) == "TWD 1,235"
    assert money(parse("0.001"), "USD") == "< USD 0.01"
    assert money(parse("0.001"), "JPY") == "< JPY 1"
    assert money(parse("-0.004"), "USD") == "> USD -0.01"
    assert money(0, "USD") == "USD 0.00"
    assert money(parse("0.001"), "USD", 9) == "USD 0.001000000"
    assert money(0, "USD", 9) == "USD 0.000000000"
    assert money(parse("-12.5"), "USD") == "USD -12.50"
    assert money(None, "USD") == "—"
    assert price_per_million(parse("0.075"), "USD") == "USD 0.075"
    assert price_per_million(parse("1250"), "USD") == "USD 1,250.00"


def test_moments_name_their_zone() -> None:
    moment = now() - dt.timedelta(minutes=12, seconds=5)
    shown = str(ago(moment, "Asia/Kathmandu"))
    assert "12\xa0minutes ago" in shown
    assert "Asia/Kathmandu" in shown
    assert "5 s ago" in str(ago(now() - dt.timedelta(seconds=5)))
    assert duration(dt.timedelta(milliseconds=812)) == "812 ms"
    assert duration(dt.timedelta(seconds=12.34)) == "12.3 s"
    assert duration(dt.timedelta(minutes=4, seconds=5)) == "4 min 05 s"
    assert duration(dt.timedelta(hours=30, minutes=3)) == "30 h 03 min"


def test_open_streams_show_progress(login: Login, world: World) -> None:
    content = login("operator").get("/admin/billing/openstream/").text
    assert "req-under-way" in content
    assert "1,204" in content
    assert "in 96 · out 1,108" in content


def test_cached_tokens_stand_below_input(login: Login, world: World) -> None:
    make_record(world.key, now(), TokenUsage(input=1, cache_read=77_001, cache_write=5, cache_write_1h=6, output=2))
    assert "cache 77,001 · 11" in login("operator").get(LIST).text
