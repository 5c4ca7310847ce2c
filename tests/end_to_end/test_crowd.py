"""Three hundred streams at once: each is complete, and each has its record with its own figures."""

from __future__ import annotations

import asyncio
import datetime as dt
from decimal import Decimal
from typing import Any

from tests.end_to_end.conftest import KEYS
from tests.end_to_end.formats import CHAT, PATHS, WORDS, request
from tests.end_to_end.product import Gateway, Installation
from tests.end_to_end.raw import read_stream, request_bytes
from tests.end_to_end.scenes import CROWD

OUTPUT = sum(range(1, CROWD + 1))
COST_NANOS = CROWD * 7 * 5_000 + OUTPUT * 30_000
LOOK_S = 0.05


async def test_300_streams_have_300_records(uvicorn: Gateway, installation: Installation) -> None:
    key = KEYS["crowd"]
    requests = [
        request_bytes(PATHS[CHAT], key, request(CHAT, "crowded", f"crowd {own}", stream=True))
        for own in range(1, CROWD + 1)
    ]
    async with asyncio.timeout(60):  # they wait for each other: none would end if one did not come
        answers = await asyncio.gather(*(read_stream(uvicorn.port, sent) for sent in requests))
    ids = {headers["x-request-id"] for headers, _ in answers}
    assert len(ids) == CROWD
    for _, body in answers:
        assert body.endswith(b"data: [DONE]\n\n")
        assert all(word.encode() in body for word in WORDS)

    page = await everything_settled(uvicorn, key)
    assert page["usage"] == {
        "input": 7 * CROWD, "cache_read": 0, "cache_write": 0, "cache_write_1h": 0, "output": OUTPUT, "reasoning": 0,
    }  # fmt: skip
    assert Decimal(page["cost"]) == Decimal(COST_NANOS) / 10**9
    rows = installation.query(
        "SELECT count(*), count(DISTINCT output), sum(output), sum(cost_nanos) FROM billing_usagerecord"
        " WHERE key_name = 'crowd' AND ending = 'complete' AND metering = 'reported'"
    )
    assert [tuple(map(int, row)) for row in rows] == [(CROWD, CROWD, OUTPUT, COST_NANOS)]
    open_rows = installation.query("SELECT count(*) FROM billing_openstream WHERE key_name = 'crowd'")
    assert [tuple(row) for row in open_rows] == [(0,)]


async def everything_settled(gateway: Gateway, key: str) -> dict[str, Any]:
    """The key's usage page once it has all requests, within the 5 s that a record may take."""
    today = dt.datetime.now(dt.UTC).date()
    around = {"from": str(today - dt.timedelta(days=1)), "to": str(today + dt.timedelta(days=2))}
    for _ in range(100):
        answer = await asyncio.to_thread(gateway.get, "/v1/usage", key, **around)
        if answer.json()["requests"] == CROWD:
            break
        await asyncio.sleep(LOOK_S)
    page: dict[str, Any] = answer.json()
    assert page["requests"] == CROWD
    return page
