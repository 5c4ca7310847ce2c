"""The page Statement: an account's month, with the way to its records, invoices and files."""

from __future__ import annotations

import csv

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from billing import exports
from billing.admin.display import money
from billing.models import Export
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import make_account, make_key, make_record, price

pytestmark = pytest.mark.django_db
PAGE = "/admin/statement/"


def of(world: World) -> str:
    return f"?account={world.northwind.pk}&month={world.record.day:%Y-%m}"


def test_groups_see_it(login: Login, world: World) -> None:
    for who, seen, made in (("root", 200, 302), ("operator", 200, 302), ("finance", 200, 302), ("nobody", 403, 403)):
        for path in (PAGE, f"{PAGE}{of(world)}", f"{PAGE}file/csv/{of(world)}", f"{PAGE}file/pdf/{of(world)}"):
            assert login(who).get(path).status_code == seen
        assert login(who).post(f"{PAGE}file/pdf/{of(world)}").status_code == made


def test_without_account_it_asks(login: Login, world: World) -> None:
    assert "Choose an account to see its month." in login("finance").get(PAGE).text


def test_month_is_whole(login: Login, world: World) -> None:
    response = login("finance").get(f"{PAGE}{of(world)}")
    assert world.northwind.timezone in response.text
    assert world.open.number in response.text
    (row,) = response.context["used"]
    assert (row["key"], row["model"], row["figures"][0]) == ("production", "gpt-5.6-sol", "1")
    records = login("finance").get(row["url"]).context["cl"].result_list
    assert [record.pk for record in records] == [world.record.pk]


def test_credit_is_on_invoice_and_month(login: Login, world: World) -> None:
    note = world.note
    page = f"{PAGE}?account={note.account_id}"
    (row,) = login("finance").get(f"{page}&month={note.invoice.month:%Y-%m}").context["billed"]
    assert (row["number"], row["amounts"][1]) == (note.invoice_number, money(note.total_nanos, "USD"))
    assert note.number in login("finance").get(f"{page}&month={note.issued_on:%Y-%m}").text


def test_no_provider_is_named(login: Login, world: World) -> None:
    for path in (PAGE, f"{PAGE}file/csv/"):
        assert "acme" not in login("finance").get(f"{path}{of(world)}").text


@pytest.mark.parametrize("query", ["?account=999999&month=2026-11", "?account=x&month=2026-11"])
def test_unknown_account_is_told(login: Login, query: str) -> None:
    response = login("finance").get(f"{PAGE}{query}")
    assert response.status_code == 400
    assert "Nothing was read." in response.text
    assert login("finance").get(f"{PAGE}file/csv/{query}").status_code == 302


def test_bad_month_is_told(login: Login) -> None:
    response = login("finance").get(f"{PAGE}?account={make_account().pk}&month=November")
    assert response.status_code == 400
    assert 'value="November"' in response.text


def test_csv_is_in_the_accounts_language(login: Login, world: World) -> None:
    raw = login("finance").get(f"{PAGE}file/csv/{of(world)}").content.decode("utf-8-sig")
    rows = list(csv.reader(raw.splitlines()))
    assert ["Account", "northwind"] in rows
    assert rows[-3][0] == "Use"


def test_pdf_is_made_by_a_worker(login: Login, users: dict[str, User], world: World) -> None:
    world.northwind.language = "zh-Hant"
    world.northwind.save(update_fields=["language"])
    response = login("finance").post(f"{PAGE}file/pdf/{of(world)}")
    export = Export.objects.get(owner=users["finance"])
    assert (export.kind, export.format, export.language) == ("statement", "pdf", "zh-hant")
    assert response["location"] == reverse("admin:billing_export_change", args=[export.pk])
    exports.run(export.pk)
    first = exports.path(export).read_bytes()
    assert first.startswith(b"%PDF-")
    Export.objects.filter(pk=export.pk).update(state="running")
    exports.run(export.pk)
    assert exports.path(export).read_bytes() == first


def test_page_takes_few_queries(
    login: Login, world: World, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for at in range(10):
        make_record(make_key(world.northwind, f"key-{at}"), world.record.ended_at, version=price())
    client = login("finance")
    client.get(f"{PAGE}{of(world)}")
    with django_assert_max_num_queries(20):
        client.get(f"{PAGE}{of(world)}")


@pytest.mark.parametrize("month", ["0001-01", "1999-12", "3000-01", "9999-12"])
def test_month_out_of_reach_is_told(login: Login, world: World, month: str) -> None:
    client, query = login("finance"), f"?account={world.northwind.pk}&month={month}"
    response = client.get(f"{PAGE}{query}")
    assert (response.status_code, "This is no month" in response.text) == (400, True)
    assert client.get(f"{PAGE}file/csv/{query}").status_code == 302
