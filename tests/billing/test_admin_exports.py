"""Exports in the admin: seen and downloaded by their owner, or with a right of its own; progress that moves."""

from __future__ import annotations

import datetime as dt

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Permission, User
from django.db import connections
from django.http import HttpResponseBase
from django.test import AsyncClient, Client
from django.urls import reverse
from django.utils.timezone import now

from billing import exports, invoice_documents, invoices, month_close, tasks
from billing.exports import Format, Kind, State
from billing.models import Export, Invoice
from tests.billing.admin_site import Login
from tests.billing.admin_site import own_world as own_world
from tests.billing.admin_world import World
from tests.billing.factories import make_account, make_key, make_record, price, utc
from tests.billing.pdf_text import text_of

pytestmark = [pytest.mark.django_db, pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")]


@pytest.fixture
def export(users: dict[str, User]) -> Export:
    make_record(make_key(make_account("exporter")), now() - dt.timedelta(minutes=1))
    return exports.ask(users["finance"], Kind.RECORDS, Format.CSV, "", language="en")


def url(view: str, export: Export) -> str:
    return reverse(f"admin:billing_export_{view}", args=[export.pk])


def content(response: HttpResponseBase) -> bytes:
    return b"".join(response)  # type: ignore[arg-type]  # pieces of bytes


def test_progress_moves(login: Login, export: Export) -> None:
    client = login("finance")
    told = client.get(url("progress", export)).json()
    assert (told["open"], told["share"], told["url"]) == (True, None, "")
    Export.objects.filter(pk=export.pk).update(state=State.RUNNING, rows_done=2_000, rows_total=6_000)
    told = client.get(url("progress", export)).json()
    assert (told["share"], told["words"]) == (33, "2,000 / 6,000 rows are written.")
    assert 'value="33"' in client.get(url("change", export)).text
    exports.run(export.pk)
    told = client.get(url("progress", export)).json()
    assert (told["open"], told["url"]) == (False, url("file", export))
    page = client.get(url("change", export)).text
    assert "The file is ready." in page
    export.refresh_from_db()
    assert export.sha256 in page


def test_file_is_its_owners(login: Login, export: Export) -> None:
    exports.run(export.pk)
    response = login("finance").get(url("file", export))
    assert content(response) == exports.path(export).read_bytes()
    assert response["Content-Disposition"] == f'attachment; filename="{export.file_name}"'
    assert "no-store" in response["Cache-Control"]
    assert int(response["Content-Length"]) == exports.path(export).stat().st_size


@pytest.mark.parametrize("who", ["operator", "nobody"])
def test_others_get_neither_page_nor_file(login: Login, export: Export, who: str) -> None:
    exports.run(export.pk)
    client = login(who)
    assert client.get(url("file", export)).status_code == 403
    assert client.get(url("progress", export)).status_code in (403, 404)
    assert client.get(url("change", export)).status_code in (302, 403)
    assert Client().get(url("file", export)).status_code == 302


def test_right_opens_others_files(login: Login, users: dict[str, User], export: Export) -> None:
    exports.run(export.pk)
    users["operator"].user_permissions.add(Permission.objects.get(codename="download_export"))
    client = login("operator")
    assert content(client.get(url("file", export))) == exports.path(export).read_bytes()
    assert export.file_name in client.get(reverse("admin:billing_export_changelist")).text


def test_list_shows_ones_own(login: Login, world: World, export: Export) -> None:
    listed = login("finance").get(reverse("admin:billing_export_changelist")).context["cl"].result_list
    assert [one.pk for one in listed] == [export.pk]


@pytest.mark.parametrize("state", [State.WAITING, State.EXPIRED, State.FAILED, State.DONE])
def test_missing_file_says_why(login: Login, export: Export, state: str) -> None:
    """Also one that is done, but lies on another host."""
    Export.objects.filter(pk=export.pk).update(state=state, problem="the account is gone")
    client = login("finance")
    response = client.get(url("file", export), follow=True)
    assert response.redirect_chain[-1][0] == url("change", export)
    assert "The file is not there" in response.text
    if state == State.FAILED:
        assert "It could not be made. the account is gone" in response.text


def test_nothing_of_it_changes_by_hand(login: Login, export: Export) -> None:
    assert login("root").post(url("change", export), {"state": "done"}).status_code == 403


def test_junk_is_not_found(login: Login) -> None:
    assert login("finance").get("/admin/billing/export/junk/change/").status_code == 302
    missing = reverse("admin:billing_export_file", args=["00000000-0000-0000-0000-000000000000"])
    assert login("finance").get(missing).status_code == 404


@pytest.mark.django_db(transaction=True)
async def test_file_streams_beside_the_loop(transactional_db: None) -> None:
    """Under ASGI it comes in pieces: nothing reads it whole."""
    user = await User.objects.acreate_superuser("root", "root@example.com", "correct horse battery")
    export = await Export.objects.acreate(
        owner=user, kind=Kind.RECORDS, format=Format.CSV, file_name="x.csv", state=State.DONE
    )
    exports.path(export).write_bytes(b"0123456789abcdef" * 64 * 1024)
    client = AsyncClient()
    await client.aforce_login(user)
    response = await client.get(url("file", export))
    pieces = [piece async for piece in response]  # type: ignore[union-attr]  # a streaming one
    assert len(pieces) == 4
    assert b"".join(pieces) == exports.path(export).read_bytes()
    await sync_to_async(connections.close_all)()


# --- long documents ---


def long_draft(models: int) -> Invoice:
    """Two lines per model."""
    key = make_key(make_account("northwind"))
    for at in range(models):
        make_record(key, utc(2026, 11, 3), model=f"model-{at}", version=price(f"model-{at}"))
    (draft,) = invoices.draft(dt.date(2026, 11, 1), now=utc(2026, 12, 2))
    assert draft.lines.count() == 2 * models
    return draft


def test_short_draft_is_drawn_at_once(login: Login) -> None:
    draft = long_draft(invoice_documents.DIRECT_LINES // 2)
    answer = login("finance").get(reverse("admin:invoice_pdf", args=[draft.pk]))
    assert (answer["content-type"], answer.content[:5]) == ("application/pdf", b"%PDF-")
    assert not Export.objects.exists()


def test_long_draft_is_drawn_by_a_worker(login: Login) -> None:
    draft = long_draft(invoice_documents.DIRECT_LINES // 2 + 1)
    url, client = reverse("admin:invoice_pdf", args=[draft.pk]), login("finance")
    asked = client.get(url)
    assert "Make a file of a PDF of 52 lines?" in asked.text
    assert not Export.objects.exists()
    answer = client.post(url)
    export = Export.objects.get()
    assert answer.url == reverse("admin:billing_export_change", args=[export.pk])  # type: ignore[attr-defined]
    exports.run(export.pk)
    export.refresh_from_db()
    assert (export.state, export.file_name[:6]) == ("done", "draft-")
    assert "model-25" in text_of(exports.path(export).read_bytes())
    assert login("nobody").post(url).status_code == 403
    answer = login("operator").get(reverse("admin:billing_export_file", args=[export.pk]))
    assert answer.status_code == 403


def test_long_issue_leaves_its_document_to_beat(login: Login) -> None:
    """Nobody waits for it before a page, neither at the issue nor at a look; within a minute it is there."""
    draft = long_draft(invoice_documents.DIRECT_LINES // 2 + 1)
    client = login("finance")
    client.post(reverse("admin:billing_invoice_issue", args=[draft.pk]), {"seen": month_close.seen_of([draft])})
    assert Invoice.objects.get().status == "open"
    assert invoice_documents.made(draft) is None
    answer = client.get(reverse("admin:invoice_pdf", args=[draft.pk]), follow=True)
    assert "it is here within a minute" in answer.text
    assert invoice_documents.made(draft) is None
    tasks.tend_invoices()
    answer = client.get(reverse("admin:invoice_pdf", args=[draft.pk]))
    assert answer.content[:5] == b"%PDF-"
