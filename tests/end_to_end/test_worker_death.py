"""Celery workers that are killed in the middle of an issue and of a roll-up; what they had is delivered again, to two
workers with a beat each: every number is what it would have been.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.end_to_end.conftest import KEYS
from tests.end_to_end.formats import CHAT, PATHS, request
from tests.end_to_end.freezing import wait_until
from tests.end_to_end.product import ROOT, Gateway, Installation

FIRST, SECOND = "drain", "worker"
"""Two keys, whose work is one transaction: the second's is held up in the middle of it."""
READY_S = 60
ROLL_UP, ISSUE = "billing.tasks.rebuild_rollups", "billing.tasks.run_invoices"
PREPARE = """
from django.utils import timezone
from billing import invoice_runs, invoices, tasks
from billing.models import UsageRecord
tasks.rebuild_rollups.delay()
month = UsageRecord.objects.latest("ended_at").day
drafts = sorted(invoices.draft(month, now=timezone.now()), key=lambda draft: draft.key_name)
invoice_runs.ask_issue(month, drafts, by=None)
print([draft.key_name for draft in drafts])
"""
"""Ask for the roll-up, and for the issue of both keys' drafts."""


class Worker:
    """A running worker, which takes one task at a time."""

    def __init__(self, installation: Installation, name: str, app: str, *arguments: str) -> None:
        self.log_path = installation.folder / f"worker-{name}.log"
        command = ["-m", "celery", "-A", app, "worker", "--pool", "solo", "--loglevel", "INFO"]
        schedule = str(installation.folder / f"beat-{name}")
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command, "--hostname", f"{name}@here", "--schedule", schedule, *arguments],
                cwd=ROOT, env=installation.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def received(self, task: str) -> set[str]:
        """The ids of the messages of a task that it took."""
        return set(re.findall(rf"Task {re.escape(task)}\[([0-9a-f-]+)\] received", self.log))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """As an operator ends it, so that its beat goes too."""
        self.process.terminate()
        self.process.wait(READY_S)


@contextlib.contextmanager
def held_up(installation: Installation, rows: str) -> Iterator[Callable[[], bool]]:
    """Let nobody change some rows while the block runs (SQLite: any); says whether somebody waits for them."""
    if installation.database_url:
        with (
            psycopg.connect(installation.database_url) as connection,
            psycopg.connect(installation.database_url, autocommit=True) as observer,
        ):
            connection.execute(f"SELECT 1 FROM {rows} FOR UPDATE")
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            yield lambda: bool((observer.execute(waits).fetchone() or (0,))[0])
            connection.rollback()
        return
    with contextlib.closing(sqlite3.connect(installation.sqlite_path, timeout=10, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield lambda: True
        connection.execute("ROLLBACK")


def ask(gateway: Gateway, key: str) -> None:
    answer = gateway.post(PATHS[CHAT], KEYS[key], request(CHAT, "plain", "Hello?"))
    gateway.record(answer.headers["x-request-id"], KEYS[key])


@pytest.fixture
def own(installation: Installation) -> Iterator[Installation]:
    twin = installation.twin()
    try:
        yield twin
    finally:
        twin.remove()


def ids(installation: Installation) -> dict[str, int]:
    rows = installation.query("SELECT name, id FROM billing_apikey")
    return {name: int(id) for name, id in rows}


def killed_within(installation: Installation, rows: str, task: str, name: str) -> Worker:
    """A worker that was killed while it waited in a task."""
    with held_up(installation, rows) as waits:
        worker = Worker(installation, name, "hopbase_site")
        try:
            wait_until(lambda: worker.received(task) and waits(), READY_S)
        finally:
            worker.kill()
    return worker


@contextlib.contextmanager
def two_beats(installation: Installation) -> Iterator[tuple[Worker, Worker]]:
    """Two workers with a beat each, to which comes soon what others did not finish."""
    workers = tuple(Worker(installation, name, "tests.end_to_end.hasty", "--beat") for name in ("one", "two"))
    try:
        yield workers
    finally:
        for worker in workers:
            worker.end()


@pytest.mark.slow
def test_killed_workers_change_no_number(own: Installation) -> None:
    with own.serving("uvicorn") as gateway:
        for key in (FIRST, SECOND, SECOND):
            ask(gateway, key)
        assert str([FIRST, SECOND]) in own.must("shell", "--no-imports", "--command", PREPARE)
        first, second = (ids(own)[key] for key in (FIRST, SECOND))
        rolling = killed_within(own, f"billing_rollupdue WHERE api_key_id = {second}", ROLL_UP, "rolling")
        issuing = killed_within(own, f"billing_invoice WHERE api_key_id = {second}", ISSUE, "issuing")
        assert whole(own, "SELECT DISTINCT api_key_id FROM billing_rollupdue") == sorted([(first,), (second,)])
        assert own.query("SELECT status FROM billing_invoice") == [("draft",), ("draft",)]
        with two_beats(own) as workers:
            wait_until(lambda: own.query("SELECT state FROM billing_invoicerun") == [("done",)], READY_S)
            for key in (FIRST, SECOND):
                ask(gateway, key)
            wait_until(lambda: not own.query("SELECT 1 FROM billing_rollupdue"), READY_S)
            wait_until(lambda: all("due task rebuild-rollups" in worker.log for worker in workers), READY_S)
    for task, killed in ((ROLL_UP, rolling), (ISSUE, issuing)):
        assert killed.received(task) <= set.union(*(worker.received(task) for worker in workers))
    assert_numbers(own)


def assert_numbers(installation: Installation) -> None:
    """Roll-ups and records agree; each key has one invoice with its number, which has its records and no others."""
    keys = ids(installation)
    rolled = "SELECT api_key_id, sum(requests), sum(cost_nanos) FROM billing_usagerollup GROUP BY api_key_id"
    recorded = "SELECT api_key_id, count(*), sum(cost_nanos) FROM billing_usagerecord GROUP BY api_key_id"
    assert whole(installation, rolled) == whole(installation, recorded)
    assert {row[:2] for row in whole(installation, recorded)} == {(keys[FIRST], 2), (keys[SECOND], 3)}
    invoices = "SELECT api_key_id, number, status FROM billing_invoice ORDER BY number"
    found = [(int(key), number.rpartition("-")[2], status) for key, number, status in installation.query(invoices)]
    assert found == [(keys[FIRST], "000001", "open"), (keys[SECOND], "000002", "open")]
    claimed = (
        "SELECT i.api_key_id, count(*), sum(r.cost_nanos) FROM billing_usagerecord r"
        " JOIN billing_invoice i ON i.id = r.invoice_id GROUP BY i.api_key_id"
    )
    lines = (
        "SELECT i.api_key_id, sum(l.exact_nanos) FROM billing_invoiceline l"
        " JOIN billing_invoice i ON i.id = l.invoice_id GROUP BY i.api_key_id"
    )
    assert {row[:2] for row in whole(installation, claimed)} == {(keys[FIRST], 1), (keys[SECOND], 2)}
    assert {(key, cost) for key, _, cost in whole(installation, claimed)} == set(whole(installation, lines))


def whole(installation: Installation, sql: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(int(value) for value in row) for row in installation.query(sql))
