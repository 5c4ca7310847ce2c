"""`make demo ONCE=1`, whole: it ends with 0 only if everything came out right, and a second time doubles nothing."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hopbase_site.demo.show import Show, requests
from tests.settings import OURS, new_folder

ROOT = Path(__file__).resolve().parents[3]


def demo(var_dir: Path, port: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    environment |= {
        "HOPBASE_VAR_DIR": str(var_dir),
        "HOPBASE_ENV_FILE": os.devnull,
        "DJANGO_SETTINGS_MODULE": "hopbase_site.settings",
        "DATABASE_URL": "sqlite:////nowhere/of-the-developer.sqlite3",
    }
    return subprocess.run(
        [sys.executable, "manage.py", "demo", "--port", str(port), *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def counts(database: Path) -> list[int]:
    tables = (
        "billing_usagerecord",
        "billing_openstream",
        "billing_invoice",
        "billing_apikey",
        "billing_price",
        "auth_user",
    )
    with closing(sqlite3.connect(database)) as connection:
        return [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]


@pytest.mark.slow
def test_demo_comes_out_right_twice() -> None:
    var_dir = new_folder("hb-demo-")
    first = demo(var_dir, free_port(), "--once")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "Everything came out right." in first.stdout
    assert first.stdout.count(": hopbase-keepalive") >= 1
    assert re.search(r"total +USD +0\.\d\d", first.stdout)
    assert (var_dir / "demo.env").stat().st_mode & 0o777 == 0o600
    assert counts(var_dir / "demo" / "demo.sqlite3") == [3, 0, 1, 1, 2, 1]
    secrets = (var_dir / "demo.env").read_text()

    second = demo(var_dir, free_port(), "--once")
    assert second.returncode == 0, second.stdout + second.stderr
    assert counts(var_dir / "demo" / "demo.sqlite3") == [6, 0, 1, 1, 2, 1]
    assert (var_dir / "demo.env").read_text() == secrets


def test_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = demo(new_folder("hb-demo-"), taken.getsockname()[1])
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert re.fullmatch(r"error: port \d+ cannot be had .*make demo PORT=8001\n", ended.stderr)


def test_wrong_answers_are_problems() -> None:
    """The show's checks can fail: a record that counts otherwise, and costs nothing, is three problems."""
    said: list[str] = []
    show = Show(1, "key", said.append)
    usage = dict.fromkeys(("input", "cache_read", "cache_write", "output", "reasoning"), 1)
    record = {"ending": "complete", "metering": "estimated", "usage": usage, "cost": "0", "currency": "USD"}
    show._show_record(requests()[0], {**record, "cost_by_bucket": {"input": "0.1"}})
    assert [problem.partition(": ")[2].split()[:2] for problem in show.problems] == [
        ["the", "record"], ["the", "record"], ["the", "cost"], ["the", "parts"],
    ]  # fmt: skip
