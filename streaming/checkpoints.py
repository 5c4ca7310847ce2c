"""Every few seconds, how far each request has come: counted by the tokenizer's thread, written by the ledger's.

Streams never wait for any of it. What comes back is what an operator wants stopped, and whose open row is gone.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from billing.ledger import Checkpoint, CheckpointRow, OpenRow, ProcessRow, Told
from billing.request_ids import request_id
from billing.usage import ReportedUsage
from streaming.client import Clock
from streaming.counting import Counting
from streaming.runs import AttemptReport, Run

log = logging.getLogger(__name__)

INPUTS_S = 0.2
"""How long a round waits for inputs that it has handed over: a million tokens are counted in that time."""

State = tuple[int, float | None, ReportedUsage | None, str]
"""Attempt, the clock's time of the last output, reported usage, the provider's request id: what an open row says beside
the counts."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a request has come, its new text handed over; `hands_input`: its input too."""

    run: Run
    opened: OpenRow
    attempt: AttemptReport
    state: State
    hands_input: bool
    first_output_at: dt.datetime | None
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
            inputs = {mark.run.id: self._count_input(mark.run) for mark in marks if mark.hands_input}
            self._counted = self._counting.submit(self._count, marks, inputs, self._heartbeat)
        else:
            self._send(self._heartbeat, [])

    def _mark(self, run: Run) -> Mark | None:
        """What is new of a run; None where that is nothing."""
        try:
            return mark(run, self._clock(), dt.datetime.now(dt.UTC))
        except Exception:  # one stream's oddity must not stop the ticker for all others
            log.exception("no checkpoint of %s", run.id, extra={"request_id": request_id(run.id)})
            return None

    def _count_input(self, run: Run) -> Future[None]:
        counted = self._counting.count_input(run.count)
        counted.add_done_callback(partial(self._input_counted, run))
        return counted

    # --- the tokenizer's threads ---

    def _input_counted(self, run: Run, counted: Future[None]) -> None:
        """The body can go, since no attempt follows an output."""
        if counted.cancelled():
            return
        if (error := counted.exception()) is not None:
            known = {"request_id": request_id(run.id)}
            log.error("the input of %s cannot be counted: %s", run.id, type(error).__name__, extra=known)
            return
        self._call(self._release, run)

    def _count(self, marks: Collection[Mark], inputs: Mapping[UUID, Future[None]], heartbeat: int) -> None:
        late = wait(inputs.values(), INPUTS_S).not_done
        for run in [mark.run for mark in marks if inputs.get(mark.run.id) in late]:
            inputs[run.id].add_done_callback(partial(_tell_again, run))
        rows = [row for mark in marks if (row := self._row(mark)) is not None]
        self._send(heartbeat, rows)

    def _row(self, mark: Mark) -> CheckpointRow | None:
        try:
            return self._counted_row(mark)
        except Exception:  # nor may it cost the others their checkpoint
            log.exception("no checkpoint of %s", mark.run.id, extra={"request_id": request_id(mark.run.id)})
            return None

    def _counted_row(self, mark: Mark) -> CheckpointRow:
        run, route, (number, _, reported, provider_request_id) = mark.run, mark.attempt.route, mark.state
        run.count.count_output()
        run.counted = counted_input, counted_output = run.count.so_far()
        return CheckpointRow(
            open=mark.opened, provider=route.provider.name, upstream_model=route.upstream_model, attempt=number,
            counted_input=counted_input, counted_output=counted_output, reported=reported,
            last_output_at=mark.last_output_at, at=mark.at, first_output_at=mark.first_output_at,
            attempt_started_at=mark.attempt.started_at, provider_request_id=provider_request_id,
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


def _tell_again(run: Run, counted: Future[None]) -> None:
    """An input was counted after its checkpoint: the next one holds it."""
    run.told = None


def mark(run: Run, now: float, wall: dt.datetime) -> Mark | None:
    """What is new of a run since its last mark; None where that is nothing. Takes the stream's new text."""
    live = run.live
    if run.opened is None or run.ending or live is None or not run.attempts:
        return None
    attempt, texts = run.attempts[-1], live.take_texts()
    last_output = live.last_output if live.produced else None
    state: State = (attempt.number, last_output, live.reported, attempt.provider_request_id)
    if not texts and state == run.told:
        return None
    run.told = state
    content = None
    if run.produced and not run.input_handed:
        run.input_handed = True
        wire, body = run.wire, run.facts.body
        content = lambda: wire.input_content(body)  # noqa: E731 - counted in another thread, at most once
    run.count.hand_over(texts, content)
    last = None if last_output is None else wall - dt.timedelta(seconds=max(now - last_output, 0))
    first = None if last is None else run.first_output_at
    return Mark(run, run.opened, attempt, state, content is not None, first, last, wall)
