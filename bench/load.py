"""The clients of the benchmark: raw asyncio, so many streams at a time, for so long."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

LAST_CHUNK = b"0\r\n\r\n"
PROMPT = "hello"


@dataclass
class Outcome:
    """What the clients saw. Times in milliseconds; `took_s` is from the first request to the last answer's end."""

    streams: int = 0
    events: int = 0
    failures: int = 0
    took_s: float = 0.0
    first_ms: list[float] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        ordered = sorted(self.first_ms) or [0.0]
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2)


def request(key: str, model: str, prompt: str = PROMPT) -> bytes:
    """One request's bytes; the clients ask for the usage, so that nothing needs to be taken out of the stream."""
    body = {
        "model": model, "stream": True, "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": prompt}],
    }  # fmt: skip
    raw = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw


async def run(port: int, sent: bytes, streams: int, seconds: float, spread_s: float = 0.5) -> Outcome:
    """Run the load; each client starts a little later than the one before, over `spread_s`."""
    outcome, began = Outcome(), time.monotonic()
    until = began + seconds
    clients = (_client(port, sent, spread_s * place / streams, until, outcome) for place in range(streams))
    await asyncio.gather(*clients)
    outcome.took_s = time.monotonic() - began
    return outcome


async def _client(port: int, sent: bytes, delay_s: float, until: float, outcome: Outcome) -> None:
    await asyncio.sleep(delay_s)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < until:
        began = time.perf_counter()
        writer.write(sent)
        try:
            whole = await _read(reader, began, outcome)
        except ConnectionError:
            whole = False
        if not whole:
            outcome.failures += 1
            break
    writer.close()


async def _read(reader: asyncio.StreamReader, began: float, outcome: Outcome) -> bool:
    """Read one stream to its last chunk; whether it came whole."""
    first: float | None = None
    events, tail = 0, b""
    while not tail.endswith(LAST_CHUNK):
        data = await reader.read(65_536)
        if not data:
            return False
        if first is None and b"data:" in data:
            first = time.perf_counter() - began
        events += data.count(b"data:")
        tail = (tail + data)[-len(LAST_CHUNK) :]
    if first is None:
        return False
    outcome.streams += 1
    outcome.events += events
    outcome.first_ms.append(first * 1000)
    return True


class Idle:
    """Streams that have begun and say nothing more."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, port: int, sent: bytes, streams: int) -> None:
        """Open so many more, one after the other, each up to its first event."""
        for _ in range(streams):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            await reader.readuntil(b"data:")
            self._writers.append(writer)

    def leave(self) -> None:
        for writer in self._writers:
            writer.close()
