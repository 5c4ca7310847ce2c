"""Accounts: operators and Finance each change their part; zone and currency are locked by use."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ValidationError
from django.db.models import Sum
from django.urls import reverse
from django.utils.timezone import now
from pytest_django import DjangoAssertNumQueries

from billing import account_sums, credit_notes, invoices, keys
from billing.credit_notes import Wanted
from billing.models import Account, AuditEntry, BudgetMonth, CatalogueVersion, CreditNote
from billing.money import NANOS
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import make_account, make_adjustment, make_key

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
        ("operator", {"name", "timezone", "currency"}),
        ("finance", {"legal_name", "tax_rate_ppm", "due_days", "language"}),
        ("root", {"name", "timezone", "currency", "legal_name", "tax_rate_ppm", "due_days", "language"}),
    ],
)
def test_each_group_changes_its_part(login: Login, who: str, changed: set[str]) -> None:
    account = Account.objects.create(name="unused")
    before = Account.objects.values().get(pk=account.pk)
    assert login(who).post(page(account), form()).status_code == 302
    after = Account.objects.values().get(pk=account.pk)
    assert {name for name in after if after[name] != before[name]} == {*changed, "changed_in"}


def test_adjustment_locks_zone_and_currency(login: Login) -> None:
    key = make_key(make_account("adjusted"))
    make_adjustment(key, now(), -5)
    assert login("root").post(page(key.account), form()).status_code == 302
    key.account.refresh_from_db()
    assert (key.account.timezone, key.account.currency, key.account.name) == ("UTC", "USD", "renamed")
    key.account.currency = "EUR"
    with pytest.raises(ValidationError, match="locked"):  # a form that was opened before
        key.account.full_clean()


def test_disabling_asks_first(login: Login, world: World) -> None:
    keys.create(world.northwind, "second")
    client = login("operator")
    url = reverse("admin:billing_account_disable", args=[world.northwind.pk])
    question = client.get(url).text
    assert "Disable the account northwind?" in question
    assert "2 keys get 403 within seconds." in question
    assert "1 request under way goes on to its end, and is billed." in question
    assert Account.objects.get(pk=world.northwind.pk).active
    version = CatalogueVersion.current()
    assert client.post(url).status_code == 302
    assert not Account.objects.get(pk=world.northwind.pk).active
    assert CatalogueVersion.current() == version + 1
    assert client.post(url).status_code == 302  # nothing to do
    enable = reverse("admin:billing_account_enable", args=[world.northwind.pk])
    assert "2 keys work again within seconds." in client.get(enable).text
    client.post(enable)
    assert Account.objects.get(pk=world.northwind.pk).active
    changes = [entry.changes for entry in AuditEntry.objects.filter(table="billing.account")[:2]]
    assert changes == [{"active": [False, True]}, {"active": [True, False]}]


def test_only_operators_disable(login: Login, world: World) -> None:
    url = reverse("admin:billing_account_disable", args=[world.northwind.pk])
    client = login("finance")
    assert "Disable" not in client.get(page(world.northwind)).text
    assert (client.get(url).status_code, client.post(url).status_code) == (403, 403)


def test_several_are_disabled_at_once(login: Login, world: World) -> None:
    client, url = login("operator"), reverse("admin:billing_account_changelist")
    world.umbrella.active = False
    world.umbrella.save()
    chosen = {"action": "disable_chosen", "_selected_action": [world.northwind.pk, world.umbrella.pk]}
    question = client.post(url, chosen).text
    assert "Disable 1 account?" in question
    assert Account.objects.get(pk=world.northwind.pk).active
    assert client.post(url, {**chosen, "confirmed": "1"}).status_code == 302
    assert not Account.objects.filter(pk__in=chosen["_selected_action"], active=True).exists()
    assert "All of the chosen accounts are so already." in client.post(url, {**chosen, "confirmed": "1"}).text


def test_list_tells_cost_and_due(
    login: Login, world: World, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    world.open.refresh_from_db()
    client = login("finance")
    with django_assert_max_num_queries(12):
        found = client.get(reverse("admin:billing_account_changelist"))
    sums = {account.name: account.sums for account in found.context["cl"].result_list}
    today = now().astimezone(ZoneInfo(world.northwind.timezone)).date()
    month = BudgetMonth.objects.get(api_key=world.key, month=today.replace(day=1))
    credited = CreditNote.objects.filter(invoice=world.open).aggregate(nanos=Sum("total_nanos"))["nanos"] or 0
    assert sums["northwind"].month_nanos == month.spent_nanos
    assert sums["northwind"].due_nanos == world.open.total_nanos - credited > 0
    assert sums["umbrella"].due_nanos == 0
    assert sums["northwind"].overdue_since is None


def test_overdue_is_marked(login: Login, world: World) -> None:
    late = account_sums.of([world.northwind], now() + dt.timedelta(days=365))
    assert late[world.northwind.pk].overdue_since == world.open.due_on


def test_credit_after_payment_is_owed_back(login: Login, world: World) -> None:
    before = account_sums.of([world.northwind], now())[world.northwind.pk].due_nanos
    moment = now()
    invoices.mark_paid(world.open.pk, paid_on=moment.date(), reference="")
    note = credit_notes.make(world.open.pk, Wanted(amount_nanos=NANOS // 100), "too much", by=None, now=moment)
    after = account_sums.of([world.northwind], moment)[world.northwind.pk]
    assert before > 0
    assert (after.due_nanos, after.overdue_since) == (-note.total_nanos, None)


def test_page_shows_history(login: Login, world: World) -> None:
    client = login("finance")
    client.post(page(world.northwind), form(legal_name="Northwind and Sons"))
    found = client.get(page(world.northwind)).context["history"][0]
    assert found.who == "finance"
    assert ("legal name", "Northwind Ltd", "Northwind and Sons") in [
        (change.label, change.before, change.after) for change in found.changes_told
    ]


def test_tax_rate_is_exact(login: Login) -> None:
    account = Account.objects.create(name="unused")
    client = login("finance")
    client.post(page(account), form(tax_rate_ppm="8.875"))
    account.refresh_from_db()
    assert account.tax_rate_ppm == 88_750
    assert 'value="8.875"' in client.get(page(account)).text


@pytest.mark.parametrize("zone", ["Japan", "Etc/GMT-8", "localtime"])
def test_own_zone_is_chosen(login: Login, zone: str) -> None:
    """Whatever it is: even one that may not be chosen any more."""
    account = make_account("unused", timezone=zone)
    client = login("root")
    assert f'<option value="{zone}" selected' in client.get(page(account)).text
    assert client.post(page(account), form(timezone=zone, name="unused")).status_code == 302
    account.refresh_from_db()
    assert (account.timezone, account.legal_name) == (zone, "Renamed Ltd")


def test_use_locks_zone_and_currency(login: Login, world: World) -> None:
    zone = world.northwind.timezone
    assert login("root").post(page(world.northwind), form()).status_code == 302
    world.northwind.refresh_from_db()
    assert (world.northwind.timezone, world.northwind.currency) == (zone, "USD")
    assert world.northwind.name == "renamed"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timezone", "Mars/Base"),
        ("timezone", "Factory"),
        ("currency", "XQX"),
        ("tax_rate_ppm", "101"),
        ("due_days", "32768"),
    ],
)
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
