"""A Celery worker that is killed in the middle of a roll-up, a redelivered task, a second beat: the same numbers."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.end_to_end.conftest import KEYS
from tests.end_to_end.formats import CHAT, PATHS, request
from tests.end_to_end.product import ROOT, Gateway, Installation

KEY = KEYS["worker"]
SUM = "SELECT coalesce(sum(requests), 0), coalesce(sum(cost_nanos), 0) FROM {} WHERE api_key_id = {}"


@contextlib.contextmanager
def worker(installation: Installation) -> Iterator[subprocess.Popen[bytes]]:
    """A worker without beat, which takes one task at a time."""
    with (installation.folder / f"worker-{uuid.uuid4().hex[:6]}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "hopbase_site", "worker", "--pool", "solo", "--loglevel", "INFO"],
            cwd=ROOT, env=installation.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def send(installation: Installation, times: int) -> None:
    """Ask for a roll-up so many times, as two beats and a redelivery would."""
    code = "from billing.tasks import rebuild_rollups\n" + "rebuild_rollups.delay()\n" * times
    installation.must("shell", "--no-imports", "--command", code)


@contextlib.contextmanager
def held_up(installation: Installation, key_id: int) -> Iterator[Callable[[], bool]]:
    """Let no roll-up of a key get to its end while the block runs; what is given says whether one waits there."""
    if installation.database_url:
        with (
            psycopg.connect(installation.database_url) as connection,
            psycopg.connect(installation.database_url, autocommit=True) as observer,
        ):
            connection.execute(f"SELECT 1 FROM billing_usagerollup WHERE api_key_id = {key_id} FOR UPDATE")
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            yield lambda: bool((observer.execute(waits).fetchone() or (0,))[0])
            connection.rollback()
        return
    path = f"{installation.var_dir}/hopbase.sqlite3"
    with contextlib.closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        log = installation.folder
        yield lambda: any("rebuild_rollups" in file.read_text() for file in log.glob("worker-*.log"))
        connection.execute("ROLLBACK")


def wait_until(so: Callable[[], object], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.usefixtures("database_url")
def test_killed_worker_changes_no_number(uvicorn: Gateway, installation: Installation) -> None:
    def ask() -> None:
        answer = uvicorn.post(PATHS[CHAT], KEY, request(CHAT, "plain", "Hello?"))
        uvicorn.record(answer.headers["x-request-id"], KEY)

    ask()
    installation.must("shell", "--no-imports", "--command", "from billing import rollups; rollups.rebuild_due()")
    ask()
    [(key_id,)] = installation.query("SELECT id FROM billing_apikey WHERE name = 'worker'")
    due = f"SELECT count(*) FROM billing_rollupdue WHERE api_key_id = {key_id}"
    send(installation, 3)
    with worker(installation) as first, held_up(installation, key_id) as waits:
        wait_until(waits)
        first.kill()
        first.wait()
    assert int(installation.query(due)[0][0]) == 1
    with worker(installation):
        send(installation, 2)
        wait_until(lambda: int(installation.query(due)[0][0]) == 0)
        time.sleep(0.5)
    rolled, recorded = (installation.query(SUM.format(table, key_id))[0] for table in (
        "billing_usagerollup", "(SELECT 1 AS requests, cost_nanos, api_key_id FROM billing_usagerecord) AS records",
    ))  # fmt: skip
    assert tuple(map(int, rolled)) == tuple(map(int, recorded))
    assert int(rolled[0]) == 2
