"""Adjustments in the admin: proposed, approved by somebody else, rejected with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.urls import reverse
from django.utils.timezone import now
from pytest_django import DjangoAssertNumQueries

from billing.models import Adjustment, AuditEntry, UsageRecord
from billing.money import MAX_NANOS, parse
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import make_adjustment

pytestmark = pytest.mark.django_db

LIST = "admin:billing_adjustment_changelist"


def url(view: str, adjustment: Adjustment) -> str:
    return reverse(f"admin:billing_adjustment_{view}", args=[adjustment.pk])


def proposal(world: World, **fields: Any) -> dict[str, Any]:
    return {
        "api_key": world.key.pk, "kind": "goodwill", "amount_nanos": "-12.50", "reason": "an outage",
        "request_name": "", **fields,
    }  # fmt: skip


def propose(login: Login, world: World, who: str = "finance", **fields: Any) -> Adjustment:
    response = login(who).post(reverse("admin:billing_adjustment_add"), proposal(world, **fields))
    assert response.status_code == 302, response.context["errors"]
    return Adjustment.objects.order_by("pk").last()  # type: ignore[return-value]


def test_small_proposal_counts_at_once(login: Login, world: World) -> None:
    made = propose(login, world, request_name=world.record.request_name)
    assert (made.state, made.amount_nanos, made.currency) == ("approved", parse("-12.5"), "USD")
    assert (made.account, made.record, made.proposed_by) == (world.northwind, world.record, user("finance"))
    assert LogEntry.objects.filter(user=user("finance"), object_id=str(made.pk)).exists()
    assert AuditEntry.objects.filter(who="finance", table="billing.adjustment", object_id=str(made.pk)).exists()


def user(name: str) -> User:
    return User.objects.get(username=name)


def test_proposal_takes_what_a_column_holds(login: Login, world: World) -> None:
    assert propose(login, world, amount_nanos="-9223372036.854775807").amount_nanos == -MAX_NANOS


@pytest.mark.parametrize("amount", ["-12.50", "-150"])
def test_sent_twice_makes_one(login: Login, world: World, amount: str) -> None:
    """Whether it counts at once or waits; another one is made by a reason of its own."""
    made = propose(login, world, amount_nanos=amount)
    client, add = login("finance"), reverse("admin:billing_adjustment_add")
    again = client.post(add, proposal(world, amount_nanos=amount), follow=True)
    assert again.redirect_chain == [(url("change", made), 302)]
    assert "This adjustment was made already, and nothing was made twice." in again.text
    assert Adjustment.objects.filter(reason="an outage").count() == 1
    assert propose(login, world, amount_nanos=amount, reason="another outage").pk > made.pk


def test_rejected_can_be_proposed_again(login: Login, world: World) -> None:
    made = propose(login, world, amount_nanos="-150")
    login("finance").post(url("reject", made), {"reason": "too early"})
    assert propose(login, world, amount_nanos="-150").pk > made.pk


@pytest.mark.parametrize("act", ["approve", "reject"])
def test_question_has_sign_and_all_places(login: Login, world: World, act: str) -> None:
    made = make_adjustment(
        world.key, now(), -parse("0.004"), kind="goodwill", state="proposed", effective_at=None, day=None
    )
    content = login("approver").get(url(act, made)).text
    assert "goodwill of USD -0.004000000 for" in content


def test_large_proposal_waits(login: Login, world: World) -> None:
    made = propose(login, world, amount_nanos="-100.01")
    page = login("finance").get(url("change", made)).text
    assert (made.state, "waits for approval" in page) == ("proposed", True)
    assert f"/{made.pk}/approve/" not in page
    assert f"/{made.pk}/reject/" in page  # withdrawn by who proposed it


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"amount_nanos": "0"}, "other than zero"),
        ({"amount_nanos": "1"}, "write the amount below zero"),
        ({"amount_nanos": "1,5"}, "Enter a number"),
        ({"amount_nanos": "-9223372036.854775808"}, "greater than or equal to -9223372036.854775807"),
        ({"reason": " "}, "required"),
        ({"kind": "settled"}, "settled is not one of the available choices"),
        ({"request_name": "req-of-nobody"}, "no request of this id"),
    ],
)
def test_faults_keep_the_input(login: Login, world: World, fields: dict[str, str], told: str) -> None:
    before = Adjustment.objects.count()
    response = login("finance").post(reverse("admin:billing_adjustment_add"), proposal(world, **fields))
    assert (response.status_code, told in response.text) == (200, True)
    assert Adjustment.objects.count() == before


def test_somebody_else_approves(login: Login, world: World) -> None:
    made = propose(login, world, amount_nanos="-150")
    client = login("approver")
    assert "Approve the goodwill of USD -150.00 for northwind/production?" in client.get(url("approve", made)).text
    response = client.post(url("approve", made), follow=True)
    made.refresh_from_db()
    assert (made.state, made.decided_by, "counts from now on" in response.text) == ("approved", user("approver"), True)
    entry = AuditEntry.objects.filter(who="approver", table="billing.adjustment").first()
    assert entry is not None
    assert entry.changes["state"] == ["proposed", "approved"]


def test_nobody_approves_their_own(login: Login, world: World) -> None:
    user("finance").user_permissions.add(Permission.objects.get(codename="approve_adjustment"))
    made = propose(login, world, amount_nanos="-150")
    client = login("finance")
    for response, status in ((client.get(url("approve", made)), 200), (client.post(url("approve", made)), 409)):
        assert response.status_code == status
        assert "You proposed this; someone else must approve." in response.text
    made.refresh_from_db()
    assert made.state == "proposed"


def test_rejection_keeps_its_reason(login: Login, world: World) -> None:
    client = login("approver")
    assert client.post(url("reject", world.proposed), {"reason": ""}).status_code == 200
    client.post(url("reject", world.proposed), {"reason": "no outage that day"})
    world.proposed.refresh_from_db()
    assert (world.proposed.state, world.proposed.decision_reason) == ("rejected", "no outage that day")
    assert "no outage that day" in login("finance").get(reverse(LIST)).text


def test_only_ones_own_can_be_withdrawn(login: Login, world: World) -> None:
    client = login("finance")
    assert client.get(url("reject", world.proposed)).status_code == 403
    assert client.post(url("reject", world.proposed), {"reason": "x"}).status_code == 403
    mine = propose(login, world, amount_nanos="-150")
    client.post(url("reject", mine), {"reason": "a mistake"})
    mine.refresh_from_db()
    assert (mine.state, mine.decided_by) == ("rejected", user("finance"))


def test_decided_once(login: Login, world: World) -> None:
    client = login("approver")
    client.post(url("approve", world.proposed))
    response = client.post(url("reject", world.proposed), {"reason": "too late"}, follow=True)
    assert "Nothing was changed: the adjustment is approved already." in response.text
    page = client.get(url("change", world.proposed)).text
    assert not any(f"/{world.proposed.pk}/{act}/" in page for act in ("approve", "reject"))


def test_list_shows_who_and_what(login: Login, world: World, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for number in range(5):
        make_adjustment(world.key, now(), number - 2, record=UsageRecord.objects.first(), kind="swept")
    client = login("operator")
    page = client.get(reverse(LIST)).text
    for word in ("USD -250.000000000", "USD +0.000000002", "the outage of Tuesday", "the gateway", "proposed"):
        assert word in page
    assert "add/" not in page
    with django_assert_num_queries(6):
        client.get(reverse(LIST))


def test_list_is_narrowed(login: Login, world: World) -> None:
    client = login("finance")

    def found(**query: object) -> set[str]:
        return {row.kind for row in client.get(reverse(LIST), query).context["cl"].result_list}

    assert found(state="proposed") == {"goodwill"}
    assert found(kind="settled") == {"settled"}
    assert found(api_key=world.key.pk, invoice__isnull=True) == {"goodwill", "settled"}
    assert found(invoice=world.note.invoice_id) == {"correction"}
