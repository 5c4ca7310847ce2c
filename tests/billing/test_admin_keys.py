"""Keys: the secret is shown once; limits are checked; a revocation is final."""

from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.urls import reverse
from django.utils.timezone import now

from billing.models import Account, ApiKey
from billing.money import parse
from tests.billing.admin_site import Login
from tests.billing.admin_world import World

pytestmark = pytest.mark.django_db
ADD = "admin:billing_apikey_add"


@pytest.fixture
def account() -> Account:
    return Account.objects.create(name="northwind", timezone="Asia/Taipei")


def form(account: Account, **fields: object) -> dict[str, object]:
    return {"account": account.pk, "name": "production", **fields}


def test_secret_is_shown_once(login: Login, account: Account) -> None:
    client = login("operator")
    response = client.post(reverse(ADD), form(account))
    key = ApiKey.objects.get()
    secret = response.context["secret"]
    assert response.status_code == 200
    assert secret in response.text
    assert "no-store" in response["cache-control"]
    assert "location" not in response
    for url in (
        reverse("admin:billing_apikey_change", args=[key.pk]),
        reverse("admin:billing_apikey_changelist"),
        reverse("admin:billing_apikey_history", args=[key.pk]),
        reverse("admin:index"),
        reverse(ADD),
    ):
        assert secret not in client.get(url).text


def test_secret_is_stored_nowhere(login: Login, account: Account) -> None:
    client = login("operator")
    response = client.post(reverse(ADD), form(account))
    secret = response.context["secret"]
    kept = [
        *(str(row) for row in ApiKey.objects.values()),
        *(str(row) for row in LogEntry.objects.values()),
        *(str(session.get_decoded()) for session in Session.objects.all()),
        str(client.cookies),
        str(response.headers),
    ]
    assert all(secret not in text for text in kept)
    assert len(kept) > 4


def test_sending_the_form_again_makes_no_second_key(login: Login, account: Account) -> None:
    client = login("operator")
    client.post(reverse(ADD), form(account))
    response = client.post(reverse(ADD), form(account))
    assert "its secret was shown then and cannot be shown again" in response.text
    assert "secret" not in response.context
    assert ApiKey.objects.count() == 1


def test_snippet_names_public_address_and_model(login: Login, account: Account, settings: object) -> None:
    settings.PUBLIC_URL = "https://gateway.example.com"  # type: ignore[attr-defined]
    client = login("operator")
    response = client.post(reverse(ADD), form(account, allowed_models="gpt-a\ngpt-b"), headers={"host": "localhost"})
    snippet = response.context["snippet"]
    assert snippet.startswith("curl -N https://gateway.example.com/v1/chat/completions")
    assert '"model": "gpt-a"' in snippet
    assert response.context["secret"] in snippet


def test_limits_are_kept_exactly(login: Login, account: Account) -> None:
    fields = {
        "allowed_models": "gpt-a, gpt-b\n gpt-a ",
        "allowed_ips": "10.0.0.0/8\n192.0.2.7",
        "monthly_budget_nanos": "0.100000003",
        "requests_per_minute": "600",
        "expires_at_0": "2030-01-01",
        "expires_at_1": "00:00:00",
    }
    login("operator").post(reverse(ADD), form(account, **fields))
    key = ApiKey.objects.get()
    assert key.allowed_models == ["gpt-a", "gpt-b"]
    assert key.allowed_ips == ["10.0.0.0/8", "192.0.2.7/32"]
    assert key.monthly_budget_nanos == 100_000_003
    assert key.requests_per_minute == 600
    assert key.expires_at == dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def test_empty_means_unlimited(login: Login, account: Account) -> None:
    login("operator").post(reverse(ADD), form(account))
    key = ApiKey.objects.get()
    assert (key.allowed_models, key.allowed_ips, key.monthly_budget_nanos) == (None, [], None)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("allowed_ips", "10.0.0.1/8", "is not a network"),
        ("allowed_ips", "office", "is not a network"),
        ("allowed_models", "gpt five", "is not a model name"),
        ("monthly_budget_nanos", "-1", "greater than or equal to 0"),
        ("monthly_budget_nanos", "0.1234567891", "no more than 9 decimal places"),
        ("monthly_budget_nanos", "much", "Enter a number"),
        ("concurrency", "-5", "greater than or equal to 0"),
    ],
)
def test_bad_limits_are_refused(login: Login, account: Account, field: str, value: str, said: str) -> None:
    response = login("operator").post(reverse(ADD), form(account, **{field: value}))
    assert said in response.text
    assert not ApiKey.objects.exists()


def test_change_keeps_what_it_does_not_touch(login: Login, world: World) -> None:
    before = ApiKey.objects.values().get(pk=world.key.pk)
    url = reverse("admin:billing_apikey_change", args=[world.key.pk])
    data = {"name": "production", "requests_per_minute": "10", "monthly_budget_nanos": "100"}
    assert login("operator").post(url, data).status_code == 302
    after = ApiKey.objects.values().get(pk=world.key.pk)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"requests_per_minute", "changed_in"}
    assert after["monthly_budget_nanos"] == parse("100")


def test_key_stays_with_its_account(login: Login, world: World) -> None:
    url = reverse("admin:billing_apikey_change", args=[world.key.pk])
    login("operator").post(url, {"name": "production", "account": world.umbrella.pk})
    world.key.refresh_from_db()
    assert world.key.account == world.northwind


def test_revocation_asks_then_is_final(login: Login, world: World) -> None:
    client = login("operator")
    url = reverse("admin:billing_apikey_revoke", args=[world.key.pk])
    question = client.get(url).text
    assert "Revoke the key northwind/production?" in question
    assert "401 within seconds" in question
    assert "Its 1 running request goes on to its end" in question
    assert client.post(url).status_code == 302
    world.key.refresh_from_db()
    assert world.key.revoked_at is not None
    first = world.key.revoked_at
    client.post(url)
    page = reverse("admin:billing_apikey_change", args=[world.key.pk])
    assert client.post(page, {"name": "again"}).status_code == 403
    world.key.refresh_from_db()
    assert (world.key.revoked_at, world.key.name) == (first, "production")


@pytest.mark.parametrize(
    ("state", "fields"),
    [
        ("active", {}),
        ("expired", {"expires_at": now() - dt.timedelta(days=1)}),
        ("revoked", {"revoked_at": now()}),
    ],
)
def test_list_filters_by_state(login: Login, world: World, state: str, fields: dict[str, object]) -> None:
    for name, value in fields.items():
        setattr(world.key, name, value)
    world.key.save()
    found = login("operator").get(reverse("admin:billing_apikey_changelist"), {"state": state}).context["cl"]
    assert world.key in found.result_list
    assert (world.other_key in found.result_list) == (state == "active")
