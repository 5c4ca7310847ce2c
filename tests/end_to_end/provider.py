"""A fake provider that is exact to the byte: a thread with an event loop of its own, HTTP/1.1 with keep-alive.

It answers each call with the steps of a scene, which a `Stage` picks by the call, and keeps of every call what it was
asked and when the gateway closed the connection. Nothing in it is shared with the product.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}
STREAM_TYPE = ("content-type", "text/event-stream; charset=utf-8")


@dataclass(eq=False)
class Call:
    """One request of the gateway. Times are of `time.monotonic`."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float
    left_at: float | None = None
    """When the gateway closed the connection before the answer was over; None where it did not."""
    over: bool = False
    left: threading.Event = field(default_factory=threading.Event)

    @cached_property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def model(self) -> str:
        return str(self.json["model"])

    @property
    def streams(self) -> bool:
        return bool(self.json.get("stream"))


@dataclass(frozen=True)
class Head:
    """Status and headers; the body follows in chunks."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = (STREAM_TYPE,)


@dataclass(frozen=True)
class Send:
    """Bytes of the body, in pieces of `size` (0: at once)."""

    data: bytes
    size: int = 0


@dataclass(frozen=True)
class Whole:
    """A whole answer with its length announced."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Meet:
    """Wait until so many calls of the same scene have come this far."""

    count: int


@dataclass(frozen=True)
class Cut:
    """Close the connection where it stands, the body unfinished."""


@dataclass(frozen=True)
class Reset:
    """Break the connection off with a reset."""


@dataclass(frozen=True)
class Raw:
    """Bytes as they are, past all framing: what no HTTP server would write."""

    data: bytes


Step = Head | Send | Whole | Pause | Meet | Cut | Reset | Raw
Stage = Callable[[Call], Iterable[Step]]


class Provider:
    """The running fake provider: `base_url`, and `calls` as they came."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.calls: list[Call] = []
        self.came = threading.Condition()
        self.meetings: dict[str, tuple[list[Connection], asyncio.Event]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="provider", daemon=True)
        self._ready = threading.Event()
        self.port = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Provider:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _listen(self) -> None:
        server = await self._loop.create_server(lambda: Connection(self), "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()

    def note(self, call: Call) -> None:
        """A call came in."""
        with self.came:
            self.calls.append(call)
            self.came.notify_all()

    @property
    def running(self) -> list[Call]:
        """The calls that are neither answered nor given up."""
        with self.came:
            return [call for call in self.calls if not call.over and call.left_at is None]

    def calls_with(self, mark: str) -> list[Call]:
        """The calls whose body holds a text, in their order."""
        with self.came:
            return [call for call in self.calls if mark.encode() in call.body]

    def call_with(self, mark: str, timeout_s: float = 10) -> Call:
        """The first call whose body holds a text, waited for."""
        deadline = time.monotonic() + timeout_s
        with self.came:
            while not (found := self.calls_with(mark)):
                assert self.came.wait(max(0.0, deadline - time.monotonic())), f"no call with {mark!r}"
        return found[0]


class Connection(asyncio.Protocol):
    """One connection of the gateway: reads a request, plays its scene, reads the next."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._received, self._wanted = bytearray(), 0
        self._call: Call | None = None
        self._playing: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._chunked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        if self._call is not None and not self._call.over:
            self._call.left_at = time.monotonic()
            self._call.left.set()
        if self._playing is not None:
            self._playing.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._playing is None and len(self._received) >= self._wanted:
            self._next()

    def _next(self) -> None:
        """Begin with the next request, once it is all there."""
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            self._wanted = len(self._received) - len(rest) + length
            return
        self._received, self._wanted = rest[length:], 0
        self._call = Call(first.split(" ")[1], headers, bytes(rest[:length]), time.monotonic())
        self._provider.note(self._call)
        self._playing = asyncio.ensure_future(self._play(self._call))

    async def _play(self, call: Call) -> None:
        self._chunked = False
        for step in self._provider.stage(call):
            await self._do(step, call)
            if call.over:
                return
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")
        call.over, self._playing = True, None
        self._next()

    async def _do(self, step: Step, call: Call) -> None:
        match step:
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Head(status, headers):
                self._chunked = True
                self._write_head(status, (*headers, ("transfer-encoding", "chunked")))
            case Whole(status, body, headers):
                self._write_head(status, (*headers, ("content-length", str(len(body)))))
                self._transport.write(body)
            case Send(data, size):
                await self._send(data, size)
            case Meet(count):
                await self._meet(call.model, count)
            case Raw(data):
                self._transport.write(data)
            case Cut():
                call.over = True
                self._transport.close()
            case Reset():
                call.over = True
                self._break_off()

    def _break_off(self) -> None:
        connection = self._transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    async def _meet(self, model: str, count: int) -> None:
        met, everyone = self._provider.meetings.setdefault(model, ([], asyncio.Event()))
        met.append(self)
        if len(met) == count:
            everyone.set()
        await everyone.wait()

    def _write_head(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        self._transport.write(f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}\r\n{lines}\r\n".encode("latin-1"))

    async def _send(self, data: bytes, size: int) -> None:
        for start in range(0, len(data), size or len(data)):
            piece = data[start : start + (size or len(data))]
            self._transport.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await asyncio.sleep(0)
            await self._writable.wait()
