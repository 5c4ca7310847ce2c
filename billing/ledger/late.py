"""Settlements that come months late, from the journal of a disk that was away for long: what of them still stands.

One whose record was written, and dropped since, is a repeat: no record is there any more that it would conflict with,
so its identity tells. Any other one is billed; where its day is sealed, it is counted on the present one.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
from collections.abc import Sequence

from billing import seals
from billing.ledger.entries import Settlement
from billing.ledger.rows import day_of
from billing.models import DroppedRecord

log = logging.getLogger(__name__)


def standing(settlements: Sequence[Settlement], using: str) -> Sequence[Settlement]:
    """Those to be written, in a transaction that has touched no record yet. Only an old one asks the database."""
    now = dt.datetime.now(dt.UTC)
    old = [one for one in settlements if min(one.open.started_at, one.ended_at) < now - seals.OLD]
    if not old or (sealed := seals.hold(using)) is None:
        return settlements
    ids = [one.open.id for one in old]
    dropped = set(DroppedRecord.objects.using(using).filter(pk__in=ids).values_list("pk", flat=True))
    found = []
    for one in settlements:
        if one.open.id in dropped:
            log.error(
                "request %s was billed and dropped; told once more (%s, %s nanos), it is not billed again",
                one.open.id, one.ending, one.rating.cost_nanos,
            )  # fmt: skip
        elif day_of(one) <= sealed:
            log.warning("request %s of %s comes late: its day is sealed, today's counts it", one.open.id, day_of(one))
            found.append(dataclasses.replace(one, counted_at=now))
        else:
            found.append(one)
    return found
