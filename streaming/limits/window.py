"""The sums of the last minute, by the second: the twin of the scripts' windows, for one process. Pure.

A second leaves the window a minute after its last addition, so no minute ever holds more than the limit.
"""

from __future__ import annotations

MINUTE_MS = 60_000


class Window:
    """Times are milliseconds of one clock."""

    def __init__(self) -> None:
        self._seconds: dict[int, tuple[int, int]] = {}  # in the order of time, as they were added
        self._sum = 0

    def sum(self, now_ms: int) -> int:
        """What was added in the last minute."""
        while self._seconds:
            second = next(iter(self._seconds))
            counted, last = self._seconds[second]
            if last > now_ms - MINUTE_MS:
                break
            del self._seconds[second]
            self._sum -= counted
        return self._sum

    def wait_ms(self, limit: int, asked: int, now_ms: int) -> int:
        """How long until there is room for so much more."""
        excess = self.sum(now_ms) + asked - limit
        if excess <= 0:
            return 0
        for counted, last in self._seconds.values():
            excess -= counted
            if excess <= 0:
                return last + MINUTE_MS - now_ms
        return MINUTE_MS

    def reset_ms(self, now_ms: int) -> int:
        """How long until nothing is left of it."""
        if not self.sum(now_ms):
            return 0
        _, last = self._seconds[next(reversed(self._seconds))]
        return last + MINUTE_MS - now_ms

    def add(self, amount: int, now_ms: int) -> int:
        """Count something now; returns the second, for `take_back`."""
        second = now_ms // 1000
        before, _ = self._seconds.get(second, (0, 0))
        self._seconds[second] = (before + amount, now_ms)
        self._sum += amount
        return second

    def take_back(self, amount: int, second: int) -> None:
        """Less was used than was counted in a second."""
        if second in self._seconds:
            before, last = self._seconds[second]
            self._seconds[second] = (max(0, before - amount), last)
            self._sum -= min(before, amount)
