"""The two ASGI servers that `manage.py serve` runs, with the same manners: a drain on SIGTERM, no server header.

On the first SIGTERM or SIGINT the gateway is told to drain (its /readyz turns 503) while the server still accepts; it
stops once the gateway has drained, or HOPBASE_DRAIN_S later, when the gateway ends and bills what still runs. A second
signal, or SIGQUIT, does that at once. One of several workers waits for its parent's SIGQUIT instead: see `workers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn

log = logging.getLogger("hopbase.serve")

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Above the 60 s for which load balancers usually keep an idle connection, so that they close first."""
CHECK_S = 0.05
LAST_WORDS_S = 2.0
"""What the streams that are ended get for their error events and bills."""
GRACE_S = 1.0
"""What connections get after that: the one of a client that reads nothing never closes by itself."""
END_S = 30.0
"""The drain time and so long after a signal a process that serves is gone, whatever happens."""


@dataclass(frozen=True, slots=True)
class Application:
    """An ASGI application and how it ends; all is called in the event loop, and the first two do not block.

    `begin_drain`: take nothing new; `end_runs`: end what still runs; `drained`: whether all is done; `aclose`: write
    what is left and stop, for a server without a lifespan. `is_worker`: one of several, which their parent ends.
    """

    asgi: Callable[..., Any]
    begin_drain: Callable[[], None]
    end_runs: Callable[[], None]
    drained: Callable[[], bool]
    aclose: Callable[[], Awaitable[None]]
    drain_s: float
    is_worker: bool = False


class Ending:
    """What the signals so far mean: nothing, a drain, or its end. `until`: when what still runs is left behind."""

    def __init__(self, application: Application, clock: Callable[[], float] = time.monotonic) -> None:
        self._application, self._clock = application, clock
        self._draining = False
        self.until = float("inf")

    def signalled(self, number: int) -> None:
        """A signal came; called in the event loop."""
        if number == signal.SIGQUIT or (self._draining and not self._application.is_worker):
            self._application.end_runs()
            self.until = min(self.until, self._clock() + LAST_WORDS_S)
        elif not self._draining:
            self._application.begin_drain()
            self.until = self._clock() + self._application.drain_s + LAST_WORDS_S
        self._draining = True

    @property
    def is_over(self) -> bool:
        """Whether the server may stop."""
        return self._draining and (self._application.drained() or self._clock() > self.until)

    @property
    def left_s(self) -> float:
        """What connections that are still open then get."""
        return max(self.until - self._clock(), 0.0) + GRACE_S


class UvicornServer(uvicorn.Server):
    """uvicorn that keeps accepting while it drains."""

    def __init__(self, config: uvicorn.Config, application: Application, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ending, self._on_ready = Ending(application), on_ready
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        with super().capture_signals():
            previous = signal.signal(signal.SIGQUIT, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(signal.SIGQUIT, previous)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal handler: it may run between any two bytecodes, so the loop does the work."""
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._signalled, self._loop, sig)

    def _signalled(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        self._ending.signalled(number)
        loop.call_later(self._ending.left_s, self._leave_connections)

    def _leave_connections(self) -> None:
        self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        self.should_exit |= self._ending.is_over
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves this out then, and with it the last bills
            await self.lifespan.shutdown()


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
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    UvicornServer(config, application, on_ready).run(sockets=[listener])
