"""Usage records as these tests need them."""

from __future__ import annotations

import uuid
from typing import Any

from django.utils.timezone import now

from billing.models import ApiKey, UsageRecord


def record(key: ApiKey, **fields: Any) -> UsageRecord:
    """A record of the key, just ended."""
    at = now()
    values = {
        "id": uuid.uuid4(),
        "api_key": key,
        "account": key.account,
        "key_name": key.name,
        "account_name": key.account.name,
        "request_name": uuid.uuid4().hex,
        "model": "sol",
        "wire_format": "messages",
        "stream": True,
        "ending": "complete",
        "metering": "reported",
        "currency": key.account.currency,
        "started_at": at,
        "ended_at": at,
        "day": at.date(),
        "hour_start": at,
        **fields,
    }
    return UsageRecord.objects.create(**values)
