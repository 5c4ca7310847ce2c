"""Accounts: operators and Finance each change their part; zone and currency are locked by use."""

from __future__ import annotations

import pytest
from django.urls import reverse

from billing.models import Account
from tests.billing.admin_site import Login
from tests.billing.admin_world import World

pytestmark = pytest.mark.django_db


def form(**fields: object) -> dict[str, object]:
    return {
        "name": "renamed",
        "timezone": "Asia/Kathmandu",
        "currency": "eur",
        "legal_name": "Renamed Ltd",
        "tax_rate_ppm": "5.5",
        "due_days": "14",
        "language": "zh-Hant",
        **fields,
    }


def page(account: Account) -> str:
    return reverse("admin:billing_account_change", args=[account.pk])


@pytest.mark.parametrize(
    ("who", "changed"),
    [
        ("operator", {"name", "timezone", "currency", "active"}),
        ("finance", {"legal_name", "tax_rate_ppm", "due_days", "language"}),
        ("root", {"name", "timezone", "currency", "active", "legal_name", "tax_rate_ppm", "due_days", "language"}),
    ],
)
def test_each_group_changes_its_part(login: Login, who: str, changed: set[str]) -> None:
    account = Account.objects.create(name="unused")
    before = Account.objects.values().get(pk=account.pk)
    assert login(who).post(page(account), form()).status_code == 302
    after = Account.objects.values().get(pk=account.pk)
    assert {name for name in after if after[name] != before[name]} == {*changed, "changed_in"}


def test_tax_rate_is_exact(login: Login) -> None:
    account = Account.objects.create(name="unused")
    client = login("finance")
    client.post(page(account), form(tax_rate_ppm="8.875"))
    account.refresh_from_db()
    assert account.tax_rate_ppm == 88_750
    assert 'value="8.875"' in client.get(page(account)).text


def test_use_locks_zone_and_currency(login: Login, world: World) -> None:
    assert login("root").post(page(world.northwind), form()).status_code == 302
    world.northwind.refresh_from_db()
    assert (world.northwind.timezone, world.northwind.currency) == ("Asia/Taipei", "USD")
    assert world.northwind.name == "renamed"


@pytest.mark.parametrize(("field", "value"), [("timezone", "Mars/Base"), ("currency", "XQX"), ("tax_rate_ppm", "101")])
def test_bad_fields_are_refused(login: Login, field: str, value: str) -> None:
    account = Account.objects.create(name="unused")
    response = login("root").post(page(account), form(**{field: value}))
    assert response.status_code == 200
    assert field in response.context["adminform"].form.errors


def test_operator_adds_without_billing_details(login: Login) -> None:
    data = form(active="on")
    assert login("operator").post(reverse("admin:billing_account_add"), data).status_code == 302
    account = Account.objects.get(name="renamed")
    assert (account.currency, account.legal_name) == ("EUR", "")
