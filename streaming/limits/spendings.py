"""What keys have spent in their months, as this process last read it from the database; and when to sound the alarm."""

from __future__ import annotations

import datetime as dt
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from django.db import DatabaseError

from billing.money import show
from billing.reports import KeyMonth, Spending
from streaming import metrics
from streaming.errors import ApiError

log = logging.getLogger(__name__)

FRESH_S = 2.0
"""How old a figure may be that a budget is held against."""
WATCHED_S = 600.0
"""How long a key is watched for what others settle, after it was asked with."""
ALARMS = (100, 80)
"""Per cent of a budget at which the operator is told, the higher first."""

ReadSpendings = Callable[[Collection[KeyMonth]], Awaitable[dict[KeyMonth, Spending]]]


@dataclass(slots=True)
class Known:
    """A figure, and the budget that it counts against. Times are the process's clock, in seconds."""

    spending: Spending
    budget: int
    read_at: float
    asked_at: float


class Spendings:
    """`read` asks the database; `clock` counts seconds."""

    def __init__(self, read: ReadSpendings, clock: Callable[[], float]) -> None:
        self._read, self._clock = read, clock
        self._known: dict[KeyMonth, Known] = {}

    async def fresh(self, wanted: KeyMonth, budget: int) -> Spending:
        """The figure of a moment ago; ApiError when the database does not answer."""
        known = self._known.get(wanted)
        if known is None or self._clock() - known.read_at > FRESH_S:
            try:
                await self._take_in({wanted: budget})
            except DatabaseError:
                raise ApiError("service_unavailable", "The gateway's database does not answer. Try again.") from None
        return self._known[wanted].spending

    async def read(self, budgets: Mapping[KeyMonth, int]) -> dict[KeyMonth, Spending]:
        """The figures of now; none when the database does not answer."""
        if not budgets:
            return {}
        try:
            return await self._take_in(budgets)
        except DatabaseError as error:
            log.warning("what keys have spent cannot be read: %s", type(error).__name__)
            return {}

    async def _take_in(self, budgets: Mapping[KeyMonth, int]) -> dict[KeyMonth, Spending]:
        found, now = await self._read(list(budgets)), self._clock()
        for wanted, spending in found.items():
            before = self._known.get(wanted)
            self._known[wanted] = Known(spending, budgets[wanted], now, before.asked_at if before else now)
        return found

    def asked(self, wanted: KeyMonth, budget: int) -> None:
        """The key was asked with: it is watched."""
        if known := self._known.get(wanted):
            known.asked_at, known.budget = self._clock(), budget

    async def moved(self) -> dict[KeyMonth, Spending]:
        """The figures of the keys that are watched, as far as they are newer than what was known."""
        since = self._clock() - WATCHED_S
        self._known = {wanted: known for wanted, known in self._known.items() if known.asked_at > since}
        before = {wanted: known.spending.version for wanted, known in self._known.items()}
        found = await self.read({wanted: known.budget for wanted, known in self._known.items()})
        return {wanted: spending for wanted, spending in found.items() if spending.version > before[wanted]}

    def budget(self, wanted: KeyMonth) -> int:
        """The budget that a figure counts against."""
        return self._known[wanted].budget


def tell_alarm(wanted: KeyMonth, budget: int, before: int, spent: int) -> None:
    """Log and count that a key's spending has just passed a share of its budget."""
    for percent in ALARMS:
        if before * 100 < budget * percent <= spent * 100:
            metrics.BUDGET_ALARMS.labels(str(percent)).inc()
            log.warning("key %d passed %d %% of its budget: %s of %s", wanted[0], percent, show(spent), show(budget))
            return


@functools.lru_cache(maxsize=64)
def month_name(month: dt.date) -> str:
    """As the month stands in the names of Redis."""
    return f"month:{month:%Y-%m}"
