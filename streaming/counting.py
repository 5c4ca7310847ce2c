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
from streaming.protocols.tokens import TextCounter, count, scaled

Texts = Mapping[Any, str]
Given = ParamSpec("Given")
Result = TypeVar("Result")


class StreamCount:
    """The running counts of one request. What is to be counted is handed over on the loop, and counted by a thread.

    `factor_ppm`: tokens of the model's own tokenizer per million of o200k, one for the whole life of the request; None
    where o200k is its tokenizer, or the nearest that we have.
    """

    def __init__(self, factor_ppm: int | None = None) -> None:
        self.factor_ppm = factor_ppm
        self.input: int | None = None
        self.output = TextCounter()
        self._waiting: deque[Texts] = deque()
        self._content: Callable[[], InputContent] | None = None
        # The checkpoint's thread and the bill's may meet at one stream; its output does not wait for its input.
        self._counting_input, self._counting_output = threading.Lock(), threading.Lock()

    def hand_over(self, texts: Texts, content: Callable[[], InputContent] | None = None) -> None:
        """New output, and the input where it is to be counted now: both wait to be counted."""
        if texts:
            self._waiting.append(texts)
        if content is not None and self.input is None:
            self._content = content

    def count_input(self) -> None:
        """Count the input, if it was handed over and nobody has; then forget it. An image's tokens are the model's."""
        with self._counting_input:
            given, self._content = self._content, None
            if given is not None and self.input is None:
                content = given()
                self.input = self._scaled(sum(count(text) for text in content.texts)) + content.image_tokens

    def count_output(self) -> None:
        """Count the texts that were handed over, in their order, whoever comes first."""
        with self._counting_output:
            while self._waiting:
                self.output.add(self._waiting.popleft())

    def so_far(self, final: bool = False) -> tuple[int, int]:
        """Input and output in tokens of the model's own tokenizer; `final`: no more output follows."""
        with self._counting_output:
            return self.input or 0, self._scaled(self.output.total(final=final))

    def _scaled(self, tokens: int) -> int:
        return tokens if self.factor_ppm is None else scaled(tokens, self.factor_ppm)


class Counting:
    """One thread for checkpoints, and a few each for whole inputs and for the bills that wait for a count.

    An input of many megabytes keeps a thread busy for seconds; neither the checkpoints nor the bills of others stand
    behind it.
    """

    def __init__(self) -> None:
        self._checkpoints = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")
        self._inputs = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenizer-inputs")
        self._bills = ThreadPoolExecutor(max_workers=4, thread_name_prefix="tokenizer-bills")
        self._warm: Future[int] | None = None

    def warm_up(self) -> None:
        """Load the vocabulary before the first request needs it; what comes meanwhile waits, and loads no other."""
        self._warm = self._checkpoints.submit(count, "warm")

    def submit(self, work: Callable[Given, Result], *arguments: Given.args, **named: Given.kwargs) -> Future[Result]:
        """Do what counts many streams, behind all that was submitted before."""
        return self._checkpoints.submit(work, *arguments, **named)

    def count_input(self, stream: StreamCount) -> Future[None]:
        """Count a request's input, which was handed over."""
        return self._inputs.submit(self._when_warm, stream.count_input)

    def totals(
        self, stream: StreamCount, texts: Texts, content: Callable[[], InputContent] | None = None, *, bill: bool = True
    ) -> Future[tuple[int, int]]:
        """Counted input and output after the last texts; `content` is the input, for when it is not counted yet.

        `bill`: somebody waits for the figures; else they come when the checkpoints are counted, and the input is what
        is counted of it by then.
        """
        stream.hand_over(texts, content)
        if bill:
            return self._bills.submit(self._when_warm, _all_counted, stream)
        return self._checkpoints.submit(_output_counted, stream)

    def _when_warm(self, work: Callable[Given, Result], *arguments: Given.args, **named: Given.kwargs) -> Result:
        if self._warm is not None:
            self._warm.result()
        return work(*arguments, **named)

    def stop(self) -> None:
        """Finish what is queued and end the threads; all bills are written, so that no input is of use any more."""
        self._inputs.shutdown(wait=True, cancel_futures=True)
        self._checkpoints.shutdown(wait=True)
        self._bills.shutdown(wait=True)


def _all_counted(stream: StreamCount) -> tuple[int, int]:
    stream.count_input()
    return _output_counted(stream)


def _output_counted(stream: StreamCount) -> tuple[int, int]:
    stream.count_output()
    return stream.so_far(final=True)
