"""The tokenizer's threads: they count what streams produced and what requests held, away from the event loop.

Streams hand over their new text with each checkpoint; only sums stay. tiktoken gives the interpreter's lock up for most
of its time, so the loop goes on meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from streaming.protocols.meter import InputContent
from streaming.protocols.tokens import CLAUDE_FACTOR, TextCounter, count

Texts = Mapping[Any, str]
Given = ParamSpec("Given")
Result = TypeVar("Result")


class StreamCount:
    """The running counts of one request. What is to be counted is handed over on the loop, and counted by a thread."""

    def __init__(self, claude: bool) -> None:
        self.factor = CLAUDE_FACTOR if claude else None
        self.input: int | None = None
        self.output = TextCounter()
        self._waiting: deque[Texts] = deque()
        self._content: Callable[[], InputContent] | None = None
        self._counting = threading.Lock()  # the checkpoint's thread and the bill's may meet at one stream

    def hand_over(self, texts: Texts, content: Callable[[], InputContent] | None = None) -> None:
        """New output, and the input where it is to be counted now: both wait for the next `count_waiting`."""
        if texts:
            self._waiting.append(texts)
        self._content = content or self._content

    def count_waiting(self) -> None:
        """Count what was handed over, in its order, whoever comes first."""
        with self._counting:
            if self._content is not None and self.input is None:
                content = self._content()
                self.input = sum(count(text) for text in content.texts) + content.image_tokens
                self._content = None
            while self._waiting:
                self.output.add(self._waiting.popleft())

    def scaled(self, tokens: int) -> int:
        """Tokens of the model's own tokenizer, from o200k ones."""
        return tokens if self.factor is None else round(tokens * self.factor)

    def so_far(self, final: bool = False) -> tuple[int, int]:
        """Input and output in tokens of the model's own tokenizer; `final`: no more output follows."""
        with self._counting:
            return self.scaled(self.input or 0), self.scaled(self.output.total(final=final))


class Counting:
    """One thread for checkpoints, and a few for the bills that wait for a count.

    A stream of pathological text keeps a thread busy for seconds; the bills of others do not stand behind it.
    """

    def __init__(self) -> None:
        self._checkpoints = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")
        self._bills = ThreadPoolExecutor(max_workers=4, thread_name_prefix="tokenizer-bills")

    def warm_up(self) -> None:
        """Load the vocabulary before the first request needs it."""
        self._checkpoints.submit(count, "warm")

    def submit(self, work: Callable[Given, Result], *arguments: Given.args, **named: Given.kwargs) -> Future[Result]:
        """Do what counts many streams, behind all that was submitted before."""
        return self._checkpoints.submit(work, *arguments, **named)

    def totals(
        self, stream: StreamCount, texts: Texts, content: Callable[[], InputContent] | None = None, *, bill: bool = True
    ) -> Future[tuple[int, int]]:
        """Counted input and output after the last texts; `content` is the input, for when it is not counted yet.

        `bill`: somebody waits for the figures; else they come when the checkpoints are counted.
        """
        stream.hand_over(texts, content)
        return (self._bills if bill else self._checkpoints).submit(_totals, stream)

    def stop(self) -> None:
        """Finish what is queued and end the threads."""
        self._checkpoints.shutdown(wait=True)
        self._bills.shutdown(wait=True)


def _totals(stream: StreamCount) -> tuple[int, int]:
    stream.count_waiting()
    return stream.so_far(final=True)
