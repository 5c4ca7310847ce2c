"""A request's body in memory: held until its input is counted, and by nobody after that, however long the stream."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from channels.db import database_sync_to_async
from django.conf import LazySettings

from billing.models import UsageRecord
from streaming.protocols.messages import COUNT_FACTOR_PPM
from streaming.protocols.tokens import count, scaled
from tests.streaming.in_process import Client, SlowProvider, configured, request_body, running, until
from tests.streaming.test_relay import OUTPUT

pytestmark = pytest.mark.django_db(transaction=True)
MODEL = "model-of-the-large-body"
WORDS = "hello " * 100_000


class Body(bytes):
    """Bytes that are missed."""

    gone = False

    def __del__(self) -> None:
        Body.gone = True


def bodies_in_memory() -> list[object]:
    """Parsed bodies of this test's request, whoever holds them."""
    return [found for found in gc.get_objects() if type(found) is dict and found.get("model") == MODEL]


async def test_counted_body_is_let_go(settings: LazySettings, valkey: str, tmp_path: Path) -> None:
    settings.VALKEY_URL, settings.CHECKPOINT_S, settings.VAR_DIR = valkey, 0.05, tmp_path
    async with running() as gateway, SlowProvider(OUTPUT["messages"]).serving() as provider:
        secret = await database_sync_to_async(configured)(provider.url, MODEL)
        client = Client(gateway, secret, Body(request_body(MODEL, WORDS)))
        await until(lambda: gateway.bodies.held > len(WORDS))
        assert not Body.gone
        await until(lambda: len(client.sent) > 1 and not gateway.bodies.held)
        await until(lambda: Body.gone and not bodies_in_memory())
        assert not client.answered.done()
        assert [run.count.input for run in gateway.runs] == [scaled(count(WORDS), COUNT_FACTOR_PPM)]
        provider.goes_on.set()
        await client.answered
    assert gateway.bodies.held == 0
    assert await database_sync_to_async(UsageRecord.objects.count)() == 1
