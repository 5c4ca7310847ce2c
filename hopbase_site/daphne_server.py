"""Daphne as `manage.py serve --server daphne` runs it. Apart from uvicorn, which needs none of Twisted."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from daphne.server import Server as DaphneBase

from hopbase_site.servers import CHECK_S, Application, Ending


class DaphneServer(DaphneBase):  # type: ignore[misc]  # it ships no types
    """Daphne that drains too. It has no lifespan: the application starts at its first request."""

    def __init__(self, application: Application, listener: socket.socket, on_ready: Callable[[], None]) -> None:
        self._hopbase, self._on_ready = application, on_ready
        self._ending = Ending(application)
        self._stopping: asyncio.Task[None] | None = None
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
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            loop.add_signal_handler(number, self._signalled, loop, number)
        self._on_ready()

    def _signalled(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        self._ending.signalled(number)
        if self._stopping is None:
            self._stopping = loop.create_task(self._drain())

    async def _drain(self) -> None:
        while not self._ending.is_over:
            await asyncio.sleep(CHECK_S)
        self.stop()

    def kill_all_applications(self) -> Any:
        """Cancel what still runs and write the last bills; the reactor stops when the returned Deferred fires.

        Daphne's own fails on a connection that has no application yet.
        """
        from twisted.internet import defer

        for details in self.connections.values():
            if (running := details.get("application_instance")) is not None:
                running.cancel()
        return defer.Deferred.fromFuture(asyncio.ensure_future(self._hopbase.aclose()))


def run_daphne(application: Application, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until a signal ends it."""
    listener.setblocking(False)
    logging.getLogger("daphne").setLevel(logging.WARNING)
    DaphneServer(application, listener, on_ready).run()
