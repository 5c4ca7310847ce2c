"""A run of many requests against a provider that fails at random, judged request by request.

Everything is drawn from a seed: what is asked, what the provider does at each attempt, when the client leaves. Each
request of the judged run has a model of its own with two routes, so that no fault of one is felt by another.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import re
import socket
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import redis

from tests.end_to_end import faults
from tests.end_to_end.faults import AFTER, AFTER_OUTPUT, ANSWERS, BEFORE_OUTPUT, Fault
from tests.end_to_end.formats import PATHS, WORDS
from tests.end_to_end.formats import whole as whole_answer
from tests.end_to_end.product import KEEPALIVE, Gateway, Installation
from tests.end_to_end.provider import Call, Provider, Step
from tests.end_to_end.raw import Dechunker, request_bytes

KEY = "sk-test-faults-0123456789abcdef"
ROUTES = ("first", "second")
"""The providers of every model, in the order of their priority; their credentials tell which one is asked."""
BUDGET = 3
STALL_S, TOTAL_S = 2, 3
BOUND_S = 20.0
"""No client waits longer: three attempts of at most TOTAL_S, the waits between them, and a busy machine."""
NOTICED_S = 3.0
"""A client's leaving is felt by the provider within this time: one second, and a busy machine."""
REST_S = 3.0
SETTINGS = {
    "HOPBASE_KEEPALIVE_S": "0.2",
    "HOPBASE_KEEPALIVE_BEFORE_HEADERS_S": "0.25",
    "HOPBASE_CONNECT_TIMEOUT_S": "2",
    "HOPBASE_SLOW_READER_S": "2",
}
PRICE = {"input": 5, "cache_read": 0.5, "cache_write": 6.25, "cache_write_1h": 10, "output": 30}
LIMITS = {"requests_per_minute": 10**6, "tokens_per_minute": 10**9, "concurrency": 1000, "monthly_budget": 10**6}
"""So high that they refuse nothing; but every request takes a place and holds of all kinds."""
AT_A_TIME = 40
HALF_A_BODY = "half a body"
"""What a client sends that leaves before its request is whole: it is not refused, but comes to nothing either."""
STATUS_OF = {"rate_limited": 429, "overloaded": 503, "timed_out": 504, "failed": 502}
OWN_REFUSALS = {"unknown model": 404, "wrong key": 401, "no JSON": 400, "too large": 413, HALF_A_BODY: 0}


@dataclass(frozen=True)
class Leave:
    """When a client goes: after a time, after some bytes of the body, or at the first keepalive; perhaps by a reset."""

    after_s: float | None = None
    after_bytes: int | None = None
    reset: bool = False


@dataclass(frozen=True)
class Asked:
    """One request of the plan: `faults` are what the provider does at its first, second … attempt.

    `model` is the model's number, `routes` how many routes it has, `refusal` why the gateway itself should refuse it.
    """

    number: int
    model: int
    wire: str
    stream: bool
    faults: tuple[Fault, ...] = ()
    leave: Leave | None = None
    refusal: str = ""
    routes: int = len(ROUTES)

    def __str__(self) -> str:
        course = self.refusal or ", then ".join(fault.name for fault in self.faults)
        return f"#{self.number} {self.wire} {'stream' if self.stream else 'whole'}: {course}; {self.leave or 'stays'}"


@dataclass
class Seen:
    """What a client saw. `end`: "whole" (the proper end of the HTTP body), "left", "cut", or "hung"."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    end: str = "hung"
    left_at: float | None = None
    took_s: float = 0.0


@dataclass(frozen=True)
class Played:
    """One call that the provider got: which fault it played, and through which route it came."""

    call: Call
    fault: Fault
    route: str


# --- the plan ---


class Planner:
    """Draws requests. Of all faults each comes once before any comes again; `ordinary` is the share without any."""

    def __init__(self, seed: int, ordinary: float = 0.0) -> None:
        self._dice, self._ordinary = random.Random(seed), ordinary
        self._decks: dict[bool, list[Fault]] = {True: [], False: []}

    def plan(self, numbers: Sequence[int], models: Sequence[int]) -> list[Asked]:
        """A request for each of these numbers, to these models in turn."""
        return [self._asked(number, models[place % len(models)]) for place, number in enumerate(numbers)]

    def _asked(self, number: int, model: int) -> Asked:
        wire, stream = list(PATHS)[number % len(PATHS)], self._dice.random() < 0.7
        if self._dice.random() < self._ordinary:
            return Asked(number, model, wire, stream, (ANSWERS[stream][0],))
        if self._dice.random() < 0.06:
            refusal = self._dice.choice(list(OWN_REFUSALS))
            leave = Leave(after_s=0.05) if refusal == HALF_A_BODY else None
            return Asked(number, model, wire, stream, leave=leave, refusal=refusal)
        course = [self._next_of_the_deck(stream)]
        while len(course) < BUDGET and not course[-1].is_final:
            course.append(self._dice.choice((*BEFORE_OUTPUT[stream], *AFTER[stream], *ANSWERS[stream] * 3)))
        return Asked(number, model, wire, stream, tuple(course), self._leave() if self._dice.random() < 0.3 else None)

    def _next_of_the_deck(self, stream: bool) -> Fault:
        deck = self._decks[stream]
        if not deck:
            deck.extend((*BEFORE_OUTPUT[stream], *AFTER[stream], *ANSWERS[stream]))
            self._dice.shuffle(deck)
        return deck.pop()

    def _leave(self) -> Leave:
        dice = self._dice
        reset = dice.random() < 0.5
        match dice.randrange(4):
            case 0:
                return Leave(after_s=dice.uniform(0.0, 0.1), reset=reset)
            case 1:
                return Leave(after_s=dice.uniform(0.1, 2.5), reset=reset)
            case 2:
                return Leave(after_bytes=dice.randint(1, 900), reset=reset)
        return Leave(reset=reset)


BASES = itertools.count(100_000, 100_000)


class Script:
    """The stage of the fake provider: plays each request's faults in their order, and notes what it played.

    `base`: where its numbers may begin, so that models and requests of two scripts never meet in one installation.
    """

    def __init__(self) -> None:
        self.base = next(BASES)
        self.asked: dict[int, Asked] = {}
        self.played: dict[int, list[Played]] = defaultdict(list)

    def __call__(self, call: Call) -> Iterator[Step]:
        number = faults.number_of(call)
        before, course = self.played[number], self.asked[number].faults
        fault = course[min(len(before), len(course) - 1)]
        before.append(Played(call, fault, call.headers["authorization"].removeprefix("Bearer ")))
        yield from fault.play(call)

    async def play(self, gateway: Gateway, asked: Sequence[Asked]) -> list[tuple[Asked, Seen, list[Played]]]:
        """Send requests; what became of each, for its client and for the provider."""
        self.asked.update({each.number: each for each in asked})
        seen = await ask_all(gateway, asked)
        return [(each, saw, self.played[each.number]) for each, saw in zip(asked, seen, strict=True)]


def model_entry(number: int, routes: int = len(ROUTES), stall_s: int = STALL_S) -> dict[str, Any]:
    """A model of the run in a configuration file."""
    ways = [{"provider": name, "priority": place} for place, name in enumerate(ROUTES[:routes])]
    return {"name": model_name(number), "stall_seconds": stall_s, "total_timeout_s": TOTAL_S, "routes": ways}


def configuration(base_url: str, models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Two providers at one address, and the models that they serve."""
    price = {"effective_from": "2026-01-01T00:00:00Z", "currency": "USD", "per_million": PRICE}
    return {
        "providers": [
            {"name": name, "base_url": base_url, "api_key": name, "wire_formats": list(PATHS)} for name in ROUTES
        ],
        "models": list(models),
        "prices": [{"model": model["name"], **price} for model in models],
        "accounts": [
            {"name": "faults", "currency": "USD", "keys": [{"name": "faults", "secret": KEY, "limits": LIMITS}]}
        ],
    }


def model_name(number: int) -> str:
    return f"fault-{number}"


# --- the clients ---


async def ask_all(gateway: Gateway, asked: Sequence[Asked]) -> list[Seen]:
    """Send all requests, some at a time."""
    gate = asyncio.Semaphore(AT_A_TIME)

    async def one(each: Asked) -> Seen:
        async with gate:
            return await ask(gateway.port, each, _sent(each))

    return list(await asyncio.gather(*map(one, asked)))


def _sent(asked: Asked) -> bytes:
    model = "no-such-model" if asked.refusal == "unknown model" else model_name(asked.model)
    key = f"{KEY}x" if asked.refusal == "wrong key" else KEY
    body: Any = faults.request(asked.wire, model, asked.number, asked.stream)
    if asked.refusal == "no JSON":
        body = b"{"
    if asked.refusal == "too large":
        body["padding"] = "x" * 200_000
    sent = request_bytes(PATHS[asked.wire], key, body, x_request_id=f"run-{asked.number}")
    return sent[:-10] if asked.refusal == HALF_A_BODY else sent


async def ask(port: int, asked: Asked, sent: bytes) -> Seen:
    """Send a request and read what comes, until its end or until the client leaves."""
    seen, began = Seen(), time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    leave = asked.leave
    try:
        writer.write(sent)
        async with asyncio.timeout(BOUND_S):
            async with asyncio.timeout(leave.after_s if leave else None):
                await _read(reader, seen, leave)
    except TimeoutError:
        seen.end = "left" if leave and leave.after_s is not None and time.monotonic() - began < BOUND_S else "hung"
    except ConnectionError:
        seen.end = "cut"
    seen.took_s = time.monotonic() - began
    if leave is not None and leave.reset:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    seen.left_at = time.monotonic() if seen.end == "left" else None
    return seen


async def _read(reader: asyncio.StreamReader, seen: Seen, leave: Leave | None) -> None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        seen.end = "cut"
        return
    first, *lines = head.strip().split("\r\n")
    seen.status = int(first.split(" ")[1])
    seen.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    dechunker, length = Dechunker(), int(seen.headers.get("content-length", "-1"))
    while not (dechunker.over or len(seen.body) == length):
        if not (data := await reader.read(65536)):
            seen.end = "cut"
            return
        seen.body += dechunker.feed(data) if length < 0 else data
        if leave is not None and _is_time(seen.body, leave):
            seen.end = "left"
            return
    seen.end = "whole"


def _is_time(body: bytes, leave: Leave) -> bool:
    if leave.after_s is not None:
        return False
    return KEEPALIVE in body if leave.after_bytes is None else len(body) >= leave.after_bytes


# --- the judgement ---


def judge(asked: Asked, seen: Seen, played: Sequence[Played], *, alone: bool) -> list[str]:
    """What is wrong with one request, as its client and the provider saw it.

    `alone`: no other request had its routes, so that none of them was cooling down when it came.
    """
    if seen.end in ("hung", "cut"):
        return [f"the client's connection: {seen.end} after {seen.took_s:.1f} s, {seen.body[-200:]!r}"]
    if asked.refusal:
        wanted = OWN_REFUSALS[asked.refusal]
        refused = seen.end == "left" or seen.status == wanted
        return [*([] if refused else [f"status {seen.status}, not {wanted}"]), *(["a call"] if played else [])]
    wrong = list(_hammering(played))
    if seen.end == "left":
        return wrong + list(_noticed_late(asked, seen, played))
    if not played:
        cooling = not alone and seen.status in (429, 503)
        return [] if cooling else [f"no call was made; status {seen.status} {seen.body[:200]!r}"]
    last, routes = played[-1].fault, {call.route for call in played}
    if alone and not (last.is_final or last.hopeless) and routes != set(ROUTES[: asked.routes]):
        wrong.append(f"gave up without asking the other route, after {[call.fault.name for call in played]}")
    return wrong + (_judge_stream if asked.stream else _judge_whole)(asked, seen, played)


def _hammering(played: Sequence[Played]) -> Iterator[str]:
    """A bounded number of calls, none after an answer, none too soon, none where the same would come of it."""
    if len(played) > BUDGET:
        yield f"{len(played)} calls"
    for place, (one, following) in enumerate(itertools.pairwise(played)):
        if one.fault.is_final:
            yield f"asked again after {one.fault.name!r}"
        again = [later for later in played[place + 1 :] if later.route == one.route]
        if again and (one.fault.meaning in ("timed_out", "refused") or one.fault.status in (502, 503)):
            yield f"the same route was asked again after {one.fault.name!r}"
        if one.route == following.route and one.fault.wait_s and following.call.at - one.call.at < one.fault.wait_s:
            yield f"asked again {following.call.at - one.call.at:.2f} s after {one.fault.name!r}"


def _noticed_late(asked: Asked, seen: Seen, played: Sequence[Played]) -> Iterator[str]:
    """A stream is cancelled upstream; a whole answer is read to its end."""
    for late in _noticed_after(seen, played) if asked.stream else ():
        if late > NOTICED_S:
            yield f"the provider was let go {late:.1f} s after the client left"
    for one in played if asked.stream else ():
        if one.call.at - (seen.left_at or 0) > NOTICED_S:
            yield f"a call {one.call.at - (seen.left_at or 0):.1f} s after the client left"


def _noticed_after(seen: Seen, played: Sequence[Played]) -> Iterator[float]:
    """How long after its client left the provider's connection was closed, where that ended the call."""
    for one in played:
        if seen.left_at is not None and one.call.left_at is not None and one.call.left_at > seen.left_at:
            yield one.call.left_at - seen.left_at


def _judge_stream(asked: Asked, seen: Seen, played: Sequence[Played]) -> list[str]:
    last = played[-1].fault
    body = seen.body.replace(KEEPALIVE, b"").replace(faults.PING, b"")
    if last.meaning not in ("answers", *AFTER_OUTPUT) and not seen.headers["content-type"].startswith("text/event"):
        return _judge_status(asked, seen, played)
    events = faults.events_of(body)
    model = played[-1].call.model
    good = [event for event in last.events(asked.wire, model) if event != faults.PING]
    errors = [event for event in events if faults.is_error(asked.wire, event)]
    if last.meaning == "answers":
        return [] if events == good else [f"not the whole answer after {last.name!r}: {body!r}"]
    wrong = []
    if len(errors) != 1 or events[-1:] != errors:
        wrong.append(f"{len(errors)} error events after {last.name!r}: {body!r}")
    if any(map(faults.is_terminal, events)):
        wrong.append(f"a terminal event after {last.name!r}: {body!r}")
    shown = events[: -len(errors)] if errors else events
    if shown != good[: len(shown)]:
        wrong.append(f"not what the provider sent, after {last.name!r}: {body!r}")
    if (len(shown) > 0) != (last.meaning in AFTER_OUTPUT) or (shown and _words(shown) < 2):
        wrong.append(f"{len(shown)} events shown after {last.name!r}: {body!r}")
    return wrong


def _words(events: Sequence[bytes]) -> int:
    return sum(any(word.encode() in event for word in WORDS) for event in events)


def _judge_whole(asked: Asked, seen: Seen, played: Sequence[Played]) -> list[str]:
    if played[-1].fault.meaning != "answers":
        return _judge_status(asked, seen, played)
    whole = whole_answer(asked.wire, played[-1].call.model)
    return [] if (seen.status, seen.body) == (200, whole) else [f"not the whole answer: {seen.status} {seen.body!r}"]


def _judge_status(asked: Asked, seen: Seen, played: Sequence[Played]) -> list[str]:
    """A real error status: the provider's own words where every route refused, else ours."""
    failures = [call.fault for call in played]
    if seen.status < 400 or not isinstance(json.loads(seen.body).get("error"), dict):
        return [f"no error: {seen.status} {seen.body!r}"]
    ours = [fault for fault in failures if fault.meaning != "refused"]
    if not ours:
        first = failures[0]
        kept = (seen.status, seen.body) == (first.status, first.refusal(asked.wire))
        return [] if kept else [f"not the first refusal: {seen.status} {seen.body!r}"]
    wanted = STATUS_OF[ours[-1].meaning]
    names = [fault.name for fault in failures]
    return [] if seen.status == wanted else [f"status {seen.status}, not {wanted}, after {names}"]


# --- what is left behind ---


def judge_records(installation: Installation, run: Sequence[tuple[Asked, Seen, list[Played]]]) -> list[str]:
    """Exactly one record per admitted request, with the attempts that the provider saw and a bill for the answer."""
    sql = (
        "SELECT r.request_name, r.ending, r.metering, r.output, r.cost_nanos,"
        " (SELECT count(*) FROM billing_attempt a WHERE a.record_id = r.id)"
        " FROM billing_usagerecord r WHERE r.request_name LIKE 'run-%'"
    )
    found: dict[int, list[Any]] = defaultdict(list)
    for name, *row in installation.query(sql):
        found[int(name.rpartition("-")[2])].append(row)
    wrong = []
    for asked, seen, played in run:
        wrong += [f"{asked}: {problem}" for problem in _judge_record(asked, seen, played, found[asked.number])]
    return wrong


def _judge_record(asked: Asked, seen: Seen, played: Sequence[Played], rows: Sequence[Any]) -> Iterator[str]:
    admitted = bool(played) or (seen.end == "left" and not asked.refusal and len(rows) == 1)
    if len(rows) != admitted:
        yield f"{len(rows)} records"
    if len(rows) != 1 or not played:
        return
    ((ending, metering, output, cost, attempts),) = rows
    last = played[-1].fault
    if attempts != len(played) and not (seen.end == "left" and attempts > len(played)):
        yield f"{attempts} attempts on the record, {len(played)} calls"
    if seen.end != "whole":
        return
    if last.meaning == "answers" and (ending, metering, output) != ("complete", "reported", 52):
        yield f"the record of an answer says {ending}, {metering}, {output} out"
    if last.meaning in AFTER_OUTPUT and (ending in ("complete", "refused") or output == 0 or cost == 0):
        yield f"the record of {last.name!r} says {ending}, {metering}, {output} out, {cost} nanos"
    if not last.is_final and (metering, output, cost) != ("none", 0, 0):
        yield f"the record of a failure says {ending}, {metering}, {output} out, {cost} nanos"


async def judge_rest(gateway: Gateway, installation: Installation, provider: Provider) -> list[str]:
    """Within a few seconds of the end nothing runs, waits or stays open."""
    deadline = time.monotonic() + REST_S
    while (left := await asyncio.to_thread(_left_over, gateway, installation, provider)) and (
        time.monotonic() < deadline
    ):
        await asyncio.sleep(0.1)
    return left


def _left_over(gateway: Gateway, installation: Installation, provider: Provider) -> list[str]:
    left = [f"{name} is {value:g}" for name, value in gauges(gateway).items() if value]
    ((open_rows,),) = installation.query("SELECT count(*) FROM billing_openstream")
    if open_rows:
        left.append(f"{open_rows} open rows")
    left += held_in_redis(installation)
    if running := provider.running:
        left.append(f"{len(running)} upstream calls still run: {[call.model for call in running][:20]}")
    if half_closed := [one for one in connections(gateway) if one.status == psutil.CONN_CLOSE_WAIT]:
        left.append(f"{len(half_closed)} sockets in CLOSE_WAIT")
    return left


def held_in_redis(installation: Installation) -> list[str]:
    """What requests hold of their key's limits, and probes of routes: nothing at rest."""
    left = []
    with redis.Redis(unix_socket_path=str(installation.var_dir / "valkey.sock")) as client:
        for key in client.scan_iter("hopbase:*"):
            name = key.decode()
            if name.startswith("hopbase:probe:") or name.endswith((":leases", ":holds", ":tokens_held")):
                left.append(f"{name} is there")
            elif b"held" in (client.hkeys(key) if client.type(key) == b"hash" else ()):
                left.append(f"{name} holds money")
    return left


def gauges(gateway: Gateway) -> dict[str, float]:
    """What the process says of itself that has to be zero at rest."""
    text = gateway.get("/metrics").text
    names = ("hopbase_open_requests", "hopbase_unsettled_operations")
    return {name: float(said[1]) for name in names if (said := re.search(rf"^{name} (\S+)$", text, re.MULTILINE))}


def connections(gateway: Gateway) -> list[Any]:
    return psutil.Process(gateway.process.pid).net_connections("tcp")


def judge_log(gateway: Gateway) -> list[str]:
    """No exception that nobody expected."""
    bad = re.search(r"Traceback|never retrieved|Unclosed|was never awaited|background task failed", gateway.log)
    return [f"the log has {gateway.log[max(0, bad.start() - 300) : bad.start() + 3000]}"] if bad else []


@dataclass(frozen=True)
class Report:
    """What is wrong, how many requests ended how, and how long providers of streams were kept after a client left."""

    wrong: list[str]
    ends: Counter[str]
    noticed_s: list[float]


@dataclass(frozen=True)
class Stand:
    """Where a run happens: an installation with the script's provider behind it, and models by their numbers."""

    installation: Installation
    script: Script
    provider: Provider

    async def run(self, gateway: Gateway, asked: Sequence[Asked]) -> Report:
        """Run a plan and judge it."""
        run = await self.script.play(gateway, asked)
        alone = len({each.model for each in asked}) == len(asked)
        wrong = [f"{each[0]}: {problem}" for each in run for problem in judge(*each, alone=alone)]
        wrong += await judge_rest(gateway, self.installation, self.provider)
        wrong += judge_records(self.installation, run)
        wrong += judge_log(gateway)
        noticed_s = [late for each, seen, played in run if each.stream for late in _noticed_after(seen, played)]
        return Report(wrong, Counter(how_it_ended(*each) for each in run), noticed_s)

    def sockets(self, gateway: Gateway) -> int:
        """How many connections the gateway has with the provider, idle ones that may be used again included."""
        return sum(bool(one.raddr) and one.raddr.port == self.provider.port for one in connections(gateway))


@contextlib.contextmanager
def installed(database_url: str, models: int) -> Iterator[Stand]:
    """An installation of its own, with so many models."""
    script = Script()
    with Provider(script) as provider:
        installation = Installation(database_url, **SETTINGS)
        try:
            installation.migrate()
            installation.apply(configuration(provider.base_url, [model_entry(number) for number in range(models)]))
            yield Stand(installation, script, provider)
        finally:
            installation.remove()


def how_it_ended(asked: Asked, seen: Seen, played: Sequence[Played]) -> str:
    """A word for the table."""
    if asked.refusal:
        return "left before its request was whole" if asked.refusal == HALF_A_BODY else "refused by the gateway"
    if seen.end != "whole":
        return {"left": "client left"}.get(seen.end, seen.end)
    if not played:
        return "refused while the routes cool down"
    if not played[-1].fault.is_final:
        return "error event" if seen.status == 200 else "error status"
    return "complete" if played[-1].fault.meaning == "answers" else "cut with an error event"
