"""What a dead process held is given back as soon as its streams are swept, rather than when its leases end."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Iterable
from typing import Any
from zoneinfo import ZoneInfo

import redis
from django.conf import settings
from django.db.models import Q

from billing.models import ApiKey
from billing.periods import local_day
from billing.reports import KeyMonth, Spending, spendings
from streaming.limits.spendings import month_name
from streaming.limits.store import SETTLE, member, place, request_of
from streaming.redis_client import AWAY, connect_synchronously

log = logging.getLogger(__name__)

LIMITED = Q(concurrency__isnull=False) | Q(tokens_per_minute__isnull=False) | Q(monthly_budget_nanos__isnull=False)


def give_back(process: uuid.UUID, **signal: Any) -> None:
    """Settle in Redis whatever a dead process holds there; one that lives after all tells it anew."""
    keys = list(ApiKey.objects.filter(LIMITED).select_related("account"))
    try:
        with connect_synchronously(settings.VALKEY_URL) as client:
            held = list(_held(client, keys, member(process, "")))
            months = {(key.pk, _month(key, dt.datetime.now(dt.UTC))) for key, _ in held}
            spent = spendings(months)
            for key, name in held:
                _settle(client, key, name, spent)
    except AWAY as error:
        log.warning("what process %s held ends with its leases: Redis is away (%s)", process, type(error).__name__)


def _held(client: redis.Redis, keys: Iterable[ApiKey], prefix: str) -> Iterable[tuple[ApiKey, str]]:
    """The dead process's requests, by key."""
    pipe = client.pipeline(transaction=False)
    asked = [(key, name) for key in keys for name in ("leases", "holds")]
    for key, name in asked:
        pipe.zrange(place(key.pk, name), 0, -1)
    found = {
        (key, one.decode()): None
        for (key, _), members in zip(asked, pipe.execute(), strict=True)
        for one in members
        if one.decode().startswith(prefix)
    }
    return found.keys()


def _settle(client: redis.Redis, key: ApiKey, name: str, spent: dict[KeyMonth, Spending]) -> None:
    began = dt.datetime.fromtimestamp((request_of(name).int >> 80) / 1000, dt.UTC)  # as a UUIDv7 says
    now = _month(key, dt.datetime.now(dt.UTC))
    names = ("tokens", "leases", "holds", "tokens_held", month_name(_month(key, began)), month_name(now))
    client.eval(
        SETTLE.text, len(names), *(place(key.pk, each) for each in names), name, "", *map(str, spent[key.pk, now])
    )


def _month(key: ApiKey, when: dt.datetime) -> dt.date:
    return local_day(when, ZoneInfo(key.account.timezone)).replace(day=1)
