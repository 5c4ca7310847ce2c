"""The process-wide object: what all requests of one event loop share, and their life from admission to bill."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connections
from uuid_utils.compat import uuid7

from billing.catalogue import KeyEntry
from billing.keys import note_uses
from billing.ledger import Journal, Ledger, LedgerUnavailable, OpenRow, ProcessRow, Settlement
from billing.ledger.events import Kind
from billing.meter_health import MeterReader
from billing.processes import Folder, ProcessLock
from billing.reports import spendings
from billing.request_ids import request_id
from billing.sweep import sweep_at_start
from streaming import metrics, tracing
from streaming.catalogue import Catalogue, CataloguePoller, RouteEntry
from streaming.checkpoints import Checkpoints
from streaming.counting import Counting
from streaming.errors import ApiError
from streaming.health import RouteHealth
from streaming.key_uses import KeyUses
from streaming.limits import Limits
from streaming.meter_watch import READ_S, WATCH
from streaming.models import take_out
from streaming.process_watch import watch_process
from streaming.relay import RelayOptions, relay, tell_error
from streaming.route_states import RouteStates
from streaming.routes import Plan
from streaming.run_metrics import count_run
from streaming.runs import Run
from streaming.settlement import Settlements
from streaming.stored_objects import StoredObjects
from streaming.ticker import Ticker, Timing
from streaming.upstream import Upstream

log = logging.getLogger(__name__)
Result = TypeVar("Result")
TraceRun = Callable[[Run, Settlement, dt.datetime, float], None]
"""A run, its bill, when it ended, and how many seconds the bill took."""

SHARE_S = 1.0
KEY_USES_S = 5.0
OPEN_ROW_S = 2.0
"""How long the first byte waits for its open row: after that the database counts as down."""
SETTLE_S = 10.0
"""How long the end of the process waits for the last bills; what is not written then waits in the journal."""
LAST_TRY_S = 2.0
"""The same once more, where the database is away already."""
LAST_WORDS_S = 2.0
"""What streams get for their error event before their relays are cancelled."""
END_AGAIN_S = 0.1
LOOK_S = 0.05


class Bodies:
    """The bytes of all request bodies that the process holds."""

    def __init__(self, limit: int) -> None:
        self._limit, self.held = limit, 0

    def hold(self, size: int) -> None:
        """Count bytes that came in; ApiError when there is no room for them."""
        if self.held + size > self._limit:
            raise ApiError("service_unavailable", "The gateway holds too many large requests. Try again in a moment.")
        self.held += size

    def release(self, size: int) -> None:
        """Bytes that are no longer held."""
        self.held -= size


class Gateway:
    """One per event loop. `start()` may be awaited by every request; only the first does anything."""

    def __init__(self, trace: TraceRun | None = None) -> None:
        self.process: UUID = uuid7()
        self._trace = trace
        self.catalogue = Catalogue()
        self.bodies = Bodies(settings.BODIES_BYTES)
        self.draining = False
        self.runs: set[Run] = set()
        self._relays: set[asyncio.Task[None]] = set()
        self._is_over = False
        self._poller = CataloguePoller(self.catalogue)
        self._folder = Folder(settings.VAR_DIR)
        self._lock: ProcessLock | None = None
        self._leaving = threading.Event()
        self._ledger = Ledger(journal=Journal(self._folder.journal_path(self.process)), process=self.process)
        self._faults = {
            Kind.LATE: metrics.Follower(metrics.LEDGER_LATE), Kind.DROPPED: metrics.Follower(metrics.LEDGER_DROPPED),
            Kind.UNJOURNALLED: metrics.Follower(metrics.LEDGER_UNJOURNALLED),
        }  # fmt: skip
        self._counting = Counting()
        self._database = ThreadPoolExecutor(max_workers=4, thread_name_prefix="database")
        self.stored = StoredObjects(self._ledger.remember, self.in_database)
        self._tasks: set[asyncio.Task[None]] = set()
        self._drains: dict[int, int] = {}
        self._route_states = RouteStates(settings.VALKEY_URL)
        self.health = RouteHealth(self._route_states, self._take_out, self.spawn, time.time)
        self.limits = Limits(
            settings.VALKEY_URL, self.process, lambda months: self.in_database(spendings, months),
            self.catalogue.billing.price_at, self.spawn, lease_s=settings.LEASE_S, raise_s=settings.CHECKPOINT_S,
        )  # fmt: skip
        self.key_uses = KeyUses()
        self._meter = MeterReader(self._folder, lambda: self.limits.available)
        self._starting: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Load the catalogue and start the threads and the ticker."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = await asyncio.to_thread(self._folder.hold, self.process)  # before anything of ours is written
        await self.in_database(self.catalogue.refresh)
        self._poller.start()
        self._ledger.start()
        self._counting.warm_up()
        timing = Timing(
            settings.KEEPALIVE_S, settings.KEEPALIVE_BEFORE_HEADERS_S, settings.SLOW_READER_S, settings.CHECKPOINT_S
        )
        label = f"{socket.gethostname()}:{os.getpid()}"[:100]
        checkpoints = Checkpoints(
            ProcessRow(self.process, label, dt.datetime.now(dt.UTC)), self.runs, self._counting,
            self._ledger.checkpoint, self._release_body, time.monotonic,
        )  # fmt: skip
        self._ticker = Ticker(timing, checkpoints.round, time.monotonic)
        self._upstream = Upstream(settings.CONNECT_TIMEOUT_S)
        self._options = RelayOptions(
            self._upstream, self._ticker.streams, time.monotonic, self.spawn, settings.MAX_EVENT_BYTES,
            settings.MAX_ANSWER_BYTES, set(), self.health, self._remember,
        )  # fmt: skip
        self._settlements = Settlements(self._ledger, self._counting, self.catalogue.billing.price_at)
        self._ticking = [
            asyncio.ensure_future(work)
            for work in (
                self._ticker.run(),
                watch_process(),
                _again_and_again(self._share_states, SHARE_S, "the states of routes were not shared"),
                _again_and_again(self._tell_states, SHARE_S, "the gateway's state was not told"),
                _again_and_again(self.limits.beat, SHARE_S, "limits were not tended"),
                _again_and_again(self._watch_meter, READ_S, "the meter's health was not read"),
                _again_and_again(self._write_key_uses, KEY_USES_S, "when keys were last used was not written"),
            )
        ]
        threading.Thread(target=sweep_at_start, args=(self._leaving,), name="sweep", daemon=True).start()

    async def _share_states(self) -> None:
        """Learn which routes the other processes found wanting, or an operator reset."""
        if (shared := await self._route_states.read()) is not None:
            self.health.take_over(shared)

    async def _tell_states(self) -> None:
        """Tell /metrics how things stand, which a request's own course would have to say each time."""
        metrics.OPEN_STREAMS.set(len(self.runs))
        metrics.UNSETTLED.set(self._ledger.depth)
        metrics.COOLING.set(self.health.cooling())
        routes = (route for model in self.catalogue.models.values() for route in model.routes)
        metrics.OUT.set(self.health.out(routes))
        metrics.JOURNAL.set(self._ledger.journal_bytes)
        for kind, follower in self._faults.items():
            follower.follow(self._ledger.faults[kind])

    async def _watch_meter(self) -> None:
        """Read whether the figures can be trusted, for /metrics and the admin's alarm strip."""
        WATCH.take(await self.in_database(self._meter.read, dt.datetime.now(dt.UTC)))

    async def _write_key_uses(self, *, all: bool = False) -> None:
        """Write which secrets were used; those that could not be written are written the next time."""
        uses = self.key_uses.due(time.time(), all=all)
        moments = {digest: dt.datetime.fromtimestamp(at, dt.UTC) for digest, at in uses.items()}
        await self.in_database(note_uses, moments)
        self.key_uses.written(uses)

    async def _take_out(self, route_id: int, reason: str) -> bool:
        """Mark a route as out, for every process and every start to come, until an operator resets it."""
        try:
            await self.in_database(take_out, route_id, reason)
        except DatabaseError as error:
            log.error("route %d could not be marked as out: %s", route_id, type(error).__name__)
            return False
        return True

    def _remember(self, run: Run, route: RouteEntry, ids: Sequence[str]) -> None:
        self.stored.brought(run.key.account.id, run.id, route, ids)

    async def in_database(self, read: Callable[..., Result], *arguments: Any) -> Result:
        """Run a synchronous read in a thread of its own; its connection goes back afterwards."""

        def work() -> Result:
            try:
                return read(*arguments)
            finally:
                connections.close_all()

        return await asyncio.get_running_loop().run_in_executor(self._database, work)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that outlives its request; kept until it is done."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)
        return task

    def _spawned_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed", exc_info=error)

    # --- requests ---

    async def key_in_database(self, digest: str) -> KeyEntry | None:
        """A key that the snapshot does not know (it may be seconds old)."""
        return await self.in_database(self.catalogue.billing.look_up, digest)

    def open(self, row: OpenRow) -> Callable[[], Coroutine[Any, Any, str]]:
        """Queue an open row; the returned function waits for the request's id."""
        opened = self._ledger.open(row)

        async def name() -> str:
            if opened.done() and opened.exception() is None:
                return opened.result()
            return await _committed(opened)

        return name

    def begin(self, run: Run, plan: Plan, row: OpenRow | None) -> asyncio.Task[None]:
        """Relay a run; it is settled when the returned task is done, however that comes about."""
        self.runs.add(run)
        run.opened = row
        if run.hold is not None:
            run.hold.counted = lambda: run.counted or (0, 0)
        task = asyncio.ensure_future(self._conduct(run, plan))
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)
        task.add_done_callback(lambda ended: self.spawn(self._finish(run, row, ended)))
        return task

    async def _conduct(self, run: Run, plan: Plan) -> None:
        """Relay, and answer for what should not have happened: a database that is away, a fault of ours."""
        try:
            if run.opened is not None and not self._ledger.available:
                await run.client.request_name()  # else a provider would be paid for what no client may have
            await relay(run, plan, self._options)
        except ApiError as error:  # refused after all (the database is away, all routes cool): nothing is billed
            run.ending = ""
            if error.error.code == "service_unavailable":
                run.client.rename(request_id(run.id))
            await tell_error(run, error)
        except Exception as error:
            log.exception("relay of %s failed", run.id)
            run.ending, run.reason = "provider_error", f"internal error: {type(error).__name__}"
            await tell_error(run, ApiError("internal_error", "The gateway failed to relay this request."))

    async def _finish(self, run: Run, row: OpenRow | None, ended: asyncio.Task[None]) -> None:
        self.limits.ended(run.hold)
        ended_at, ended_s = dt.datetime.now(dt.UTC), time.monotonic()
        used: int | None = None if run.ending or ended.cancelled() else 0
        billed_at: dt.datetime | None = None
        try:
            if ended.cancelled():
                self._cancelled(run)
            if row is not None and run.ending:
                settled = await self._settlements.settle(run, row)
                used, billed_at = settled.usage.total_input + settled.usage.output, settled.ended_at
                settle_s = time.monotonic() - ended_s
                count_run(run, settled, ended_at, settle_s)
                if self._trace is not None:
                    self._trace(run, settled, ended_at, settle_s)
            elif row is not None:
                self._ledger.discard(row.id)
        except LedgerUnavailable:
            log.error("the bill of %s was not written before the end: it waits in the journal", run.id)
        finally:
            self.limits.settle(run.hold, used, billed_at)
            self._release_body(run)
            self.runs.discard(run)
            if run.drains is not None:
                self._drains[run.drains] -= 1

    def _cancelled(self, run: Run) -> None:
        """Whatever took the relay with it, what its attempt had read until then is billed."""
        if not self._is_over:
            run.ending, run.client_left = "client_left", True
        elif not run.ending:
            run.ending, run.reason = "shutdown", "shutdown"
        if run.meter is None and run.live is not None and run.live.passage is not None:
            run.meter = run.live.passage.meter

    def _release_body(self, run: Run) -> None:
        """Let a request's body go: its input is counted and no attempt follows, or all is over."""
        self.bodies.release(len(run.raw))
        run.raw, run.facts = b"", dataclasses.replace(run.facts, body={})

    def client_left(self, run: Run, task: asyncio.Task[None]) -> None:
        """The client is gone: a whole answer is read to its end, a stream cancelled or drained."""
        run.client.left = run.client_left = True
        if run.facts.stream and not self._drain(run):
            task.cancel()

    def _drain(self, run: Run) -> bool:
        """Read a stream on for its provider's drain time, if it has one and a place is free."""
        route = run.route
        if route is None or not route.provider.drain_s or run.live is None:
            return False
        provider, drain_s = route.provider, route.provider.drain_s
        running = self._drains.get(provider.id, 0)
        if running >= (provider.max_drains or 1):
            return False
        self._drains[provider.id] = running + 1
        run.drains = provider.id
        run.live.drain_until = time.monotonic() + drain_s
        return True

    # --- health and the end ---

    def problems(self) -> list[str]:
        """Why the process is not ready, empty when it is."""
        problems = ["draining"] if self.draining else []
        if not self._poller.healthy:
            problems.append("database")
        return problems

    def impairments(self) -> list[str]:
        """What is away though requests go on without it."""
        return [] if self.limits.available else ["redis"]

    def begin_drain(self) -> None:
        """Take no new request from now on; whatever still runs after the drain time is ended and billed."""
        if not self.draining:
            self.draining = True
            if self._loop is not None:
                self._loop.call_later(settings.DRAIN_S, self.end_runs)

    def end_runs(self) -> None:
        """End and bill what still runs, and what begins an attempt after all."""
        self.draining = self._is_over = True
        for run in tuple(self.runs):
            if run.live is not None:
                run.live.interrupt("shutdown")
        if self.runs and self._loop is not None:
            self._loop.call_later(END_AGAIN_S, self.end_runs)

    @property
    def drained(self) -> bool:
        """Whether nothing runs and nothing waits to be settled."""
        return not self.runs and not self._tasks and self._ledger.depth == 0

    async def aclose(self) -> None:
        """Settle what is left and stop everything."""
        if self._starting is None:
            return
        self.end_runs()
        await _until(lambda: not self._relays, LAST_WORDS_S)
        for relaying in self._relays:
            relaying.cancel()
        await _until(
            lambda: not (self._relays or self._tasks or self.runs), SETTLE_S if self._ledger.available else LAST_TRY_S
        )
        for task in self._ticking:
            task.cancel()
        if self._ledger.available:
            with contextlib.suppress(TimeoutError, DatabaseError, InterfaceError):  # it went away just now
                async with asyncio.timeout(LAST_TRY_S):
                    await self._write_key_uses(all=True)
        await self._route_states.aclose()
        await self.limits.aclose()
        self._poller.stop()
        await self._upstream.aclose()
        await asyncio.to_thread(self._leave)
        self._counting.stop()
        self._database.shutdown(wait=False)

    def _leave(self) -> None:
        """Write the last bills and go, leaving nothing to sweep; else what is left is for whoever takes our lock."""
        self._leaving.set()
        self._ledger.leave(self.process)
        all_written = self._ledger.stop(SETTLE_S if self._ledger.available else LAST_TRY_S)
        if self._lock is not None:
            if all_written:
                self._lock.remove()
            self._lock.close()


async def _again_and_again(work: Callable[[], Awaitable[None]], every_s: float, failing: str) -> None:
    """Do something every so often, for ever. A round that fails, for whatever reason, must not be the last one."""
    while True:
        try:
            await work()
        except (DatabaseError, InterfaceError) as error:
            log.warning("%s: %s", failing, type(error).__name__)
        except Exception:
            log.exception("%s", failing)
        await asyncio.sleep(every_s)


async def _until(so: Callable[[], bool], longest_s: float) -> None:
    """Wait for something, but not for ever: for a client that reads nothing, or for a database that is away."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(longest_s):
            while not so():
                await asyncio.sleep(LOOK_S)


async def _committed(opened: Future[str]) -> str:
    waiting = asyncio.wrap_future(opened)
    waiting.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody may be there to see it
    try:
        async with asyncio.timeout(OPEN_ROW_S):
            return await asyncio.shield(waiting)
    except (LedgerUnavailable, TimeoutError):
        raise ApiError("service_unavailable", "The gateway's database does not answer. Try again.") from None


_gateway: Gateway | None = None


def current() -> Gateway:
    """The process's gateway, made at its first use."""
    global _gateway
    if _gateway is None:
        _gateway = Gateway(_trace())
    return _gateway


def _trace() -> TraceRun | None:
    """What makes spans of runs, if anything does."""
    if (tracer := tracing.tracer()) is None:
        return None
    from streaming.run_traces import trace_run

    return partial(trace_run, tracer)
