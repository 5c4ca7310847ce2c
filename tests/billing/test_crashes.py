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

from billing import invoices, rollups
from billing.ledger import groups
from billing.ledger.writer import own_connection
from billing.models import (
    ApiKey,
    Attempt,
    Invoice,
    InvoiceCounter,
    InvoiceLine,
    OpenStream,
    RollupDue,
    UsageRecord,
    UsageRollup,
)
from tests.billing.factories import make_account, make_key, make_record, utc
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
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


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
    make_record(key, utc(2026, 11, 3))
    now = utc(2026, 12, 2)
    [draft] = invoices.draft(dt.date(2026, 11, 1), now=now)
    state = lambda: table(Invoice, InvoiceLine, InvoiceCounter, UsageRecord)  # noqa: E731
    assert deaths(lambda: invoices.issue(draft.pk, now=now), state) >= 8
    assert Invoice.objects.get().number == "2026-000001"
    assert UsageRecord.objects.get().invoice_id == draft.pk
    with pytest.raises(invoices.IssueBlocked):
        invoices.issue(draft.pk, now=now)
