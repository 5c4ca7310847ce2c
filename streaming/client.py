"""The client's side of a request: what was written to it, and since when it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from streaming.errors import ApiError

KEEPALIVE = b": hopbase-keepalive\n"
STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Clock = Callable[[], float]
Headers = Sequence[tuple[bytes, bytes]]


class Client:
    """The client's side of a run: writes in order, never two at a time, and knows since when it waits.

    `headers` go out with the status, and `limits` beside them: what our own limits leave, before what a provider's do.
    `before_end` is called just before the last bytes: who reads them may send the next request at once.
    `name` resolves to the request's id once the open row is committed; it is awaited just before the first byte.
    """

    def __init__(self, send: Send, name: Callable[[], Awaitable[str]], clock: Clock) -> None:
        self._send, self._name, self._clock = send, name, clock
        self.started = False
        self.left = False
        self.ended = False
        self.last_write = clock()
        self.writing_since: float | None = None
        self.headers: Mapping[str, str] = {}
        self.limits: Mapping[str, str] = {}
        self.before_end: Callable[[], None] = lambda: None
        self._keepalive: asyncio.Task[None] | None = None
        self._is_ending = False

    def wait_for_name(self, name: Callable[[], Awaitable[str]]) -> None:
        """The request's id will be known when its open row is."""
        self._name = name

    def rename(self, name: str) -> None:
        """Bear a name that nothing is waited for."""

        async def fixed() -> str:
            return name

        self._name = fixed

    async def request_name(self) -> str:
        """The request's id, once its open row is committed; ApiError when it cannot be."""
        return await self._name()

    async def start(self, status: int, headers: Headers) -> None:
        """Commit the status. The provider's passed headers and the request's id go with it."""
        name = (await self._name()).encode()
        if self.started or self.left:
            return
        self.started = True
        named = {**self.headers, **self.limits}
        passed = [(key.encode("latin-1"), value.encode("latin-1")) for key, value in named.items()]
        ids = [(b"x-request-id", name), (b"request-id", name)]
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *passed, *ids]})

    async def write(self, data: bytes, more: bool = True) -> None:
        """Write whole events of a stream; waits as long as the client does not read."""
        if self._keepalive is not None:
            await asyncio.wait((self._keepalive,))
        if self.left or self.ended:
            return
        self.writing_since = self._clock()
        try:
            if not self.started:
                await self.start(200, STREAM_HEADERS)
            self.ended = not more
            if not more:
                self.before_end()
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
        finally:
            self.writing_since = None
            self.last_write = self._clock()

    async def is_committed(self) -> bool:
        """Whether the status is out, now that the request ends with an error: no keepalive commits it any more."""
        self._is_ending = True
        if self._keepalive is not None:
            await asyncio.wait((self._keepalive,))
        return self.started

    async def answer(
        self, status: int, headers: Headers, body: bytes, linger: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Write a whole answer. `linger` is waited for before the server may close the connection."""
        if self.left or self.ended:
            return
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        self.ended = True
        self.before_end()
        if linger is not None:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            await linger()
            body = b""
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def keepalive(self, one_line_end: bool) -> None:
        """Write a comment between two events, without waiting for it; the next write does."""
        if self._keepalive is None and not (self.left or self.ended or self._is_ending):
            self._keepalive = asyncio.ensure_future(
                self._write_keepalive(KEEPALIVE if one_line_end else KEEPALIVE + b"\n")
            )

    async def _write_keepalive(self, comment: bytes) -> None:
        self.writing_since = self._clock()
        try:
            if not self.started:
                await self.start(200, STREAM_HEADERS)
            if not self.left:
                await self._send({"type": "http.response.body", "body": comment, "more_body": True})
        except ApiError:
            return  # the open row cannot be written; the relay's own first write says so to the client
        finally:
            self.writing_since = None
            self.last_write = self._clock()
            self._keepalive = None
