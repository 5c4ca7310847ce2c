"""A server that says nothing: the wait for it ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from billing.ledger.silence import SilenceWatch


class Wait:
    """A connection as a watch sees it, with a server behind it that never answers."""

    def __init__(self, vendor: str = "postgresql") -> None:
        self.ours, self.theirs = socket.socketpair()
        psycopg = SimpleNamespace(closed=False, pgconn=SimpleNamespace(socket=self.ours.fileno()))
        self.wrapper: Any = SimpleNamespace(vendor=vendor, connection=psycopg)

    def answer(self) -> bytes:
        return self.ours.recv(10)


@pytest.fixture
def wait() -> Iterator[Wait]:
    made = Wait()
    yield made
    made.ours.close()
    made.theirs.close()


def test_silent_server_is_left(wait: Wait) -> None:
    watch = SilenceWatch(0.3)
    watch.start()
    began = time.monotonic()
    with watch.over(wait.wrapper):
        assert wait.answer() == b""
    assert 0.2 < time.monotonic() - began < 2
    watch.stop()


def test_answer_in_time_is_read(wait: Wait) -> None:
    watch = SilenceWatch(5)
    watch.start()
    threading.Timer(0.3, wait.theirs.sendall, [b"ready"]).start()
    with watch.over(wait.wrapper):
        assert wait.answer() == b"ready"
    watch.stop()


def test_idle_connection_is_left_alone(wait: Wait) -> None:
    now = [0.0]
    watch = SilenceWatch(2, clock=lambda: now[0])
    with watch.over(wait.wrapper):
        now[0] = 1.9
        watch.look()
    now[0] = 100.0
    watch.look()
    wait.theirs.sendall(b"still here")
    assert wait.answer() == b"still here"


def test_connection_that_comes_late_is_watched(wait: Wait) -> None:
    now, psycopg = [0.0], wait.wrapper.connection
    watch = SilenceWatch(2, clock=lambda: now[0])
    wait.wrapper.connection = None
    with watch.over(wait.wrapper):
        now[0] = 3.0
        watch.look()
        wait.wrapper.connection = psycopg
        watch.look()
        assert wait.answer() == b""
