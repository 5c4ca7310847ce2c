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
    """A request at its admission. `wished_name` is the client's x-request-id where it is sane; else `own_name`."""

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


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One upstream call.

    `outcome`: answered, refused, failed, cut, stalled, timed_out, client_left, hollow, stopped.
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


@dataclass(frozen=True, slots=True)
class Settlement:
    """A request at its end: all that its record and its attempts hold beside the open row. `zone` is the account's."""

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
