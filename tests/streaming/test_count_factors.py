"""The way of a count factor: fitted from records, told to running gateways, one for the whole life of a request."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from channels.db import database_sync_to_async
from django.conf import LazySettings

from billing import tasks
from billing.count_factors import LEAST_RECORDS
from billing.models import ApiKey, OpenStream, UsageRecord
from billing.usage import TokenUsage
from streaming.protocols.tokens import count
from tests.billing.factories import unsaved_record, utc
from tests.streaming.in_process import Client, SlowProvider, configured, request_body, running, until

pytestmark = pytest.mark.django_db(transaction=True)
MODEL = "claude-opus-5-5"
ANSWER = "The harbour master counted the boats. " * 40
DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ANSWER}}
OUTPUT = b"event: content_block_delta\ndata: " + json.dumps(DELTA).encode() + b"\n\n"


def tell_of_the_model(reported: int) -> None:
    """Finished streams that reported so many tokens where we count 1,000; fitted as beat has it done."""
    given = {
        "model": MODEL, "wire_format": "messages", "text_only": True, "counted_output": 1_100,
        "count_factor_ppm": 1_100_000,
    }  # fmt: skip
    UsageRecord.objects.bulk_create(
        unsaved_record(ApiKey.objects.get(), utc(2026, 11, 3), TokenUsage(output=reported), **given)
        for _ in range(LEAST_RECORDS)
    )
    assert tasks.fit_count_factors() == 1


def counted_open() -> dict[int | None, int]:
    """What checkpoints say of the streams under way: factor -> counted output."""
    return dict(OpenStream.objects.filter(counted_output__gt=0).values_list("count_factor_ppm", "counted_output"))


def estimated() -> dict[int | None, tuple[int | None, int]]:
    """What the bills say: factor -> counted output and billed output."""
    cut = UsageRecord.objects.filter(ending="provider_cut", metering="estimated")
    return {record.count_factor_ppm: (record.counted_output, record.output) for record in cut}


async def test_one_factor_per_request(settings: LazySettings, valkey: str, tmp_path: Path) -> None:
    """The next stream has the new one; what runs keeps that which it began with, at each checkpoint and on the bill."""
    settings.VALKEY_URL, settings.CHECKPOINT_S, settings.VAR_DIR = valkey, 0.05, tmp_path
    database, body, tokens = database_sync_to_async, request_body(MODEL, "Tell me of the boats."), count(ANSWER)
    wanted = {1_100_000: (tokens * 11 + 5) // 10, 1_600_000: (tokens * 16 + 5) // 10}
    async with running() as gateway, SlowProvider(OUTPUT, cuts=True).serving() as provider:
        secret = await database(configured)(provider.url, MODEL)
        before = Client(gateway, secret, body)
        await until(lambda: any(run.counted and run.counted[1] for run in gateway.runs))
        await database(tell_of_the_model)(1_600)
        await until(lambda: gateway.catalogue.billing.count_factor_ppm(MODEL) == 1_600_000)
        after = Client(gateway, secret, body)
        async with asyncio.timeout(10):
            while len(open_counts := await database(counted_open)()) < 2:
                await asyncio.sleep(0.01)
        assert open_counts == wanted
        provider.goes_on.set()
        await before.answered
        await after.answered
    assert await database(estimated)() == {factor: (counted, counted) for factor, counted in wanted.items()}
