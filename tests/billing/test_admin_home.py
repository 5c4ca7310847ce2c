"""The home page: cost and requests per day, on each account's own clock, whatever is rolled up."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from django.urls import reverse
from django.utils.timezone import now
from pytest_django import DjangoAssertNumQueries

from billing import rollups
from billing.admin.daily import sum_of_today, sums_by_day
from billing.models import UsageRecord
from billing.usage import TokenUsage
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import make_account, make_key, make_record, price, utc

pytestmark = pytest.mark.django_db


def test_empty_home_says_what_next(login: Login) -> None:
    content = login("operator").get(reverse("admin:index")).text
    assert "No traffic yet." in content
    assert reverse("admin:billing_apikey_add") in content
    assert reverse("admin:billing_apikey_add") not in login("finance").get(reverse("admin:index")).text


def test_figures_equal_the_records(login: Login, world: World) -> None:
    today = now().date()
    days = sums_by_day(today - dt.timedelta(days=80), today + dt.timedelta(days=1))
    records = UsageRecord.objects.all()
    assert sum(day.requests for day in days) == len(records)
    for currency in ("USD", "TWD"):
        expected = sum(record.cost_nanos for record in records if record.currency == currency)
        assert sum(day.cost.get(currency, 0) for day in days) == expected > 0


def test_rolled_up_and_due_days_agree(world: World) -> None:
    today = now().date()
    before = sums_by_day(today - dt.timedelta(days=80), today + dt.timedelta(days=1))
    rollups.rebuild_due()
    assert sums_by_day(today - dt.timedelta(days=80), today + dt.timedelta(days=1)) == before


def test_day_is_the_accounts_own() -> None:
    moment = utc(2026, 11, 29, 20)
    for zone in ("Asia/Taipei", "America/Los_Angeles"):
        make_record(make_key(make_account(zone, timezone=zone)), moment)
    days = {day.day: day.requests for day in sums_by_day(dt.date(2026, 11, 28), dt.date(2026, 11, 30))}
    assert days == {dt.date(2026, 11, 28): 0, dt.date(2026, 11, 29): 1, dt.date(2026, 11, 30): 1}


def test_today_is_each_accounts_today() -> None:
    taipei, angeles = (make_key(make_account(zone, timezone=zone)) for zone in ("Asia/Taipei", "America/Los_Angeles"))
    make_record(taipei, utc(2026, 11, 29, 15))  # 23:00 on the 29th
    make_record(taipei, utc(2026, 11, 29, 17))  # 01:00 on the 30th
    make_record(angeles, utc(2026, 11, 29, 17))  # 09:00 on the 29th
    assert sum_of_today(utc(2026, 11, 29, 18)).requests == 2


def test_currencies_have_charts_of_their_own(login: Login, world: World) -> None:
    response = login("operator").get(reverse("admin:index"))
    titles = [chart["title"] for chart in response.context["charts"]]
    assert titles == ["Requests per day", "Cost per day, TWD", "Cost per day, USD"]
    data = json.loads(response.context["charts"][2]["data"])
    assert data["datasets"][0]["backgroundColor"] == "#D55E00"
    assert all(isinstance(amount, str) for amount in data["datasets"][0]["data"])


def test_unpriced_records_raise_an_alarm(login: Login, world: World) -> None:
    cards = {card["title"]: card for card in login("operator").get(reverse("admin:index")).context["cards"]}
    assert cards["Unpriced records"]["alarm"]
    assert cards["Unpriced records"]["figures"] == ["1"]
    assert cards["Open streams"]["figures"] == ["1"]
    for card in cards.values():
        assert login("operator").get(card["url"]).status_code == 200


def test_table_adds_up(login: Login) -> None:
    key = make_key(make_account("many"))
    for back in range(5):
        make_record(key, now() - dt.timedelta(days=back), TokenUsage(input=1, output=1), version=price())
    table = login("operator").get(reverse("admin:index")).context["table"]
    assert [row["figures"][0] for row in table["rows"]] == ["1"] * 5
    assert table["total"] == ["5", "10", "0", "0.000175000"]


def test_home_takes_few_queries(
    login: Login,
    world: World,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    client = login("operator")
    with django_assert_max_num_queries(34):
        client.get(reverse("admin:index"))
