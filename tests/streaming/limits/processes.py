"""Gateway processes as far as limits see them: each with its own counts, all on one Valkey and one database."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import uuid
from collections.abc import Collection
from typing import Any

import redis
from django.db import OperationalError
from uuid_utils.compat import uuid7

from billing.catalogue import KeyEntry
from billing.reports import KeyMonth, Spending
from streaming.errors import ApiError
from streaming.limits import Hold, Limits
from streaming.limits.store import place
from streaming.protocols import CHAT_COMPLETIONS
from tests.billing.factories import STANDARD, price, priced
from tests.streaming.entries import key

NOW = dt.datetime(2026, 11, 15, 12, tzinfo=dt.UTC)
NOVEMBER, DECEMBER = dt.date(2026, 11, 1), dt.date(2026, 12, 1)
OUTPUT_NANOS = STANDARD["output"] // 10**6
"""Of one token."""


class Database:
    """What keys have spent, as the settlements leave it."""

    def __init__(self) -> None:
        self.spent: dict[KeyMonth, Spending] = {}
        self.reads = 0
        self.away = False

    async def read(self, months: Collection[KeyMonth]) -> dict[KeyMonth, Spending]:
        self.reads += 1
        if self.away:
            raise OperationalError("away")
        return {month: self.spent.get(month, Spending(0, 0)) for month in months}

    def bill(self, key_id: int, nanos: int, month: dt.date = NOVEMBER) -> None:
        before = self.spent.get((key_id, month), Spending(0, 0))
        self.spent[key_id, month] = Spending(before.spent_nanos + nanos, before.version + 1)


class Process:
    """One process: `admit` gives a hold, or the code of the refusal."""

    def __init__(self, url: str, database: Database | None = None, lease_s: float = 60.0, **seams: Any) -> None:
        self.database = database or Database()
        self.tasks: set[asyncio.Task[None]] = set()
        prices = priced(price("m"))
        self.limits = Limits(
            url,
            uuid.uuid4(),
            self.database.read,
            prices,
            self._spawn,
            lease_s=lease_s,
            raise_s=seams.pop("raise_s", 0.0),
            company_s=seams.pop("company_s", 0.0),
            **seams,
        )

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def hold(self, under: KeyEntry, now: dt.datetime = NOW, **body: Any) -> Hold | None:
        raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}).encode()
        facts = CHAT_COMPLETIONS.read_request(raw)
        return await self.limits.admit(uuid7(), under, raw, facts, now)

    async def admit(self, under: KeyEntry, **body: Any) -> Hold | str:
        try:
            hold = await self.hold(under, **body)
        except ApiError as error:
            return error.error.code
        assert hold is not None
        return hold

    async def settle(self, hold: Hold, used: int | None = 0, nanos: int | None = None, at: dt.datetime = NOW) -> None:
        """End and bill a request, and wait until Redis knows."""
        self.limits.ended(hold)
        if nanos is not None:
            self.database.bill(hold.key.id, nanos, at.date().replace(day=1))
        self.limits.settle(hold, used, at if nanos is not None else None)
        await self.quiet()

    async def quiet(self) -> None:
        """Until nothing is under way."""
        while self.tasks:
            await asyncio.gather(*self.tasks)

    async def close(self) -> None:
        await self.quiet()
        await self.limits.aclose()


def limited(**limits: Any) -> KeyEntry:
    """A key with these limits."""
    return key(**limits)


def refusal(answers: list[Hold | str]) -> dict[str, int]:
    """How many were admitted, and how many refused by which code."""
    names = [answer if isinstance(answer, str) else "ok" for answer in answers]
    return {name: names.count(name) for name in set(names)}


def stored(url: str, key_id: int = 1, month: dt.date = NOVEMBER) -> dict[str, str]:
    """What Redis holds of a key's month."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        found: dict[str, str] = client.hgetall(place(key_id, f"month:{month:%Y-%m}"))  # type: ignore[assignment]
    return found


def members(url: str, name: str, key_id: int = 1) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.zcard(place(key_id, name)))  # type: ignore[arg-type]


def flush(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.flushall()
