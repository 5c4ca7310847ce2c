"""Several keys at once: the question names them, only its button acts, all or none; each has an entry of its own."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.timezone import now

from billing import keys
from billing.models import Account, ApiKey, AuditEntry, CatalogueVersion
from billing.money import parse
from tests.billing.admin_site import Login
from tests.billing.factories import make_account, make_key

pytestmark = pytest.mark.django_db
LIST = "admin:billing_apikey_changelist"
AS_IT_IS = {
    f"{limit}_what": "keep"
    for limit in ("requests_per_minute", "tokens_per_minute", "concurrency", "monthly_budget_nanos")
}


@pytest.fixture
def account() -> Account:
    return make_account("northwind")


@pytest.fixture
def three(account: Account) -> list[ApiKey]:
    return [make_key(account, name, requests_per_minute=60) for name in ("a", "b", "c")]


def send(client: Client, action: str, rows: list[ApiKey], **more: Any) -> Any:
    return client.post(reverse(LIST), {"action": action, "_selected_action": [row.pk for row in rows], **more})


def confirm(client: Client, action: str, rows: list[ApiKey], **more: Any) -> Any:
    return send(client, action, rows, confirmed="1", select_across="0", **more)


def test_question_names_keys_and_changes_nothing(login: Login, three: list[ApiKey]) -> None:
    keys.revoke(three[2], now())
    version = CatalogueVersion.current()
    client = login("operator")
    for action, question in (
        ("revoke_chosen", "Revoke 2 keys?"),
        ("change_limits", "Change the limits of 2 keys?"),
        ("set_expiry", "Set when 2 keys expire?"),
    ):
        page = send(client, action, three)
        assert page.status_code == 200
        assert question in page.text
        assert "1 of the chosen keys is revoked already and stays as it is." in page.text
        assert re.findall(r"<li>(northwind/\w)</li>", page.text) == ["northwind/a", "northwind/b"]
        hidden = dict(page.context["hidden"])
        assert (hidden["action"], hidden["confirmed"]) == (action, "1")
    assert CatalogueVersion.current() == version


def test_get_does_nothing(login: Login, three: list[ApiKey]) -> None:
    version = CatalogueVersion.current()
    login("operator").get(
        reverse(LIST), {"action": "revoke_chosen", "_selected_action": [three[0].pk], "confirmed": "1"}
    )
    assert CatalogueVersion.current() == version


def test_chosen_keys_are_revoked_together(login: Login, three: list[ApiKey]) -> None:
    version = CatalogueVersion.current()
    response = confirm(login("operator"), "revoke_chosen", three[:2])
    assert response.status_code == 302
    assert [key.revoked_at is not None for key in ApiKey.objects.order_by("name")] == [True, True, False]
    assert CatalogueVersion.current() == version + 1
    entries = AuditEntry.objects.filter(table="billing.apikey", who="operator")
    assert [entry.object_name for entry in entries] == ["northwind/b", "northwind/a"]


def test_what_the_question_named_is_done(login: Login, three: list[ApiKey]) -> None:
    """All of a filtered list were chosen; a key that came into it since is not touched."""
    client = login("operator")
    url = f"{reverse(LIST)}?q=northwind"
    sent = {"action": "revoke_chosen", "_selected_action": [three[0].pk], "select_across": "1"}
    question = client.post(url, sent)
    assert "Revoke 3 keys?" in question.text
    late = make_key(three[0].account, "late")
    hidden: dict[str, list[Any]] = {}
    for name, value in question.context["hidden"]:
        hidden.setdefault(name, []).append(value)
    client.post(url, hidden)
    assert [ApiKey.objects.get(pk=key.pk).revoked_at is not None for key in (*three, late)] == [True, True, True, False]


def test_rows_that_left_the_filter_are_acted_on(login: Login, three: list[ApiKey]) -> None:
    """One expires, one is revoked while the form is filled in: neither is on the list of active keys any more."""
    url, client = f"{reverse(LIST)}?state=active", login("operator")
    sent = {"action": "revoke_chosen", "_selected_action": [key.pk for key in three], "confirmed": "1"}
    ApiKey.objects.filter(pk=three[0].pk).update(expires_at=now() - dt.timedelta(minutes=1))
    keys.revoke(three[1], now())
    page = client.post(url, sent, follow=True)
    assert "2 keys are revoked." in page.text
    assert page.redirect_chain == [(url, 302)]
    assert not ApiKey.objects.filter(revoked_at=None).exists()
    assert "3 of the chosen keys are revoked already" in client.post(url, sent).text


@pytest.mark.parametrize("ids", [["x"], ["9" * 5000], [str(2**63)], ["999999"]])
def test_rows_that_are_not_there_are_told(login: Login, three: list[ApiKey], ids: list[str]) -> None:
    sent = {"action": "revoke_chosen", "_selected_action": ids, "confirmed": "1"}
    page = login("operator").post(f"{reverse(LIST)}?state=active", sent, follow=True)
    assert "None of the chosen rows is there any more: nothing was done." in page.text
    assert not ApiKey.objects.exclude(revoked_at=None).exists()


def test_limits_change_as_told(login: Login, three: list[ApiKey]) -> None:
    form = {
        **AS_IT_IS, "requests_per_minute_what": "none", "concurrency_what": "set", "concurrency": "7",
        "monthly_budget_nanos_what": "set", "monthly_budget_nanos": "0.5",
    }  # fmt: skip
    assert confirm(login("operator"), "change_limits", three[:2], **form).status_code == 302
    columns = ApiKey.objects.order_by("name").values_list("requests_per_minute", "concurrency", "monthly_budget_nanos")
    assert list(columns) == [(None, 7, parse("0.5"))] * 2 + [(60, None, None)]
    entry = AuditEntry.objects.first()
    assert entry is not None
    assert entry.changes["requests_per_minute"] == [60, None]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({}, "Choose at least one limit to change."),
        ({"concurrency_what": "set"}, "Write the new limit."),
        ({"concurrency_what": "set", "concurrency": "0"}, "must be between 1 and 2147483647, not 0"),
        ({"concurrency": "5"}, "Choose “set to” for the number to count."),
        ({"concurrency_what": "more"}, "Select a valid choice"),
        ({"requests_per_minute_what": "set", "requests_per_minute": str(2**31)}, "must be between 1 and"),
    ],
)
def test_bad_limits_are_refused(login: Login, three: list[ApiKey], form: dict[str, str], said: str) -> None:
    version = CatalogueVersion.current()
    page = confirm(login("operator"), "change_limits", three, **{**AS_IT_IS, **form})
    assert page.status_code == 200
    assert said in page.text
    assert CatalogueVersion.current() == version


def test_budgets_of_two_currencies_are_refused(login: Login, three: list[ApiKey]) -> None:
    other = make_key(make_account("umbrella", currency="TWD"))
    form = {**AS_IT_IS, "monthly_budget_nanos_what": "set", "monthly_budget_nanos": "5"}
    page = confirm(login("operator"), "change_limits", [three[0], other], **form)
    assert "several currencies (TWD, USD)" in page.text
    form = {**AS_IT_IS, "monthly_budget_nanos_what": "none"}
    assert confirm(login("operator"), "change_limits", [three[0], other], **form).status_code == 302


def test_expiry_is_set_and_taken_back(login: Login, three: list[ApiKey]) -> None:
    client = login("operator")
    confirm(client, "set_expiry", three[:2], expires_at_0="2030-01-01", expires_at_1="00:00:00")
    at = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    assert [key.expires_at for key in ApiKey.objects.order_by("name")] == [at, at, None]
    confirm(client, "set_expiry", three[:1], expires_at_0="", expires_at_1="")
    assert [key.expires_at for key in ApiKey.objects.order_by("name")] == [None, at, None]


def test_expiry_in_the_past_is_refused(login: Login, three: list[ApiKey]) -> None:
    page = confirm(login("operator"), "set_expiry", three, expires_at_0="2020-01-01", expires_at_1="00:00:00")
    assert "This has passed: to stop keys now, revoke them." in page.text
    assert not ApiKey.objects.exclude(expires_at=None).exists()


def test_nothing_left_to_revoke_is_said(login: Login, three: list[ApiKey]) -> None:
    keys.revoke(three[0], now())
    page = confirm(login("operator"), "revoke_chosen", three[:1])
    assert "1 of the chosen keys is revoked already" in page.text
    assert 'type="submit" class="hb-button' not in page.text


def test_too_many_are_refused(login: Login, account: Account) -> None:
    rows = [
        ApiKey(account=account, name=f"key {number}", shown="sk-hb", digest=f"{number:064}") for number in range(501)
    ]
    ApiKey.objects.bulk_create(rows)
    client = login("operator")
    first = ApiKey.objects.first()
    assert first is not None
    sent = {"action": "revoke_chosen", "_selected_action": [first.pk], "select_across": "1"}
    page = client.post(reverse(LIST), sent, follow=True)
    assert "Choose at most 500 at a time" in page.text
    assert not ApiKey.objects.exclude(revoked_at=None).exists()


@pytest.mark.parametrize("who", ["finance", "nobody"])
def test_others_cannot_act(login: Login, three: list[ApiKey], who: str) -> None:
    confirm(login(who), "revoke_chosen", three)
    assert not ApiKey.objects.exclude(revoked_at=None).exists()
