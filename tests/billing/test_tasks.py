"""Celery tasks: the same result however often they run."""

from __future__ import annotations

import datetime as dt

import pytest

from billing import tasks
from billing.models import ApiKey, Invoice, UsageRollup
from hopbase_site.celery import app
from tests.billing.factories import make_account, make_key, make_record, utc


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key(make_account(timezone="America/Los_Angeles"))


def test_redelivered_rollup_changes_nothing(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    assert (tasks.rebuild_rollups(), tasks.rebuild_rollups()) == (1, 0)
    assert UsageRollup.objects.get().requests == 1


@pytest.mark.parametrize(
    ("now", "months"),
    [
        (utc(2026, 12, 1, 7), []),  # still November in Los Angeles
        (utc(2026, 12, 1, 8), [dt.date(2026, 11, 1)]),
        (utc(2026, 12, 3), [dt.date(2026, 11, 1)]),
        (utc(2026, 12, 5), []),
    ],
)
def test_month_is_drafted_when_over(key: ApiKey, now: dt.datetime, months: list[dt.date]) -> None:
    make_record(key, utc(2026, 11, 3))
    assert tasks.draft_last_month(now) == len(months)
    assert [invoice.month for invoice in Invoice.objects.all()] == months


def test_two_beats_make_one_draft(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3))
    for _ in range(2):
        tasks.draft_last_month(utc(2026, 12, 1, 8))
    assert Invoice.objects.count() == 1


def test_task_reads_the_clock(key: ApiKey) -> None:
    assert tasks.draft_month() == 0


def test_beat_names_real_tasks() -> None:
    app.loader.import_default_modules()
    assert {entry["task"] for entry in tasks.BEAT_SCHEDULE.values()} <= set(app.tasks)
