"""Runs: one at a time, found again when they were lost, and the same when they are done twice."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, connection

from billing import immutability, invoice_documents, invoice_runs, invoices, jobs, month_close, proofs, tasks
from billing.invoice_runs import Act, State
from billing.models import ApiKey, AuditEntry, Invoice, InvoiceDocument, InvoiceRun
from billing.usage import TokenUsage
from tests.billing.factories import make_key, make_record, utc

NOVEMBER = dt.date(2026, 11, 1)
NOW = utc(2026, 12, 2)
MILLION = TokenUsage(input=1_000_000)


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key()


@pytest.fixture
def user(db: None) -> User:
    return User.objects.create_user("finance")


def drafted() -> list[Invoice]:
    return list(month_close.drafts(NOVEMBER))


def done(run: InvoiceRun) -> InvoiceRun:
    invoice_runs.run(run.pk)
    run.refresh_from_db()
    return run


def test_drafting_tells_how_far_it_is(key: ApiKey, user: User) -> None:
    make_record(key, utc(2026, 11, 3), MILLION)
    run = done(invoice_runs.ask_drafts(NOVEMBER, by=user))
    assert (run.state, run.result, run.steps_done, run.steps_total) == (State.DONE, {"drafts": 1, "refused": []}, 2, 2)
    assert [invoice.status for invoice in Invoice.objects.all()] == ["draft"]


def test_second_asker_gets_the_first_run(key: ApiKey, user: User) -> None:
    first = invoice_runs.ask_drafts(NOVEMBER, by=user)
    assert invoice_runs.ask_drafts(dt.date(2026, 11, 30), by=user) == first
    assert invoice_runs.ask_issue(NOVEMBER, [], by=user) == first
    assert invoice_runs.ask_drafts(dt.date(2026, 10, 1), by=user) != first
    done(first)
    assert invoice_runs.ask_drafts(NOVEMBER, by=user) != first


def test_only_the_chosen_are_issued(key: ApiKey, user: User) -> None:
    make_record(key, utc(2026, 11, 3), MILLION)
    invoices.draft(NOVEMBER, now=NOW)
    run = invoice_runs.ask_issue(NOVEMBER, drafted(), by=user)
    make_record(make_key(key.account, "later"), utc(2026, 11, 3), MILLION)
    invoices.draft(NOVEMBER, now=NOW)
    done(run)
    assert dict(Invoice.objects.values_list("key_name", "status")) == {"production": "open", "later": "draft"}
    assert run.result["issued"] == [Invoice.objects.get(status="open").pk]
    entry = AuditEntry.objects.get(table="billing.invoice", message="issued")
    assert (entry.who, entry.user_id) == ("finance", user.pk)


def test_blocked_are_told_with_reasons(key: ApiKey, user: User) -> None:
    make_record(key, utc(2026, 11, 3), service_tier="scale")
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    run = done(invoice_runs.ask_issue(NOVEMBER, [draft], by=user))
    ((pk, reasons),) = run.result["blocked"]
    assert (run.state, run.result["issued"], pk) == (State.DONE, [], draft.pk)
    assert "1 unpriced requests" in reasons[0]


def test_redelivered_task_changes_nothing(key: ApiKey, user: User) -> None:
    make_record(key, utc(2026, 11, 3), MILLION)
    invoices.draft(NOVEMBER, now=NOW)
    run = invoice_runs.ask_issue(NOVEMBER, drafted(), by=user)
    for _ in range(2):
        tasks.run_invoices(str(run.pk))
    run.refresh_from_db()
    assert (run.tries, Invoice.objects.get().number) == (1, f"{dt.datetime.now(dt.UTC):%Y}-000001")


def test_broken_run_is_tried_again(key: ApiKey, user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that dies half-way leaves what it has issued; the next one issues the rest, and tells of both."""
    monkeypatch.setattr(invoices, "TOGETHER", 1)
    other = make_key(key.account, "other")
    for owner in (key, other):
        make_record(owner, utc(2026, 11, 3), MILLION)
    invoices.draft(NOVEMBER, now=NOW)
    run = invoice_runs.ask_issue(NOVEMBER, drafted(), by=user)
    with connection.execute_wrapper(Breaks(on='UPDATE "billing_invoicecounter"', at=2)), pytest.raises(DatabaseError):
        invoice_runs.run(run.pk)
    run.refresh_from_db()
    assert (run.state, Invoice.objects.filter(status="open").count()) == (State.WAITING, 1)
    assert len(done(run).result["issued"]) == 2
    assert [number[-6:] for number in Invoice.objects.order_by("number").values_list("number", flat=True)] == [
        "000001", "000002",
    ]  # fmt: skip


class Breaks:
    """The database fails at the n-th statement of a kind."""

    def __init__(self, on: str, at: int) -> None:
        self.on, self.left = on, at

    def __call__(self, execute: object, sql: str, *rest: object) -> object:
        self.left -= self.on in sql
        if self.left == 0 and self.on in sql:
            raise DatabaseError("away")
        return execute(sql, *rest)  # type: ignore[operator]


def test_hopeless_run_has_failed(key: ApiKey, user: User) -> None:
    run = invoice_runs.ask_drafts(NOVEMBER, by=user)
    InvoiceRun.objects.filter(pk=run.pk).update(tries=jobs.MAX_TRIES)
    assert "never came to its end" in done(run).problem
    assert (run.state, run.act) == (State.FAILED, Act.DRAFT)


def test_lost_runs_are_found(key: ApiKey, user: User) -> None:
    make_record(key, utc(2026, 11, 3), MILLION)
    run = invoice_runs.ask_drafts(NOVEMBER, by=user)
    assert invoice_runs.tend(run.asked_at + dt.timedelta(minutes=1)) == 0
    assert invoice_runs.tend(run.asked_at + dt.timedelta(minutes=3)) == 1
    assert Invoice.objects.count() == 1
    silent = invoice_runs.ask_drafts(NOVEMBER, by=user)
    InvoiceRun.objects.filter(pk=silent.pk).update(state=State.RUNNING, progress_at=silent.asked_at)
    assert invoice_runs.tend(silent.asked_at + jobs.SILENT - dt.timedelta(seconds=1)) == 0
    assert invoice_runs.tend(silent.asked_at + jobs.SILENT + dt.timedelta(seconds=1)) == 1


def test_proof_is_kept_with_its_run(key: ApiKey, user: User) -> None:
    make_record(key, utc(2026, 11, 3), MILLION)
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    first = invoice_runs.ask_proof(draft, by=user)
    assert invoice_runs.ask_proof(draft, by=user) == first
    assert invoice_runs.ask_drafts(NOVEMBER, by=user) != first  # a proof stands in no run's way
    assert proofs.read(done(first).result).holds


@pytest.mark.django_db(transaction=True)
def test_two_tabs_begin_one_run() -> None:
    user, start = User.objects.create_user("finance"), threading.Barrier(4)

    def ask() -> InvoiceRun:
        start.wait()
        try:
            return invoice_runs.ask_drafts(NOVEMBER, by=user)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        runs = [one.result() for one in [pool.submit(ask) for _ in range(4)]]
    assert len(set(runs)) == InvoiceRun.objects.count() == 1


# --- documents ---


def test_missing_document_is_made_later(key: ApiKey) -> None:
    """The process died between issue and document: beat makes it, the same as would have been made then."""
    make_record(key, utc(2026, 11, 3), MILLION)
    invoice = invoices.issue(invoices.draft(NOVEMBER, now=NOW)[0].pk, now=NOW)
    at_once = invoice_documents.preview(invoice)
    assert invoice_documents.make_missing(NOW + dt.timedelta(days=9)) == 1
    assert invoice_documents.make_missing(NOW) == 0
    document = InvoiceDocument.objects.get()
    assert (bytes(document.content), document.sha256) == (at_once, invoice_documents.digest(at_once))


def test_document_is_made_once(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    make_record(key, utc(2026, 11, 3), MILLION)
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    with pytest.raises(ValueError, match="a draft has no document"):
        invoice_documents.of(draft, now=NOW)
    invoice = invoices.issue(draft.pk, now=NOW)
    first = invoice_documents.of(invoice, now=NOW)
    monkeypatch.setattr(invoice_documents.invoice_pdf, "render", None)
    assert invoice_documents.of(invoice, now=NOW).made_at == first.made_at


@pytest.mark.parametrize("act", ["update", "delete", "insert"])
def test_document_never_changes(key: ApiKey, act: str) -> None:
    make_record(key, utc(2026, 11, 3), MILLION)
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    made = InvoiceDocument(invoice=draft, content=b"x", size_bytes=1, sha256="0" * 64, made_at=NOW)
    if act != "insert":
        invoices.issue(draft.pk, now=NOW)
        made.save(force_insert=True)
    rows = InvoiceDocument.objects.filter(pk=draft.pk)
    acts = {"update": partial(rows.update, content=b"y"), "delete": rows.delete, "insert": made.save}
    with pytest.raises(DatabaseError, match=immutability.MESSAGES[immutability.DOCUMENT]):
        acts[act]()
