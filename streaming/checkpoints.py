"""Every few seconds, how far each request has come: counted by the tokenizer's thread, written by the ledger's.

Streams never wait for any of it. What comes back is what an operator wants stopped, and whose open row is gone.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from billing.ledger import Checkpoint, CheckpointRow, OpenRow, ProcessRow, Told
from billing.usage import ReportedUsage
from streaming.client import Clock
from streaming.counting import Counting
from streaming.runs import Run

log = logging.getLogger(__name__)

State = tuple[int, float | None, ReportedUsage | None]
"""Attempt, the clock's time of the last output, reported usage: what an open row says beside the counts."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a request has come, its new text handed over. `releases`: its input is counted now, its body can go."""

    run: Run
    opened: OpenRow
    state: State
    releases: bool
    last_output_at: dt.datetime | None
    at: dt.datetime


class Checkpoints:
    """One per event loop. `runs` are all requests under way; `write` hands a checkpoint to the ledger.

    `release` is told, on the loop, of a run whose body nobody needs any more.
    """

    def __init__(
        self,
        process: ProcessRow,
        runs: Collection[Run],
        counting: Counting,
        write: Callable[[Checkpoint], Future[Told]],
        release: Callable[[Run], None],
        clock: Clock,
    ) -> None:
        self._process, self._runs, self._counting, self._write = process, runs, counting, write
        self._release, self._clock = release, clock
        self._loop = asyncio.get_running_loop()
        self._heartbeat = 0
        self._counted: Future[None] | None = None

    def round(self) -> None:
        """Hand over what has changed; a sign of life alone where nothing has, or the tokenizer is still busy."""
        self._heartbeat += 1
        busy = self._counted is not None and not self._counted.done()
        marks = [] if busy else [mark for run in tuple(self._runs) if (mark := self._mark(run)) is not None]
        if marks:
            self._counted = self._counting.submit(self._count, marks, self._heartbeat)
        else:
            self._send(self._heartbeat, [])

    def _mark(self, run: Run) -> Mark | None:
        """What is new of a run; None where that is nothing."""
        try:
            return mark(run, self._clock(), dt.datetime.now(dt.UTC))
        except Exception:  # one stream's oddity must not stop the ticker for all others
            log.exception("no checkpoint of %s", run.id)
            return None

    # --- the tokenizer's thread ---

    def _count(self, marks: Collection[Mark], heartbeat: int) -> None:
        rows = [row for mark in marks if (row := self._row(mark)) is not None]
        self._send(heartbeat, rows)

    def _row(self, mark: Mark) -> CheckpointRow | None:
        try:
            return self._counted_row(mark)
        except Exception:  # nor may it cost the others their checkpoint
            log.exception("no checkpoint of %s", mark.run.id)
            return None

    def _counted_row(self, mark: Mark) -> CheckpointRow:
        run, (attempt, _, reported) = mark.run, mark.state
        run.count.count_waiting()
        if mark.releases:
            self._call(self._release, run)
        run.counted = counted_input, counted_output = run.count.so_far()
        route = run.route
        return CheckpointRow(
            open=mark.opened, provider=route.provider.name if route else "",
            upstream_model=route.upstream_model if route else "", attempt=attempt, counted_input=counted_input,
            counted_output=counted_output, reported=reported, last_output_at=mark.last_output_at, at=mark.at,
        )  # fmt: skip

    def _send(self, heartbeat: int, rows: list[CheckpointRow]) -> None:
        written = self._write(Checkpoint(self._process, heartbeat, tuple(rows)))
        written.add_done_callback(self._written)

    # --- the ledger's thread, and back on the loop ---

    def _written(self, written: Future[Told]) -> None:
        if (error := written.exception()) is not None:
            log.warning("a checkpoint was not written: %s", type(error).__name__)
        elif (told := written.result()) != Told():
            self._call(self._told, told)

    def _call(self, act: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:  # the loop is closed: nothing runs any more
            log.debug("the loop has ended")

    def _told(self, told: Told) -> None:
        """Stop what is to be stopped; an attempt that is just between two calls is stopped in the next round."""
        for run in tuple(self._runs):
            if run.id in told.stops and run.live is not None:
                run.live.interrupt("stopped")
            if run.id in told.vanished:
                run.told = None


def mark(run: Run, now: float, wall: dt.datetime) -> Mark | None:
    """What is new of a run since its last mark; None where that is nothing. Takes the stream's new text."""
    live = run.live
    if run.opened is None or run.ending or live is None or not run.attempts:
        return None
    texts = live.take_texts()
    state: State = (run.attempts[-1].number, live.last_output if live.produced else None, live.reported)
    if not texts and state == run.told:
        return None
    run.told = state
    content = None
    if run.produced and not run.input_handed:
        run.input_handed = True
        wire, body = run.wire, run.facts.body
        content = lambda: wire.input_content(body)  # noqa: E731 - counted in another thread, at most once
    run.count.hand_over(texts, content)
    last = None if state[1] is None else wall - dt.timedelta(seconds=max(now - state[1], 0))
    return Mark(run, run.opened, state, content is not None, last, wall)
