"""The tokenizer thread: counts what streams produced and what requests held, away from the event loop.

Streams hand over their new text with each checkpoint; only sums stay. tiktoken gives the interpreter's lock up for most
of its time, so the loop goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from streaming.protocols.meter import InputContent
from streaming.protocols.tokens import CLAUDE_FACTOR, TextCounter, count

Texts = Mapping[Any, str]


class StreamCount:
    """The running counts of one request. Only the tokenizer thread touches it until `Counting.totals` has answered."""

    def __init__(self, claude: bool) -> None:
        self.factor = CLAUDE_FACTOR if claude else None
        self.input: int | None = None
        self.output = TextCounter()

    def scaled(self, tokens: int) -> int:
        """Tokens of the model's own tokenizer, from o200k ones."""
        return tokens if self.factor is None else round(tokens * self.factor)


class Counting:
    """One thread per process."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")

    def warm_up(self) -> None:
        """Load the vocabulary before the first request needs it."""
        self._thread.submit(count, "warm")

    def add(self, work: Sequence[tuple[StreamCount, Texts]]) -> Future[None]:
        """Count the new texts of many streams."""
        return self._thread.submit(_add, work)

    def add_input(self, stream: StreamCount, content: InputContent) -> Future[None]:
        """Count a request's input, once."""
        return self._thread.submit(_add_input, stream, content)

    def totals(self, stream: StreamCount, texts: Texts) -> Future[tuple[int, int]]:
        """Counted input and output after the last texts; behind all that was handed over before."""
        return self._thread.submit(_totals, stream, texts)

    def stop(self) -> None:
        """Finish what is queued and end the thread."""
        self._thread.shutdown(wait=True)


def _add(work: Sequence[tuple[StreamCount, Texts]]) -> None:
    for stream, texts in work:
        stream.output.add(texts)


def _add_input(stream: StreamCount, content: InputContent) -> None:
    stream.input = sum(count(text) for text in content.texts) + content.image_tokens


def _totals(stream: StreamCount, texts: Texts) -> tuple[int, int]:
    stream.output.add(texts)
    return stream.scaled(stream.input or 0), stream.scaled(stream.output.total(final=True))
