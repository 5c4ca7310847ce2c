"""Runs without a server: a scripted provider side, a recorded client side, a clock of one's own."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import uuid
from typing import Any

import httpx

from streaming.client import Client
from streaming.counting import StreamCount
from streaming.errors import AttemptFailed, Failure
from streaming.health import RouteHealth
from streaming.protocols import WIRE_FORMATS
from streaming.relay import RelayOptions, relay
from streaming.routes import Plan
from streaming.runs import Run
from streaming.upstream import passed_headers
from tests.streaming.entries import key, model, route


class ScriptedAnswer:
    """A provider's answer; chunks may be bytes, an exception to raise, a number of seconds, or "hang"."""

    def __init__(self, *chunks: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.status = status
        self.headers = httpx.Headers({"content-type": "text/event-stream", **(headers or {})})
        self.chunks_to_send = chunks
        self.closed = False
        self.passed_headers: dict[str, str] = {}
        self.request_id = self.headers.get("x-request-id", "")
        self.encoding = self.headers.get("content-encoding", "")
        self.content_type = self.headers["content-type"]
        self._chunks = None

    @property
    def is_read(self) -> bool:
        return not self.chunks_to_send

    def chunks(self):
        if self._chunks is None:
            self._chunks = self._play()
        return self._chunks

    async def _play(self):
        for chunk in self.chunks_to_send:
            if isinstance(chunk, Exception):
                raise chunk
            if chunk == "hang":
                await asyncio.Event().wait()
            yield chunk

    async def read(self, limit: int) -> bytes:
        body = b""
        async for chunk in self.chunks():
            body += chunk
        if len(body) > limit:
            raise AttemptFailed(Failure("failed", "too large"))
        return body

    async def aclose(self) -> None:
        self.closed = True


class ScriptedUpstream:
    """Answers in turn; a Failure stands for a provider that cannot be reached."""

    def __init__(self, *answers: ScriptedAnswer | Failure) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[str, bytes, list]] = []

    async def post(self, provider, path, body, headers, query=""):
        self.calls.append((provider.name, body, headers))
        answer = self.answers.pop(0)
        if isinstance(answer, Failure):
            raise AttemptFailed(answer)
        answer.passed_headers = passed_headers(answer.headers, provider)
        return answer


class Alone:
    """What processes share, for one that is alone; keeps what it was told."""

    def __init__(self) -> None:
        self.states: dict[int, Any] = {}
        self.probes: set[int] = set()
        self.out: dict[int, str] = {}

    async def put(self, route_id, state):
        self.states[route_id] = state
        return True

    async def remove(self, route_id):
        self.states.pop(route_id, None)
        return True

    async def take_probe(self, route_id, for_s):
        taken = route_id in self.probes
        self.probes.add(route_id)
        return not taken

    async def give_probe(self, route_id):
        self.probes.discard(route_id)

    async def take_out(self, route_id, reason):
        self.out[route_id] = reason
        return True


def health_of(alone: Alone, spawn=asyncio.ensure_future, clock=None) -> RouteHealth:
    """A process's health of routes, with a clock of one's own (default: the loop's)."""
    return RouteHealth(alone, alone.take_out, spawn, clock or asyncio.get_running_loop().time)


class Outcome:
    """What a client got, and the run behind it."""

    def __init__(
        self, run: Run, messages: list[dict[str, Any]], upstream: ScriptedUpstream, remembered: list, unasked: set[int]
    ) -> None:
        self.run, self.messages, self.upstream = run, messages, upstream
        self.remembered, self.unasked = remembered, unasked

    @property
    def status(self) -> int:
        return self.messages[0]["status"]

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def complete(self) -> bool:
        return self.messages[-1].get("more_body") is False


QUESTIONS = {
    "chat_completions": {"messages": [{"role": "user", "content": "Say hello."}]},
    "responses": {"input": "Say hello."},
    "messages": {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 64},
}


def make_run(wire_format: str, send, *, stream: bool = True, request: dict | None = None, stall_s: float = 60.0) -> Run:
    wire = WIRE_FORMATS[wire_format]
    raw = json.dumps({"model": "m", "stream": stream, **QUESTIONS[wire_format], **(request or {})}).encode()

    async def name():
        return "req_1"

    loop = asyncio.get_running_loop()
    return Run(
        id=uuid.uuid4(), wire=wire, facts=wire.read_request(raw), raw=raw, key=key(),
        model=model(route(1), stall_s=stall_s, total_timeout_s=1), client=Client(send, name, loop.time),
        count=StreamCount(), headers=[], query="", started_at=dt.datetime.now(dt.UTC),
    )  # fmt: skip


async def relayed(
    wire_format: str,
    *answers: ScriptedAnswer | Failure,
    routes=None,
    watch=None,
    health=None,
    remember=None,
    attempts: int = 3,
    **options: Any,
) -> Outcome:
    """Relay one request against scripted answers; `watch` sees the live stream as the ticker would."""
    messages: list[dict[str, Any]] = []
    remembered: list[tuple[int, tuple[str, ...]]] = []

    async def send(message):
        messages.append(message)

    tasks: set[asyncio.Task] = set()

    def spawn(work):
        task = asyncio.ensure_future(work)
        tasks.add(task)
        return task

    run = make_run(wire_format, send, **options)
    health = health or health_of(Alone(), spawn)
    upstream, unasked = ScriptedUpstream(*answers), set[int]()
    relay_options = RelayOptions(
        upstream,
        watch if watch is not None else set(),
        asyncio.get_running_loop().time,
        spawn,
        1_000_000,
        1_000_000,
        unasked,
        health,
        remember or (lambda run, route, ids: remembered.append((route.id, ids))),
    )
    await relay(run, Plan(routes or [route(1)], attempts), relay_options)
    await asyncio.gather(*tasks)
    return Outcome(run, messages, upstream, remembered, unasked)
