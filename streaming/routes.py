"""Which route a request takes, and which comes after a failure. Pure: the dice are an argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from streaming.catalogue import ModelEntry, RouteEntry
from streaming.errors import Failure

Dice = Callable[[Sequence[RouteEntry], Sequence[int]], RouteEntry]
"""Takes routes and their weights and picks one."""

SHORT_WAIT_S = 3.0
"""A rate limit that ends this soon is waited for on the same route."""


def ordered(model: ModelEntry, wire_format: str, dice: Dice) -> list[RouteEntry]:
    """The routes that speak the wire format: by priority, and within one priority drawn by weight."""
    able = [route for route in model.routes if wire_format in route.provider.wire_formats]
    chosen: list[RouteEntry] = []
    for _, same in groupby(sorted(able, key=lambda route: route.priority), key=lambda route: route.priority):
        left = list(same)
        while left:
            chosen.append(route := dice(left, [max(route.weight, 1) for route in left]) if len(left) > 1 else left[0])
            left.remove(route)
    return chosen


class Plan:
    """The attempts of one request: which route comes next, within one budget."""

    def __init__(self, routes: Sequence[RouteEntry], max_attempts: int) -> None:
        self._left = list(routes)
        self._budget = max_attempts
        self._spare: RouteEntry | None = None
        self._asked_again: set[int] = set()

    def first(self) -> RouteEntry | None:
        """The first route, None where there is none."""
        return self._take()

    def skip(self) -> RouteEntry | None:
        """The next route instead of one that was not asked after all; costs nothing of the budget."""
        self._budget += 1
        return self._take()

    def after(self, route: RouteEntry, failure: Failure) -> tuple[RouteEntry, float] | None:
        """The route to try next and the seconds to wait before it; None when the request has failed."""
        if failure.kind == "stream_options" and (again := self._again(route, 0.0)) is not None:
            return again
        if failure.final:
            return None
        wait_s = failure.retry_after_s
        if failure.kind == "rate_limited" and wait_s is not None and wait_s <= SHORT_WAIT_S:
            again = self._again(route, wait_s)
            if again is not None:
                return again
        if failure.kind in ("refused", "account"):
            self._left = [other for other in self._left if other.provider.id != route.provider.id]
        if failure.stays:
            self._spare = self._spare or route
        following = self._take()
        if following is None and self._spare is not None:
            spare, self._spare = self._spare, None
            return self._again(spare, 0.0)
        return None if following is None else (following, 0.0)

    def _take(self) -> RouteEntry | None:
        if not self._left or self._budget <= 0:
            return None
        self._budget -= 1
        return self._left.pop(0)

    def _again(self, route: RouteEntry, wait_s: float) -> tuple[RouteEntry, float] | None:
        if self._budget <= 0 or route.id in self._asked_again:
            return None
        self._budget -= 1
        self._asked_again.add(route.id)
        return route, wait_s
