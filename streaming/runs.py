"""A client request over all its attempts, and what the ticker sees of it.

A `Run` outlives whatever cancels the relay: what it holds when the relay ends is what gets settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from billing.catalogue import KeyEntry
from billing.ledger import OpenRow
from billing.usage import ReportedUsage, TokenUsage
from streaming.catalogue import ModelEntry, RouteEntry
from streaming.client import Client
from streaming.counting import StreamCount
from streaming.errors import Failure
from streaming.limits import Hold
from streaming.passage import Passage
from streaming.protocols import WireFormat
from streaming.protocols.meter import Answer, RequestFacts, StreamMeter

Interruption = Literal["stalled", "slow_reader", "patience", "drained", "stopped", "shutdown"]


@dataclass(slots=True)
class AttemptReport:
    """One upstream call, as it went. Times are the loop's, in seconds. `usage` and `tokens`: what it reported, raw and
    in buckets."""

    number: int
    route: RouteEntry
    started_at: dt.datetime
    began: float
    outcome: str = "failed"
    status: int | None = None
    reason: str = ""
    provider_request_id: str = ""
    headers_at: float | None = None
    first_output_at: float | None = None
    ended: float | None = None
    usage: Mapping[str, Any] | None = None
    object_ids: Sequence[str] = ()
    tokens: TokenUsage | None = None


@dataclass(slots=True, eq=False)
class Run:
    """One client request, from its admission to its bill.

    `ending` is "" until it is known; `meter` reads the attempt that the client gets, `answer` is a non-stream one;
    `drains` is the provider whose drain place a run without a client takes. `opened` is its open row, if it is billed;
    `told` what the last checkpoint said of it, `counted` the tokens of input and output then, `input_handed` whether
    its input has gone to be counted; `hold` is what it holds of its key's limits.
    """

    id: UUID
    wire: WireFormat
    facts: RequestFacts
    raw: bytes
    key: KeyEntry
    model: ModelEntry
    client: Client
    count: StreamCount
    headers: Sequence[tuple[bytes, bytes]]
    query: str
    started_at: dt.datetime
    retry_count: int = 0
    attempts: list[AttemptReport] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    meter: StreamMeter | None = None
    answer: Answer | None = None
    produced: bool = False
    client_left: bool = False
    drains: int | None = None
    ending: str = ""
    reason: str = ""
    first_output_at: dt.datetime | None = None
    live: Live | None = None
    opened: OpenRow | None = None
    told: tuple[int, float | None, ReportedUsage | None, str] | None = (1, None, None, "")
    counted: tuple[int, int] | None = None
    input_handed: bool = False
    hold: Hold | None = None

    @property
    def route(self) -> RouteEntry | None:
        """The route of the last attempt."""
        return self.attempts[-1].route if self.attempts else None


@dataclass(slots=True, eq=False)
class Live:
    """What the ticker looks at, from `next_look` on. Times are the clock's, in seconds."""

    run: Run
    deadline: asyncio.Timeout
    stall_s: float
    last_output: float
    last_event: float
    passage: Passage | None = None
    has_headers: bool = False
    drain_until: float | None = None
    interruption: Interruption | None = None
    next_look: float = 0.0

    def __hash__(self) -> int:
        return id(self)

    @property
    def one_line_end(self) -> bool:
        """Whether a keepalive is followed by one line end only (openai-python fails on a blank line after an id)."""
        return self.passage is not None and self.passage.saw_id_or_retry

    def interrupt(self, why: Interruption) -> None:
        """End the attempt: the relay's deadline passes now, with a reason. One that has ended stays as it is."""
        if self.interruption is None and not self.deadline.expired():
            with contextlib.suppress(RuntimeError):  # nobody waits under the deadline any more
                self.deadline.reschedule(asyncio.get_running_loop().time())
                self.interruption = why

    @property
    def produced(self) -> bool:
        """Whether the attempt's stream has had real output."""
        return self.passage is not None and self.passage.meter.produced

    @property
    def reported(self) -> ReportedUsage | None:
        """What the attempt's stream has reported so far."""
        return self.passage.meter.usage() if self.passage is not None else None

    def take_texts(self) -> Mapping[Any, str]:
        """The output text that is not counted yet."""
        meter = self.passage.meter if self.passage is not None else None
        return meter.take_texts() if meter is not None and meter.produced else {}
