"""Credit notes in the admin: seen before they are made, and listed with their invoices."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from billing import invoices
from billing.models import CreditNote, Invoice
from billing.money import parse
from tests.billing.admin_site import Login
from tests.billing.admin_world import World

pytestmark = pytest.mark.django_db


def url(view: str, invoice: Invoice) -> str:
    return reverse(f"admin:billing_invoice_{view}", args=[invoice.pk])


def form(**fields: Any) -> dict[str, Any]:
    return {"amount_nanos": "", "reason": "a wrong price", "seen": "", **fields}


def seen(client: Client, invoice: Invoice, data: dict[str, Any]) -> dict[str, Any]:
    """The form again as it comes back with the preview."""
    response = client.post(url("credit", invoice), data)
    assert response.status_code == 200, response.text
    return {**data, "seen": response.context["form"].data["seen"]}


def test_amount_is_seen_before_it_is_made(login: Login, world: World) -> None:
    client = login("finance")
    assert "USD 6.52 of its total is left to credit." in client.get(url("credit", world.open)).text
    data = form(amount_nanos="2.50")
    preview = client.post(url("credit", world.open), data).text
    assert "Due on the invoice: before USD 6.52, after USD 4.02." in preview
    assert CreditNote.objects.filter(invoice=world.open).count() == 0
    response = client.post(url("credit", world.open), seen(client, world.open, data), follow=True)
    note = CreditNote.objects.get(invoice=world.open)
    assert (note.total_nanos, note.reason, note.made_by) == (
        parse("2.5"), "a wrong price", User.objects.get(username="finance"),
    )  # fmt: skip
    assert f"The credit note {note.number} over USD 2.50 is made." in response.text


def test_changed_form_is_seen_again(login: Login, world: World) -> None:
    client = login("finance")
    data = seen(client, world.open, form(amount_nanos="2.50"))
    response = client.post(url("credit", world.open), {**data, "amount_nanos": "3"})
    assert "after USD 3.52" in response.text
    assert not CreditNote.objects.filter(invoice=world.open).exists()


def test_whole_lines_are_credited(login: Login, world: World) -> None:
    client = login("finance")
    lines = list(world.open.lines.exclude(amount_nanos=0).order_by("position")[:2])
    data = seen(client, world.open, form(lines=[line.pk for line in lines]))
    client.post(url("credit", world.open), data)
    note = CreditNote.objects.get(invoice=world.open)
    assert note.subtotal_nanos == sum(line.amount_nanos for line in lines)
    page = client.get(url("credit", world.open)).text
    assert f'value="{lines[0].pk}"' not in page


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"amount_nanos": "6.53"}, "USD 6.52 is left"),
        ({}, "Choose lines, or write an amount."),
        ({"amount_nanos": "1", "reason": ""}, "This field is required."),
        ({"lines": ["0"], "amount_nanos": "1"}, "Select a valid choice"),
    ],
)
def test_faults_are_told(login: Login, world: World, fields: dict[str, Any], told: str) -> None:
    response = login("finance").post(url("credit", world.open), form(**fields))
    assert (response.status_code, told in response.text) == (200, True)
    assert not CreditNote.objects.filter(invoice=world.open).exists()


def test_invoice_shows_credited_and_due(login: Login, world: World) -> None:
    client = login("finance")
    data = seen(client, world.open, form(amount_nanos="2.50"))
    client.post(url("credit", world.open), data)
    note = CreditNote.objects.get(invoice=world.open)
    page = client.get(url("change", world.open)).text
    for word in ("USD 6.52", "USD 2.50", "USD 4.02", note.number):
        assert word in page
    assert f"/{world.open.pk}/void/" not in page
    rows = {row.pk: row for row in client.get(reverse("admin:billing_invoice_changelist")).context["cl"].result_list}
    assert rows[world.open.pk].noted_nanos == parse("2.5")
    assert "USD 4.02" in client.get(reverse("admin:billing_invoice_changelist")).text


def test_credited_invoice_is_not_made_void(login: Login, world: World) -> None:
    client = login("finance")
    client.post(url("credit", world.open), seen(client, world.open, form(amount_nanos="1")))
    data = {"reason": "wrong", "number": world.open.number}
    response = client.post(url("void", world.open), data)
    assert (response.status_code, "credit the rest of it instead" in response.text) == (409, True)
    world.open.refresh_from_db()
    assert world.open.status == "open"


def test_paid_invoice_is_paid_back(login: Login, world: World) -> None:
    client = login("finance")
    paid = world.note.invoice
    preview = client.post(url("credit", paid), form(amount_nanos="2"))
    assert "Due on the invoice: before USD 0.00, after USD -2.00." in preview.text
    assert "is to be paid back" in preview.text
    client.post(url("credit", paid), seen(client, paid, form(amount_nanos="2")))
    page = client.get(reverse("admin:billing_creditnote_changelist")).text
    assert "to be paid back" in page
    assert f"/{paid.pk}/credit/" not in client.get(url("change", paid)).text  # nothing is left


def test_drafts_and_void_ones_are_not_credited(login: Login, world: World) -> None:
    client = login("finance")
    invoices.void(world.open.pk, "wrong", world.open.issued_at or world.open.period_end)
    for invoice in (world.draft, world.open):
        assert "Nothing was changed" in client.post(url("credit", invoice), form(amount_nanos="1"), follow=True).text
        assert f"/{invoice.pk}/credit/" not in client.get(url("change", invoice)).text


def test_note_page_adds_up(login: Login, world: World) -> None:
    page = login("operator").get(reverse("admin:billing_creditnote_change", args=[world.note.pk])).text
    assert world.note.number in page
    assert f"amount off the invoice {world.note.invoice_number}" in page
    assert "USD 1.00" in page


def test_operators_do_not_credit(login: Login, world: World) -> None:
    client = login("operator")
    assert client.post(url("credit", world.open), form(amount_nanos="1")).status_code == 403
    assert f"/{world.open.pk}/credit/" not in client.get(url("change", world.open)).text
