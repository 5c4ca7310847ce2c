"""The ledger's entries as rows: column -> value, for every column of the table."""

from __future__ import annotations

import dataclasses
import datetime as dt
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from billing.ledger.cleaning import clamped, is_object_id, raw_usage_text
from billing.ledger.entries import AttemptRow, BroughtObjects, OpenRow, Settlement
from billing.periods import local_day, local_hour
from billing.pricing import Item, Rating
from billing.usage import BUCKETS

Row = dict[str, Any]

RAW_USAGE_DROPPED = "raw_usage_dropped"
"""The flag of a record that the database took only without what the provider said in its own words."""

SMALLINT, INTEGER = 2**15 - 1, 2**31 - 1

ITEM_FIELDS = tuple(field.name for field in dataclasses.fields(Item))

_zone = lru_cache(maxsize=256)(ZoneInfo)


def day_of(settlement: Settlement) -> dt.date:
    """The day of the bill: that on which the request ended, on the account's clocks; today, where that is sealed."""
    return local_day(_counted_at(settlement), _zone(settlement.zone))


def _counted_at(settlement: Settlement) -> dt.datetime:
    return settlement.counted_at or settlement.ended_at


def open_row(row: OpenRow, name: str) -> Row:
    """An OpenStream."""
    return {
        **_identity(row, name),
        "process": row.process,
        "provider": row.provider,
        "upstream_model": row.upstream_model,
        "tier_asked": row.tier_asked,
        "retry_count": clamped(row.retry_count, SMALLINT),
        "silence_limit_s": clamped(row.silence_limit_s, INTEGER),
        "count_factor_ppm": row.count_factor_ppm,
        "attempt": 1,
        "attempt_started_at": None,
        "provider_request_id": "",
        "object_ids": [],
        "first_output_at": None,
        "last_output_at": None,
        "counted_input": 0,
        "counted_output": 0,
        "reported": None,
        "checkpoint_at": None,
        "stop_requested": False,
    }


def record_row(settlement: Settlement, name: str, *, bare: bool = False) -> Row:
    """A UsageRecord; `bare`: without the raw usage, and flagged."""
    return {
        **_identity(settlement.open, name),
        "provider": settlement.provider or settlement.open.provider,
        "upstream_model": settlement.upstream_model or settlement.open.upstream_model,
        "ending": settlement.ending,
        "metering": settlement.metering,
        "reason": settlement.reason,
        **_used(settlement, bare=bare),
        "object_ids": list(settlement.object_ids),
        "currency": settlement.currency,
        **rating_columns(settlement.rating),
        "first_output_at": settlement.first_output_at,
        "ended_at": settlement.ended_at,
        "day": day_of(settlement),
        "hour_start": local_hour(_counted_at(settlement), _zone(settlement.zone)),
        "retry_count": clamped(settlement.retry_count, SMALLINT),
        "invoice_id": None,
    }


def attempt_rows(settlement: Settlement, *, bare: bool = False) -> list[Row]:
    """The Attempts of a record."""
    return [_attempt_row(settlement, attempt, bare=bare) for attempt in settlement.attempts]


def object_rows(brought: BroughtObjects) -> list[Row]:
    """The StoredObjects that an answer brought."""
    return [
        {
            "account_id": brought.account_id,
            "object_id": id,
            "provider": brought.provider,
            "upstream_model": brought.upstream_model,
            "route_id": brought.route_id,
            "record_id": brought.id,
            "created_at": brought.at,
        }
        for id in brought.object_ids
        if is_object_id(id)
    ]


def _identity(row: OpenRow, name: str) -> Row:
    """What an open row and its record have in common."""
    return {
        "id": row.id,
        "api_key_id": row.key_id,
        "account_id": row.account_id,
        "key_name": row.key_name,
        "account_name": row.account_name,
        "request_name": name,
        "model": row.model,
        "wire_format": row.wire_format,
        "stream": row.stream,
        "started_at": row.started_at,
    }


def _used(settlement: Settlement, *, bare: bool) -> Row:
    usage, clamps = settlement.usage.checked()
    reported = settlement.reported
    flags = [*settlement.flags, *(reported.flags if reported else ()), *clamps]
    raw = reported.raw if reported else None
    return {
        **usage.buckets(),
        "reasoning": usage.reasoning,
        "server_tools": dict(usage.server_tools),
        "counted_input": clamped(settlement.counted_input),
        "counted_output": clamped(settlement.counted_output),
        "count_factor_ppm": None if settlement.counted_output is None else settlement.open.count_factor_ppm,
        "text_only": settlement.text_only,
        "tier_asked": settlement.tier_asked,
        "service_tier": settlement.service_tier,
        "raw_usage": raw_usage_text(raw) if raw and not bare else None,
        "flags": list(dict.fromkeys([*flags, RAW_USAGE_DROPPED] if bare else flags)),
    }


def rating_columns(rating: Rating) -> Row:
    return {
        "price_version": rating.price_version,
        "long_context": rating.long_context,
        "unit_prices": dict(rating.unit_prices),
        **{f"{bucket}_nanos": rating.buckets.get(bucket, 0) for bucket in BUCKETS},
        "items": [{name: getattr(item, name) for name in ITEM_FIELDS} for item in rating.items],
        "cost_nanos": rating.cost_nanos,
        "unpriced": rating.unpriced,
        "unpriced_reason": rating.unpriced_reason,
    }


def _attempt_row(settlement: Settlement, attempt: AttemptRow, *, bare: bool) -> Row:
    return {
        "record_id": settlement.open.id,
        "number": clamped(attempt.number, SMALLINT),
        "provider": attempt.provider,
        "upstream_model": attempt.upstream_model,
        "outcome": attempt.outcome,
        "status": clamped(attempt.status, SMALLINT),
        "reason": attempt.reason,
        "provider_request_id": attempt.provider_request_id,
        "object_ids": list(attempt.object_ids),
        "usage": raw_usage_text(attempt.usage) if attempt.usage and not bare else None,
        "started_at": attempt.started_at,
        "headers_ms": clamped(attempt.headers_ms, INTEGER),
        "first_output_ms": clamped(attempt.first_output_ms, INTEGER),
        "duration_ms": clamped(attempt.duration_ms, INTEGER),
        **{bucket: clamped(getattr(attempt.tokens, bucket, None)) for bucket in BUCKETS},
    }
