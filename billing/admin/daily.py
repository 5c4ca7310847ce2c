"""Cost and requests per day over all keys, each on the clocks of its own account."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from billing.models import Account
from billing.periods import local_day
from billing.usage_sums import Cut, Figures, sums


@dataclass(slots=True)
class DaySum:
    """All requests of a day. `cost`: currency -> nanos, never added up."""

    day: dt.date
    requests: int = 0
    unpriced: int = 0
    tokens: int = 0
    cost: dict[str, int] = field(default_factory=dict)

    def add(self, currency: str, figures: Figures) -> None:
        """Take in figures of one currency."""
        self.requests += figures.requests
        self.unpriced += figures.unpriced
        self.tokens += figures.tokens
        self.cost[currency] = self.cost.get(currency, 0) + figures.cost_nanos


def sums_by_day(first: dt.date, last: dt.date) -> list[DaySum]:
    """A sum for each day from `first` to `last`, those without requests included."""
    dates = [first + dt.timedelta(days=ahead) for ahead in range((last - first).days + 1)]
    days = {date: DaySum(date) for date in dates}
    for (day, currency), figures in sums(Cut(first, last), ("day", "currency")).items():
        days[day].add(currency, figures)
    return list(days.values())


def sum_of_today(now: dt.datetime) -> DaySum:
    """The day that it is now, for each account on its own clocks."""
    today = DaySum(now.date())
    around = Cut(today.day - dt.timedelta(days=1), today.day + dt.timedelta(days=1))
    found = sums(around, ("day", "account", "currency"))
    zones = dict(Account.objects.filter(pk__in={account for _, account, _ in found}).values_list("pk", "timezone"))
    for (day, account, currency), figures in found.items():
        if day == local_day(now, ZoneInfo(zones[account])):
            today.add(currency, figures)
    return today
