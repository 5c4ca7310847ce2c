"""Gateways that are killed while streams run, also without a database: every stream has its one record."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal

import pytest

from streaming.protocols.tokens import count
from tests.end_to_end.conftest import KEYS
from tests.end_to_end.formats import CHAT, MESSAGES, PATHS, RESPONSES, USED, WORDS, request
from tests.end_to_end.freezing import Frozen, execute, freezable, wait_until
from tests.end_to_end.product import TIMINGS, Gateway, Installation, used
from tests.end_to_end.provider import Provider
from tests.end_to_end.raw import Dechunker, RawClient, request_bytes

KEY = KEYS["main"]
STREAMS = 30
WORD_S = 0.05
"""Between two words of the scene `endless`."""
CHECKPOINT_S = float(TIMINGS["HOPBASE_CHECKPOINT_S"])
LOST_WORDS = (CHECKPOINT_S + 0.5) / WORD_S
"""At most one interval, and half a second for a busy machine."""


def swept(installation: Installation) -> dict[str, int]:
    said: dict[str, int] = json.loads(installation.must("sweep", "--json"))
    return said


def begin(gateway: Gateway, scene: str, wire: str = CHAT) -> tuple[str, RawClient]:
    """A stream that has said something."""
    name = f"death-{uuid.uuid4().hex}"
    client = RawClient(gateway, wire, KEY, request(wire, scene, "Tell the walrus.", stream=True), x_request_id=name)
    client.read_until(WORDS[0].encode() if scene == "endless" else b"word0")
    return name, client


async def read_to_death(port: int, name: str) -> bytes:
    """Read a stream until its gateway is gone; returns what came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes(PATHS[CHAT], KEY, request(CHAT, "endless", name, stream=True), x_request_id=name))
    await reader.readuntil(b"\r\n\r\n")
    dechunker, body = Dechunker(), b""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            body += dechunker.feed(data)
    writer.close()
    return body


async def test_killed_streams_are_billed(uvicorn: Gateway, installation: Installation) -> None:
    """Thirty streams, kill -9, a sweep: each is billed what its client got, less one checkpoint at most."""
    names = [f"killed-{n}-{uuid.uuid4().hex}" for n in range(STREAMS)]
    with installation.serving("uvicorn") as gateway:
        reading = [asyncio.ensure_future(read_to_death(gateway.port, name)) for name in names]
        await asyncio.sleep(3)
        gateway.process.kill()
        bodies = await asyncio.gather(*reading)
    assert (await asyncio.to_thread(swept, installation))["streams"] == STREAMS
    before = await asyncio.to_thread(lambda: [uvicorn.record(name, KEY) for name in names])
    for body, record in zip(bodies, before, strict=True):
        words = body.count(WORDS[0].encode())
        assert words > LOST_WORDS
        assert (record["ending"], record["metering"]) == ("gateway_lost", "checkpoint")
        assert tokens(words - LOST_WORDS) <= record["usage"]["output"] <= tokens(words + 4)
        assert record["usage"]["input"] > 0
        assert Decimal(record["cost"]) > 0
    assert (await asyncio.to_thread(swept, installation))["streams"] == 0
    assert await asyncio.to_thread(lambda: [uvicorn.record(name, KEY) for name in names]) == before


def tokens(words: float) -> int:
    return count(WORDS[0] * int(words))


def test_next_start_settles(uvicorn: Gateway, installation: Installation) -> None:
    with installation.serving("uvicorn") as gateway:
        name, client = begin(gateway, "endless", MESSAGES)
        time.sleep(3 * CHECKPOINT_S)
        gateway.process.kill()
        client.leave()
    with installation.serving("uvicorn") as again:
        record = again.record(name, KEY, within_s=20)
    assert (record["ending"], record["metering"]) == ("gateway_lost", "checkpoint")
    assert (record["usage"]["input"], record["usage"]["cache_read"]) == (10, 4)  # as reported at the beginning
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["gateway_lost"]
    assert record["started_at"] < record["first_output_at"] < record["ended_at"]


def test_killed_before_output_costs_nothing(uvicorn: Gateway, installation: Installation, provider: Provider) -> None:
    name = f"early-{uuid.uuid4().hex}"
    with installation.serving("uvicorn") as gateway:
        client = RawClient(gateway, CHAT, KEY, request(CHAT, "never", name, stream=True), x_request_id=name)
        provider.call_with(name)
        row = f"SELECT 1 FROM billing_openstream WHERE request_name = '{name}'"
        wait_until(lambda: installation.query(row))
        gateway.process.kill()
        client.leave()
    swept(installation)
    record = uvicorn.record(name, KEY)
    assert (record["ending"], record["metering"], Decimal(record["cost"])) == ("gateway_lost", "none", 0)


def test_lost_answer_is_zero_cost(uvicorn: Gateway, installation: Installation, provider: Provider) -> None:
    name = f"whole-{uuid.uuid4().hex}"
    with installation.serving("uvicorn") as gateway:
        client = RawClient(gateway, RESPONSES, KEY, request(RESPONSES, "never", name), x_request_id=name)
        provider.call_with(name)
        row = f"SELECT 1 FROM billing_openstream WHERE request_name = '{name}'"
        wait_until(lambda: installation.query(row))
        gateway.process.kill()
        client.leave()
    swept(installation)
    record = uvicorn.record(name, KEY)
    assert (record["ending"], record["metering"], Decimal(record["cost"])) == ("gateway_lost", "none", 0)
    [(reason,)] = installation.query(f"SELECT reason FROM billing_usagerecord WHERE request_name = '{name}'")
    assert "lost" in reason


def test_operator_stops_a_stream(installation: Installation, uvicorn: Gateway) -> None:
    name, client = begin(uvicorn, "endless", MESSAGES)
    asked_at = time.monotonic()
    execute(installation, f"UPDATE billing_openstream SET stop_requested = TRUE WHERE request_name = '{name}'")
    assert b"stopped by an operator" in client.read_all()
    assert time.monotonic() - asked_at < CHECKPOINT_S + 2
    record = uvicorn.record(name, KEY)
    assert (record["ending"], record["metering"]) == ("stopped", "estimated")


def test_silent_stream_is_stopped_too(installation: Installation, uvicorn: Gateway, provider: Provider) -> None:
    name = f"silent-{uuid.uuid4().hex}"
    client = RawClient(uvicorn, CHAT, KEY, request(CHAT, "never", name, stream=True), x_request_id=name)
    call = provider.call_with(name)
    wait_until(lambda: installation.query(f"SELECT 1 FROM billing_openstream WHERE request_name = '{name}'"))
    execute(installation, f"UPDATE billing_openstream SET stop_requested = TRUE WHERE request_name = '{name}'")
    client.read_head()
    assert call.left.wait(5)
    assert uvicorn.record(name, KEY)["ending"] == "stopped"


def test_vanished_row_comes_back(installation: Installation, uvicorn: Gateway) -> None:
    name, client = begin(uvicorn, "endless")
    counted = f"SELECT counted_output FROM billing_openstream WHERE request_name = '{name}'"
    wait_until(lambda: installation.query(counted)[0][0] > 0)
    execute(installation, f"DELETE FROM billing_openstream WHERE request_name = '{name}'")
    wait_until(lambda: installation.query(counted) and installation.query(counted)[0][0] > 0)
    client.leave()
    assert uvicorn.record(name, KEY)["ending"] == "client_left"
    assert installation.query(counted) == []


def test_graceful_end_leaves_nothing(installation: Installation) -> None:
    folder = installation.var_dir / "processes"
    before = set(folder.iterdir())
    with installation.serving("uvicorn"):
        [mine] = set(folder.iterdir()) - before
    assert set(folder.iterdir()) == before
    rows = installation.query("SELECT id FROM billing_gatewayprocess")
    assert mine.stem not in {str(uuid.UUID(str(id))) for (id,) in rows}


# --- the database away ---


@pytest.fixture(scope="module")
def frozen(installation: Installation, provider: Provider) -> Iterator[Frozen]:
    with freezable(installation, provider) as made:
        yield made


AWAY_S = 5.0
DRAIN_S = float(TIMINGS["HOPBASE_DRAIN_S"])
GONE_S = 25
"""The last tries to write, and what a busy machine adds."""


def test_killed_during_an_outage(frozen: Frozen) -> None:
    """What only the journal knows is replayed by the sweep, once; its torn last line is no loss."""
    with frozen.installation.serving("uvicorn") as gateway:
        ending, first = begin(gateway, "paced")
        lasting, second = begin(gateway, "endless")
        with frozen.away():
            first.read_all()
            wait_until(lambda: any(ending.encode() in journal.read_bytes() for journal in frozen.journals))
            time.sleep(AWAY_S)
            words = second.read_until(b"data").count(WORDS[0].encode())
            gateway.process.kill()
            gateway.process.wait()
        second.leave()
    [journal] = frozen.journals
    with journal.open("ab") as file:
        file.write(journal.read_bytes()[:200])
    counts = swept(frozen.installation)
    assert counts["streams"] == 1
    assert counts["replayed"] >= 1
    assert frozen.journals == []
    assert swept(frozen.installation) == {"streams": 0, "replayed": 0, "processes": 0}
    with frozen.installation.serving("uvicorn") as again:
        record = again.record(ending, KEY)
        assert (record["ending"], used(record)) == ("complete", USED)
        record = again.record(lasting, KEY)
        assert (record["ending"], record["metering"]) == ("gateway_lost", "checkpoint")
        assert record["usage"]["output"] > tokens(max(words, AWAY_S / WORD_S / 2))


def test_ends_without_its_database(frozen: Frozen) -> None:
    """SIGTERM during an outage: the process is gone in time all the same, its last bills wait in the journal."""
    with frozen.installation.serving("uvicorn") as gateway:
        ending, first = begin(gateway, "paced")
        lasting, second = begin(gateway, "endless")
        time.sleep(2 * CHECKPOINT_S)
        with frozen.away():
            time.sleep(2 * CHECKPOINT_S)
            gateway.terminate()
            assert first.read_all().endswith(b"data: [DONE]\n\n")
            assert b'data: {"error":' in second.read_all()
            assert gateway.process.wait(DRAIN_S + GONE_S) == 0
    assert swept(frozen.installation)["replayed"] == 2
    endings = "SELECT request_name, ending FROM billing_usagerecord"
    assert {(ending, "complete"), (lasting, "shutdown")} <= set(map(tuple, frozen.installation.query(endings)))
    assert swept(frozen.installation) == {"streams": 0, "replayed": 0, "processes": 0}
