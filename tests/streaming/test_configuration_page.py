"""The page Configuration: a file comes out without secrets, and goes in after a look at what it changes."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from billing.models import Account, ApiKey, AuditEntry
from streaming import configuration
from streaming.configuration import Lines
from streaming.models import Model, Provider
from tests.billing.admin_site import Login
from tests.billing.admin_world import CREDENTIAL, World

pytestmark = pytest.mark.django_db
START, APPLY, EXPORT = "/admin/configuration/", "/admin/configuration/apply/", "/admin/configuration/export/"
SECRET = "sk-typed-into-the-file"
FILE = f"""\
providers:
  - name: acme-cloud
    auth: x-api-key
    api_key: {SECRET}
models:
  - name: gpt-5.6-sol
    stall_seconds: 90
"""


def upload(client: Client, text: str | bytes = FILE) -> Any:
    raw = text.encode() if isinstance(text, str) else text
    return client.post(START, {"file": SimpleUploadedFile("hop.yaml", raw)})


def agreed(preview: Any) -> dict[str, str]:
    return {name: preview.context[name] for name in ("digest", "version")}


def test_export_applies_to_nothing_new(login: Login, world: World) -> None:
    response = login("operator").get(EXPORT)
    assert response["Content-Disposition"].startswith('attachment; filename="hopbase-')
    assert configuration.apply(response.content, variables=None, dry_run=True) == []
    for secret in (CREDENTIAL, world.secret, world.provider.credential):
        assert secret not in response.text


def test_preview_shows_differences_alone(login: Login, world: World) -> None:
    client = login("operator")
    response = upload(client)
    rows = [(row["what"], row["field"], row["before"], row["after"]) for row in response.context["rows"]]
    assert ("model gpt-5.6-sol", "stall_seconds", "120", "90") in rows
    assert ("provider acme-cloud", "auth", "bearer", "x-api-key") in rows
    assert ("provider acme-cloud", "api_key", "•••", "•••") in rows
    assert len(rows) == 3
    assert Model.objects.get(name="gpt-5.6-sol").stall_seconds == 120
    assert SECRET not in response.text
    assert "no-store" in response["Cache-Control"]


@pytest.mark.parametrize(
    ("text", "said", "button"),
    [
        ("models: [{name: gpt-5.6-sol, stall_seconds: 90}]", "1 change.", "Apply 1 change<"),
        (FILE, "3 changes.", "3 changes<"),
    ],
)
def test_preview_counts_changes(login: Login, world: World, text: str, said: str, button: str) -> None:
    page = upload(login("operator"), text).text
    assert f"hop.yaml would make {said}" in page
    assert button in page


def test_preview_tells_with_what_rows_begin(login: Login, world: World) -> None:
    text = "accounts:\n  - {name: northwind, keys: [{name: second, limits: {concurrency: 5}}]}\n"
    rows = [(row["field"], row["before"], row["after"]) for row in upload(login("operator"), text).context["rows"]]
    assert rows == [("", "", "newly created"), ("limits.concurrency", "none", "5")]


def test_waiting_file_is_kept_encrypted(login: Login, world: World) -> None:
    client = login("operator")
    upload(client)
    kept = Session.objects.get(pk=client.session.session_key)
    assert "configuration_import" in kept.get_decoded()
    assert SECRET not in str(kept.get_decoded())


def test_apply_changes_all_and_says_who(login: Login, world: World) -> None:
    client = login("operator")
    response = client.post(APPLY, agreed(upload(client)))
    assert response.status_code == 200
    provider = Provider.objects.get()
    assert (provider.auth, Model.objects.get(name="gpt-5.6-sol").stall_seconds) == ("x-api-key", 90)
    entries = AuditEntry.objects.filter(who="operator", table="streaming.model", object_id=str(world.model.pk))
    assert entries.get().changes["stall_seconds"] == [120, 90]
    assert SECRET not in response.text + str(list(AuditEntry.objects.values()))
    assert client.post(APPLY, {}).status_code == 302  # nothing waits any more


def test_changed_database_refuses_the_file(login: Login, world: World) -> None:
    client = login("operator")
    preview = upload(client)
    world.model.total_timeout_s = 300
    world.model.save()
    response = client.post(APPLY, agreed(preview))
    assert response.status_code == 409
    assert "has changed since the preview" in response.text
    assert Provider.objects.get().auth == "bearer"
    assert client.post(APPLY, agreed(response)).status_code == 200  # the new preview can be agreed to
    assert Provider.objects.get().auth == "x-api-key"


def test_other_tab_cannot_swap_the_file(login: Login, world: World) -> None:
    client = login("operator")
    first = upload(client)
    upload(client, "models:\n  - {name: gpt-5.6-sol, stall_seconds: 100}\n")
    assert client.post(APPLY, agreed(first)).status_code == 409
    assert Model.objects.get(name="gpt-5.6-sol").stall_seconds == 120


def test_variables_are_never_expanded(login: Login, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_KEY", "sk-of-the-server")
    response = upload(login("operator"), FILE.replace(SECRET, "${ACME_KEY}"))
    ((line, fault),) = response.context["faults"]
    assert line == "4"
    assert "write the value itself here" in fault
    assert "sk-of-the-server" not in response.text


def test_faults_stand_by_their_lines(login: Login, world: World) -> None:
    text = "models:\n  - name: a\n    stall_seconds: 7\n    routes:\n      - {provider: nobody}\nprices: 3\n"
    response = upload(login("operator"), text)
    assert [line for line, _fault in response.context["faults"]] == ["3", "5", "6"]
    assert "Apply " not in response.text


@pytest.mark.parametrize("raw", [b"\xff\xfe\x00", b"a: [", b"x: 1\nx: 2\n"])
def test_unreadable_files_are_told(login: Login, world: World, raw: bytes) -> None:
    response = upload(login("operator"), raw)
    assert "cannot be applied" in response.text


def test_new_keys_secret_shows_once(login: Login, world: World) -> None:
    client = login("operator")
    preview = upload(client, "accounts:\n  - {name: northwind, keys: [{name: second}]}\n")
    assert "sk-hb-" not in preview.text
    done = client.post(APPLY, agreed(preview))
    assert ApiKey.objects.filter(name="second").exists()
    assert done.text.count("sk-hb-") == 1
    assert "no-store" in done["Cache-Control"]


def test_billing_details_need_their_right(login: Login, world: World) -> None:
    text = "accounts:\n  - name: northwind\n    billing: {legal_name: Other Ltd}\n"
    response = upload(login("operator"), text)
    assert response.context["faults"][0][0] == "3"
    assert "no right to change" in response.context["faults"][0][1]
    assert "rows" in upload(login("root"), text).context
    assert Account.objects.get(name="northwind").legal_name == "Northwind Ltd"


@pytest.mark.parametrize("url", [START, APPLY, EXPORT])
@pytest.mark.parametrize("who", ["finance", "nobody"])
def test_only_operators_get_in(login: Login, who: str, url: str) -> None:
    client = login(who)
    assert (client.get(url).status_code, client.post(url).status_code) == (403, 403)


def test_sidebar_leads_there(login: Login) -> None:
    assert reverse("admin:configuration") in login("operator").get("/admin/").text
    assert reverse("admin:configuration") not in login("finance").get("/admin/").text


def test_lines_are_of_the_nearest_thing() -> None:
    lines = Lines(b"models:\n  - name: a\n\n  - name: b\n    routes: [{provider: x}]\n")
    paths = ["models", "models[0]", "models[1].routes", "models[1].routes[0].weight", "models[7]", "nothing", ""]
    assert [lines.line_of(path) for path in paths] == [1, 2, 5, 5, 1, 1, 1]
