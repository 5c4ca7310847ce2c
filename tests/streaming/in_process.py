"""The gateway within a test's own process: a client without a socket before it, a provider of a few lines behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from billing import keys
from billing.models import Account
from streaming.configuration import apply
from streaming.consumers import RelayConsumer
from streaming.gateway import Gateway
from streaming.protocols import MESSAGES
from tests.streaming.test_relay import ENDING, PRELUDE


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Gateway]:
    """A gateway of the test's own, with the settings of this moment; a real one, with database and threads."""
    gateway = Gateway()
    try:
        yield gateway
    finally:
        await gateway.aclose()


class SlowProvider:
    """Streams a Messages prelude and an output, and after `goes_on` the ending, or cuts; keeps nothing of a request."""

    def __init__(self, output: bytes, *, cuts: bool = False) -> None:
        self.goes_on = asyncio.Event()
        self.url = ""
        self._output, self._cuts = output, cuts

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[SlowProvider]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, limit=2**20)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with server:
            yield self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:] if line)
        await reader.readexactly(int(lines["content-length"]))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        writer.write(PRELUDE["messages"] + self._output)
        await writer.drain()
        await self.goes_on.wait()
        writer.write(b"" if self._cuts else ENDING["messages"])
        await writer.drain()
        writer.close()


def configured(url: str, model: str) -> str:
    """A model with one route, to that provider; returns a key's secret."""
    configuration = {
        "providers": [{"name": "acme", "base_url": url, "api_key": "sk-acme", "wire_formats": ["messages"]}],
        "models": [{"name": model, "routes": [{"provider": "acme", "upstream_model": model}]}],
    }
    apply(json.dumps(configuration).encode(), variables=None)
    return keys.create(Account.objects.create(name="northwind", timezone="UTC"), "production")[1]


def request_body(model: str, question: str) -> bytes:
    messages = [{"role": "user", "content": question}]
    return json.dumps({"model": model, "stream": True, "max_tokens": 5, "messages": messages}).encode()


class Client:
    """An HTTP client without a socket: what the server calls the application with, one POST to /v1/messages."""

    def __init__(self, gateway: Gateway, secret: str, body: bytes) -> None:
        self.sent: list[dict[str, Any]] = []
        self._bodies = [body]
        scope = {
            "type": "http", "method": "POST", "path": "/v1/messages", "query_string": b"", "client": ("127.0.0.1", 1),
            "headers": [(b"authorization", b"Bearer " + secret.encode())], "url_route": {"kwargs": {}},
        }  # fmt: skip

        class Consumer(RelayConsumer):
            gateway_now = staticmethod(lambda: gateway)

        self.answered = asyncio.ensure_future(Consumer.as_asgi(wire=MESSAGES)(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._bodies:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self._bodies.pop(), "more_body": False}

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


async def until(true: Callable[[], bool]) -> None:
    """TimeoutError where it does not come true."""
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)
