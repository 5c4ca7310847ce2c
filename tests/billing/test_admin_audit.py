"""The audit log: newest first, page by page, filtered, as a file; and nobody sees there what is not theirs."""

from __future__ import annotations

import csv
import datetime as dt
import io

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils.timezone import now
from pytest_django import DjangoAssertNumQueries

from billing import audit, keys
from billing.models import AuditEntry
from streaming.models import Provider
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import make_account, make_key

pytestmark = pytest.mark.django_db
URL = "/admin/audit/"


def shown(client: Client, **query: str) -> list[AuditEntry]:
    return list(client.get(URL, query).context["cl"].result_list)


def entries(count: int, **fields: object) -> None:
    given = {"who": "apply", "table": "billing.apikey", "object_id": "1", "action": "changed", **fields}
    AuditEntry.objects.bulk_create(
        AuditEntry(**{"object_name": f"northwind/key {number}", **given}) for number in range(count)
    )


def test_both_groups_see_it(login: Login, world: World) -> None:
    for who, status in (("operator", 200), ("finance", 200), ("root", 200), ("nobody", 403)):
        assert login(who).get(URL).status_code == status, who
        assert login(who).get(reverse("admin:audit_csv")).status_code == status, who
    assert Client().get(URL).status_code == 302


def test_entry_tells_who_what_and_how(login: Login) -> None:
    with audit.acting("apply"):
        key = make_key(make_account("northwind"), requests_per_minute=60, monthly_budget_nanos=100 * 10**9)
    key.requests_per_minute, key.monthly_budget_nanos = None, 250 * 10**9
    key.expires_at = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    key.save()
    client = login("finance")
    changed, made = shown(client, table="billing.apikey")
    assert made.who == "apply"
    told = {change.label: (change.before, change.after) for change in changed.changes_told}  # type: ignore[attr-defined]
    assert told == {
        "requests per minute": ("60", "none"),
        "monthly budget": ("USD 100", "USD 250"),
        "expires": ("none", "2030-01-01 00:00:00 UTC"),
    }
    page = client.get(URL, {"table": "billing.apikey"})
    assert f'href="/admin/billing/apikey/{key.pk}/change/"' in page.text
    assert "•••" in page.text  # of the secret, made with the key


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"who": "ann"}, ["a"]),
        ({"table": "billing.account"}, ["b"]),
        ({"table": "billing.apikey", "object_id": "7"}, ["c"]),
        ({"first": "2026-11-04"}, ["e"]),
        ({"last": "2026-11-02"}, ["c", "b", "a"]),
        ({"first": "2026-11-03", "last": "2026-11-03"}, ["d"]),
        ({"q": "d"}, ["d"]),
        ({"first": "yesterday", "who": "ann"}, ["a"]),
    ],
)
def test_filters_narrow(login: Login, query: dict[str, str], found: list[str]) -> None:
    client = login("operator")
    before = AuditEntry.objects.latest("id").pk
    entries(1, object_name="a", who="ann", at=dt.datetime(2026, 11, 1, tzinfo=dt.UTC))
    entries(1, object_name="b", table="billing.account", at=dt.datetime(2026, 11, 1, tzinfo=dt.UTC))
    entries(1, object_name="c", object_id="7", at=dt.datetime(2026, 11, 2, 23, 59, tzinfo=dt.UTC))
    entries(1, object_name="d", at=dt.datetime(2026, 11, 3, 23, 59, tzinfo=dt.UTC))
    entries(1, object_name="e", at=dt.datetime(2026, 11, 4, tzinfo=dt.UTC))
    assert [entry.object_name for entry in shown(client, **query) if entry.pk > before] == found


def test_bad_day_is_said(login: Login) -> None:
    for name, text in (("first", "yesterday"), ("first", "0001-01-01"), ("last", "9999-12-31")):
        assert f"“{text}” is no day: write it as 2026-11-03." in login("operator").get(URL, {name: text}).text


def test_pages_join_without_gap(login: Login) -> None:
    client = login("operator")
    entries(120)
    url, seen = f"{URL}?table=billing.apikey", []
    for size in (50, 50, 20):
        page = client.get(url).context["cl"]
        assert len(page.result_list) == size
        seen += [entry.pk for entry in page.result_list]
        older, url = page.older_url, f"{URL}{page.older_url}"
    assert older == ""
    assert seen == list(AuditEntry.objects.filter(table="billing.apikey").values_list("pk", flat=True))
    entries(1)  # comes in front, and moves nothing
    back = client.get(f"{URL}{page.newer_url}").context["cl"]
    assert [entry.pk for entry in back.result_list] == seen[50:100]
    first = client.get(f"{URL}{back.newer_url}").context["cl"]
    assert [entry.pk for entry in first.result_list] == seen[:50]
    assert first.newer_url != ""
    assert "before" not in page.newest_url


@pytest.mark.parametrize("at", ["", "x", "-1", "9" * 30, "0"])
def test_odd_places_are_the_first_page_or_empty(login: Login, at: str) -> None:
    entries(3)
    for name in ("before", "after"):
        assert login("operator").get(URL, {name: at}).status_code == 200


def test_page_takes_few_queries(login: Login, django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    client = login("operator")
    account = make_account("northwind")
    for number in range(30):
        keys.create(account, f"key {number}", monthly_budget_nanos=number)
    with django_assert_max_num_queries(10):
        assert len(shown(client)) > 30


def test_file_holds_what_is_shown(login: Login) -> None:
    with audit.acting("=cmd()"):  # whoever is called so: no spreadsheet runs it
        key = make_key(make_account("northwind"), "made", concurrency=3)
    keys.revoke(key, now())
    response = login("finance").get(reverse("admin:audit_csv"), {"table": "billing.apikey"})
    rows = list(csv.reader(io.StringIO(response.text.removeprefix("\ufeff"))))
    assert rows[0] == ["when (UTC)", "who", "kind of object", "object", "what", "column", "before", "after"]
    assert [row[3:6] for row in rows[1:2]] == [["northwind/made", "changed", "revoked"]]
    made = {row[5]: row[7] for row in rows[2:]}
    assert (made["secret"], made["concurrency"], made["account"]) == ("•••", "3", "northwind")
    assert {row[1] for row in rows[2:]} == {"'=cmd()"}
    assert "attachment" in response["content-disposition"]


def test_provider_addresses_are_the_operators(login: Login) -> None:
    provider = Provider.objects.create(name="acme", base_url="https://api.acme.test")
    provider.base_url = "https://new.acme.test"
    provider.save()
    for url in (f"{URL}?table=streaming.provider", f"{reverse('admin:audit_csv')}?table=streaming.provider"):
        assert "new.acme.test" in login("operator").get(url).text
        text = login("finance").get(url).text
        assert "acme.test" not in text
        assert "acme" in text


def test_history_button_shows_old_and_new(login: Login, world: World) -> None:
    client = login("operator")
    url = reverse("admin:billing_apikey_change", args=[world.key.pk])
    client.post(url, {"name": "production", "requests_per_minute": "10", "monthly_budget_nanos": "100"})
    page = client.get(reverse("admin:billing_apikey_history", args=[world.key.pk]))
    assert page.context["history"][0].who == "operator"
    assert "600" in page.text
    assert "All changes in the audit log" in page.text
    assert login("nobody").get(reverse("admin:billing_apikey_history", args=[world.key.pk])).status_code == 403


def test_entry_of_djangos_log_is_in_words(login: Login, world: World) -> None:
    client = login("finance")
    client.post(reverse("admin:billing_invoice_mark_paid", args=[world.open.pk]), {"paid_on": now().date()})
    (entry, *_rest) = shown(client, table="billing.invoice")
    assert entry.who == "finance"
    assert entry.changes_shown.startswith("Changed")  # type: ignore[attr-defined]


def test_providers_are_names_to_finance(login: Login) -> None:
    """What the page of a provider does not show, its entries do not tell: not whether it was set either."""
    provider = Provider.objects.create(name="acme", base_url="https://api.acme.test", auth="bearer", drain_s=None)
    provider.drain_s, provider.max_drains, provider.active = 77, 9, False
    provider.save()
    changed, made = shown(login("finance"), table="streaming.provider")
    told = [change for entry in (changed, made) for change in entry.changes_told]  # type: ignore[attr-defined]
    readable = {(change.before, change.after) for change in told if change.label == "name"}
    assert readable == {("none", "acme")}
    assert {(change.before, change.after) for change in told if change.label != "name"} == {("•••", "•••")}
    (operators, _made) = shown(login("operator"), table="streaming.provider")
    values = {change.after for change in operators.changes_told}  # type: ignore[attr-defined]
    assert {"77", "9", "no"} <= values
    history = reverse("admin:streaming_provider_history", args=[provider.pk])
    assert "77" in login("operator").get(history).text
    assert "acme.test" not in login("finance").get(history).text


def test_users_are_nobodys_business(login: Login, users: dict[str, User]) -> None:
    """Only who sees the pages of users reads what changed of them; that something did, all may know."""
    users["nobody"].email = "ann@northwind.test"
    users["nobody"].save()
    users["nobody"].groups.add(Group.objects.get(name="Finance"))
    assert "ann@northwind.test" in login("root").get(URL, {"table": "auth.user"}).text
    for who in ("operator", "finance"):
        for url in (f"{URL}?table=auth.user", f"{reverse('admin:audit_csv')}?table=auth.user"):
            text = login(who).get(url).text
            assert "ann@northwind.test" not in text, who
            assert "nobody" in text


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (URL, "changes__base_url__1__startswith=https"),
        (URL, "changes__icontains=acme"),
        (URL, "changes__has_key=base_url"),
        ("/admin/streaming/provider/", "base_url__startswith=https"),
        ("/admin/streaming/provider/", "drain_s__isnull=1"),
        ("/admin/streaming/provider/", "credential__startswith=g"),
        ("/admin/streaming/provider/", "active=1"),
        ("/admin/billing/apikey/", "digest__startswith=a"),
        ("/admin/billing/apikey/", "previous_digest__startswith=a"),
        ("/admin/streaming/route/", "provider__base_url__startswith=https"),
        ("/admin/billing/usagerecord/", "api_key__digest__startswith=a"),
    ],
)
def test_hidden_values_cannot_be_asked_for(login: Login, path: str, asked: str) -> None:
    """A filter by a hidden value would tell it, one character after the other."""
    Provider.objects.create(name="acme", base_url="https://api.acme.test", credential="gAAA")
    make_key(make_account("northwind"))
    answer = login("finance").get(f"{path}?{asked}")
    assert answer.status_code in (302, 400), "it was taken for a filter"


def test_operators_may_still_ask(login: Login) -> None:
    Provider.objects.create(name="acme", base_url="https://api.acme.test")
    client = login("operator")
    for asked, status in (("base_url__startswith=https", 200), ("active=1", 200), ("credential__startswith=g", 400)):
        assert client.get(f"/admin/streaming/provider/?{asked}").status_code == status, asked
