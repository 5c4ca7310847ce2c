"""The demo's stage: its settings in a file of their own, and its processes, which all end with it."""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from billing import keys
from hopbase_site.child_processes import die_with_parent
from hopbase_site.secrets import make

READY_S = 60.0
STOP_S = 10.0
OWN_SETTINGS = ("HOPBASE_", "SECRET_KEY", "DEBUG", "ALLOWED_HOSTS", "REDIS_URL", "DATABASE_URL")
"""What a developer may have set for an installation of his own, which the demo must not touch."""


class DemoFailed(Exception):
    """The demo cannot go on; the text says why and what to do, in one line."""


def settings_file(var_dir: Path) -> Path:
    """The demo's settings, made at its first start, for its owner alone.

    `HOPBASE_ENV_FILE=var/demo.env python manage.py …` works on the demo's data.
    """
    path = var_dir / "demo.env"
    if not path.exists():
        var_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = var_dir / "demo"
        made = {
            **make(),
            "HOPBASE_VAR_DIR": str(state),
            "DATABASE_URL": f"sqlite:///{state}/demo.sqlite3",
            "HOPBASE_KEEPALIVE_S": "2",
            "HOPBASE_KEEPALIVE_BEFORE_HEADERS_S": "2",
            "HOPBASE_DRAIN_S": "5",
            "HOPBASE_SELLER_NAME": "HopBase demo",
            "DEMO_ADMIN_PASSWORD": secrets.token_urlsafe(12),
            "DEMO_API_KEY": keys.make_secret(),
            "DEMO_PROVIDER_KEY": f"sk-acme-{secrets.token_hex(16)}",
        }
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in made.items())
    return path


def environment(path: Path, port: int) -> dict[str, str]:
    """The environment of the demo's processes: the developer's less his own installation's, with the demo's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN_SETTINGS)}
    return {**kept, "HOPBASE_ENV_FILE": str(path), "HOPBASE_PUBLIC_URL": f"http://127.0.0.1:{port}"}


def require_free(port: int) -> None:
    """Refuse a taken port before anything starts."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise DemoFailed(
                f"port {port} cannot be had ({error}): stop what listens there, or choose another, make demo PORT=8001"
            ) from None


@dataclass
class Child:
    """A process of the demo. `name` is for people, `log` where its output goes."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]

    def require_running(self) -> None:
        if self.process.poll() is not None:
            lines = self.log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise DemoFailed(
                f"the {self.name} ended with status {self.process.returncode}: {lines[-1]} (see {self.log})"
            )

    def stop(self) -> None:
        """End it, with whatever it started."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def child(name: str, command: Sequence[str], log: Path, *, pass_fds: Sequence[int] = ()) -> Iterator[Child]:
    """A process that ends with the block; and with its parent, however that ends (on Linux).

    It has a process group of its own, so that Ctrl-C reaches the demo alone, which ends all in order.
    """
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(log, "wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own commands
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=pass_fds,
            preexec_fn=die_with_parent(),
        )
    started = Child(name, log, process)
    try:
        yield started
    finally:
        started.stop()


def await_ready(port: int, children: Sequence[Child]) -> None:
    """Wait until the gateway says that it is ready."""
    deadline = time.monotonic() + READY_S
    while not is_ready(port):
        for one in children:
            one.require_running()
        if time.monotonic() > deadline:
            raise DemoFailed(f"the gateway is not ready after {READY_S:.0f} s (see {children[0].log})")
        time.sleep(0.1)


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


def demo_settings() -> Mapping[str, str]:
    """The demo's own variables, which its settings file has put into the environment."""
    return {name: value for name, value in os.environ.items() if name.startswith("DEMO_")}
