"""Several `serve` processes on one listening socket: started, restarted when they die, ended together."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from django.conf import settings

from hopbase_site.child_processes import die_with_parent

log = logging.getLogger("hopbase.serve")

LOOK_S = 0.2
RESTART_S = 1.0
"""Between a worker's death and the next one's start, so that one that cannot start does not spin."""


class Workers:
    """`count` processes of `manage.py ARGUMENTS`, which inherit the listener `fd`."""

    def __init__(self, count: int, arguments: Sequence[str], fd: int) -> None:
        self._command = [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]
        self._count, self._fd = count, fd
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ending = False

    def run(self) -> None:
        """Keep the workers going until a signal comes, then wait for them; each drains by itself."""
        previous = {number: signal.signal(number, self._pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._processes = [self._start() for _ in range(self._count)]
            while not self._ending or any(process.poll() is None for process in self._processes):
                time.sleep(LOOK_S)
                self._replace_dead()
        finally:
            for process in self._processes:
                process.kill()
                process.wait()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _start(self) -> subprocess.Popen[bytes]:
        command, fds = self._command, [self._fd]
        return subprocess.Popen(command, pass_fds=fds, preexec_fn=die_with_parent())  # noqa: S603 - our own command

    def _replace_dead(self) -> None:
        for place, process in enumerate(self._processes):
            if process.poll() is None or self._ending:
                continue
            log.error("worker %s ended with status %s; another is started", process.pid, process.returncode)
            time.sleep(RESTART_S)
            if not self._ending:
                self._processes[place] = self._start()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._ending = True
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
