"""Celery tasks: thin, and harmless when they run twice, in parallel or again after a crash."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from zoneinfo import ZoneInfo

from celery import shared_task
from celery.schedules import crontab
from django.conf import settings
from django.db import connection
from django.utils import timezone

from billing import (
    clickhouse,
    count_factors,
    dropping,
    exports,
    invoice_documents,
    invoice_runs,
    invoices,
    jobs,
    partitions,
    rollups,
)
from billing import sweep as sweeping
from billing.models import Account
from billing.periods import local_day

log = logging.getLogger(__name__)

DRAFT_DAYS = 3
"""On so many first days of a month, last month's invoices are drafted anew: late usage still comes in."""

BEAT_SCHEDULE = {
    "sweep": {"task": "billing.tasks.sweep", "schedule": 25.0, "options": {"expires": 25}},
    "rebuild-rollups": {"task": "billing.tasks.rebuild_rollups", "schedule": 60.0, "options": {"expires": 60}},
    "fit-count-factors": {"task": "billing.tasks.fit_count_factors", "schedule": crontab(hour="3", minute="40")},
    "tend-exports": {"task": "billing.tasks.tend_exports", "schedule": 60.0, "options": {"expires": 60}},
    "tend-invoices": {"task": "billing.tasks.tend_invoices", "schedule": 60.0, "options": {"expires": 60}},
    "make-partitions": {"task": "billing.tasks.make_partitions", "schedule": crontab(hour="2", minute="20")},
    "draft-month": {"task": "billing.tasks.draft_month", "schedule": crontab(minute="10")},
}
if settings.CLICKHOUSE_URL:
    SHIP = {"task": "billing.tasks.ship_records", "schedule": 10.0, "options": {"expires": 10}}
    BEAT_SCHEDULE["ship-records"] = SHIP
if settings.RECORDS_KEEP_MONTHS:
    DROP = {"task": "billing.tasks.drop_records", "schedule": crontab(hour="2", minute="50")}
    BEAT_SCHEDULE["drop-records"] = DROP


@shared_task  # type: ignore[untyped-decorator]  # celery ships no types
def rebuild_rollups() -> int:
    """Rebuild the roll-ups of all days that are due."""
    return rollups.rebuild_due()


@shared_task  # type: ignore[untyped-decorator]
def sweep() -> int:
    """Settle the streams of dead gateway processes; returns how many."""
    return sweeping.sweep().streams


@shared_task  # type: ignore[untyped-decorator]
def fit_count_factors() -> int:
    """Fit anew what each model reports for a token that we count; returns how many factors changed."""
    return count_factors.refit(timezone.now())


@shared_task  # type: ignore[untyped-decorator]
def run_export(export_id: str) -> None:
    """Make the file of an export; nothing where it is made already."""
    exports.run(uuid.UUID(export_id))


@shared_task  # type: ignore[untyped-decorator]
def tend_exports() -> int:
    """Run exports that were left lying, and remove old files; returns how many were run."""
    return exports.tend(jobs.database_now())


@shared_task  # type: ignore[untyped-decorator]
def run_invoices(run_id: str) -> None:
    """Do a month run or a proof that somebody asked for; nothing where it is done already."""
    invoice_runs.run(uuid.UUID(run_id))


@shared_task  # type: ignore[untyped-decorator]
def tend_invoices() -> int:
    """Do runs that were left lying, and make documents that are missing; returns how many of both."""
    at = jobs.database_now()
    return invoice_runs.tend(at) + invoice_documents.make_missing(at)


@shared_task  # type: ignore[untyped-decorator]
def make_partitions() -> int:
    """Make the partitions of the months to come, where records are in partitions; returns how many."""
    return len(partitions.make_ahead(connection, timezone.now()))


@shared_task  # type: ignore[untyped-decorator]
def drop_records() -> int:
    """Drop the months of records that are past their time, up to the first that may not go; returns how many went."""
    dropped, problem = dropping.drop_old(timezone.now())
    if problem is not None:
        log.warning("%s", problem)
    return len(dropped)


@shared_task  # type: ignore[untyped-decorator]
def ship_records() -> int:
    """Send new and changed records to ClickHouse, where one is set; returns how many."""
    store = clickhouse.store()
    if store is None:
        return 0
    try:
        return clickhouse.ship(store)
    except clickhouse.Unavailable as error:
        log.warning("records wait: ClickHouse does not take them (%s)", error)
        return 0


@shared_task  # type: ignore[untyped-decorator]
def draft_month() -> int:
    """Draft last month's invoices of the accounts in whose zone a month has just begun; returns how many."""
    return draft_last_month(timezone.now())


def draft_last_month(now: dt.datetime) -> int:
    """The same at a given time."""
    drafted = 0
    for account in Account.objects.all():
        today = local_day(now, ZoneInfo(account.timezone))
        if today.day <= DRAFT_DAYS:
            last_month = (today.replace(day=1) - dt.timedelta(days=1)).replace(day=1)
            drafted += len(invoices.draft(last_month, account=account, now=now))
    return drafted
