"""One ticker for all streams of a process: keepalive, stall, slow readers and checkpoints.

A stream costs it a comparison per tick, and a few more once a second or when something is near: no timer, task or lock
of its own. It writes nothing itself but keepalives, and ends nothing but by moving the deadline that the relay waits
under.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from streaming.runs import Live

LOOK_S = 1.0
"""The longest that a stream is passed by: no longer than the shortest patience, with slow readers and drains alike."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    keepalive_s: float
    before_headers_s: float
    slow_reader_s: float
    checkpoint_s: float

    @property
    def tick_s(self) -> float:
        """Fine enough to be about right for the shortest of them."""
        return min(0.25, self.keepalive_s / 4, self.checkpoint_s / 2)


class Ticker:
    """Looks at the live streams, each tick at those whose time it is. `checkpoint` is called every `checkpoint_s`,
    and must not block."""

    def __init__(self, timing: Timing, checkpoint: Callable[[], None], clock: Callable[[], float]) -> None:
        self.streams: set[Live] = set()
        self._timing, self._checkpoint, self._clock = timing, checkpoint, clock
        self._next_checkpoint = 0.0

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(self._timing.tick_s)
            self.tick(self._clock())

    def tick(self, now: float) -> None:
        """Look at every stream that may want something by now."""
        for live in tuple(self.streams):
            if now >= live.next_look:
                look_at(live, now, self._timing)
        if now >= self._next_checkpoint:
            self._next_checkpoint = now + self._timing.checkpoint_s
            self._checkpoint()


def look_at(live: Live, now: float, timing: Timing) -> None:
    """The rules of one stream: whose silence is it, and is it too long."""
    client, passage = live.run.client, live.passage
    patience_s = passage.meter.patience_s if passage is not None else None
    if client.writing_since is not None:
        if now - client.writing_since > timing.slow_reader_s:
            live.interrupt("slow_reader")
    elif live.drain_until is not None and now > live.drain_until:
        live.interrupt("drained")
    elif patience_s is not None and now - live.last_event > patience_s:
        live.interrupt("patience")
    elif now - live.last_output > live.stall_s:
        live.interrupt("stalled")
    elif now - client.last_write > (
        timing.keepalive_s if client.started or live.has_headers else timing.before_headers_s
    ):
        client.keepalive(one_line_end=live.one_line_end)
    elif live.drain_until is None and patience_s is None:
        # Output and writes only move these moments away.
        silent_s = min(timing.keepalive_s, timing.before_headers_s)
        live.next_look = min(now + LOOK_S, live.last_output + live.stall_s, client.last_write + silent_s)
