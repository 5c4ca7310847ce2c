"""SIGTERM while streams run: what can finish does, the rest is ended and billed, nothing new is taken, nobody is left.

Each scene has a gateway of its own, with a folder, an embedded Valkey and clients of every kind. Two scenes play at
once; they are judged one by one.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests import settings
from tests.end_to_end.conftest import KEYS
from tests.end_to_end.formats import CHAT, MESSAGES, PATHS, RESPONSES, WORDS, request
from tests.end_to_end.product import TIMINGS, Gateway, Installation, family, living
from tests.end_to_end.raw import RawClient

KEY = KEYS["drain"]
DRAIN_S = float(TIMINGS["HOPBASE_DRAIN_S"])
LONG_DRAIN = {"HOPBASE_DRAIN_S": "60"}
PATIENT = {"HOPBASE_SLOW_READER_S": "50"}
"""Nobody else ends the stream of a client that reads nothing."""
LAST_WORD_S = 10
"""An error event comes at once; the rest is for a busy machine."""
GONE_S = 20
"""The same for bills, for connections that nobody reads, and for the processes' own end."""
AGAIN_S = 1.0
"""After the first signal: a worker that took it for two would have ended its streams by then."""
ERRORS = {CHAT: b'data: {"error":', RESPONSES: b"event: response.failed\n", MESSAGES: b"event: error\n"}


# --- who is told what ---


def terminate_parent(gateway: Gateway) -> None:
    gateway.terminate()


def terminate_group(gateway: Gateway) -> None:
    """As a supervisor does."""
    os.killpg(gateway.process.pid, signal.SIGTERM)


def interrupt_group(gateway: Gateway) -> None:
    """As Ctrl-C does."""
    os.killpg(gateway.process.pid, signal.SIGINT)


@dataclass(frozen=True)
class Scene:
    """Who serves, how it is told to end, and what it is told then, if anything. `kill`: one worker dies before."""

    server: str
    workers: int
    tell: Callable[[Gateway], None]
    again: Callable[[Gateway], None] | None = None
    kill: bool = False


SCENES = {"three workers": Scene("uvicorn", 3, terminate_parent, kill=True)}
if not settings.POSTGRESQL:  # who is told what has nothing to do with the database
    SCENES |= {
        "two workers, all told twice": Scene("uvicorn", 2, terminate_group, interrupt_group),
        "one process, told twice": Scene("uvicorn", 1, interrupt_group, terminate_parent),
        "Daphne": Scene("daphne", 1, terminate_group),
    }
ONCE = [name for name, scene in SCENES.items() if scene.again is None]


# --- a scene ---


@dataclass
class Seen:
    """What the clients of a scene got, and what was left of its processes. Seconds since it was told to end (again).

    `bills`: ending, metering and whether it costs anything, by the kind of client.
    """

    names: dict[str, str] = field(default_factory=dict)
    bills: dict[str, tuple[str, str, bool]] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    counted: list[str] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    alive: bool = False
    killed: int = 0
    status: int = -1
    gone_s: float = 0
    processes: int = 0
    left: set[int] = field(default_factory=set)
    folders: list[str] = field(default_factory=list)
    log: str = ""


class Customers:
    """One whose stream finishes, one of each wire format whose does not, one that vanishes, one that reads nothing."""

    def __init__(self, gateway: Gateway, seen: Seen) -> None:
        self._gateway, self._seen = gateway, seen
        self.streams = {wire: self._begin(wire, wire, "endless", WORDS[0]) for wire in PATHS}
        self._deaf = self._begin("deaf", CHAT, "rapid", " word")
        self._begin("vanished", MESSAGES, "endless", WORDS[0]).leave(reset=True)
        self.streams["finishing"] = self._begin("finishing", CHAT, "paced", "word0")

    def _begin(self, kind: str, wire: str, scene: str, word: str) -> RawClient:
        name = self._seen.names[kind] = f"end-{uuid.uuid4().hex}"
        return begin(self._gateway, wire, scene, word, name, narrow=kind == "deaf")

    def read_to_the_end(self, asked_at: float) -> None:
        def read(kind: str, client: RawClient) -> None:
            self._seen.bodies[kind] = client.read_all()
            self._seen.took_s[kind] = time.monotonic() - asked_at

        with ThreadPoolExecutor(len(self.streams)) as threads:
            for reading in [threads.submit(read, *each) for each in self.streams.items()]:
                reading.result()


def begin(gateway: Gateway, wire: str, scene: str, word: str, name: str, narrow: bool = False) -> RawClient:
    """A stream that has said its first word."""
    body = request(wire, scene, "Go on.", stream=True)
    client = RawClient(gateway, wire, KEY, body, narrow=narrow, x_request_id=name)
    client.read_until(word.encode())
    return client


def until(holds: Callable[[], object], within_s: float = 30) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def play(scene: Scene, installation: Installation) -> Seen:
    """Let a scene happen."""
    twin, seen = installation.twin(), Seen()
    try:
        play_on(twin, scene, seen)
        seen.bills = {kind: bill(twin, name) for kind, name in seen.names.items()}
        return seen
    finally:
        twin.remove()


def play_on(installation: Installation, scene: Scene, seen: Seen) -> None:
    arguments = ("--workers", str(scene.workers)) if scene.workers > 1 else ()
    times = PATIENT | (LONG_DRAIN if scene.again else {})
    temporary = installation.folder / "tmp"
    temporary.mkdir()
    with installation.serving(scene.server, *arguments, **times, TMPDIR=str(temporary)) as gateway:
        until(lambda: gateway.log.count("HopBase serves on") == scene.workers)
        if scene.kill:
            kill_a_worker(gateway, installation, seen)
            seen.counted = refusals_counted(gateway)
        customers = Customers(gateway, seen)
        processes = family(gateway.process.pid)
        seen.processes = len(processes)
        asked_at = time.monotonic()
        scene.tell(gateway)
        until(lambda: gateway.get("/readyz").status_code == 503, 5)
        seen.refused = [refusal(gateway) for _ in range(2 * scene.workers)]
        seen.alive = gateway.get("/healthz").status_code == 200
        if scene.again is not None:
            time.sleep(AGAIN_S)
            asked_at = time.monotonic()
            scene.again(gateway)
        customers.read_to_the_end(asked_at)
        seen.status = gateway.process.wait(DRAIN_S + GONE_S)
        seen.gone_s = time.monotonic() - asked_at
        seen.left, seen.log = living(processes), gateway.log
        seen.folders = [path.name for path in temporary.iterdir()]


def refusal(gateway: Gateway) -> tuple[int, str]:
    """How a new request ends, on a connection of its own."""
    with RawClient(gateway, CHAT, KEY, request(CHAT, "plain", "One more?")) as client:
        client.read_head()
        return client.status, client.headers.get("connection", "")


def stored(installation: Installation, what: str, table: str, name: str) -> list[Any]:
    return installation.query(f"SELECT {what} FROM {table} WHERE request_name = '{name}'")


def bill(installation: Installation, name: str) -> tuple[str, str, bool]:
    [(ending, metering, cost_nanos)] = stored(installation, "ending, metering, cost_nanos", "billing_usagerecord", name)
    return ending, metering, int(cost_nanos) > 0


@pytest.fixture(scope="module")
def played(installation: Installation) -> Iterator[dict[str, Future[Seen]]]:
    with ThreadPoolExecutor(2) as threads:
        yield {name: threads.submit(play, scene, installation) for name, scene in SCENES.items()}


Played = dict[str, Future[Seen]]


@pytest.mark.parametrize("name", SCENES)
def test_nobody_is_left(played: Played, name: str) -> None:
    seen, workers = played[name].result(), SCENES[name].workers
    assert seen.status == 0
    assert seen.processes == 2 + (workers if workers > 1 else 0)  # the Valkey among them
    assert (seen.left, seen.folders) == (set(), [])
    assert seen.gone_s < (DRAIN_S if name in ONCE else 0) + GONE_S


@pytest.mark.parametrize("name", SCENES)
def test_nothing_new_is_taken(played: Played, name: str) -> None:
    seen = played[name].result()
    assert set(seen.refused) == {(503, "close")}
    assert seen.alive


@pytest.mark.parametrize("name", ONCE)
def test_streams_may_finish(played: Played, name: str) -> None:
    seen = played[name].result()
    assert seen.bodies["finishing"].endswith(b"data: [DONE]\n\n")
    assert seen.took_s["finishing"] < DRAIN_S
    assert seen.bills["finishing"] == ("complete", "reported", True)


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("wire", PATHS)
def test_rest_ends_with_error_and_bill(played: Played, name: str, wire: str) -> None:
    seen = played[name].result()
    least = DRAIN_S - 0.2 if name in ONCE else 0
    assert least <= seen.took_s[wire] < least + LAST_WORD_S
    assert seen.bodies[wire].count(ERRORS[wire]) == 1
    assert ERRORS[wire] in seen.bodies[wire][-1200:]
    assert seen.bills[wire] == ("shutdown", "estimated", True)


@pytest.mark.parametrize("name", SCENES)
def test_strange_clients_are_billed(played: Played, name: str) -> None:
    bills = played[name].result().bills
    assert bills["vanished"] == ("client_left", "estimated", True)
    assert bills["deaf"] == ("shutdown", "estimated", True)


# --- workers ---


def kill_a_worker(gateway: Gateway, installation: Installation, seen: Seen) -> None:
    """Kill one of three workers while it streams; another comes, its stream gets a bill, its neighbour's goes on."""
    streams = begin_on_two(gateway, installation)
    seen.killed, other = streams
    (lost, first), (neighbour, second) = streams[seen.killed], streams[other]
    seen.names |= {"lost": lost, "neighbour": neighbour}
    until(lambda: any(count for (count,) in stored(installation, "counted_output", "billing_openstream", lost)))
    os.kill(seen.killed, signal.SIGKILL)
    first.leave()
    until(lambda: gateway.log.count("HopBase serves on") == SCENES["three workers"].workers + 1)
    until(lambda: stored(installation, "id", "billing_usagerecord", lost))
    second.read_until(WORDS[0].encode(), beyond=len(second.body))
    second.leave()


def begin_on_two(gateway: Gateway, installation: Installation) -> dict[int, tuple[str, RawClient]]:
    """A stream on each of two workers: process id -> its request's name and its client."""
    found: dict[int, tuple[str, RawClient]] = {}
    for _ in range(20):
        name = f"end-{uuid.uuid4().hex}"
        client = begin(gateway, CHAT, "endless", WORDS[0], name)
        if (process := process_of(name, installation)) in found:
            client.leave()
        found.setdefault(process, (name, client))
        if len(found) == 2:
            return found
    raise AssertionError("one worker takes all connections")


def process_of(name: str, installation: Installation) -> int:
    """The process id of the gateway that has a request."""
    rows = "billing_gatewayprocess p JOIN billing_openstream s ON s.process = p.id"
    until(lambda: stored(installation, "p.label", rows, name))
    [(label,)] = stored(installation, "p.label", rows, name)
    return int(label.rpartition(":")[2])


def test_dead_worker_is_replaced(played: Played) -> None:
    """Its streams are swept as soon as the next one starts; those of its neighbours go on."""
    seen = played["three workers"].result()
    assert f"worker {seen.killed} ended with status -9" in seen.log
    assert seen.bills["lost"] == ("gateway_lost", "checkpoint", True)
    assert seen.bills["neighbour"] == ("client_left", "estimated", True)


def refusals_counted(gateway: Gateway) -> list[str]:
    """What /metrics says of refusals, several times; each request has a connection, and so a worker, of its own."""
    for _ in range(8):
        assert httpx.get(f"{gateway.url}/v1/models").status_code == 401
    pages = [httpx.get(f"{gateway.url}/metrics").text for _ in range(6)]
    return [line for page in pages for line in page.splitlines() if line.startswith("hopbase_refusals_total{")]


def test_any_worker_tells_of_all(played: Played) -> None:
    seen = played["three workers"].result()
    assert seen.counted == ['hopbase_refusals_total{code="missing_api_key"} 8.0'] * 6


def test_signal_while_workers_start(installation: Installation) -> None:
    twin = installation.twin()
    try:
        gateway = Gateway(twin, "uvicorn", "--workers", "3")
        until(lambda: len(family(gateway.process.pid)) > 2)  # the Valkey, and the first worker
        gateway.terminate()
        processes = family(gateway.process.pid)
        assert gateway.process.wait(GONE_S) == 0
        assert living(processes) == set()
    finally:
        twin.remove()
