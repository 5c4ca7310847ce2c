"""Keys: the secret is shown once; limits are checked; a revocation is final."""

from __future__ import annotations

import datetime as dt
from html import unescape
from zoneinfo import ZoneInfo

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.urls import reverse
from django.utils.html import escape, strip_tags
from django.utils.timezone import now
from pytest_django import DjangoAssertNumQueries

from billing import keys
from billing.admin.key_use import count_shown, spent_shown
from billing.models import Account, ApiKey, BudgetMonth
from billing.money import MAX_NANOS, parse
from streaming.models import Model
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import make_key

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
    Model.objects.bulk_create([Model(name="gpt-a"), Model(name="gpt-b")])
    client = login("operator")
    response = client.post(reverse(ADD), form(account, allowed_models="gpt-a\ngpt-b"), headers={"host": "localhost"})
    (snippet,) = response.context["snippets"]  # no model is offered yet
    assert snippet.text.startswith("curl -N https://gateway.example.com/v1/chat/completions")
    assert '"model": "gpt-a"' in snippet.text
    assert response.context["secret"] in snippet.text


def test_snippets_ask_models_that_the_key_may_use(login: Login, world: World) -> None:
    Model.objects.create(name="a-model-without-a-route")
    response = login("operator").post(reverse(ADD), form(world.northwind, name="all"))
    texts = {snippet.name: snippet.text for snippet in response.context["snippets"]}
    assert len(texts) == 6
    assert all('"gpt-5.6-sol"' in text for text in texts.values())
    assert all(escape(text) in response.text for text in texts.values())


def test_limits_are_kept_exactly(login: Login, account: Account) -> None:
    Model.objects.bulk_create([Model(name="gpt-a"), Model(name="gpt-b")])
    fields = {
        "allowed_models": "gpt-a, gpt-b\n gpt-a ",
        "allowed_ips": "10.0.0.0/8\n192.0.2.7",
        "monthly_budget_nanos": "9223372036.854775807",
        "requests_per_minute": "600",
        "expires_at_0": "2030-01-01",
        "expires_at_1": "00:00:00",
    }
    login("operator").post(reverse(ADD), form(account, **fields))
    key = ApiKey.objects.get()
    assert key.allowed_models == ["gpt-a", "gpt-b"]
    assert key.allowed_ips == ["10.0.0.0/8", "192.0.2.7/32"]
    assert key.monthly_budget_nanos == MAX_NANOS
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
        ("monthly_budget_nanos", "9223372036.854775808", "less than or equal to 9223372036.854775807"),
        ("concurrency", "0", "must be between 1 and 2147483647, not 0"),
        ("requests_per_minute", "99999999999", "must be between 1 and 2147483647, not 99999999999"),
        ("tokens_per_minute", "0", "must be between 1 and 9223372036854775807, not 0"),
        ("allowed_models", "gpt-6", "unknown model 'gpt-6'; did you mean 'gpt-5'?"),
    ],
)
def test_bad_limits_are_refused(login: Login, account: Account, field: str, value: str, said: str) -> None:
    Model.objects.create(name="gpt-5")
    response = login("operator").post(reverse(ADD), form(account, **{field: value}))
    assert said in unescape(response.text)
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


def test_name_of_another_key_is_refused(login: Login, world: World) -> None:
    other = make_key(world.northwind, "second")
    page = login("operator").post(reverse("admin:billing_apikey_change", args=[other.pk]), {"name": "production"})
    assert page.status_code == 200
    assert "This account has another key of this name: choose another name." in page.text
    other.refresh_from_db()
    assert other.name == "second"


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
    assert "Its 1 open stream" in question
    assert client.post(url).status_code == 302
    world.key.refresh_from_db()
    assert world.key.revoked_at is not None
    first = world.key.revoked_at
    client.post(url)
    page = reverse("admin:billing_apikey_change", args=[world.key.pk])
    assert "takes no more changes: nothing was saved" in client.post(page, {"name": "again"}, follow=True).text
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


def test_list_shows_now_beside_limit(login: Login, world: World) -> None:
    page = login("operator").get(reverse("admin:billing_apikey_changelist"))
    assert "Redis is away: present use is what the database knows" in page.text
    (key,) = (key for key in page.context["cl"].result_list if key == world.key)
    cells = [strip_tags(shown) for shown in (count_shown(key.use.requests), count_shown(key.use.running))]
    assert cells == ["1 / 600", "1 no limit"]  # the record of a moment ago; a stream that began before that
    assert all(shown in page.text for shown in (count_shown(key.use.requests), spent_shown(key.use.spent, "USD")))
    assert strip_tags(spent_shown(key.use.spent, "USD")).endswith(" / 100.00")
    assert 'aria-label="0 %"' in count_shown(key.use.requests)


def test_list_takes_few_queries(
    login: Login, world: World, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    client = login("operator")
    for number in range(10):
        keys.create(world.northwind, f"key {number}", requests_per_minute=5)
    with django_assert_max_num_queries(12):
        client.get(reverse("admin:billing_apikey_changelist"))


def test_filter_finds_keys_near_a_limit(login: Login, world: World) -> None:
    today = now().astimezone(ZoneInfo(world.northwind.timezone)).date()
    budget = BudgetMonth.objects.get(api_key=world.key, month=today.replace(day=1))
    world.key.monthly_budget_nanos = budget.spent_nanos * 5 // 4
    world.key.save()
    found = login("operator").get(reverse("admin:billing_apikey_changelist"), {"near": "1"}).context["cl"]
    assert list(found.result_list) == [world.key]


def test_filter_finds_unused_keys(login: Login, world: World) -> None:
    month = dt.timedelta(days=31)
    old, used, rotated, new = (keys.create(world.northwind, name)[0] for name in ("old", "used", "rotated", "new"))
    for key in (old, used, rotated):
        key.created_at = now() - 2 * month
        key.last_used_at = now() - month
    used.last_used_at = rotated.previous_used_at = now()
    for key in (old, used, rotated, new):
        key.save()
    found = login("operator").get(reverse("admin:billing_apikey_changelist"), {"unused": "30"}).context["cl"]
    assert list(found.result_list) == [old]


def test_last_use_is_of_either_secret(login: Login, world: World) -> None:
    moment = now() - dt.timedelta(days=3)
    ApiKey.objects.filter(pk=world.key.pk).update(previous_used_at=moment)
    ApiKey.objects.filter(pk=world.other_key.pk).update(last_used_at=moment - dt.timedelta(days=1))
    page = login("operator").get(reverse("admin:billing_apikey_changelist"), {"o": "-4"})
    assert page.text.count("3\xa0days ago") == 1
    assert page.text.count("4\xa0days ago") == 1
    assert [key.pk for key in page.context["cl"].result_list][:2] == [world.key.pk, world.other_key.pk]


def test_page_shows_use_secrets_and_history(login: Login, world: World) -> None:
    client = login("operator")
    url = reverse("admin:billing_apikey_change", args=[world.key.pk])
    client.post(url, {"name": "production", "requests_per_minute": "10", "monthly_budget_nanos": "250"})
    page = client.get(url)
    names = [row.name for row in page.context["limits"]]
    assert names == ["Requests per minute", "Tokens per minute", "Requests at a time", "Monthly budget"]
    assert page.context["limits"][3].resets.endswith(f"00:00:00 {world.northwind.timezone}")
    assert world.key.shown in page.text
    changes = {change.label: (change.before, change.after) for change in page.context["history"][0].changes_told}
    assert changes == {"requests per minute": ("600", "10"), "monthly budget": ("USD 100", "USD 250")}
    assert page.context["history"][0].who == "operator"


def test_disabled_account_is_said(login: Login, world: World) -> None:
    world.northwind.active = False
    world.northwind.save()
    page = login("operator").get(reverse("admin:billing_apikey_change", args=[world.key.pk]))
    assert "is disabled: requests with this key get 403." in page.text


def test_keys_page_takes_few_queries(
    login: Login, world: World, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    client = login("operator")
    with django_assert_max_num_queries(20):
        client.get(reverse("admin:billing_apikey_change", args=[world.key.pk]))
