"""The month run, an invoice's files and its proof, as Finance and Operators see them."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.timezone import now

from billing import invoice_runs, invoices, jobs, overflow, proofs
from billing.invoice_runs import State
from billing.models import Invoice, InvoiceDocument, InvoiceRun, UsageRecord
from billing.usage import TokenUsage
from tests.billing.admin_site import Login
from tests.billing.admin_world import World
from tests.billing.factories import make_record

pytestmark = pytest.mark.django_db


def run_url(view: str = "", month: object = None) -> str:
    query = f"?month={month:%Y-%m}" if month else ""
    return reverse(f"admin:invoice_run{view}") + query


def file_url(view: str, invoice: Invoice) -> str:
    return reverse(f"admin:invoice_{view}", args=[invoice.pk])


def seen(text: str) -> str:
    found = re.search(r'name="seen" value="([^"]*)"', text)
    assert found
    return found[1]


def test_last_month_is_shown_first(login: Login, world: World) -> None:
    content = login("finance").get(run_url()).text
    assert f'value="{world.open.month:%Y-%m}"' in content
    assert str(world.open.number) in content


def test_blockers_say_who_clears_them(login: Login, world: World) -> None:
    response = login("finance").get(run_url(month=world.draft.month))
    kinds = {str(row["what"]): row["url"] for row in response.context["blockers"]}
    assert kinds["requests without a price"] == reverse("admin:unpriced")
    assert kinds["streams of the period that are still open"] == reverse("admin:billing_openstream_changelist")
    assert "days to roll up" in kinds
    assert "Finance: add the price, then rate them." in response.text
    for link in kinds.values():
        assert login("finance").get(link).status_code == 200


def test_only_finance_has_the_buttons(login: Login, world: World) -> None:
    for who, may in (("finance", True), ("operator", False)):
        content = login(who).get(run_url(month=world.draft.month)).text
        assert (run_url("_draft") in content, run_url("_issue") in content) == (may, may)


def test_bad_month_is_told(login: Login, world: World) -> None:
    for month in ("October", "0001-01", "9999-12"):
        response = login("finance").get(run_url() + f"?month={month}", follow=True)
        assert "This is no month" in response.text, month
    assert login("finance").get(run_url("_draft") + "?month=x").status_code == 404


def test_draft_is_a_run(login: Login, world: World) -> None:
    client = login("finance")
    for _ in range(2):
        assert client.post(run_url("_draft", world.draft.month)).status_code == 302
    run = InvoiceRun.objects.get(month=world.draft.month)
    assert (run.state, run.asked_by and run.asked_by.get_username()) == (State.WAITING, "finance")
    page = client.get(run_url(month=world.draft.month)).text
    assert "It waits for a worker." in page
    assert "data-open" in page
    invoice_runs.run(run.pk)
    told = client.get(reverse("admin:invoice_run_progress", args=[run.pk])).json()
    assert (told["open"], told["share"]) == (False, 100)


def test_draft_names_whom_it_left_out(login: Login, world: World) -> None:
    reason = f"northwind/production 2026-10: the invoice cannot be kept: {overflow.TOO_LARGE}"
    InvoiceRun.objects.create(
        act="draft", month=world.draft.month, state=State.DONE, finished_at=now(),
        result={"drafts": 3, "refused": [reason]},
    )  # fmt: skip
    page = login("finance").get(run_url(month=world.draft.month)).text
    assert "Not all could be rolled up and drafted." in page
    assert reason in page


def test_issue_asks_with_number_and_total(login: Login, world: World) -> None:
    client, month = login("finance"), world.draft.month
    asked = client.get(run_url("_issue", month)).text
    draft = Invoice.objects.get(api_key=world.key, month=month)
    assert re.search(rf"Issue 1 invoice for \w+ {month:%Y}, (&lt; )?USD [\d.]+\?", asked)
    assert "They never change again; corrections are credit notes." in asked
    assert "1 draft stays behind: it has unpriced requests." in asked
    assert "late usage on the next ones: 1 streams of the period that are still open." in asked
    assert client.post(run_url("_issue", month), {"seen": seen(asked)}).status_code == 302
    assert invoice_runs.tend(now() + jobs.OVERLOOKED * 2) == 1
    draft.refresh_from_db()
    assert draft.status == "open"
    page = client.get(run_url(month=month)).text
    assert "1 invoice is issued." in page
    assert str(draft.number) in page
    assert world.draft.account_name in page


def test_issue_of_other_drafts_asks_again(login: Login, world: World) -> None:
    client, month = login("finance"), world.draft.month
    asked = client.get(run_url("_issue", month)).text
    make_record(world.key, now(), TokenUsage(input=1_000_000))
    invoices.draft(month, now=now())
    again = client.post(run_url("_issue", month), {"seen": seen(asked)})
    assert "Nothing was issued: look again." in again.text
    assert not InvoiceRun.objects.filter(month=month).exists()


def test_second_tab_finds_nothing_to_issue(login: Login, world: World) -> None:
    client, month = login("finance"), world.draft.month
    asked = seen(client.get(run_url("_issue", month)).text)
    client.post(run_url("_issue", month), {"seen": asked})
    client.post(run_url("_issue", month), {"seen": asked})
    (run,) = InvoiceRun.objects.filter(month=month)
    invoice_runs.run(run.pk)
    numbers = set(Invoice.objects.exclude(number=None).values_list("number", flat=True))
    last = client.post(run_url("_issue", month), {"seen": asked}, follow=True)
    assert "There is nothing to issue" in last.text
    assert set(Invoice.objects.exclude(number=None).values_list("number", flat=True)) == numbers


def test_page_asks_a_fixed_number_of_queries(login: Login, world: World) -> None:
    client = login("finance")
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert client.get(run_url(month=world.draft.month)).status_code == 200
        counts.append(len(queries))
        for name in "abc":
            make_record(world.key, now(), model=name)
        invoices.draft(world.draft.month, now=now())
    assert counts[0] == counts[1] < 40


# --- files ---


def test_draft_has_a_preview_alone(login: Login, world: World) -> None:
    response = login("operator").get(file_url("pdf", world.draft))
    assert response.content.startswith(b"%PDF-")
    assert f'filename="draft-{world.draft.pk}.pdf"' in response["content-disposition"]
    assert not InvoiceDocument.objects.filter(pk=world.draft.pk).exists()


def test_issued_has_its_kept_document(login: Login, world: World) -> None:
    response = login("finance").get(file_url("pdf", world.open))
    assert response.content == bytes(InvoiceDocument.objects.get(pk=world.open.pk).content)
    assert f'filename="invoice-{world.open.number}.pdf"' in response["content-disposition"]
    assert "no-store" in response["cache-control"]


def test_csv_has_all_lines(login: Login, world: World) -> None:
    rows = login("finance").get(file_url("csv", world.open)).content.decode("utf-8-sig").splitlines()
    assert len([row for row in rows if row[:1].isdigit()]) == world.open.lines.count()


def test_page_sets_late_usage_apart(login: Login, world: World) -> None:
    make_record(world.key, now().replace(year=now().year - 1), TokenUsage(input=900))
    invoices.draft(world.draft.month, now=now())
    invoice = Invoice.objects.get(api_key=world.key, month=world.draft.month)
    page = login("finance").get(reverse("admin:billing_invoice_change", args=[invoice.pk])).text
    parts = re.findall(r'class="hb-part">([^<]+)<', page)
    assert parts == ["Use in the period", "Late usage", "Adjustments"]
    for view in ("pdf", "csv", "prove"):
        assert file_url(view, invoice) in page


# --- prove it ---


def test_proof_shows_two_sums(login: Login, world: World) -> None:
    page = login("operator").get(file_url("prove", world.open)).text
    assert "it agrees" in page
    assert page.count("USD 6.52") == 4  # subtotal and total, as billed and as added up
    document = InvoiceDocument.objects.get(pk=world.open.pk)
    assert page.count(document.sha256) == 2
    assert "differs" in page  # the world's document is no real one, so a new one has another hash


def test_proof_changes_nothing(login: Login, world: World) -> None:
    before = [list(table.objects.order_by("pk").values()) for table in (Invoice, UsageRecord, InvoiceRun)]
    assert login("finance").get(file_url("prove", world.draft)).status_code == 200
    assert [list(table.objects.order_by("pk").values()) for table in (Invoice, UsageRecord, InvoiceRun)] == before


def test_long_proof_is_a_run(login: Login, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "AT_ONCE", 0)
    client, here = login("operator"), file_url("prove", world.open)
    assert "it agrees" not in client.get(here).text
    assert client.post(here).status_code == 302
    assert "It waits for a worker." in client.get(here).text
    invoice_runs.run(InvoiceRun.objects.get(invoice=world.open).pk)
    page = client.get(here).text
    assert "it agrees" in page
    assert page.count("USD 6.52") == 4  # subtotal and total, as billed and as added up


def test_void_invoice_has_only_its_document(login: Login, world: World) -> None:
    invoices.void(world.open.pk, "wrong", now())
    page = login("finance").get(file_url("prove", world.open)).text
    assert "This invoice is void" in page
    assert InvoiceDocument.objects.get(pk=world.open.pk).sha256 in page


@pytest.mark.parametrize("view", ["pdf", "csv", "prove"])
def test_nobody_sees_no_invoice(login: Login, world: World, view: str) -> None:
    assert login("nobody").get(file_url(view, world.open)).status_code == 403
