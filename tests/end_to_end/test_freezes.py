"""Thirty seconds in which a process, or the database, stands still: no stream is swept, none is lost.

Three installations stand still at the same time, with sweeps going on around each of them.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.end_to_end.conftest import KEYS
from tests.end_to_end.formats import CHAT, MESSAGES, PATHS, USED, WORDS, request
from tests.end_to_end.freezing import freezable, stopped, wait_until
from tests.end_to_end.product import ROOT, TIMINGS, Gateway, Installation, used
from tests.end_to_end.provider import Provider
from tests.end_to_end.raw import RawClient

KEY = KEYS["main"]
STILL_S = 30.0
WATCH_S = 20.0
"""How long a heartbeat stands still before another host takes its process for dead."""
REFUSED_S = 4.0
"""2 s, and what a busy machine adds."""
CHECKPOINT_S = float(TIMINGS["HOPBASE_CHECKPOINT_S"])
SWEEPER = """
import time
from django.db import DatabaseError, connections
from billing import sweep
print("begins", flush=True)
while True:
    try:
        print(sweep.sweep().streams, flush=True)
    except (DatabaseError, sweep.NotSwept) as error:
        print(0, type(error).__name__, flush=True)
    finally:
        connections.close_all()
    time.sleep(0.3)
"""


class Sweeper:
    """A process that sweeps again and again."""

    def __init__(self, installation: Installation, **settings: str) -> None:
        self.path = installation.folder / f"sweeper-{uuid.uuid4().hex[:6]}.log"
        with self.path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "shell", "--no-imports", "--command", SWEEPER],
                cwd=ROOT, env={**installation.environment, **settings},
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def streams(self) -> list[int]:
        """How many streams it settled in each round so far."""
        return [int(line.split()[0]) for line in self.path.read_text().splitlines() if line[:1].isdigit()]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def sweeping(installation: Installation, **settings: str) -> Iterator[Sweeper]:
    """Sweeps go on while the block runs."""
    sweeper = Sweeper(installation, **settings)
    try:
        wait_until(lambda: "begins" in sweeper.path.read_text(), 60)
        yield sweeper
    finally:
        sweeper.end()


def swept(installation: Installation, **settings: str) -> int:
    ended = installation.manage("sweep", "--json", **settings)
    assert ended.returncode == 0, ended.stderr
    return int(json.loads(ended.stdout)["streams"])


def begin(gateway: Gateway, scene: str, wire: str = CHAT) -> tuple[str, RawClient]:
    """A stream that has said something."""
    name = f"still-{uuid.uuid4().hex}"
    client = RawClient(gateway, wire, KEY, request(wire, scene, "Tell the walrus.", stream=True), x_request_id=name)
    client.read_until(WORDS[0].encode() if scene == "endless" else b"word0")
    return name, client


def records(installation: Installation, name: str) -> list[Any]:
    return installation.query(f"SELECT ending, metering FROM billing_usagerecord WHERE request_name = '{name}'")


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


# --- a process stands still, sweeps see its lock ---


def still_process(installation: Installation) -> None:
    """Sweeps of its own host, a gateway that starts among them, leave it alone; then its streams go on."""
    with installation.serving("uvicorn") as gateway, sweeping(installation) as sweeper:
        finishing, first = begin(gateway, "paced")
        lasting, second = begin(gateway, "endless", MESSAGES)
        with stopped(gateway):
            until = time.monotonic() + STILL_S
            with installation.serving("uvicorn") as neighbour:
                assert swept(installation) == 0
                sleep_until(until)
                assert records(installation, finishing) == records(installation, lasting) == []
                rounds = len(sweeper.streams())
        assert_goes_on(gateway, first, second, finishing, lasting)
        assert neighbour.log.count("swept after dead") == 0
        assert rounds > 10
        assert sum(sweeper.streams()) == 0


def assert_goes_on(gateway: Gateway, first: RawClient, second: RawClient, finishing: str, lasting: str) -> None:
    """The stream that ended meanwhile comes whole, the other one flows; each has its one record."""
    assert first.read_all().endswith(b"data: [DONE]\n\n")
    second.read_until(WORDS[0].encode(), beyond=len(second.body))
    second.leave()
    wait_until(lambda: records(gateway.installation, finishing) == [("complete", "reported")], 20)
    wait_until(lambda: records(gateway.installation, lasting) == [("client_left", "estimated")], 20)
    assert used(gateway.record(finishing, KEY)) == USED


# --- a process stands still, seen from another host ---


def still_process_elsewhere(installation: Installation) -> None:
    """There it is dead after 20 s; the last word is its own all the same."""
    elsewhere = installation.elsewhere()
    with installation.serving("uvicorn") as gateway, sweeping(installation, **elsewhere) as sweeper:
        finishing, first = begin(gateway, "paced")
        lasting, second = begin(gateway, "endless", MESSAGES)
        time.sleep(2 * CHECKPOINT_S)
        with stopped(gateway):
            began = time.monotonic()
            with installation.serving("uvicorn", **elsewhere) as other:
                sleep_until(began + WATCH_S - 2)
                assert records(installation, finishing) == records(installation, lasting) == []
                wait_until(lambda: len(records(installation, finishing) + records(installation, lasting)) == 2, 40)
                assert {ending for ending, _ in records(installation, finishing)} == {"gateway_lost"}
                sleep_until(began + STILL_S)
        assert_goes_on(gateway, first, second, finishing, lasting)
        assert (sum(sweeper.streams()) > 0) or ("swept after dead processes" in other.log)
    assert swept(installation) == 0


# --- the database stands still ---


def still_database(installation: Installation, provider: Provider) -> None:
    """It says nothing to gateway and sweeps alike, so nobody is dead; what ended meanwhile is written afterwards."""
    with freezable(installation, provider) as frozen:
        own = frozen.installation
        with own.serving("uvicorn") as gateway, sweeping(own) as here, sweeping(own, **own.elsewhere()) as there:
            finishing, first = begin(gateway, "paced")
            lasting, second = begin(gateway, "endless", MESSAGES)
            time.sleep(2 * CHECKPOINT_S)
            with frozen.away():
                began = time.monotonic()
                refused = gateway.post(PATHS[CHAT], KEY, request(CHAT, "plain", "Hello?"))
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "service_unavailable")
                assert time.monotonic() - began < REFUSED_S
                assert first.read_all().endswith(b"data: [DONE]\n\n")
                wait_until(lambda: any(finishing.encode() in journal.read_bytes() for journal in frozen.journals))
                [journal] = frozen.journals
                assert b"walrus" not in journal.read_bytes()
                assert KEY.encode() not in journal.read_bytes()
                sleep_until(began + STILL_S)
            assert_goes_on(gateway, first, second, finishing, lasting)
            wait_until(lambda: not frozen.journals)
            answered = gateway.post(PATHS[CHAT], KEY, request(CHAT, "plain", "Hello?"))
            assert answered.status_code == 200
            assert sum(here.streams()) == sum(there.streams()) == 0
        assert swept(own) == 0


Scenes = dict[str, Future[None]]


@pytest.fixture(scope="module")
def scenes(installation: Installation, provider: Provider) -> Iterator[Scenes]:
    twins = [installation.twin(), installation.twin()]
    plays: dict[str, Callable[[], None]] = {
        "process": lambda: still_process(twins[0]),
        "process elsewhere": lambda: still_process_elsewhere(twins[1]),
        "database": lambda: still_database(installation, provider),
    }
    with ThreadPoolExecutor(len(plays)) as threads:
        try:
            yield {name: threads.submit(play) for name, play in plays.items()}
        finally:
            threads.shutdown()
            for twin in twins:
                twin.remove()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["process", "process elsewhere", "database"])
def test_standing_still_loses_nothing(scenes: Scenes, name: str) -> None:
    scenes[name].result()
