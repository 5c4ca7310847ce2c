"""What every kind of background work goes through, whatever it makes. A row of it has `state`, `tries`, `progress_at`.

The row is the record, the broker only a hint: it waits, runs, and is done or has failed. One whose worker died, or
whose hint was lost, is begun again, but not for ever.

While it runs, a thread beside it says every few seconds that its process lives; so a long step (a roll-up, one PDF) is
no death, and a death, or an end that could not be written, is known within a minute. A step that hangs is not kept
alive for ever. All of it goes by the database's clock, for workers and beat may be on several hosts.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import Error, connection
from django.db.models import Manager, Model, Q
from django.utils import timezone

from billing.phrases import gettext_noop

log = logging.getLogger(__name__)

WAITING, RUNNING = "waiting", "running"
OPEN = (WAITING, RUNNING)

OVERLOOKED = dt.timedelta(minutes=2)
"""What waits for longer may have lost its place in the queue."""
BEAT_S = 10.0
"""Seconds between two signs of life."""
SILENT = dt.timedelta(minutes=1)
"""Work without a sign of life for so long is begun anew: harmless, should it go on after all. Six times BEAT_S, for a
database that is slow or away for a while is no death."""
LONGEST_STEP_S = 15 * 60.0
"""A step that takes longer hangs: its process gives no more signs of life for it."""
MAX_TRIES = 3
"""Then it has failed, so that one that always kills its worker does not go round for ever."""
TOO_OFTEN = gettext_noop("It was begun several times and never came to its end; the worker's log says why.")


def database_now() -> dt.datetime:
    """The clock by which `progress_at` is written; SQLite has that of the host."""
    if connection.vendor != "postgresql":
        return timezone.now()
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        found: dt.datetime = cursor.fetchone()[0]
        return found


def tend(jobs: Manager[Model], asked_at: str, at: dt.datetime, run: Callable[[uuid.UUID], None]) -> int:
    """Run what waits (`asked_at`: the column that says since when) or has fallen silent; returns how many were run."""
    waiting = Q(state=WAITING, **{f"{asked_at}__lt": at - OVERLOOKED})
    silent = Q(state=RUNNING, progress_at__lt=at - SILENT)
    left = list(jobs.filter(waiting | silent).order_by(asked_at).values_list("pk", flat=True))
    for job_id in left:
        run(job_id)
    return len(left)


@contextmanager
def trying(
    tell: Callable[..., None],
    progress: Callable[[], object],
    *,
    beat_s: float = BEAT_S,
    longest_step_s: float = LONGEST_STEP_S,
) -> Iterator[None]:
    """Keep a run's row alive. One that breaks off, for whatever reason, leaves it waiting for the next run.

    `tell` sets the row's columns and when that was; `progress` reads what changes with each step.
    """
    ended, over = False, threading.Event()
    beats = threading.Thread(target=_beat, args=(over, tell, progress, beat_s, longest_step_s), daemon=True)
    beats.start()
    try:
        yield
        ended = True
    finally:
        over.set()
        beats.join()
        if not ended:
            tell(state=WAITING)


def _beat(
    over: threading.Event, tell: Callable[..., None], progress: Callable[[], object], beat_s: float, longest_s: float
) -> None:
    """Signs of life until the run is over, or hangs. A database that is away misses some of them."""
    seen, since = None, time.monotonic()
    try:
        while not over.wait(beat_s):
            try:
                if (found := progress()) != seen:
                    seen, since = found, time.monotonic()
                if time.monotonic() - since > longest_s:
                    log.error("a step has taken longer than %d s: it is taken to hang", longest_s)
                    return
                tell()
            except Error:
                log.warning("a run could not give its sign of life", exc_info=True)
                connection.close()
    finally:
        connection.close()
