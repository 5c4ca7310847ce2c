"""The embedded Valkey: one for all processes of an installation, ended with its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured

from hopbase_site import valkey
from tests.settings import new_folder

OWNER = """
import django, os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children ignore it
os.environ["DJANGO_SETTINGS_MODULE"] = "hopbase_site.settings"
django.setup()
from hopbase_site import valkey
with valkey.running() as url:
    print(url, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def var_dir(settings: Any) -> Path:
    settings.VAR_DIR = folder = new_folder("hb-valkey-")
    return folder


def owner(var_dir: Path) -> subprocess.Popen[str]:
    """Another process that owns the server."""
    environment = {**os.environ, "HOPBASE_VAR_DIR": str(var_dir)}
    process = subprocess.Popen([sys.executable, "-c", OWNER], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == f"unix://{var_dir}/valkey.sock"
    return process


def gone(var_dir: Path, within_s: float = 5) -> bool:
    deadline = time.monotonic() + within_s
    while valkey.answers(var_dir / "valkey.sock") and time.monotonic() < deadline:
        time.sleep(0.05)
    return not valkey.answers(var_dir / "valkey.sock")


def test_server_lives_as_long_as_its_block(var_dir: Path) -> None:
    with valkey.running() as url, redis.Redis.from_url(url) as client:
        assert client.ping()
        assert client.config_get("port") == {"port": "0"} or client.config_get("port") == {b"port": b"0"}
        assert (var_dir / "valkey.sock").stat().st_mode & 0o777 == 0o700
    assert gone(var_dir)


def test_second_process_shares_it(var_dir: Path) -> None:
    process = owner(var_dir)
    try:
        with valkey.running() as url, redis.Redis.from_url(url) as client:
            client.set("shared", 1)
        assert valkey.answers(var_dir / "valkey.sock")
    finally:
        process.terminate()
        process.wait()
    assert gone(var_dir)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_server_ends_with_its_owner(var_dir: Path, number: int) -> None:
    process = owner(var_dir)
    process.send_signal(number)
    process.wait()
    assert gone(var_dir)


def test_left_over_server_is_replaced(var_dir: Path) -> None:
    orphan = valkey._start(var_dir / "valkey.sock")
    valkey._await(var_dir / "valkey.sock", orphan)
    with valkey.running() as url, redis.Redis.from_url(url) as client:
        assert client.info("server")["process_id"] != orphan.pid
    assert orphan.wait(5) is not None


def test_own_redis_is_used_as_it_is(settings: Any, var_dir: Path) -> None:
    settings.REDIS_URL = "redis://elsewhere:6379/0"
    with valkey.running() as url:
        assert url == "redis://elsewhere:6379/0"
    assert list(var_dir.iterdir()) == []


def test_long_path_is_refused(settings: Any, tmp_path: Path) -> None:
    settings.VAR_DIR = tmp_path / ("long" * 30)
    with pytest.raises(ImproperlyConfigured, match="bytes, more than 107: set HOPBASE_VAR_DIR to a shorter folder"):
        valkey.socket_path()


def test_path_may_hold_spaces(settings: Any, var_dir: Path) -> None:
    settings.VAR_DIR = var_dir / "my var 'dir'"
    settings.VAR_DIR.mkdir()
    with valkey.running(), redis.Redis(unix_socket_path=str(settings.VAR_DIR / "valkey.sock")) as client:
        assert client.ping()
