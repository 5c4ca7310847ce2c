"""Several `serve` processes on one listening socket: started, restarted when they die, ended together.

A signal that comes to the whole group, as from a terminal or a supervisor, reaches a worker twice: once by itself and
once more through us. So a worker takes any number of SIGTERM and SIGINT for one order to drain, and only our second
order, SIGQUIT, ends its streams at once.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from django.conf import settings
from prometheus_client.multiprocess import mark_process_dead

from hopbase_site.child_processes import die_with_parent

log = logging.getLogger("hopbase.serve")

LOOK_S = 0.1
RESTART_S = 1.0
"""Between a worker's death and the next one's start, so that one that cannot start does not spin."""
ORDERS = (signal.SIGTERM, signal.SIGQUIT)
"""What the first signal to us means for a worker, and what a later one does."""


@dataclass(slots=True)
class Worker:
    """A place for a worker: who has it, when the next one may start, and how many orders to end it has got."""

    process: subprocess.Popen[bytes] | None = None
    not_before: float = 0.0
    orders: int = 0

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Workers:
    """`count` processes of `manage.py ARGUMENTS`, which inherit the listener `fd`.

    `end_s`: how long a worker may take to end; one that takes longer is killed.
    """

    def __init__(self, count: int, arguments: Sequence[str], fd: int, end_s: float) -> None:
        self._metrics = ""
        """The folder where the workers keep what they count, so that any of them can tell Prometheus of all."""
        self._command = [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]
        self._fd, self._end_s = fd, end_s
        self._workers = [Worker() for _ in range(count)]
        self._signals = 0
        self._kill_at: float | None = None

    def run(self) -> None:
        """Keep the workers going until a signal comes, then wait for them; each drains by itself."""
        previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._metrics = tempfile.mkdtemp(prefix="hopbase-metrics-")
            while not self._signals or any(worker.runs for worker in self._workers):
                for worker in self._workers:
                    self._tend(worker)
                time.sleep(LOOK_S)
        finally:
            for worker in self._workers:
                if worker.process is not None:
                    worker.process.kill()
                    worker.process.wait()
            for number, handler in previous.items():
                signal.signal(number, handler)
            shutil.rmtree(self._metrics, ignore_errors=True)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """A handler may run between any two bytecodes, that of a worker's start included: the loop does the work."""
        self._signals += 1

    def _tend(self, worker: Worker) -> None:
        if self._signals:
            self._end(worker)
        elif worker.process is None:
            if time.monotonic() >= worker.not_before:
                worker.process = self._start()
        elif not worker.runs:
            status = worker.process.returncode
            log.error("worker %s ended with status %s; another is started", worker.process.pid, status)
            mark_process_dead(worker.process.pid, self._metrics)  # type: ignore[no-untyped-call]
            worker.process, worker.not_before = None, time.monotonic() + RESTART_S

    def _start(self) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": self._metrics}
        return subprocess.Popen(  # noqa: S603 - our own command
            self._command, pass_fds=[self._fd], env=env, preexec_fn=die_with_parent()
        )

    def _end(self, worker: Worker) -> None:
        """Pass on the orders that the worker has not got yet; kill it when its time is over."""
        if worker.process is None or not worker.runs:
            return
        now = time.monotonic()
        self._kill_at = self._kill_at or now + self._end_s
        if now > self._kill_at:
            log.error("worker %s did not end within %g s and is killed", worker.process.pid, self._end_s)
            worker.process.kill()
        for order in ORDERS[worker.orders : self._signals]:
            worker.process.send_signal(order)
            worker.orders += 1
