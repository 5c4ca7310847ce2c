"""Clients on bare sockets, which read byte for byte, write what no SDK would, and leave when they like."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import time
from typing import Any, Protocol, Self

from tests.end_to_end.formats import PATHS


class Listening(Protocol):
    """A gateway, or what stands in front of one, on this host."""

    @property
    def port(self) -> int: ...


def request_bytes(path: str, key: str, body: Any, **headers: str) -> bytes:
    """A POST as it goes over the wire."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"host": "gateway", "authorization": f"Bearer {key}", "content-type": "application/json", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in sent.items())
    return f"POST {path} HTTP/1.1\r\n{lines}content-length: {len(content)}\r\n\r\n".encode() + content


class Dechunker:
    """Takes chunked bytes, gives the body's; `over` once the last chunk came."""

    def __init__(self) -> None:
        self._left, self.over = b"", False

    def feed(self, data: bytes) -> bytes:
        self._left += data
        body = b""
        while b"\r\n" in self._left and not self.over:
            size_line, _, rest = self._left.partition(b"\r\n")
            size = int(size_line, 16)
            if len(rest) < size + 2:
                break
            body, self._left, self.over = body + rest[:size], rest[size + 2 :], size == 0
        return body


class RawClient:
    """One request on a socket of its own; a `narrow` one takes in next to nothing that is not read.

    `tls`: how to speak it, to a proxy in front of a gateway.
    """

    def __init__(
        self, gateway: Listening, wire: str, key: str, body: Any, *,
        narrow: bool = False, tls: ssl.SSLContext | None = None, **headers: str,
    ) -> None:  # fmt: skip
        self._socket = socket.socket()
        self._socket.settimeout(15)
        if narrow:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect(("127.0.0.1", gateway.port))
        self.port = self._socket.getsockname()[1]
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket)
        self._socket.sendall(request_bytes(PATHS[wire], key, body, **headers))
        self._dechunker = Dechunker()
        self._received = b""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.arrivals: list[tuple[float, bytes]] = []
        """What came of the body, and when."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.arrivals)

    @property
    def request_id(self) -> str:
        return self.headers["x-request-id"]

    def read_head(self) -> None:
        """Until status and headers are there."""
        while b"\r\n\r\n" not in self._received:
            self._received += self._read()
        head, _, rest = self._received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._take(rest)

    def read_until(self, text: bytes, beyond: int = 0) -> bytes:
        """Read the stream until a text is in it, `beyond` so many bytes; returns what the body holds then."""
        if not self.status:
            self.read_head()
        assert self.status == 200, self._received
        while text not in self.body[beyond:]:
            assert not self._dechunker.over, self.body
            self._take(self._read())
        return self.body

    def read_all(self) -> bytes:
        """Read the stream to its proper end."""
        if not self.status:
            self.read_head()
        while not self._dechunker.over:
            self._take(self._read())
        return self.body

    def read_some(self, most: int) -> None:
        """Take what has come, and forget it."""
        self._socket.recv(most)

    def leave(self, reset: bool = False) -> float:
        """Close the connection, with a reset or without; returns when, of `time.monotonic`."""
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()
        return time.monotonic()

    def _read(self) -> bytes:
        data = self._socket.recv(65536)
        assert data, f"the gateway closed the connection after {self._received!r} {self.body!r}"
        return data

    def _take(self, data: bytes) -> None:
        body = self._dechunker.feed(data)
        if body:
            self.arrivals.append((time.monotonic(), body))


async def read_stream(port: int, request: bytes) -> tuple[dict[str, str], bytes]:
    """Send a request and read the stream to its end, as one of many: headers and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n"))
        }
        dechunker, body = Dechunker(), b""
        while not dechunker.over:
            data = await reader.read(65536)
            assert data, f"cut after {body!r}"
            body += dechunker.feed(data)
        return headers, body
    finally:
        writer.close()
