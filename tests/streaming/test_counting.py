"""What counting costs: time linear in the text whatever it is, and no text kept however long a stream goes on."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import gc
import json
import random
import time
import tracemalloc
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from billing.ledger import Checkpoint, ProcessRow, Told
from streaming.checkpoints import Checkpoints
from streaming.counting import Counting
from streaming.passage import Passage
from streaming.protocols import WIRE_FORMATS
from streaming.protocols.meter import MeterOptions
from streaming.protocols.tokens import TextCounter, count, encoding
from streaming.runs import Live, Run
from tests.streaming.entries import route
from tests.streaming.runs import make_run

START = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)


def drawn(letters: str, length: int) -> str:
    return "".join(random.Random(7).choices(letters, k=length))


HOSTILE: dict[str, Callable[[int], str]] = {
    "one small letter": lambda n: "a" * n,
    "one capital": lambda n: "A" * n,
    "one digit": lambda n: "7" * n,
    "one sign": lambda n: "!" * n,
    "spaces": lambda n: " " * n,
    "spaces before a word": lambda n: " " * (n - 1) + "x",
    "line ends": lambda n: "\n" * n,
    "tabs": lambda n: "\t" * n,
    "all white space": lambda n: drawn(" \n\t\r\u00a0\u3000", n),
    "long runs of spaces": lambda n: (" " * 999 + "x") * (n // 1000),
    "wide spaces": lambda n: "\u3000" * n,
    "emoji": lambda n: "😀" * n,
    "joined emoji": lambda n: "👨\u200d👩\u200d" * (n // 4),
    "one ideograph": lambda n: "的" * n,
    "ideographs": lambda n: drawn("燈塔看守人每天傍晚都會記下天氣就算什麼事也沒有發生", n),
    "marks": lambda n: "e" + "\u0301" * (n - 1),
    "letters": lambda n: drawn("abcdefghijklmnopqrstuvwxyz", n),
    "base64": lambda n: base64.b64encode(random.Random(7).randbytes(n * 3 // 4)).decode(),
    "half emoji": lambda n: "\ud83d" * n,
    "rare letters": lambda n: drawn("".join(map(chr, range(0x10000, 0x1F000))), n),
    "slashes and line ends": lambda n: "!" + "\n/" * (n // 2),
    "NUL": lambda n: "\0" * n,
}


class TestTime:
    """Four times the text may take ten times as long, not sixteen; by this thread's own clock, so that load counts
    little."""

    @staticmethod
    def took_s(text: str) -> float:
        encoding()  # read once, which is not counting
        took = []
        for _ in range(3):
            began = time.thread_time()
            count(text)
            took.append(time.thread_time() - began)
        return min(took)

    @pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
    def test_tokenizer_is_linear(self, make: Callable[[int], str]) -> None:
        short, long = make(8_000), make(32_000)  # both in one slice
        assert self.took_s(long) < 10 * self.took_s(short) + 0.005

    @pytest.mark.parametrize("name", ["spaces", "one small letter", "base64"])
    def test_megabytes_go_in_slices(self, name: str) -> None:
        short, long = HOSTILE[name](250_000), HOSTILE[name](1_000_000)
        assert self.took_s(long) < 10 * self.took_s(short)


class TestWork:
    """Characters that the tokenizer is given, with a checkpoint after each piece of a stream."""

    @staticmethod
    def work(text: str, size: int = 100, key: Callable[[int], int] = lambda at: 0) -> int:
        given: list[int] = []

        def spy(piece: str) -> int:
            given.append(len(piece))
            return 1

        counter = TextCounter(spy)
        for at in range(0, len(text), size):
            counter.add({key(at): text[at : at + size]})
            counter.total()
        counter.total(final=True)
        assert sum(given) >= len(text)
        return sum(given)

    @pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
    def test_grows_with_the_text(self, make: Callable[[int], str]) -> None:
        assert self.work(make(80_000)) < 5 * self.work(make(20_000))

    def test_each_piece_is_another_block(self) -> None:
        """As many content blocks, choices or tool calls as a provider likes."""
        by_block = {n: self.work("lighthouse" * (n // 10), size=10, key=lambda at: at) for n in (20_000, 80_000)}
        assert by_block[80_000] < 5 * by_block[20_000]

    def test_blocks_keep_no_text(self) -> None:
        counter = TextCounter()
        for block in range(1_000):
            counter.add({block: "lighthouse"})
        assert len(counter._rests) == TextCounter.MOST_RESTS
        assert counter.total(final=True) == 1_000 * count("lighthouse")


WORDS = ("the ", " harbour", "燈塔", "ab", "\n", "🙂", " 12", "_x")


def chunk(wire_format: str, number: int) -> bytes:
    """One small delta as a provider sends it."""
    text = WORDS[number % len(WORDS)]
    body: dict[str, Any]
    if wire_format == "chat_completions":
        body = {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": {"content": text}}]}
        return b"data: " + json.dumps(body).encode() + b"\n\n"
    if wire_format == "responses":
        kind = "response.output_text.delta"
        body = {"type": kind, "output_index": 0, "content_index": 0, "delta": text, "sequence_number": number}
    else:
        kind = "content_block_delta"
        body = {"type": kind, "index": 0, "delta": {"type": "text_delta", "text": text}}
    return f"event: {kind}\ndata: {json.dumps(body)}\n\n".encode()


class LongStream:
    """A stream as the gateway leads it: framed, metered, and counted with each checkpoint."""

    def __init__(self, wire_format: str) -> None:
        self.wire_format, self.fed = wire_format, 0
        self.counting = Counting()
        self.run = self._run(wire_format)
        assert self.run.live is not None
        assert self.run.live.passage is not None
        self.live, self.passage = self.run.live, self.run.live.passage
        self.checkpoints = Checkpoints(
            ProcessRow(uuid.UUID(int=7), "gw:1", START), {self.run}, self.counting, self._write, lambda run: None,
            lambda: float(self.fed),
        )  # fmt: skip

    @staticmethod
    def _run(wire_format: str) -> Run:
        async def send(message: Any) -> None:
            raise AssertionError("nothing is sent")

        run = make_run(wire_format, send)
        passage = Passage(run.wire.Meter(MeterOptions("m")), 1_000_000, tuple)
        run.opened = SimpleNamespace()  # type: ignore[assignment]
        run.attempts = [SimpleNamespace(number=1, route=route(1), started_at=START, provider_request_id="")]  # type: ignore[list-item]
        run.live = Live(run, None, 60, 0.0, 0.0, passage)  # type: ignore[arg-type]
        run.produced = True
        return run

    @staticmethod
    def _write(checkpoint: Checkpoint) -> Future[Told]:
        written: Future[Told] = Future()
        written.set_result(Told())
        return written

    async def feed(self, chunks: int, per_checkpoint: int = 500) -> None:
        for _ in range(chunks):
            assert self.passage.feed(chunk(self.wire_format, self.fed))
            self.live.last_output = self.fed
            self.fed += 1
            if self.fed % per_checkpoint == 0:
                self.checkpoints.round()
                await asyncio.wrap_future(self.counting.submit(int))


@pytest.mark.parametrize("wire_format", WIRE_FORMATS)
async def test_memory_is_flat(wire_format: str) -> None:
    """100,000 deltas; the last 10,000 leave nothing behind, though they say 25,000 characters."""
    stream = LongStream(wire_format)
    await stream.feed(90_000)
    gc.collect()
    tracemalloc.start(1)
    await stream.feed(10_000)
    gc.collect()
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stream.counting.stop()
    assert left < 10_000
    assert stream.run.counted is not None
    assert stream.run.counted[1] == pytest.approx(count("".join(WORDS) * (100_000 // len(WORDS))), rel=0.002)
