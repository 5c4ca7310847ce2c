"""Background work: a long step is no death, a death is known within a minute, and what hangs is not kept alive."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, connection
from django.db.models import Model
from django.utils.timezone import now

from billing import exports, invoice_runs, jobs
from billing.exports import Format, Kind
from billing.invoice_runs import State
from billing.models import Export, InvoiceRun
from tests.billing.factories import make_key, make_record, utc
from tests.billing.test_crashes import dies

NOVEMBER = dt.date(2026, 11, 1)
LONG_AGO = dt.timedelta(minutes=10)
BEAT_S = 0.05

transactional = pytest.mark.django_db(transaction=True)


def asked_run() -> InvoiceRun:
    return invoice_runs.ask_drafts(NOVEMBER, by=User.objects.create_user("finance"))


def asked_export() -> Export:
    return exports.ask(User.objects.create_user("finance"), Kind.RECORDS, Format.CSV, "", language="en")


KINDS = pytest.mark.parametrize(
    ("asked", "module", "progress"),
    [(asked_run, invoice_runs, "_steps_done"), (asked_export, exports, "_rows_done")],
    ids=["runs", "exports"],
)


def silent_since(job: Model, at: dt.datetime) -> None:
    type(job)._default_manager.filter(pk=job.pk).update(state=State.RUNNING, progress_at=at, tries=1)


def beating(job: Any, module: Any, progress: str, **options: float) -> Any:
    return jobs.trying(partial(module._tell, job), partial(getattr(module, progress), job), beat_s=BEAT_S, **options)


def until(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not true() and time.monotonic() < end:
        time.sleep(BEAT_S)
    return true()


def is_fresh(job: Any) -> bool:
    job.refresh_from_db()
    return bool(job.progress_at > now() - dt.timedelta(seconds=5))


@transactional
@KINDS
def test_long_step_is_no_death(asked: Callable[[], Any], module: Any, progress: str) -> None:
    """While one step goes on and on, the row shows life, and nobody else begins the work."""
    job = asked()
    with beating(job, module, progress):
        silent_since(job, now() - LONG_AGO)
        assert until(lambda: is_fresh(job))
        assert module.tend(jobs.database_now() + jobs.SILENT - dt.timedelta(seconds=10)) == 0
    silent_since(job, now() - LONG_AGO)
    time.sleep(BEAT_S * 4)
    assert not is_fresh(job)


@transactional
@KINDS
def test_hanging_step_is_given_up(asked: Callable[[], Any], module: Any, progress: str) -> None:
    job = asked()
    with beating(job, module, progress, longest_step_s=BEAT_S * 4):
        time.sleep(BEAT_S * 12)
        silent_since(job, now() - LONG_AGO)
        time.sleep(BEAT_S * 8)
        assert not is_fresh(job)
        assert module.tend(jobs.database_now()) == 1
    assert module.tend(jobs.database_now() + jobs.OVERLOOKED * 2) == 0, "whoever began it anew has had the last word"


@transactional
def test_steps_are_progress() -> None:
    """What tells of one step after the other is kept alive, however long all of it takes."""
    job = asked_run()
    with beating(job, invoice_runs, "_steps_done", longest_step_s=BEAT_S * 10):
        for step in range(12):
            invoice_runs._progress(job, step, 12)
            time.sleep(BEAT_S * 3)
        silent_since(job, now() - LONG_AGO)
        assert until(lambda: is_fresh(job))


@contextmanager
def writes_fail(table: str, after: int) -> Iterator[None]:
    """The database takes some changes of a table's rows in this thread, and then no more."""
    left = [after]

    def execute(go_on: Callable[..., object], sql: str, *rest: object) -> object:
        if f'UPDATE "{table}"' in sql:
            left[0] -= 1
            if left[0] < 0:
                raise DatabaseError("away")
        return go_on(sql, *rest)

    with connection.execute_wrapper(execute):
        yield


@transactional
def test_unwritten_end_is_known_within_a_minute() -> None:
    """All was done, but neither that nor its breaking off could be written: it is begun anew, and ends the same."""
    make_record(make_key(), utc(2026, 11, 3))
    run = asked_run()
    with writes_fail("billing_invoicerun", after=3), pytest.raises(DatabaseError, match="away"):
        invoice_runs.run(run.pk)
    run.refresh_from_db()
    assert (run.state, run.tries) == (State.RUNNING, 1)
    assert invoice_runs.tend(jobs.database_now() + jobs.SILENT / 2) == 0
    assert invoice_runs.tend(jobs.database_now() + jobs.SILENT + dt.timedelta(seconds=1)) == 1
    run.refresh_from_db()
    assert (run.state, run.tries, run.result) == (State.DONE, 2, {"drafts": 1, "refused": []})
    assert dt.timedelta(minutes=2) > jobs.SILENT > dt.timedelta(seconds=3 * jobs.BEAT_S)


@transactional
def test_killed_run_is_known_within_a_minute() -> None:
    make_record(make_key(), utc(2026, 11, 3))
    run = asked_run()
    assert dies(lambda: invoice_runs.run(run.pk), 8)
    run.refresh_from_db()
    assert run.state == State.RUNNING
    assert invoice_runs.tend(jobs.database_now() + jobs.SILENT + dt.timedelta(seconds=1)) == 1
    run.refresh_from_db()
    assert (run.state, run.tries) == (State.DONE, 2)


@transactional
def test_absent_database_misses_signs_of_life(caplog: pytest.LogCaptureFixture) -> None:
    """A sign that cannot be written ends neither the work nor the signs."""
    told: list[object] = []

    def tell(**values: object) -> None:
        told.append(values)
        if len(told) == 1:
            raise DatabaseError("away")

    with jobs.trying(tell, lambda: 0, beat_s=BEAT_S):
        assert until(lambda: len(told) > 2)
    assert "could not give its sign of life" in caplog.text
