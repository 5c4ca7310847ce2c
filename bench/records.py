"""The parts of the benchmark that run inside HopBase: `python -m bench.records WHAT ARGUMENTS`, with its environment.

Each prints one JSON object. Seconds are wall-clock.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import django

MONTH = dt.date(2026, 10, 1)
BEGINNING, TICKS = 4, 32
"""Ticks over which streams begin, and those that are measured: less than a keepalive's time in all."""
AFTER = dt.datetime(2026, 11, 3, tzinfo=dt.UTC)
DAYS = 31
ACCOUNTS = 10
MODELS = ("gpt-5.6-sol", "claude-opus-5", "mistral-large-4", "grok-6")


def fill(records: str, keys: str) -> dict[str, Any]:
    """Records of October 2026 over so many keys, due to be rolled up: written past the ledger, in one statement."""
    from django.db import connection

    from billing.models import UsageRecord
    from tests.billing.factories import make_account, make_key, unsaved_record

    began = time.perf_counter()
    accounts = [make_account(f"bench-{number}", timezone="Asia/Taipei") for number in range(ACCOUNTS)]
    owners = [make_key(accounts[number % ACCOUNTS], f"key-{number}") for number in range(int(keys))]
    at = dt.datetime(2026, 10, 1, tzinfo=dt.UTC)
    template = unsaved_record(owners[0], at, request_name="template")
    template.save()
    first_key, first_account = owners[0].pk, accounts[0].pk
    ended = f"timestamptz '2026-10-01 00:00+08' + (g.n * {DAYS} * 86400.0 / {records}) * interval '1 second'"
    local = f"(({ended}) AT TIME ZONE 'Asia/Taipei')"
    models = "(ARRAY[" + ", ".join(f"'{name}'" for name in MODELS) + "])"
    own = {
        "id": "gen_random_uuid()",
        "api_key_id": f"{first_key} + g.n % {keys}",
        "account_id": f"{first_account} + (g.n % {keys}) % {ACCOUNTS}",
        "key_name": f"'key-' || (g.n % {keys})",
        "account_name": f"'bench-' || ((g.n % {keys}) % {ACCOUNTS})",
        "request_name": "'bench-' || g.n",
        "model": f"{models}[1 + (g.n / {keys}) % {len(MODELS)}]",
        "started_at": f"({ended}) - interval '2 seconds'",
        "ended_at": ended,
        "day": f"{local}::date",
        "hour_start": f"date_trunc('hour', {local}) AT TIME ZONE 'Asia/Taipei'",
    }
    columns = [field.column for field in UsageRecord._meta.concrete_fields]
    selected = ", ".join(own.get(column, f"t.{column}") for column in columns)
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")  # triggers row by row are not what is measured
        cursor.execute(
            f"INSERT INTO billing_usagerecord ({', '.join(columns)}) SELECT {selected}"
            f" FROM generate_series(0, {int(records)} - 1) AS g(n), billing_usagerecord t"
            " WHERE t.request_name = 'template'"
        )
        cursor.execute("DELETE FROM billing_usagerecord WHERE request_name = 'template'")
        cursor.execute(
            "INSERT INTO billing_rollupdue (api_key_id, day) SELECT DISTINCT api_key_id, day FROM billing_usagerecord"
        )
        cursor.execute("SET session_replication_role = DEFAULT")
        cursor.execute("ANALYZE")
    return {"took_s": _since(began)}


def roll_up() -> dict[str, Any]:
    """All that is due."""
    from billing import rollups

    began = time.perf_counter()
    days = rollups.rebuild_due()
    return {"days": days, "took_s": _since(began)}


def invoice() -> dict[str, Any]:
    """Draft and issue the month, with its documents; the lines have to add up."""
    from billing import invoices, month_close
    from billing.models import Invoice, InvoiceDocument, UsageRecord

    began = time.perf_counter()
    drafts = invoices.draft(MONTH, now=AFTER)
    drafted = _since(began)
    month_close.issue(drafts, now=AFTER)
    took = _since(began)
    assert InvoiceDocument.objects.count() == len(drafts)
    assert not UsageRecord.objects.filter(invoice=None).exists()
    exact = sum(line.exact_nanos for each in Invoice.objects.prefetch_related("lines") for line in each.lines.all())
    assert exact == sum(UsageRecord.objects.values_list("cost_nanos", flat=True).iterator())
    return {"invoices": len(drafts), "drafted_s": drafted, "took_s": took}


def export() -> dict[str, Any]:
    """A file of all requests, as a worker makes it."""
    from django.contrib.auth import get_user_model

    from billing import exports
    from billing.models import Export, UsageRecord

    owner = get_user_model().objects.create_user("exporter")
    asked = exports.ask(owner, Export.Kind.RECORDS, Export.Format.CSV, "", language="en")
    began = time.perf_counter()
    exports.run(asked.pk)
    took = _since(began)
    asked.refresh_from_db()
    assert asked.state == Export.State.DONE, asked.problem
    assert asked.rows_done >= int(UsageRecord.objects.filter(account_name__startswith="bench-").count())
    return {"rows": asked.rows_done, "took_s": took}


def settle(records: str) -> dict[str, Any]:
    """Open rows and settlements through one ledger, as fast as it takes them."""
    from billing.ledger import Ledger
    from billing.models import UsageRecord
    from tests.billing.ledger.entries import make_key, opening, settlement

    key = make_key("bench")
    rows = [opening(key) for _ in range(int(records))]
    settlements = [settlement(row) for row in rows]
    ledger = Ledger()
    ledger.start()
    began = time.perf_counter()
    opened = [ledger.open(row) for row in rows]
    for done in opened:
        done.result(60)
    middle = time.perf_counter()
    settled = [ledger.settle(each) for each in settlements]
    for done in settled:
        done.result(120)
    took = time.perf_counter() - middle
    ledger.stop(5.0)
    assert UsageRecord.objects.filter(api_key=key).count() == len(rows)
    return {
        "records": len(rows), "opened_per_s": round(len(rows) / (middle - began)),
        "per_s": round(len(rows) / took),
    }  # fmt: skip


def tick(streams: str) -> dict[str, Any]:
    """A tick over so many open streams, none of which it has to act on, begun over a second: the median of many."""
    return asyncio.run(_tick(int(streams)))


async def _tick(count: int) -> dict[str, Any]:
    from streaming.passage import Passage
    from streaming.protocols import CHAT_COMPLETIONS
    from streaming.protocols.meter import MeterOptions
    from streaming.runs import Live
    from streaming.ticker import Ticker, Timing
    from tests.streaming.runs import make_run

    async def send(message: object) -> None:
        raise AssertionError("a stream that is not silent for long is left alone")

    timing, now = Timing(10, 10, 60, 2), time.monotonic()
    ticker = Ticker(timing, lambda: None, time.monotonic)
    times = []
    for number in range(BEGINNING + TICKS):
        for _ in range(count // BEGINNING if number < BEGINNING else 0):
            passage = Passage(CHAT_COMPLETIONS.Meter(MeterOptions("m", fallback_id="x")), 2**23, tuple)
            ticker.streams.add(Live(make_run("chat_completions", send), asyncio.timeout(None), 120, now, now, passage))
        now += timing.tick_s
        began = time.perf_counter()
        ticker.tick(now)
        times.append((time.perf_counter() - began) * 1000)
    del times[:BEGINNING]
    return {"streams": count, "tick_ms": round(statistics.median(times), 3)}


def user() -> dict[str, Any]:
    """Somebody who sees everything, and a session of theirs."""
    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
    from django.contrib.sessions.backends.db import SessionStore

    made = get_user_model().objects.create_superuser("bench", password="bench-bench-bench")
    session = SessionStore()
    session[SESSION_KEY] = str(made.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[-1]
    session[HASH_SESSION_KEY] = made.get_session_auth_hash()
    session.create()
    return {"cookie": f"{settings.SESSION_COOKIE_NAME}={session.session_key}"}


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 3)


WHAT: dict[str, Callable[..., dict[str, Any]]] = {
    "fill": fill, "roll-up": roll_up, "invoice": invoice, "export": export, "settle": settle, "tick": tick,
    "user": user,
}  # fmt: skip

if __name__ == "__main__":
    django.setup()
    print(json.dumps(WHAT[sys.argv[1]](*sys.argv[2:])))
