"""The two ASGI servers that `manage.py serve` runs, with the same manners: a drain on SIGTERM, no server header.

On the first SIGTERM or SIGINT the gateway is told to drain (its /readyz turns 503) while the server still accepts; it
stops once the gateway has drained, or HOPBASE_DRAIN_S later. A second signal stops at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn
from daphne.server import Server as DaphneBase

log = logging.getLogger("hopbase.serve")

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Above the 60 s for which load balancers usually keep an idle connection, so that they close first."""
CHECK_S = 0.05
SETTLE_S = 10.0
"""What cancelled requests get to write their bills when the drain time is over."""


@dataclass(frozen=True, slots=True)
class Application:
    """An ASGI application and how it ends: `begin_drain` must not block, `drained` says when all is done."""

    asgi: Callable[..., Any]
    begin_drain: Callable[[], None]
    drained: Callable[[], bool]
    drain_s: float

    @property
    def patience_s(self) -> float:
        """The drain time, and a little for the error events and bills at its end."""
        return self.drain_s + 3


class UvicornServer(uvicorn.Server):
    """uvicorn that keeps accepting while it drains."""

    def __init__(self, config: uvicorn.Config, application: Application, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._application, self._on_ready = application, on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain_until: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal handler: it may run between any two bytecodes, so the loop does the work."""
        if self._loop is None or self._drain_until is not None:
            self.should_exit = self.force_exit = True
            return
        self._drain_until = time.monotonic() + self._application.patience_s
        self._loop.call_soon_threadsafe(self._application.begin_drain)

    async def on_tick(self, counter: int) -> bool:
        if self._drain_until is not None and counter > 0:
            self.should_exit |= self._application.drained() or time.monotonic() > self._drain_until
        return await super().on_tick(counter)


def run_uvicorn(application: Application, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until a signal ends it."""
    config = uvicorn.Config(
        application.asgi,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(application.drain_s) + 5,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    UvicornServer(config, application, on_ready).run(sockets=[listener])


class DaphneServer(DaphneBase):  # type: ignore[misc]  # it ships no types
    """Daphne that drains too. It has no lifespan: the application starts at its first request."""

    def __init__(self, application: Application, listener: socket.socket, on_ready: Callable[[], None]) -> None:
        self._hopbase, self._on_ready = application, on_ready
        self._ending: asyncio.Task[None] | None = None
        super().__init__(
            application.asgi,
            endpoints=[f"fd:fileno={os.dup(listener.fileno())}"],  # Twisted closes what it adopts
            signal_handlers=False,
            http_timeout=None,
            ready_callable=self._ready,
            server_name="",
            verbosity=0,
        )

    def _ready(self) -> None:
        loop = asyncio.get_event_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end, loop)
        self._on_ready()

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._ending is not None:
            self.stop()
            return
        self._hopbase.begin_drain()
        self._ending = loop.create_task(self._drain())

    async def _drain(self) -> None:
        await self._wait(self._hopbase.patience_s)
        self.stop()

    async def _wait(self, longest_s: float) -> None:
        deadline = time.monotonic() + longest_s
        while not self._hopbase.drained() and time.monotonic() < deadline:
            await asyncio.sleep(CHECK_S)

    def kill_all_applications(self) -> Any:
        """Cancel what still runs and wait for its bills; the reactor stops when the returned Deferred fires.

        Daphne's own fails on a connection that has no application yet.
        """
        from twisted.internet import defer

        for details in self.connections.values():
            if (running := details.get("application_instance")) is not None:
                running.cancel()
        return defer.Deferred.fromFuture(asyncio.ensure_future(self._wait(SETTLE_S)))


def run_daphne(application: Application, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until a signal ends it."""
    listener.setblocking(False)
    logging.getLogger("daphne").setLevel(logging.WARNING)
    DaphneServer(application, listener, on_ready).run()
