"""What the ledger is told: a request's admission, its end, and the upstream calls between."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from billing.pricing import Rating
from billing.usage import ReportedUsage, TokenUsage


@dataclass(frozen=True, slots=True)
class OpenRow:
    """A request at its admission. `wished_name` is the client's x-request-id where it is sane; else `own_name`.

    `silence_limit_s`: how long an attempt may be silent before it ends (of a whole answer: how long it may take).
    `count_factor_ppm`: what our own counts of it are scaled by, tokens per million of o200k; None where they are not.
    """

    id: uuid.UUID
    key_id: int
    account_id: int
    key_name: str
    account_name: str
    own_name: str
    wished_name: str | None
    process: uuid.UUID
    model: str
    wire_format: str
    stream: bool
    provider: str
    upstream_model: str
    started_at: dt.datetime
    tier_asked: str = ""
    retry_count: int = 0
    silence_limit_s: int | None = None
    count_factor_ppm: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One upstream call.

    `outcome`: answered, refused, failed, cut, stalled, timed_out, client_left, hollow, stopped; gateway_lost, which a
    sweep says of the attempt that was under way when its process died. `usage` is what the provider reported, in its
    own words; `tokens` the same in buckets; None: it reported nothing.
    """

    number: int
    provider: str
    upstream_model: str
    outcome: str
    status: int | None
    reason: str
    provider_request_id: str
    started_at: dt.datetime
    headers_ms: int | None
    first_output_ms: int | None
    duration_ms: int
    usage: Mapping[str, Any] | None = None
    object_ids: Sequence[str] = ()
    tokens: TokenUsage | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """A request at its end: all that its record and its attempts hold beside the open row. `zone` is the account's.

    `text_only`: it streamed plain text and nothing else, so that what was counted is all that was reported.
    `counted_at`: the moment whose day and hour it is counted on, where those of its end are sealed (`ledger.late`).
    """

    open: OpenRow
    zone: str
    currency: str
    ending: str
    metering: str
    reason: str
    usage: TokenUsage
    reported: ReportedUsage | None
    counted_input: int | None
    counted_output: int | None
    tier_asked: str
    service_tier: str
    rating: Rating
    first_output_at: dt.datetime | None
    ended_at: dt.datetime
    retry_count: int
    attempts: Sequence[AttemptRow] = ()
    object_ids: Sequence[str] = ()
    flags: Sequence[str] = ()
    provider: str = ""
    upstream_model: str = ""
    text_only: bool = False
    counted_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class BroughtObjects:
    """The objects kept by a provider that an answer brought so far, and the route that made them.

    `id` is the request's. They are the account's from now on; ids that `is_object_id` refuses are left out.
    """

    id: uuid.UUID
    account_id: int
    provider: str
    upstream_model: str
    route_id: int
    object_ids: Sequence[str]
    at: dt.datetime


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """How far a request under way has come: what it is billed for if its process dies now.

    Counts are of the model's own tokenizer; `first_output_at` and `last_output_at` are None as long as nothing was
    produced; `attempt_started_at` and `provider_request_id` are of the attempt under way.
    """

    open: OpenRow
    provider: str
    upstream_model: str
    attempt: int
    counted_input: int
    counted_output: int
    reported: ReportedUsage | None
    last_output_at: dt.datetime | None
    at: dt.datetime
    first_output_at: dt.datetime | None = None
    attempt_started_at: dt.datetime | None = None
    provider_request_id: str = ""


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A gateway process, as others see it; `label` is for people."""

    id: uuid.UUID
    label: str
    started_at: dt.datetime


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A process's sign of life, a number that it raises each time, and those of its requests that have changed."""

    process: ProcessRow
    heartbeat: int
    rows: Sequence[CheckpointRow] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """What a checkpoint brings back: the requests that an operator wants stopped, and those whose open row is gone.

    The latter are to be in the next checkpoint whether they have changed or not, and are put back then.
    """

    stops: frozenset[uuid.UUID] = frozenset()
    vanished: frozenset[uuid.UUID] = frozenset()


@dataclass(frozen=True, slots=True)
class Leaving:
    """A process that ends with nothing left to settle: its row goes."""

    process: uuid.UUID
