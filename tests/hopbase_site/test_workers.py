"""Several workers on one port: all serve, a dead one is replaced, all end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.settings import new_folder

ROOT = Path(__file__).resolve().parents[2]


def until(holds: Callable[[], object], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


def children(pid: int) -> set[int]:
    """The direct children that serve."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            serves = b"manage.py" in (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == pid and serves:
            found.add(int(entry.name))
    return found


@pytest.mark.slow
def test_dead_worker_is_replaced(tmp_path: Path) -> None:
    folder = new_folder("hb-workers-")
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "hopbase_site.settings", "HOPBASE_VAR_DIR": str(folder),
        "DATABASE_URL": f"sqlite:///{folder}/hopbase.sqlite3",
    }  # fmt: skip
    subprocess.run([sys.executable, "manage.py", "migrate"], cwd=ROOT, env=environment, check=True, capture_output=True)
    log = tmp_path / "serve.log"
    with log.open("wb") as output:
        command = [sys.executable, "manage.py", "serve", "--port", "0", "--workers", "2"]
        supervisor = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        until(lambda: log.read_text().count("HopBase serves on") == 2)
        url = log.read_text().partition("HopBase serves on ")[2].split()[0]
        before = children(supervisor.pid)
        assert len(before) == 2
        os.kill(min(before), signal.SIGKILL)
        until(lambda: log.read_text().count("HopBase serves on") == 3)
        assert len(children(supervisor.pid)) == 2
        assert httpx.get(f"{url}/healthz").status_code == 200
    finally:
        supervisor.terminate()
        assert supervisor.wait(20) == 0, log.read_text()
    assert children(supervisor.pid) == set()
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/healthz")
