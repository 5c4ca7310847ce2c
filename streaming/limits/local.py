"""The limits as one process counts them: what it admitted itself, whatever Redis knows of it.

A process asks itself first. So a client that is over its limits costs no round trip, no process alone ever admits more
than a limit says, and when Redis is away, or came back empty, this goes on.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable

from billing.reports import KeyMonth, Spending
from streaming.limits.holds import Hold, Left, Verdict
from streaming.limits.window import Window


class LocalLimits:
    """`clock` gives milliseconds. What is admitted is counted at once, in the same step."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._requests: defaultdict[int, Window] = defaultdict(Window)
        self._tokens: defaultdict[int, Window] = defaultdict(Window)
        self._running: defaultdict[int, set[str]] = defaultdict(set)
        self._held: defaultdict[KeyMonth, dict[str, int]] = defaultdict(dict)

    def admit(self, hold: Hold) -> Verdict:
        """Requests, tokens and concurrency: admitted, and then counted, or refused and not."""
        now, id = self._clock(), hold.key.id
        waits = [
            0 if limit is None else windows[id].wait_ms(limit, asked, now)
            for limit, windows, asked in (
                (hold.requests_limit, self._requests, 1),
                (hold.tokens_limit, self._tokens, max(hold.tokens, 1)),
            )
        ]
        if any(waits):
            return Verdict("requests" if waits[0] else "tokens", max(waits), *self._left(hold, now))
        if hold.concurrency is not None and len(self._running[id]) >= hold.concurrency:
            return Verdict("concurrency", 1000, *self._left(hold, now))
        self._count(hold, now)
        return Verdict("ok", 0, *self._left(hold, now))

    def _left(self, hold: Hold, now: int) -> tuple[Left | None, Left | None]:
        def left(limit: int | None, windows: defaultdict[int, Window]) -> Left | None:
            if limit is None:
                return None
            window = windows[hold.key.id]
            return Left(max(0, limit - window.sum(now)), window.reset_ms(now))

        return left(hold.requests_limit, self._requests), left(hold.tokens_limit, self._tokens)

    def _count(self, hold: Hold, now: int) -> None:
        id = hold.key.id
        if hold.requests_limit is not None:
            hold.second = self._requests[id].add(1, now)
        if hold.tokens_limit is not None:
            hold.second = self._tokens[id].add(hold.tokens, now)
        if hold.concurrency is not None:
            self._running[id].add(hold.id)

    def reserve(self, hold: Hold, spending: Spending) -> Verdict:
        """The budget, against what the database says was spent: held, or refused."""
        assert hold.budget is not None
        if spending.spent_nanos >= hold.budget:
            return Verdict("spent")
        held = sum(self._held[hold.key.id, hold.month].values())
        if held and spending.spent_nanos + held + hold.nanos > hold.budget:
            return Verdict("reserved", 1000)
        self.hold(hold)
        return Verdict("ok")

    def hold(self, hold: Hold) -> None:
        """Note what a request holds of its key's budget."""
        if hold.budget is not None:
            self._held[hold.key.id, hold.month][hold.id] = hold.nanos

    def withdraw(self, hold: Hold) -> None:
        """Count nothing of a request that was refused elsewhere."""
        id = hold.key.id
        if hold.requests_limit is not None:
            self._requests[id].take_back(1, hold.second)
        if hold.tokens_limit is not None:
            self._tokens[id].take_back(hold.tokens, hold.second)
        self.ended(hold)
        self._release(hold)

    def ended(self, hold: Hold) -> None:
        """It does not run any more."""
        self._running[hold.key.id].discard(hold.id)

    def settle(self, hold: Hold, used: int | None) -> None:
        """It is billed: its tokens become those that it used (None: what was held), its hold goes."""
        if hold.tokens_limit is not None and used is not None:
            window = self._tokens[hold.key.id]
            if used < hold.tokens:
                window.take_back(hold.tokens - used, hold.second)
            elif used > hold.tokens:
                window.add(used - hold.tokens, self._clock())
        self._release(hold)

    def _release(self, hold: Hold) -> None:
        place = (hold.key.id, hold.month)
        if place in self._held:
            self._held[place].pop(hold.id, None)
            if not self._held[place]:
                del self._held[place]

    def held(self, key_id: int, month: dt.date) -> int:
        """What the process's requests hold of a key's budget."""
        return sum(self._held.get((key_id, month), {}).values())
