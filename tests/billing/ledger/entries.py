"""Entries for the ledger, complete and plain; a test names what matters to it."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from uuid_utils.compat import uuid7

from billing.ledger import AttemptRow, BroughtObjects, Checkpoint, CheckpointRow, OpenRow, ProcessRow, Settlement
from billing.models import Account, ApiKey
from billing.pricing import Item, Rating
from billing.usage import ReportedUsage, TokenUsage

STARTED = dt.datetime(2026, 11, 30, 15, 59, 58, tzinfo=dt.UTC)
ENDED = dt.datetime(2026, 11, 30, 16, 20, 3, 250_000, tzinfo=dt.UTC)
PROCESS = uuid.UUID("0190a000-0000-7000-8000-000000000001")
RAW = {"prompt_tokens": 14, "completion_tokens": 52}


def make_key(name: str = "production") -> ApiKey:
    account, _ = Account.objects.get_or_create(name="northwind", defaults={"timezone": "Asia/Taipei"})
    return ApiKey.objects.create(account=account, name=name, shown="sk-hb-AbC…", digest=name)


def opening(key: ApiKey, **fields: Any) -> OpenRow:
    id = uuid7()
    given = {
        "id": id,
        "key_id": key.id,
        "account_id": key.account_id,
        "key_name": key.name,
        "account_name": "northwind",
        "own_name": f"req_{id.hex}",
        "wished_name": None,
        "process": PROCESS,
        "model": "gpt-5.6-sol",
        "wire_format": "chat_completions",
        "stream": True,
        "provider": "acme-cloud",
        "upstream_model": "gpt-5.6-sol-2026",
        "started_at": STARTED,
    }
    return OpenRow(**{**given, **fields})


def attempt(**fields: Any) -> AttemptRow:
    given = {
        "number": 1,
        "provider": "acme-cloud",
        "upstream_model": "gpt-5.6-sol-2026",
        "outcome": "answered",
        "status": 200,
        "reason": "",
        "provider_request_id": "req_at_acme",
        "started_at": STARTED,
        "headers_ms": 210,
        "first_output_ms": 480,
        "duration_ms": 812,
    }
    return AttemptRow(**{**given, **fields})


def brought(row: OpenRow, *ids: str, **fields: Any) -> BroughtObjects:
    given = {
        "id": row.id,
        "account_id": row.account_id,
        "provider": "acme-cloud",
        "upstream_model": "gpt-5.6-sol-2026",
        "route_id": 7,
        "object_ids": ids,
        "at": STARTED,
    }
    return BroughtObjects(**{**given, **fields})


def settlement(row: OpenRow, *, raw: Any = RAW, **fields: Any) -> Settlement:
    usage = TokenUsage(input=14, output=52, reasoning=12, server_tools={"web_search": 1})
    given = {
        "open": row,
        "zone": "Asia/Taipei",
        "currency": "USD",
        "ending": "complete",
        "metering": "reported",
        "reason": "",
        "usage": usage,
        "reported": ReportedUsage(usage, "default", raw=raw, flags=("unknown:audio_tokens",)),
        "counted_input": None,
        "counted_output": 50,
        "tier_asked": "auto",
        "service_tier": "default",
        "rating": RATING,
        "first_output_at": STARTED,
        "ended_at": ENDED,
        "retry_count": 1,
        "attempts": (attempt(),),
        "object_ids": ("resp_1",),
        "flags": ("zero_with_output",),
    }
    return Settlement(**{**given, **fields})


def checkpoint_row(row: OpenRow, **fields: Any) -> CheckpointRow:
    given = {
        "open": row,
        "provider": "acme-cloud",
        "upstream_model": "gpt-5.6-sol-2026",
        "attempt": 1,
        "counted_input": 9,
        "counted_output": 40,
        "reported": None,
        "last_output_at": ENDED,
        "at": ENDED,
        "first_output_at": STARTED,
        "attempt_started_at": STARTED,
        "provider_request_id": "req_at_acme",
    }
    return CheckpointRow(**{**given, **fields})


def checkpoint(*rows: CheckpointRow, heartbeat: int = 1, process: uuid.UUID = PROCESS) -> Checkpoint:
    return Checkpoint(ProcessRow(process, "gw:1", STARTED), heartbeat, rows)


RATING = Rating(
    cost_nanos=11_630_000,
    buckets={"input": 70_000, "output": 1_560_000},
    unit_prices={"input": 5 * 10**9, "output": 30 * 10**9},
    items=(Item("gpt-5.6-sol", "web_search", 1, 10**7, False, 10**7, "gpt-5.6-sol@2026-01-01T00:00:00Z"),),
    price_version="gpt-5.6-sol@2026-01-01T00:00:00Z",
)


def nested(depth: int) -> Any:
    """JSON that nests so deep."""
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value
