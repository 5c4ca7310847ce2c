"""Ends the wait for a PostgreSQL server that says nothing: one that is stopped keeps its connections open.

The server's own `statement_timeout` does not run there, and the kernel acknowledges what the process never reads. So a
thread looks at how long the ledger has waited, and shuts the socket down under it: the wait ends with an error.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

LOOK_S = 0.25


class SilenceWatch:
    """Watches one thread's transactions. `longest_s`: how long one may take; `clock` counts seconds."""

    def __init__(self, longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._longest_s, self._clock = longest_s, clock
        self._lock = threading.Lock()
        self._watched: tuple[BaseDatabaseWrapper, float] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger-silence", daemon=True)

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._ended.set()

    @contextlib.contextmanager
    def over(self, connection: BaseDatabaseWrapper) -> Iterator[None]:
        """Let what happens on this connection inside the block take no longer."""
        if connection.vendor != "postgresql":  # SQLite's `timeout` is all that it can wait for
            yield
            return
        with self._lock:
            self._watched = connection, self._clock()
        try:
            yield
        finally:
            with self._lock:
                self._watched = None

    def look(self) -> None:
        """Break the wait off if it is too long."""
        with self._lock:
            if self._watched is None or self._clock() - self._watched[1] <= self._longest_s:
                return
            if break_off(self._watched[0].connection):
                self._watched = None

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.look()


def break_off(connection: Any) -> bool:
    """Shut down the socket of a psycopg connection that another thread waits for; False where there is none yet."""
    if connection is None or connection.closed:
        return False
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.pgconn.socket)) as twin:
        twin.shutdown(socket.SHUT_RDWR)
    return True
