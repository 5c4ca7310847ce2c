"""A request that fails by a fault of ours, in the most talkative way: its exception holds all that must stay inside."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from channels.db import database_sync_to_async
from django.conf import LazySettings

from tests.streaming.in_process import Client, configured, request_body, running, until

CREDENTIAL = "sk-acme"  # as `configured` enters it


class Talkative:
    """An upstream that fails over each request and tells everything of it."""

    async def post(self, provider, path: str, body: bytes, headers, query: str = ""):
        raise ValueError(f"{provider.credential} {provider.base_url} {body!r}")


async def fail(settings: LazySettings, valkey: str, var_dir: Path, settle: Callable[[], Awaitable[None]]) -> list[str]:
    """Let a request fail; returns its id and what nobody may read of it."""
    settings.VALKEY_URL, settings.VAR_DIR = valkey, var_dir
    prompt, url = f"prompt-{uuid.uuid4().hex}", "http://provider.internal.test/v1"
    async with running() as gateway:
        secret = await database_sync_to_async(configured)(url, "plain")
        await gateway.start()
        gateway._options = dataclasses.replace(gateway._options, upstream=Talkative())
        client = Client(gateway, secret, request_body("plain", prompt))
        await client.answered
        await until(lambda: not gateway.runs)
        await settle()
    headers = dict(client.sent[0]["headers"])
    assert client.sent[0]["status"] == 500
    return [headers[b"x-request-id"].decode(), prompt, secret, "provider.internal.test"]
