"""What a dead process held is free once it is swept, long before its leases end."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from typing import Any

import pytest

from billing.catalogue import account_entry, key_entry
from billing.models import ApiKey, BudgetMonth
from billing.processes import Folder
from billing.sweep import sweep
from streaming.limits.lost import give_back
from tests.billing.factories import make_key
from tests.streaming.limits.processes import Database, Process, members, stored

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def key(transactional_db: None) -> ApiKey:
    return make_key(concurrency=10, tokens_per_minute=10**9, monthly_budget_nanos=10**12)


def this_month() -> dt.date:
    return dt.datetime.now(dt.UTC).date().replace(day=1)


async def held(url: str, key: ApiKey, lease_s: float = 600.0) -> tuple[uuid.UUID, str]:
    """Two processes with two requests each; returns the first, and what the second holds of the budget."""
    one, two = (Process(url, Database(), lease_s=lease_s) for _ in range(2))
    entry = key_entry(key, account_entry(key.account))
    now = dt.datetime.now(dt.UTC)
    for _ in range(2):
        await one.hold(entry, now=now, max_tokens=10)
    kept = [await two.hold(entry, now=now, max_tokens=100) for _ in range(2)]
    for process in (one, two):
        await process.close()
    return one.limits._process, str(sum(hold.nanos for hold in kept if hold))


def test_dead_process_holds_nothing(valkey: str, key: ApiKey, settings: Any) -> None:
    settings.VALKEY_URL = valkey
    process, others = asyncio.run(held(valkey, key))
    BudgetMonth.objects.create(api_key=key, month=this_month(), spent_nanos=77, version=3)
    for _ in range(2):
        give_back(process)
        assert members(valkey, "leases", key.pk) == members(valkey, "holds", key.pk) == 2
        kept = stored(valkey, key.pk, this_month())
        assert (kept["held"], kept["spent"], kept["version"]) == (others, "77", "3")


def test_sweep_gives_back(valkey: str, key: ApiKey, settings: Any, tmp_path: Any) -> None:
    settings.VALKEY_URL = valkey
    process, _ = asyncio.run(held(valkey, key))
    folder = Folder(tmp_path)
    folder.hold(process).close()
    assert sweep(folder=folder).processes == 1
    assert members(valkey, "leases", key.pk) == 2


def test_redis_away_ends_no_sweep(key: ApiKey, settings: Any, tmp_path: Any) -> None:
    settings.VALKEY_URL = f"unix://{tmp_path}/nobody.sock"
    give_back(uuid.uuid4())
