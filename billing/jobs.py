"""What every kind of background work goes through, whatever it makes. A row of it has `state`, `tries`, `progress_at`.

The row is the record, the broker only a hint: it waits, runs, and is done or has failed. One whose worker died, or
whose hint was lost, is begun again, but not for ever.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db.models import Manager, Model, Q
from django.utils.translation import gettext_lazy as _

WAITING, RUNNING = "waiting", "running"
OPEN = (WAITING, RUNNING)

OVERLOOKED = dt.timedelta(minutes=2)
"""What waits for longer may have lost its place in the queue."""
SILENT = dt.timedelta(minutes=15)
"""Work that has told of no progress for so long is begun anew: harmless, should it go on after all."""
MAX_TRIES = 3
"""Then it has failed, so that one that always kills its worker does not go round for ever."""
TOO_OFTEN = _("It was begun several times and never came to its end; the worker's log says why.")


def tend(jobs: Manager[Model], asked_at: str, at: dt.datetime, run: Callable[[uuid.UUID], None]) -> int:
    """Run what waits (`asked_at`: the column that says since when) or has stood still; returns how many were run."""
    waiting = Q(state=WAITING, **{f"{asked_at}__lt": at - OVERLOOKED})
    silent = Q(state=RUNNING, progress_at__lt=at - SILENT)
    left = list(jobs.filter(waiting | silent).order_by(asked_at).values_list("pk", flat=True))
    for job_id in left:
        run(job_id)
    return len(left)


@contextmanager
def trying(tell: Callable[..., None]) -> Iterator[None]:
    """A run that breaks off, for whatever reason, leaves its row waiting for the next one. `tell` sets its columns."""
    ended = False
    try:
        yield
        ended = True
    finally:
        if not ended:
            tell(state=WAITING)
