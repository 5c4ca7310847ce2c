"""Who may see and do what, page by page; and what nobody may."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db import connection
from django.db.models import Model
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils.html import escape
from django.views.defaults import server_error

from billing.models import AuditEntry, Invoice, UsageRecord
from hopbase_site.models import SecondFactor
from tests.billing.admin_site import Login
from tests.billing.admin_world import World

pytestmark = pytest.mark.django_db

OPERATED = ("billing_account", "billing_apikey", "streaming_model", "streaming_provider", "streaming_route")
SEEN_BY_BOTH = (
    *OPERATED, "billing_adjustment", "billing_attempt", "billing_auditentry", "billing_budgetmonth",
    "billing_countfactor", "billing_creditnote", "billing_creditnoteline",
    "billing_flagrollup", "billing_gatewayprocess", "billing_meterevent", "streaming_alarm",
    "billing_invoicedocument", "billing_invoicerun",
    "billing_invoice", "billing_invoiceline", "billing_openstream", "billing_price", "billing_rollupdue",
    "billing_storedobject", "billing_usagerecord", "billing_usagerollup", "billing_usageday", "billing_savedview",
    "billing_export", "billing_attemptquarter", "billing_providertest", "billing_reconciliation",
    "billing_reconciliationmapping", "billing_reconciliationrow",
)  # fmt: skip
ROOT_ONLY = (
    "auth_user", "auth_group", "billing_catalogueversion", "billing_invoicecounter", "billing_recordtoship",
    "billing_droppedmonth", "billing_droppedinvoice", "billing_droppedrecord",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _pages() -> None:
    """The admin's modules are loaded with its URLs, not with the commands'."""
    reverse("admin:index")


def name_of(model: type[Model]) -> str:
    return f"{model._meta.app_label}_{model._meta.model_name}"


def our_models() -> Iterator[type[Model]]:
    for label in ("billing", "streaming"):
        yield from apps.get_app_config(label).get_models()


def test_every_model_is_registered() -> None:
    assert set(our_models()) <= set(admin.site._registry)
    assert {name_of(model) for model in our_models()} == {*SEEN_BY_BOTH, *ROOT_ONLY} - {"auth_user", "auth_group"}


@pytest.mark.parametrize("language", ["en", "zh-hant"])
def test_every_page_opens_without_deletion(login: Login, world: World, language: str) -> None:
    client = login("root")
    for model, page in admin.site._registry.items():
        name = name_of(model)
        urls = [reverse(f"admin:{name}_changelist")]
        row = model._default_manager.first()
        assert row is not None, name
        urls += [reverse(f"admin:{name}_{view}", args=[row.pk]) for view in ("change", "history")]
        request = RequestFactory().get("/")
        request.user = User.objects.get(username="root")
        if page.has_add_permission(request):
            urls.append(reverse(f"admin:{name}_add"))
        for url in urls:
            response = client.get(url, headers={"accept-language": language})
            assert response.status_code == 200, url
            assert "delete_selected" not in response.text
            assert f"{row.pk}/delete/" not in response.text


def test_empty_lists_open(login: Login) -> None:
    client = login("root")
    for model in our_models():
        page = admin.site._registry[model]
        query = {"who": "nobody"} if model is AuditEntry else {}  # else it tells of the users that were made
        response = client.get(reverse(f"admin:{name_of(model)}_changelist"), query)
        assert response.status_code == 200
        assert escape(str(page.nothing_found if query else page.empty_text)) in response.text


@pytest.mark.parametrize(
    ("who", "seen", "hidden"),
    [
        ("operator", SEEN_BY_BOTH, ROOT_ONLY),
        ("finance", SEEN_BY_BOTH, ROOT_ONLY),
        ("nobody", (), (*SEEN_BY_BOTH, *ROOT_ONLY)),
    ],
)
def test_groups_see_their_lists(
    login: Login,
    world: World,
    who: str,
    seen: tuple[str, ...],
    hidden: tuple[str, ...],
) -> None:
    client = login(who)
    for name in seen:
        assert client.get(reverse(f"admin:{name}_changelist")).status_code == 200, name
    for name in hidden:
        assert client.get(reverse(f"admin:{name}_changelist")).status_code == 403, name


@pytest.mark.parametrize(
    ("who", "may_add"),
    [
        ("operator", {*OPERATED, "billing_price"}),
        ("finance", {"billing_price", "billing_reconciliation", "billing_adjustment"}),
        ("nobody", set()),
    ],
)
def test_groups_add_what_is_theirs(login: Login, world: World, who: str, may_add: set[str]) -> None:
    client = login(who)
    for name in (*SEEN_BY_BOTH, *ROOT_ONLY):
        expected = 200 if name in may_add else 403
        assert client.get(reverse(f"admin:{name}_add")).status_code == expected, name
        assert client.post(reverse(f"admin:{name}_add"), {}).status_code == expected, name


def test_anonymous_is_sent_to_login(world: World) -> None:
    for name in ("index", "billing_apikey_changelist", "invoice_run_draft"):
        response = Client().get(reverse(f"admin:{name}"))
        assert (response.status_code, response["location"].split("?")[0]) == (302, reverse("admin:login"))


@pytest.mark.parametrize("who", ["root", "operator"])
def test_nothing_is_deletable(login: Login, world: World, who: str) -> None:
    client = login(who)
    for model in admin.site._registry:
        rows = model._default_manager
        before = rows.count()
        url = reverse(f"admin:{name_of(model)}_delete", args=[rows.first().pk])
        assert client.get(url).status_code == 403, url
        assert client.post(url, {"post": "yes"}).status_code == 403, url
        action = {"action": "delete_selected", "_selected_action": [rows.first().pk], "post": "yes"}
        client.post(reverse(f"admin:{name_of(model)}_changelist"), action)
        assert rows.count() == before, url


@pytest.mark.parametrize(
    "name", ["usagerecord", "attempt", "openstream", "usagerollup", "rollupdue", "budgetmonth", "invoice"]
)
def test_program_rows_are_read_only(login: Login, world: World, name: str) -> None:
    model = apps.get_model("billing", name)
    row = model.objects.first()
    url = reverse(f"admin:billing_{name}_change", args=[row.pk])
    client = login("root")
    assert "_save" not in client.get(url).text
    assert client.post(url, {"model": "changed"}).status_code == 403


def rate_url(record: UsageRecord) -> str:
    """The page that rates records without a price, for those like this one."""
    cause = {"model": record.model, "tier": record.service_tier, "reason": record.unpriced_reason}
    return f"{reverse('admin:unpriced_rate')}?{urlencode(cause)}"


def actions(world: World) -> dict[str, str]:
    """Every page that changes something beside the forms: name -> URL."""
    return {
        "revoke": reverse("admin:billing_apikey_revoke", args=[world.key.pk]),
        "rotate": reverse("admin:billing_apikey_rotate", args=[world.key.pk]),
        "disable": reverse("admin:billing_account_disable", args=[world.northwind.pk]),
        "draft": reverse("admin:invoice_run_draft"),
        "issue_month": f"{reverse('admin:invoice_run_issue')}?month={world.draft.month:%Y-%m}",
        "issue": reverse("admin:billing_invoice_issue", args=[world.draft.pk]),
        "void": reverse("admin:billing_invoice_void", args=[world.open.pk]),
        "paid": reverse("admin:billing_invoice_mark_paid", args=[world.open.pk]),
        "credit": reverse("admin:billing_invoice_credit", args=[world.open.pk]),
        "approve": reverse("admin:billing_adjustment_approve", args=[world.proposed.pk]),
        "reject": reverse("admin:billing_adjustment_reject", args=[world.proposed.pk]),
        "rate": rate_url(world.unpriced),
        "take_off": reverse("admin:auth_user_take_off_second_factor", args=[User.objects.get(username="keeper").pk]),
    }


@pytest.mark.parametrize(
    ("who", "allowed"),
    [
        (
            "root",
            {
                "revoke",
                "rotate",
                "disable",
                "draft",
                "issue_month",
                "issue",
                "void",
                "paid",
                "credit",
                "approve",
                "reject",
                "rate",
                "take_off",
            },
        ),
        ("operator", {"revoke", "rotate", "disable"}),
        ("finance", {"draft", "issue_month", "issue", "void", "paid", "credit", "rate"}),
        ("approver", {"approve", "reject"}),
        ("nobody", set()),
    ],
)
def test_actions_follow_the_groups(login: Login, world: World, who: str, allowed: set[str]) -> None:
    client = login(who)
    for name, url in actions(world).items():
        assert client.get(url).status_code == (200 if name in allowed else 403), name
        if name not in allowed:
            assert client.post(url, {}).status_code == 403, name


@pytest.mark.parametrize("who", ["root", "operator", "finance", "approver", "nobody"])
def test_second_factor_is_everybodys_own(login: Login, who: str) -> None:
    client = login(who)
    assert client.get(reverse("admin:second_factor")).status_code == 200
    for name in ("_code", "_recovery_codes", "_off"):
        assert client.get(reverse(f"admin:second_factor{name}")).status_code == 302, name  # none of theirs is on
    for name in ("", "_code", "_recovery_codes", "_off"):
        response = Client().get(reverse(f"admin:second_factor{name}"))
        assert (response.status_code, response["location"].split("?")[0]) == (302, reverse("admin:login")), name


def test_get_on_actions_changes_nothing(login: Login, world: World) -> None:
    client = login("root")
    before = list(Invoice.objects.order_by("pk").values())
    for url in actions(world).values():
        assert client.get(url).status_code == 200
    world.key.refresh_from_db()
    assert world.key.revoked_at is None
    assert list(Invoice.objects.order_by("pk").values()) == before
    assert SecondFactor.objects.exists()


def test_actions_need_the_csrf_token(world: World, users: dict[str, User]) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(users["root"])
    assert client.post(actions(world)["revoke"]).status_code == 403
    world.key.refresh_from_db()
    assert world.key.revoked_at is None


def test_finance_sees_only_provider_names(login: Login, world: World) -> None:
    for url in (
        reverse("admin:streaming_provider_changelist"),
        reverse("admin:streaming_provider_change", args=[world.provider.pk]),
    ):
        content = login("finance").get(url).text
        assert "acme-cloud" in content
        assert "api.acme.test" not in content
        assert "api.acme.test" in login("operator").get(url).text


def test_no_group_is_told_whom_to_ask(login: Login) -> None:
    response = login("nobody").get(reverse("admin:index"))
    assert response.status_code == 200
    assert "Ask root to put you into Operators or Finance." in response.text
    assert "Requests today" not in response.text


def test_groups_can_be_taken_back(users: dict[str, User]) -> None:
    migration = importlib.import_module("hopbase_site.migrations.0001_groups")
    migration.remove_groups(apps, connection.schema_editor())
    assert not Group.objects.exists()
    migration.make_groups(apps, connection.schema_editor())
    migration.make_groups(apps, connection.schema_editor())
    assert sorted(Group.objects.values_list("name", flat=True)) == ["Finance", "Operators"]


def test_sidebar_shows_what_opens(login: Login, world: World) -> None:
    for who in ("root", "operator", "finance"):
        client = login(who)
        content = client.get(reverse("admin:index")).context["sidebar_navigation"]
        links = [item["link"] for part in content for item in part["items"] if item["has_permission"]]
        assert len(links) > 10
        for link in links:
            assert client.get(link).status_code == 200


@pytest.mark.parametrize("text", ["abc", "²", "1" * 40, "1" * 5000])
def test_what_is_no_id_is_not_found(login: Login, world: World, text: str) -> None:
    """On every page of a row, and for what can be done with one."""
    client, seen = login("root"), 0
    for model, page in admin.site._registry.items():
        for pattern in page.get_urls():
            if "object_id" in pattern.pattern.converters and pattern.name:
                response = client.get(reverse(f"admin:{pattern.name}", args=[text]))
                assert response.status_code in (302, 403, 404), (model, pattern.name)
                seen += 1
    assert seen > 3 * len(admin.site._registry)


@pytest.mark.parametrize("text", ["abc", "²", str(2**63), f"-{2**70}", "1" * 5000])
def test_no_filter_fails_on_what_is_no_id(login: Login, world: World, text: str) -> None:
    client = login("root")
    for model, page in admin.site._registry.items():
        filters = {one if isinstance(one, str) else one.parameter_name for one in page.list_filter}
        for name in {"id__in", "account", "api_key", "invoice", "key", "line", "groups__exact", *filters}:
            response = client.get(reverse(f"admin:{name_of(model)}_changelist"), {name: text})
            assert response.status_code in (200, 302, 400), (model, name)


def test_list_of_no_account_is_empty(login: Login, world: World) -> None:
    client = login("root")
    assert not client.get(reverse("admin:billing_apikey_changelist"), {"account": "²"}).context["cl"].result_list
    assert client.get(reverse("admin:billing_openstream_rows"), {"account": "9" * 20}).status_code == 400


@pytest.mark.parametrize("text", [str(2**63), "1" * 5000])
@pytest.mark.parametrize(
    ("url", "name", "said"),
    [
        ("/admin/usage/", "account", "The field “account” has an unknown value."),
        ("/admin/usage/", "key", "The field “key” has an unknown value."),
        ("/admin/statement/", "account", "There is no such account or key"),
    ],
)
def test_reports_say_what_is_no_id(login: Login, world: World, url: str, name: str, said: str, text: str) -> None:
    page = login("root").get(url, {name: text})
    assert page.status_code == 400
    assert said in page.text


@pytest.mark.parametrize("text", ["abc", str(2**63), "1" * 5000])
def test_key_of_an_adjustment_is_refused(login: Login, world: World, text: str) -> None:
    client, url = login("finance"), reverse("admin:billing_adjustment_add")
    assert client.get(url, {"api_key": text}).status_code == 200
    sent = {"api_key": text, "amount_nanos": "-1", "kind": "goodwill", "reason": "late"}
    assert "Select a valid choice" in client.post(url, sent).text


@pytest.mark.parametrize(("language", "home"), [("en", "To the admin's home page"), ("zh-hant", "回到管理介面首頁")])
def test_refusals_have_pages_of_their_own(login: Login, language: str, home: str) -> None:
    client = login("nobody")
    for url, status in (("/admin/billing/apikey/", 403), ("/nowhere/", 404)):
        page = client.get(url, headers={"accept-language": language})
        assert page.status_code == status
        assert f'lang="{language}"' in page.text
        assert f'<a href="/admin/">{home}</a>' in page.text
    form = Client(enforce_csrf_checks=True).post("/admin/login/", headers={"accept-language": language})
    assert (form.status_code, home in form.text) == (403, True)


def test_own_error_leads_home_in_both_languages() -> None:
    page = server_error(RequestFactory().get("/admin/"))
    assert page.status_code == 500
    assert b'<div lang="zh-hant">' in page.content
    assert page.content.count(b'<a href="/admin/">') == 2
