"""Notes for people of what happened to bills (`MeterEvent`): one row per kind, process and hour."""

from __future__ import annotations

import datetime as dt
import uuid

from django.db.models import F

from billing.models import MeterEvent

Kind = MeterEvent.Kind

NOBODY = uuid.UUID(int=0)
"""Stands for a ledger that belongs to no gateway process."""


def note(
    kind: Kind, process: uuid.UUID, count: int, at: dt.datetime, *, detail: str = "", using: str = "default"
) -> None:
    """Add to the note of this hour; one that was acknowledged stands again."""
    events = MeterEvent.objects.using(using)
    hour = at.replace(minute=0, second=0, microsecond=0)
    noted = events.filter(kind=kind, process=process, hour=hour)
    changes = {"count": F("count") + count, "last_at": at, "detail": detail[:300], "acknowledged_at": None}
    if not noted.update(**changes):
        first = MeterEvent(kind=kind, process=process, hour=hour, first_at=at, last_at=at)
        events.bulk_create([first], ignore_conflicts=True)
        noted.update(**changes)
