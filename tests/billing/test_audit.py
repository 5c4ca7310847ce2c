"""The audit log: who changed what, from what to what; secrets hidden; in the change's own transaction; for ever."""

from __future__ import annotations

import datetime as dt
import importlib
from collections.abc import Callable

import pytest
from django.apps import apps
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.urls import reverse
from django.utils.timezone import now

from billing import audit, invoices, keys
from billing.models import Account, ApiKey, AuditEntry, CatalogueRow, Invoice, Price
from hopbase_site.command_line import run
from streaming import configuration, credentials
from streaming.models import Model, Provider, Route, take_out
from tests.billing.admin_site import Login
from tests.billing.admin_site import own_world as own_world
from tests.billing.admin_world import World
from tests.billing.factories import make_account, make_record, utc

pytestmark = pytest.mark.django_db

FILE = """
accounts:
  - name: northwind
    timezone: Asia/Taipei
    keys:
      - {name: production, secret: "preset-secret-of-a-customer", limits: {requests_per_minute: 60}}
"""


def newest() -> AuditEntry:
    entry = AuditEntry.objects.first()
    assert entry is not None
    return entry


def test_every_catalogue_row_is_watched() -> None:
    rows = {table for table in apps.get_models() if issubclass(table, CatalogueRow)}
    assert {*rows, User, Group} <= audit.watched()


def test_change_tells_before_and_after() -> None:
    account = make_account("northwind")
    account.currency = "TWD"
    with audit.acting(lambda: audit.Actor("ann")):
        account.save(update_fields=["currency"])
    entry = newest()
    assert (entry.who, entry.table, entry.object_id) == ("ann", "billing.account", str(account.pk))
    assert (entry.object_name, entry.action, entry.changes) == ("northwind", "changed", {"currency": ["USD", "TWD"]})


def test_new_row_tells_what_is_filled_in() -> None:
    key, _ = keys.create(make_account("northwind"), "production", concurrency=5)
    entry = newest()
    assert entry.action == "made"
    assert entry.changes == {
        "account": [None, "northwind"],
        "name": [None, "production"],
        "digest": [None, "•••"],
        "shown": [None, key.shown],
        "concurrency": [None, 5],
    }


def test_save_without_change_leaves_nothing() -> None:
    account = make_account()
    before = AuditEntry.objects.count()
    account.save()
    assert AuditEntry.objects.count() == before


def test_column_of_another_save_is_not_told() -> None:
    account = make_account("northwind")
    stale = Account.objects.get()
    stale.name, stale.legal_name = "southwind", "Southwind Ltd"
    stale.save(update_fields=["legal_name"])
    assert newest().changes == {"legal_name": ["", "Southwind Ltd"]}
    account.refresh_from_db()
    assert account.name == "northwind"


def test_undone_change_leaves_no_entry() -> None:
    account, before = make_account(), AuditEntry.objects.count()
    with transaction.atomic():
        account.active = False
        account.save()
        transaction.set_rollback(True)
    assert AuditEntry.objects.count() == before


def test_secrets_are_hidden(settings: object) -> None:
    key, old = keys.create(make_account(), "production")
    new = keys.rotate(key, dt.timedelta(hours=1), utc(2026, 11, 3))
    entry = newest()
    assert entry.changes["digest"] == ["•••", "•••"]
    assert set(entry.changes) == {"digest", "shown", "previous_until"}
    cipher = credentials.encrypt("sk-acme-secret", ["dGVzdHMtdGVzdHMtdGVzdHMtdGVzdHMtdGVzdHMtMzI="])
    Provider.objects.create(name="acme", base_url="https://acme.test", credential=cipher)
    User.objects.create_user("ann", password="correct horse battery")
    kept = str(list(AuditEntry.objects.values()))
    digests = ApiKey.objects.values_list("digest", "previous_digest").get()
    assert all(secret not in kept for secret in (old, new, cipher, "correct horse", *map(str, digests)))
    assert "pbkdf2" not in kept
    assert "md5$" not in kept


def test_last_use_is_no_change() -> None:
    key, secret = keys.create(make_account(), "production")
    before = AuditEntry.objects.count()
    keys.note_uses({key.digest: now()})
    key.refresh_from_db()
    key.last_used_at = now()
    key.save()
    assert AuditEntry.objects.count() == before
    assert secret


def test_route_names_what_it_joins() -> None:
    provider = Provider.objects.create(name="acme", base_url="https://acme.test")
    route = Route.objects.create(model=Model.objects.create(name="gpt"), provider=provider, upstream_model="large")
    assert newest().changes["model"] == [None, "gpt"]
    take_out(route.pk, "401 from the provider")
    entry = newest()
    assert (entry.who, entry.changes["out_reason"]) == ("gateway", ["", "401 from the provider"])


def test_rights_of_users_are_told() -> None:
    user = User.objects.create_user("ann")
    group = Group.objects.create(name="Auditors")
    user.groups.add(group)
    entry = newest()
    assert (entry.table, entry.object_name, entry.changes) == ("auth.user", "ann", {"groups": [[], ["Auditors"]]})
    group.user_set.remove(user)
    assert newest().changes == {"groups": [["Auditors"], []]}
    user.groups.add(group)
    user.groups.clear()
    assert newest().changes == {"groups": [["Auditors"], []]}


def test_log_in_is_no_change(login: Login) -> None:
    before = AuditEntry.objects.count()
    login("operator")
    assert AuditEntry.objects.count() == before


def test_form_says_its_user(login: Login, world: World) -> None:
    url = reverse("admin:billing_apikey_change", args=[world.key.pk])
    before = AuditEntry.objects.count()
    login("operator").post(url, {"name": "production", "requests_per_minute": "10", "monthly_budget_nanos": "100"})
    entry = newest()
    assert AuditEntry.objects.count() == before + 1  # Django's own entry tells of the same
    assert (entry.who, entry.user) == ("operator", User.objects.get(username="operator"))
    assert entry.changes == {"requests_per_minute": [600, 10]}


def test_admin_log_is_taken_in(login: Login, world: World) -> None:
    login("finance").post(
        reverse("admin:billing_invoice_mark_paid", args=[world.open.pk]), {"paid_on": now().date(), "reference": "B 1"}
    )
    entry = newest()
    assert (entry.who, entry.table, entry.action) == ("finance", "billing.invoice", "done")
    assert entry.object_id == str(world.open.pk)
    assert entry.message == LogEntry.objects.latest("id").change_message != ""


def test_admin_log_of_before_is_taken_over(users: dict[str, User]) -> None:
    account = make_account("northwind")
    LogEntry.objects.log_actions(users["root"].pk, [account], CHANGE, "Changed name.", single_object=True)
    migration = importlib.import_module("billing.migrations.0012_audit_log")
    before = AuditEntry.objects.count()
    migration.take_over_admin_log(apps, connection.schema_editor())
    assert AuditEntry.objects.count() == before + 1
    entry = newest()
    assert (entry.who, entry.object_name, entry.table) == ("root", "northwind", "billing.account")


def test_apply_says_the_command(tmp_path: object) -> None:
    path = tmp_path / "hopbase.yaml"  # type: ignore[operator]
    path.write_text(FILE)
    call_command("apply", path)
    assert [entry.who for entry in AuditEntry.objects.filter(table="billing.apikey")] == ["apply"]
    path.write_text(FILE.replace("60", "90").replace("of-a-customer", "of-this-customer"))
    call_command("apply", path)
    entry = newest()
    assert (entry.who, entry.changes["requests_per_minute"]) == ("apply", [60, 90])
    assert entry.changes["digest"] == ["•••", "•••"]


def test_import_is_its_users(users: dict[str, User]) -> None:
    with audit.acting(lambda: audit.Actor("operator", users["operator"].pk)):
        configuration.apply(FILE.encode(), variables=None)
    assert newest().user == users["operator"]


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("create_api_key", {"account": "northwind", "name": "made"}), ("rotate_credentials", {})],
)
def test_commands_are_named(command: str, arguments: dict[str, str], settings: object) -> None:
    make_account("northwind")
    cipher = credentials.encrypt("sk-acme-secret", settings.ENCRYPTION_KEYS)  # type: ignore[attr-defined]
    Provider.objects.create(name="acme", base_url="https://acme.test", credential=cipher)
    call_command(command, **arguments)
    assert newest().who == command


def test_issue_by_command_is_noted() -> None:
    key, _ = keys.create(make_account("northwind"), "production")
    make_record(key, utc(2026, 10, 3))
    call_command("close_month", "2026-10", "--issue")
    invoice = Invoice.objects.get()
    entry = newest()
    assert (entry.who, entry.table, entry.object_id) == ("close_month", "billing.invoice", str(invoice.pk))
    assert (entry.object_name, entry.message) == (invoice.number, "issued")


def test_blocked_issue_is_not_noted() -> None:
    key, _ = keys.create(make_account("northwind"), "production")
    make_record(key, utc(2026, 10, 3), model="unpriced-model", unpriced=True)
    (draft,) = invoices.draft(dt.date(2026, 10, 1), now=utc(2026, 11, 2))
    assert draft.unpriced == 1
    before = AuditEntry.objects.count()
    with pytest.raises(Exception, match="not issued"):
        call_command("close_month", "2026-10", "--issue")
    assert AuditEntry.objects.count() == before


@pytest.mark.django_db(transaction=True)
def test_command_line_names_djangos_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "correct horse battery")
    told = ["createsuperuser", "--no-input", "--username", "ann", "--email", "ann@example.com"]
    assert run(["manage.py", *told]) == 0
    assert newest().who == "createsuperuser"


def test_nobody_said_names_the_program() -> None:
    make_account()
    assert newest().who
    with audit.acting("serve"), audit.acting("gateway"):
        make_account("second")
    assert newest().who == "gateway"


def test_user_within_a_program_is_the_user() -> None:
    with audit.acting("serve"), audit.acting(lambda: audit.Actor("ann")), audit.acting("apply"):
        make_account()
    assert newest().who == "ann"


@pytest.mark.parametrize(
    "write",
    [lambda: AuditEntry.objects.update(who="nobody"), lambda: AuditEntry.objects.all().delete()],
    ids=["update", "delete"],
)
def test_log_never_changes(write: Callable[[], object]) -> None:
    Price.objects.create(model="gpt", effective_from=utc(2026, 1, 1), currency="USD")
    with pytest.raises(IntegrityError, match="the audit log never changes"), transaction.atomic():
        write()
