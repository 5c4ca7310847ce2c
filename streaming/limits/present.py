"""What keys use now, for the admin: read synchronously, in one round trip for a whole page."""

from __future__ import annotations

from collections.abc import Collection

from django.conf import settings

from billing.gateway import SharedUse
from billing.reports import KeyMonth
from streaming.limits.spendings import month_name
from streaming.limits.store import Script, place
from streaming.redis_client import AWAY, connect_synchronously

PRESENT = Script("present")


def shared_use(months: Collection[KeyMonth]) -> dict[int, SharedUse] | None:
    """By key id; None when Redis is away."""
    try:
        with connect_synchronously(settings.VALKEY_URL) as client:
            pipe = client.pipeline(transaction=False)
            pipe.script_load(PRESENT.text)
            for key_id, month in months:
                keys = [place(key_id, name) for name in ("requests", "tokens", "leases", month_name(month))]
                pipe.evalsha(PRESENT.sha, len(keys), *keys)
            _loaded, *answers = pipe.execute()
    except AWAY:
        return None
    return {key_id: SharedUse(*map(int, answer)) for (key_id, _month), answer in zip(months, answers, strict=True)}
