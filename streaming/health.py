"""Which routes are fit to be asked: cool-down with back-off, one probe, and routes that are out until an operator acts.

`RouteState` and the functions on it are pure. `RouteHealth` holds the states of one process, and shares them through
`route_states` as far as Redis answers. A route that is out for account trouble is marked in the database, so that it
outlives every process; until that mark can be read back, the process remembers it itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from streaming import metrics
from streaming.catalogue import RouteEntry
from streaming.errors import ApiError, FailureKind, retry_after_headers

log = logging.getLogger(__name__)

FAILURES_TO_COOL = 3
FIRST_COOL_DOWN_S, LONGEST_COOL_DOWN_S = 5.0, 600.0
PROBE_S = 30.0
"""How long a probe may take before another request may try."""
EARLY_S = 0.1
"""A cool-down counts as over this much early: whoever slept for exactly its length must find it so."""


@dataclass(frozen=True, slots=True)
class RouteState:
    """How a route fared lately. `until` and `since` are Unix seconds; `level` counts cool-downs in a row."""

    failures: int = 0
    level: int = 0
    until: float = 0.0
    since: float = 0.0
    reason: str = ""

    def is_cooling(self, now: float) -> bool:
        """Whether the route must not be asked yet."""
        return self.until - EARLY_S > now

    @property
    def needs_probe(self) -> bool:
        """Whether a cool-down is over that no answer has ended yet: one request may try."""
        return self.until > 0


HEALTHY = RouteState()


def after_failure(
    state: RouteState, kind: FailureKind, reason: str, retry_after_s: float | None, now: float
) -> RouteState:
    """The state after a failure that is the provider's own. A refused request and account trouble do not come here."""
    failures = state.failures + 1
    if kind == "rate_limited":
        return _cooled(state, failures, reason, retry_after_s, now)
    if failures >= FAILURES_TO_COOL:
        return _cooled(state, failures, reason, None, now)
    return replace(state, failures=failures)


def _cooled(state: RouteState, failures: int, reason: str, wait_s: float | None, now: float) -> RouteState:
    backed_off_s = min(FIRST_COOL_DOWN_S * 2**state.level, LONGEST_COOL_DOWN_S)
    length_s = backed_off_s if wait_s is None else min(wait_s, LONGEST_COOL_DOWN_S)
    return RouteState(failures, min(state.level + 1, 16), now + length_s, now, reason)


def after_output(state: RouteState) -> RouteState:
    """The state once a probe brought output: open to all again, though not forgiven before its answer is whole."""
    return replace(state, until=0.0, since=0.0, reason="")


class SharedStates(Protocol):
    """Where processes tell each other: see `route_states`. Everything here may fail, and then changes nothing."""

    async def put(self, route_id: int, state: RouteState) -> bool: ...
    async def remove(self, route_id: int) -> bool: ...
    async def take_probe(self, route_id: int, for_s: float) -> bool: ...
    async def give_probe(self, route_id: int) -> None: ...


Spawn = Callable[[Coroutine[Any, Any, Any]], object]
TakeOut = Callable[[int, str], Coroutine[Any, Any, bool]]
"""Marks a route as out in the database; False when that could not be written."""


class RouteHealth:
    """The states of one process. `clock` gives Unix seconds, `spawn` runs what nobody waits for."""

    def __init__(self, shared: SharedStates, take_out: TakeOut, spawn: Spawn, clock: Callable[[], float]) -> None:
        self._shared, self._take_out, self._spawn, self._clock = shared, take_out, spawn, clock
        self._states: dict[int, RouteState] = {}
        self._out: dict[int, str] = {}
        self._probing: dict[int, float] = {}
        self._published: set[int] = set()

    def state(self, route_id: int) -> RouteState:
        """How a route fared lately, as far as this process knows."""
        return self._states.get(route_id, HEALTHY)

    # --- before an attempt ---

    def usable(self, routes: Sequence[RouteEntry]) -> list[RouteEntry]:
        """The routes that may be asked now; ApiError when there is none, saying when there will be."""
        standing = [route for route in routes if not self._is_out(route)]
        if not standing:
            raise ApiError(  # until an operator has seen to it
                "no_available_route", "No route to this model is available at the moment. Try again later.",
                headers={"x-should-retry": "false"},
            )  # fmt: skip
        now = self._clock()
        open_now = [route for route in standing if not self.state(route.id).is_cooling(now)]
        if not open_now:
            raise self.all_cooling(standing)
        return open_now

    def all_cooling(self, routes: Sequence[RouteEntry]) -> ApiError:
        """The refusal while every route cools down, with the shortest time that is left."""
        now = self._clock()
        shortest_s = min((max(0.0, self.state(route.id).until - now) for route in routes), default=1.0)
        return ApiError(
            "all_routes_rate_limited",
            "All routes to this model are cooling down. Try again later.",
            headers=retry_after_headers(shortest_s or 1.0),
        )

    def _is_out(self, route: RouteEntry) -> bool:
        if route.out_reason:
            self._out.pop(route.id, None)  # the catalogue knows by now, and will know when an operator resets it
            return True
        return route.id in self._out

    async def admits(self, route: RouteEntry) -> bool:
        """Whether an attempt may begin. After a cool-down one request alone may, over all processes, until it ends."""
        now, state = self._clock(), self.state(route.id)
        if self._is_out(route) or state.is_cooling(now):
            return False
        if not state.needs_probe:
            return True
        if self._probing.get(route.id, 0.0) > now:
            return False
        self._probing[route.id] = now + PROBE_S
        if await self._shared.take_probe(route.id, PROBE_S):
            return True
        self._probing.pop(route.id, None)
        return False

    # --- after it ---

    def has_output(self, route_id: int) -> None:
        """The route brings output again."""
        if (state := self.state(route_id)).needs_probe:
            self._set(route_id, after_output(state))
            self._end_probe(route_id)

    def succeeded(self, route_id: int) -> None:
        """The route brought a whole answer."""
        if route_id in self._states:
            self._set(route_id, HEALTHY)
        self._end_probe(route_id)

    def failed(self, route_id: int, kind: FailureKind, reason: str, retry_after_s: float | None = None) -> None:
        """The route failed. A bad request harms no route; trouble with our account takes it out."""
        if kind == "account":
            self._out[route_id] = reason
            log.error("route %d is out until an operator acts: %s", route_id, reason)
            self._spawn(self._mark_out(route_id, reason))
        elif kind not in ("refused", "stream_options"):
            now = self._clock()
            state = after_failure(self.state(route_id), kind, reason, retry_after_s, now)
            self._set(route_id, state)
            if state.is_cooling(now):
                metrics.COOL_DOWNS.labels(kind).inc()
                log.warning("route %d cools down for %.0f s: %s", route_id, state.until - now, reason)
        self._end_probe(route_id)

    def abandoned(self, route_id: int) -> None:
        """The attempt ended through no doing of the route (its client left)."""
        self._end_probe(route_id)

    async def _mark_out(self, route_id: int, reason: str) -> None:
        if not await self._take_out(route_id, reason):
            log.error("route %d: the database could not be told that it is out", route_id)

    def _end_probe(self, route_id: int) -> None:
        if self._probing.pop(route_id, None) is not None:
            self._spawn(self._shared.give_probe(route_id))

    def _set(self, route_id: int, state: RouteState) -> None:
        before = self._states.pop(route_id, HEALTHY)
        if state != HEALTHY:
            self._states[route_id] = state
        if state.needs_probe:
            self._spawn(self._publish(route_id, state))
        elif before.needs_probe:
            self._published.discard(route_id)
            self._spawn(self._shared.remove(route_id))

    async def _publish(self, route_id: int, state: RouteState) -> None:
        if await self._shared.put(route_id, state):
            self._published.add(route_id)

    # --- what other processes and operators say ---

    def take_over(self, shared: dict[int, RouteState]) -> None:
        """Take what all processes agree on: newer cool-downs, and the end of those that somebody else ended."""
        for route_id, state in shared.items():
            if state.until > self.state(route_id).until:
                self._states[route_id] = state
                self._published.add(route_id)
        for route_id in [id for id in self._published if id not in shared]:
            self._published.discard(route_id)
            self._states.pop(route_id, None)

    def out(self, routes: Iterable[RouteEntry]) -> int:
        """How many of these routes are out."""
        return sum(bool(route.out_reason) or route.id in self._out for route in routes)

    def cooling(self) -> int:
        """How many routes cool down."""
        now = self._clock()
        return sum(state.is_cooling(now) for state in self._states.values())
