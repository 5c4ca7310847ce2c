"""A process killed before any of its statements, or before its commit: nothing is half done, a repeat does it."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections, transaction

from billing import credit_notes, invoices, rollups, unpriced
from billing.ledger import groups
from billing.ledger.writer import own_connection
from billing.models import (
    Adjustment,
    ApiKey,
    Attempt,
    BudgetMonth,
    CreditNote,
    CreditNoteLine,
    Invoice,
    InvoiceCounter,
    InvoiceLine,
    OpenStream,
    RollupDue,
    UsageRecord,
    UsageRollup,
)
from tests.billing.admin_world import make_price
from tests.billing.factories import make_account, make_adjustment, make_key, make_record, price, utc
from tests.billing.ledger.entries import ENDED, checkpoint, checkpoint_row, opening, settlement

LONGEST = 60
"""No act here has so many statements."""

Act = Callable[[], object]


@pytest.fixture
def key(transactional_db: None) -> ApiKey:
    return make_key(make_account(timezone="Asia/Taipei"))


def dies(act: Act, at: int) -> bool:
    """Do something in a process that is killed before its statement number `at`, commits included; whether it was."""
    child = os.fork()
    if child == 0:
        try:
            connections["default"] = connection = own_connection("default")
            left = itertools.count(at - 1, -1)

            def count() -> None:
                if next(left) <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            def step(execute: Any, *statement: Any) -> Any:
                count()
                return execute(*statement)

            commit = connection._commit  # type: ignore[attr-defined]
            connection._commit = lambda: (count(), commit())  # type: ignore[attr-defined]
            with connection.execute_wrapper(step):
                act()
            os._exit(0)
        finally:
            os._exit(1)  # it raised
    ended = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(ended) or os.waitstatus_to_exitcode(ended) == 0
    return os.WIFSIGNALED(ended)


def deaths(act: Act, state: Callable[[], object]) -> int:
    """Kill an act at each of its points in turn, until it gets through; what each death left must be what was there."""
    for at in range(1, LONGEST):
        before = state()
        if not dies(act, at):
            return at - 1
        assert state() == before, at
    raise AssertionError("it never got through")


def write(group: groups.Group) -> None:
    with transaction.atomic():
        groups.write(group, {}, "default")


def table(*models: Any) -> list[Any]:
    return [sorted(map(str, model.objects.values_list())) for model in models]


def test_admission(key: ApiKey) -> None:
    row = opening(key, wished_name="trace-1")
    assert deaths(lambda: write(groups.Group(openings=[row])), lambda: table(OpenStream)) >= 2
    write(groups.Group(openings=[row]))
    assert OpenStream.objects.get().request_name == "trace-1"


def test_checkpoint(key: ApiKey) -> None:
    row = opening(key)
    write(groups.Group(openings=[row]))
    mark = checkpoint(checkpoint_row(row))

    def act() -> None:
        with transaction.atomic():
            groups.write(groups.Group(checkpoints=[mark]), {row.id: row.own_name}, "default")

    assert deaths(act, lambda: table(OpenStream)) >= 3
    assert OpenStream.objects.get().counted_output == 40


def test_settle(key: ApiKey) -> None:
    row = opening(key)
    write(groups.Group(openings=[row]))
    group = groups.Group(settlements=[settlement(row)])
    assert deaths(lambda: write(group), lambda: table(OpenStream, UsageRecord, Attempt, RollupDue)) >= 5
    write(group)
    assert (UsageRecord.objects.count(), Attempt.objects.count(), OpenStream.objects.count()) == (1, 1, 0)


def test_last_word(key: ApiKey) -> None:
    row = opening(key)
    write(groups.Group(settlements=[settlement(row, ending="gateway_lost", ended_at=ENDED - dt.timedelta(hours=2))]))
    group = groups.Group(settlements=[settlement(row)])
    assert deaths(lambda: write(group), lambda: table(UsageRecord, RollupDue)) >= 5
    assert UsageRecord.objects.get().ending == "complete"


def test_roll_up(key: ApiKey) -> None:
    for day in (3, 4):
        make_record(key, utc(2026, 11, day))
    rollups.rebuild_due()
    make_record(key, utc(2026, 11, 4))
    assert deaths(rollups.rebuild_due, lambda: table(RollupDue, UsageRollup)) >= 4
    assert sorted(UsageRollup.objects.values_list("day", "requests")) == [
        (dt.date(2026, 11, 3), 1), (dt.date(2026, 11, 4), 2),
    ]  # fmt: skip
    assert RollupDue.objects.count() == 0


def test_draft(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    now, month = utc(2026, 12, 2), dt.date(2026, 11, 1)
    assert deaths(lambda: invoices.draft(month, now=now), lambda: table(Invoice, InvoiceLine)) >= 5
    invoices.draft(month, now=now)
    assert Invoice.objects.count() == 1


def test_issue(key: ApiKey) -> None:
    """With a credit that is more than it bills: what is left of it is carried over in the same transaction."""
    make_record(key, utc(2026, 11, 3))
    make_adjustment(key, utc(2026, 11, 9), -(10**9))
    now = utc(2026, 12, 2)
    [draft] = invoices.draft(dt.date(2026, 11, 1), now=now)
    state = lambda: table(Invoice, InvoiceLine, InvoiceCounter, UsageRecord, Adjustment)  # noqa: E731
    assert deaths(lambda: invoices.issue(draft.pk, now=now), state) >= 10
    assert Invoice.objects.get().number == "2026-000001"
    assert UsageRecord.objects.get().invoice_id == draft.pk
    with pytest.raises(invoices.IssueBlocked):
        invoices.issue(draft.pk, now=now)
    assert sorted(Adjustment.objects.filter(kind="carried").values_list("amount_nanos", "invoice")) == [
        (-(10**9), None), (10**9, draft.pk),
    ]  # fmt: skip


def test_credit_note(key: ApiKey) -> None:
    make_adjustment(key, utc(2026, 11, 9), 10**9)
    now = utc(2026, 12, 2)
    [draft] = invoices.draft(dt.date(2026, 11, 1), now=now)
    invoices.issue(draft.pk, now=now)
    wanted = credit_notes.Wanted(amount_nanos=10**8)
    act = lambda: credit_notes.make(draft.pk, wanted, "a gift", by=None, now=now)  # noqa: E731
    assert deaths(act, lambda: table(CreditNote, CreditNoteLine, InvoiceCounter)) >= 6
    assert CreditNote.objects.get().number == "CN-2026-000001"


def test_rating(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are whole: what is rated has moved its month and made its day due."""
    monkeypatch.setattr(unpriced, "BATCH", 2)
    for day in (3, 4, 5):
        make_record(key, utc(2026, 11, day), model="nova-1", version=price("another"))
    RollupDue.objects.all().delete()
    make_price("nova-1")
    terms = unpriced.Terms(unpriced.waiting()[0].cause, "", utc(2026, 12, 2))

    def off() -> tuple[int, int]:
        rated = UsageRecord.objects.filter(unpriced=False)
        spent = sum(BudgetMonth.objects.values_list("spent_nanos", flat=True))
        return spent - sum(record.cost_nanos for record in rated), RollupDue.objects.count() - rated.count()

    assert deaths(lambda: unpriced.rate(terms), off) >= 10
    assert not UsageRecord.objects.filter(unpriced=True).exists()
