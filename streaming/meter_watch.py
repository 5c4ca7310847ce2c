"""What this process last read of the meter's health: for /metrics and the admin's alarm strip, which must not wait.

The gateway reads every READ_S in a thread (`gateway.Gateway`); whoever asks gets what is there, without a query.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from billing.meter_health import Readings

READ_S = 15.0
STALE_S = 4 * READ_S
"""Readings that are older say nothing of now: the database has been away."""


@dataclass(slots=True)
class MeterWatch:
    """`clock` counts seconds."""

    clock: Callable[[], float] = time.monotonic
    latest: Readings | None = None
    taken_at: float = 0.0

    def take(self, readings: Readings) -> None:
        """Keep what was just read."""
        self.latest, self.taken_at = readings, self.clock()

    @property
    def age_s(self) -> float:
        """How old the readings are."""
        return self.clock() - self.taken_at

    @property
    def fresh(self) -> Readings | None:
        """The readings, unless they are stale or there are none yet."""
        return self.latest if self.latest is not None and self.age_s < STALE_S else None


WATCH = MeterWatch()
"""This process's own."""
