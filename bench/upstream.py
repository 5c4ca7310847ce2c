"""The provider of the benchmark: prepared chunks, written by a raw asyncio server. `python -m bench.upstream FD`.

What it does is in the name of the model that is asked for: `paced` (a chunk each 20 ms), `burst` (all at once), `idle`
(one chunk, then silence until the client leaves); what follows the word does not matter.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import cast

import uvloop

CHUNKS = 50
INTERVAL_S = 0.02
PROMPT_TOKENS = 14
EVENTS = CHUNKS + 3
"""With the finish, the usage and `[DONE]`."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(**fields: object) -> bytes:
    event = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": "bench", **fields}
    return _chunk(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")


def _choice(finish: str | None = None, **delta: str) -> bytes:
    return _event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


def prepared() -> list[bytes]:
    """The events of a stream, as HTTP chunks. The role comes with the first word."""
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": CHUNKS, "total_tokens": PROMPT_TOKENS + CHUNKS}
    first = _choice(role="assistant", content="word0")
    words = [_choice(content=f" word{position}") for position in range(1, CHUNKS)]
    end = [_choice("stop"), _event(choices=[], usage=usage), _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"]
    return [first, *words, *end]


class Upstream(asyncio.Protocol):
    """Answers every request whose body has come in with the same stream; keeps the connection."""

    events = prepared()
    at_once = HEAD + b"".join(prepared())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._received = cast(asyncio.Transport, transport), b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, rest = self._received.partition(b"\r\n\r\n")
        if not separator:
            return
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        length = int(lengths[0]) if lengths else 0
        if len(rest) < length:
            return
        self._received = rest[length:]
        if b'"burst' in rest:
            self._transport.write(self.at_once)
        elif b'"idle' in rest:
            self._transport.write(HEAD + self.events[0])
        else:
            self._running = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        self._transport.write(HEAD)
        for event in self.events:
            if self._transport.is_closing():
                return
            self._transport.write(event)
            await asyncio.sleep(INTERVAL_S)


async def main(fd: int) -> None:
    """Serve on an inherited listener."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Upstream, sock=socket.socket(fileno=fd))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
