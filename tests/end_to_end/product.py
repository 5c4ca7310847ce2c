"""The product as a newcomer starts it: `manage.py` commands with a folder, secrets and a database of their own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import yaml
from cryptography.fernet import Fernet

from tests.settings import OURS, SHARED

ROOT = Path(__file__).resolve().parents[2]
TIMINGS = {
    "HOPBASE_KEEPALIVE_S": "1",
    "HOPBASE_KEEPALIVE_BEFORE_HEADERS_S": "2",
    "HOPBASE_STALL_RANGE_S": "1,600",
    "HOPBASE_CHECKPOINT_S": "0.5",
    "HOPBASE_DRAIN_S": "3",
    "HOPBASE_SLOW_READER_S": "2",
    "HOPBASE_CONNECT_TIMEOUT_S": "3",
    "HOPBASE_MAX_BODY_BYTES": "200000",
}
"""Short, so that no test waits for long."""
SERVES_ON = re.compile(r"HopBase serves on http://127\.0\.0\.1:(\d+)")
READY_S = 60
END_S = 15
KEEPALIVE = b": hopbase-keepalive\n\n"
MIGRATED_FILE, MIGRATED_NAME = SHARED / "migrated.sqlite3", "migrated"
"""The tables of the run's first installation, from which the next ones take theirs: migrations are slow."""


class Installation:
    """One installation: its environment, its folder in /tmp, and its commands. No database URL: the default.

    `role`: what its servers serve; the admin's pages take a second to load.
    """

    def __init__(self, database_url: str, *, role: str = "gateway", **settings: str) -> None:
        self.role = role
        self.folder = Path(tempfile.mkdtemp(prefix="hb-e2e-", dir="/tmp"))
        self.var_dir = self.folder / "var"
        self.database_url = database_url
        self._kept, self._is_twin = "", False
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        self.environment = {
            **inherited,
            "DJANGO_SETTINGS_MODULE": "hopbase_site.settings",  # pytest-django's own is in the environment
            "HOPBASE_ENV_FILE": os.devnull,
            "HOPBASE_VAR_DIR": str(self.var_dir),
            "DATABASE_URL": database_url,
            "SECRET_KEY": secrets.token_hex(32),
            "HOPBASE_KEY_PEPPER": secrets.token_hex(32),
            "HOPBASE_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
            **TIMINGS,
            **settings,
        }

    def manage(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, whatever its status."""
        return self.run(sys.executable, "manage.py", *arguments, **settings)

    def run(self, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run any program within this installation's environment."""
        return subprocess.run(
            command, cwd=ROOT, env={**self.environment, "PYTHONPATH": str(ROOT), **settings},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def must(self, *arguments: str) -> str:
        """Run a command that has to succeed; returns what it printed."""
        ended = self.manage(*arguments)
        assert ended.returncode == 0, f"{arguments}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def migrate(self) -> None:
        """Make the tables, in a database that has none."""
        with open(SHARED / "migrating", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.database_url:
                self._migrate_postgresql()
            elif MIGRATED_FILE.exists():
                self.var_dir.mkdir(mode=0o700)
                shutil.copyfile(MIGRATED_FILE, self.sqlite_path)
            else:
                self.must("migrate", "--verbosity", "0")
                shutil.copyfile(self.sqlite_path, MIGRATED_FILE)

    def _migrate_postgresql(self) -> None:
        name = urlsplit(self.database_url).path.lstrip("/")
        with psycopg.connect(_beside(self.database_url, "postgres"), autocommit=True) as server:
            if server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [MIGRATED_NAME]).fetchone():
                server.execute(f"DROP DATABASE {name}")
                server.execute(f"CREATE DATABASE {name} TEMPLATE {MIGRATED_NAME}")
            else:
                self.must("migrate", "--verbosity", "0")
                server.execute(f"CREATE DATABASE {MIGRATED_NAME} TEMPLATE {name}")

    def apply(self, configuration: Mapping[str, Any]) -> str:
        """Apply a configuration file made of these values."""
        path = self.folder / "configuration.yaml"
        path.write_text(yaml.safe_dump(dict(configuration), allow_unicode=True, sort_keys=False))
        return self.must("apply", str(path))

    @contextlib.contextmanager
    def serving(self, server: str, *arguments: str, **settings: str) -> Iterator[Gateway]:
        """A gateway of this installation, ready, and ended at the end of the block."""
        gateway = Gateway(self, server, *arguments, **settings)
        RUNNING.append(gateway)
        try:
            gateway.wait_until_ready()
            yield gateway
        finally:
            RUNNING.remove(gateway)
            gateway.end()

    def elsewhere(self) -> dict[str, str]:
        """The settings of another host: the same database, a folder and an embedded Valkey of its own."""
        folder = self.folder / f"host-{secrets.token_hex(3)}"
        return {"HOPBASE_VAR_DIR": str(folder), "DATABASE_URL": self.database_url or f"sqlite:///{self.sqlite_path}"}

    def keep(self) -> None:
        """Keep the database as it is now for twins; nobody may be connected to it."""
        if self.database_url:
            self._kept = copied(self.database_url)
        else:
            shutil.copyfile(self.sqlite_path, self.folder / "kept.sqlite3")

    def twin(self) -> Installation:
        """The same configuration on a copy of the kept database, in a folder of its own: `remove` it."""
        made = Installation(copied(self._kept) if self.database_url else "", role=self.role)
        own = {"HOPBASE_VAR_DIR": str(made.var_dir), "DATABASE_URL": made.database_url}
        made.environment, made._is_twin = {**self.environment, **own}, True
        if not self.database_url:
            made.var_dir.mkdir(mode=0o700)
            shutil.copyfile(self.folder / "kept.sqlite3", made.sqlite_path)
        return made

    @property
    def sqlite_path(self) -> Path:
        return self.var_dir / "hopbase.sqlite3"

    def query(self, sql: str) -> list[Any]:
        """Read the database itself, past the product."""
        if self.database_url:
            with psycopg.connect(self.database_url) as connection:
                return connection.execute(sql).fetchall()
        with contextlib.closing(sqlite3.connect(f"file:{self.sqlite_path}?mode=ro", uri=True)) as connection:
            return connection.execute(sql).fetchall()

    def remove(self) -> None:
        if self._is_twin and self.database_url:
            drop(self.database_url)
        shutil.rmtree(self.folder, ignore_errors=True)

    def files_with(self, texts: Mapping[str, str], besides: tuple[str, ...] = ()) -> list[str]:
        """Which of these secrets, by what they are, is in a log or in a file of the var folder."""
        found = []
        for path in self.folder.rglob("*"):
            if not path.is_file() or path.name == "configuration.yaml" or path.name.startswith(besides):
                continue
            data = path.read_bytes()
            found += [f"{path.name}: {what}" for what, text in texts.items() if text.encode() in data]
        return found


def copied(url: str) -> str:
    """A copy of a PostgreSQL database that nobody is connected to, on the same server; returns its URL."""
    name = f"copy_{secrets.token_hex(6)}"
    with psycopg.connect(_beside(url, "postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {urlsplit(url).path.lstrip('/')}")
    return _beside(url, name)


def drop(url: str) -> None:
    """Drop a PostgreSQL database, whoever is still connected."""
    with psycopg.connect(_beside(url, "postgres"), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {urlsplit(url).path.lstrip('/')} WITH (FORCE)")


def _beside(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


RUNNING: list[Gateway] = []
"""The gateways whose logs are shown beside a failure."""


class Gateway:
    """A running `manage.py serve`."""

    def __init__(self, installation: Installation, server: str, *arguments: str, **settings: str) -> None:
        self.installation, self.server = installation, server
        self.log_path = installation.folder / f"serve-{server}-{secrets.token_hex(3)}.log"
        command = ["serve", "--role", installation.role, "--port", "0", "--server", server, *arguments]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", *command],
                cwd=ROOT, env={**installation.environment, **settings},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # a group of its own, so that a test can signal all of it
            )  # fmt: skip
        self.port = 0
        self._client = httpx.Client(timeout=30)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        """Until /readyz says so."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            said = SERVES_ON.search(self.log)
            if said:
                self.port = int(said[1])
                if self.ready():
                    return
            time.sleep(0.05)
        raise AssertionError(f"serve ({self.server}) is not ready: status {self.process.poll()}\n{self.log[-4000:]}")

    def ready(self) -> bool:
        try:
            return self._client.get(f"{self.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End it as an operator does; by force where it does not follow."""
        self._client.close()
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(
                    f"serve ({self.server}) did not end within {END_S} s\n{self.log[-4000:]}"
                ) from None

    # --- what a customer asks it ---

    def post(self, path: str, key: str, body: Any, **headers: str) -> httpx.Response:
        """Send a request and read the whole answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"authorization": f"Bearer {key}", "content-type": "application/json", **headers}
        return self._client.post(self.url + path, content=content, headers=sent)

    def get(self, path: str, key: str = "", **query: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return self._client.get(self.url + path, headers=headers, params=query)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """Send what no customer should."""
        sent = {name.replace("_", "-").encode(): value.encode("latin-1") for name, value in headers.items()}
        return self._client.request(method, self.url + path, json=body, headers=sent)

    def record(self, request_id: str, key: str, within_s: float = 5) -> dict[str, Any]:
        """The usage record of a request, which can be read within 5 s of its end."""
        deadline = time.monotonic() + within_s
        while (answer := self.get(f"/v1/usage/requests/{request_id}", key)).status_code == 404:
            assert time.monotonic() < deadline, f"no record of {request_id}\n{self.log[-3000:]}"
            time.sleep(0.05)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


def family(pid: int) -> set[int]:
    """A process and all that descend from it."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended just now
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def living(pids: Iterable[int]) -> set[int]:
    """Those of the processes that have not ended."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.add(pid)
    return found


def used(record: Mapping[str, Any]) -> dict[str, int]:
    """The counts of a record, without its server tools."""
    return {name: count for name, count in record["usage"].items() if name != "server_tools"}
