"""Home for Finance: can last month be closed, what did this one cost, what is due, who leads."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import DatabaseError
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from billing import adjustments, invoices, rollups
from billing.models import Invoice
from billing.money import parse
from billing.usage import TokenUsage
from hopbase_site import finance_home
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import make_account, make_key, make_record, price, utc

pytestmark = pytest.mark.django_db
HOME = "/admin/"
NOW = utc(2026, 11, 14)
OCTOBER = dt.date(2026, 10, 1)


def words(found: list[dict[str, str]]) -> list[str]:
    return [blocker["words"] for blocker in found]


def cards(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {f"{card['title']} {card['figure'][:3]}": (card["figure"], card["note"]) for card in found["cards"]}


def test_finance_gets_its_own(login: Login, world: World) -> None:
    content = login("finance").get(HOME).text
    assert "be closed?" in content
    assert "Requests today" not in content
    assert "be closed?" not in login("operator").get(HOME).text
    both = login("root").get(HOME).text
    assert "be closed?" in both
    assert "Requests today" in both


def test_every_link_opens(login: Login, world: World) -> None:
    client = login("finance")
    found = client.get(HOME).context["finance"]
    links = [blocker["url"] for blocker in found["blockers"]] + [card["url"] for card in found["cards"]]
    links += [f"{row['url']}" for row in found["leaders"]["rows"]]
    links += [figure["url"] for row in found["leaders"]["rows"] for figure in row["figures"] if figure["url"]]
    assert len(links) > 8
    for link in links:
        assert client.get(link).status_code == 200, link


def test_month_is_closed_step_by_step() -> None:
    """Undrafted use, then drafts, then nothing; an unpriced request stands in the way all along."""
    key = make_key(make_account(timezone="Asia/Taipei"))
    make_record(key, utc(2026, 10, 3))
    assert words(finance_home.blockers(OCTOBER)) == ["1 day of a key has usage that came in just now."]
    rollups.rebuild_due()
    assert words(finance_home.blockers(OCTOBER)) == ["1 key has use in the month, and no invoice or draft yet."]
    invoices.draft(OCTOBER, now=NOW)
    assert words(finance_home.blockers(OCTOBER)) == ["1 draft is to be issued."]
    invoices.issue(Invoice.objects.get().pk, now=NOW)
    assert finance_home.blockers(OCTOBER) == []
    make_record(key, utc(2026, 10, 4), service_tier="scale")
    rollups.rebuild_due()
    assert words(finance_home.blockers(OCTOBER)) == ["1 request has no price: it holds up its invoice."]
    make_record(key, utc(2026, 11, 4), service_tier="scale")
    assert words(finance_home.blockers(OCTOBER)) == ["1 request has no price: it holds up its invoice."]


def test_proposed_adjustment_stands_against_it() -> None:
    key = make_key()
    adjustments.propose(key, "goodwill", parse("-500"), "as agreed", by=None, now=NOW)  # type: ignore[arg-type]
    assert words(finance_home.blockers(OCTOBER)) == ["1 adjustment waits for approval."]


def test_cost_stands_against_the_same_days() -> None:
    key, taiwan = make_key(), make_key(make_account("umbrella", currency="TWD"))
    make_record(key, utc(2026, 11, 3), TokenUsage(input=3_000_000))
    make_record(key, utc(2026, 10, 3), TokenUsage(input=2_000_000))
    make_record(key, utc(2026, 10, 20), TokenUsage(input=9_000_000))
    make_record(taiwan, utc(2026, 11, 3), TokenUsage(input=1_000_000), version=price(currency="TWD"))
    found = cards(finance_home.figures(NOW))
    assert found["Cost this month USD"] == ("USD 15.00", "+50.0 % against USD 10.00 in the same days before")
    assert found["Cost this month TWD"] == ("TWD 5.00", "nothing in the same days before")


def test_overdue_is_an_alarm() -> None:
    key = make_key()
    make_record(key, utc(2026, 9, 3), TokenUsage(input=2_000_000))
    invoices.draft(dt.date(2026, 9, 1), now=utc(2026, 10, 1))
    invoice = invoices.issue(Invoice.objects.get().pk, now=utc(2026, 10, 1))
    assert invoice.due_on is not None
    on_time, late = utc(2026, 10, 20), utc(2026, 11, 20)
    assert cards(finance_home.figures(on_time))["Due USD"] == ("USD 10.00", "on open invoices, none of them overdue")
    found = finance_home.figures(late)
    assert cards(found)["Due USD"] == ("USD 10.00", "USD 10.00 of it on 1 overdue invoice")
    assert [card["alarm"] for card in found["cards"] if card["title"] == "Due"] == [True]


def test_leaders_are_ten_of_each_currency() -> None:
    for at in range(12):
        make_record(make_key(make_account(f"a{at}")), utc(2026, 11, 3), TokenUsage(input=1000 + at))
    taiwan = make_key(make_account("umbrella", currency="TWD"))
    make_record(taiwan, utc(2026, 11, 3), version=price(currency="TWD"))
    rows = finance_home.figures(NOW)["leaders"]["rows"]
    assert [row["name"] for row in rows] == [*(f"a{at}" for at in range(11, 1, -1)), "umbrella"]


def test_failing_part_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise DatabaseError("away")

    assert finance_home._read(away) is None
    found = finance_home.figures(NOW)
    assert found["blockers"] == []


def test_home_takes_few_queries(
    login: Login, world: World, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for at in range(12):
        make_record(make_key(make_account(f"a{at}")), world.unpriced.ended_at, version=price())
    rollups.rebuild_due()
    client = login("finance")
    client.get(HOME)
    with django_assert_max_num_queries(30):
        client.get(reverse("admin:index"))
