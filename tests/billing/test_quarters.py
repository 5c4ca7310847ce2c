"""Attempts by quarter of an hour: each counted once, as billed, estimated or failed; clean days and due ones alike."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from billing import quarters, rollups
from billing.models import ApiKey, Attempt, AttemptQuarter, ProviderTest, RollupDue, UsageRecord
from billing.quarters import QUARTER, Quarter, QuarterSum, quarter_of
from billing.usage import BUCKETS, Part, TokenUsage
from tests.billing.factories import make_account, make_key, make_record, price, utc

DAY = utc(2026, 11, 3, 0)
NEXT = DAY + dt.timedelta(days=1)
WHOLE = TokenUsage(10, 1, 2, 3, 20)


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key()


def add_attempt(record: UsageRecord, number: int = 1, **fields: Any) -> Attempt:
    """An attempt that began two seconds before its record's end, and answered within one."""
    defaults = {
        "provider": "acme-cloud", "upstream_model": "sol-large", "outcome": "answered", "status": 200,
        "started_at": record.started_at, "duration_ms": 1000,
    }  # fmt: skip
    return Attempt.objects.create(record=record, number=number, **{**defaults, **fields})


def answered(key: ApiKey, at: dt.datetime, usage: TokenUsage = WHOLE, **fields: Any) -> UsageRecord:
    record = make_record(key, at, usage, upstream_model="sol-large", **fields)
    add_attempt(record)
    return record


def read() -> list[QuarterSum]:
    return quarters.read("acme-cloud", DAY, NEXT)


def added() -> dict[str, Counter[str]]:
    """All that was read, by use: attempts, tokens and money."""
    sums: dict[str, Counter[str]] = {}
    for one in read():
        found = sums.setdefault(one.use, Counter())
        found.update(one.tokens)
        found.update(
            attempts=one.attempts, silent=one.silent, unpriced=one.unpriced, billed=one.billed_nanos,
            **{f"{bucket}_nanos": nanos for bucket, nanos in one.nanos.items()},
        )  # fmt: skip
    return {use: +found for use, found in sums.items()}


# --- the quarter ---


@pytest.mark.parametrize(
    ("started", "milliseconds", "quarter"),
    [
        ((10, 0, 0, 0), 0, (10, 0)),
        ((10, 14, 59, 999_000), 0, (10, 0)),
        ((10, 14, 59, 999_000), 1, (10, 15)),
        ((10, 14, 59, 999_999), 0, (10, 0)),
        ((23, 59, 59, 0), 1_000, (24, 0)),
        ((10, 0, 0, 0), 3_600_000, (11, 0)),
    ],
)
def test_quarter_begins_at_or_before(
    key: ApiKey, started: tuple[int, int, int, int], milliseconds: int, quarter: tuple[int, int]
) -> None:
    hour, minute, second, microsecond = started
    at = dt.datetime(2026, 11, 3, hour, minute, second, microsecond, tzinfo=dt.UTC)
    add_attempt(make_record(key, at), started_at=at, duration_ms=milliseconds)
    [found] = Attempt.objects.annotate(over=Quarter("started_at", F("duration_ms"))).values_list("over", flat=True)
    assert found == DAY + dt.timedelta(hours=quarter[0], minutes=quarter[1])


def test_databases_agree_with_python(key: ApiKey) -> None:
    """Instants of eighty years with all their microseconds, and streams of up to a day."""
    chance = random.Random(5)
    record = make_record(key, DAY)
    began = [DAY + dt.timedelta(microseconds=chance.randrange(-(10**15), 2 * 10**15)) for _ in range(400)]
    Attempt.objects.bulk_create(
        Attempt(
            record=record, number=at, provider="a", upstream_model="m", outcome="answered", started_at=instant,
            duration_ms=chance.choice((0, 1, chance.randrange(86_400_000))),
        )
        for at, instant in enumerate(began, start=1)
    )  # fmt: skip
    for attempt in Attempt.objects.annotate(over=Quarter("started_at", F("duration_ms")), began=Quarter("started_at")):
        ended = attempt.started_at + dt.timedelta(milliseconds=attempt.duration_ms)
        assert (attempt.began, attempt.over) == (quarter_of(attempt.started_at), quarter_of(ended))  # type: ignore[attr-defined]
        assert attempt.over <= ended < attempt.over + QUARTER  # type: ignore[attr-defined]


# --- each attempt once ---


def test_answer_is_billed_once(key: ApiKey) -> None:
    record = answered(key, utc(2026, 11, 3, 8, 14))
    rollups.rebuild_due()
    [row] = read()
    assert (row.use, row.attempts, row.silent, row.currency) == ("billed", 1, 0, "USD")
    assert (row.started_quarter, row.ended_quarter) == (utc(2026, 11, 3, 8), utc(2026, 11, 3, 8))
    assert row.tokens == {"input": 10, "cache_read": 1, "cache_write": 2, "cache_write_1h": 3, "output": 20}
    assert row.nanos == {bucket: getattr(record, f"{bucket}_nanos") for bucket in BUCKETS}
    assert row.billed_nanos == record.cost_nanos > 0


def test_retried_attempts_are_failed(key: ApiKey) -> None:
    record = make_record(key, utc(2026, 11, 3), TokenUsage(input=10, output=20))
    add_attempt(record, 1, outcome="cut", input=10, cache_read=0, cache_write=0, cache_write_1h=0, output=4)
    add_attempt(record, 2, outcome="failed", status=503)
    add_attempt(record, 3)
    rollups.rebuild_due()
    assert added()["billed"]["attempts"] == 1
    assert added()["failed"] == {"attempts": 2, "input": 10, "output": 4}


def test_silence_of_a_started_answer_counts(key: ApiKey) -> None:
    """A 503 cost nothing; an answer that broke off without a report may have."""
    record = make_record(key, utc(2026, 11, 3), TokenUsage(), metering="none", ending="timed_out")
    add_attempt(record, 1, outcome="failed", status=503)
    add_attempt(record, 2, outcome="cut", status=200)
    add_attempt(record, 3, outcome="timed_out", status=None)
    rollups.rebuild_due()
    assert added() == {"failed": {"attempts": 3, "silent": 2}}


@pytest.mark.parametrize("metering", ["estimated", "checkpoint"])
def test_own_counts_are_estimates(key: ApiKey, metering: str) -> None:
    answered(key, utc(2026, 11, 3), TokenUsage(input=7), metering=metering)
    rollups.rebuild_due()
    assert (added()["estimated"]["input"], "billed" in added()) == (7, False)


def test_record_without_attempts_stands_for_one(key: ApiKey) -> None:
    make_record(
        key, utc(2026, 11, 3), TokenUsage(output=9), metering="checkpoint", ending="gateway_lost", upstream_model="s"
    )
    make_record(key, utc(2026, 11, 3), TokenUsage(), metering="none", ending="gateway_lost", upstream_model="s")
    make_record(key, utc(2026, 11, 3), TokenUsage(), metering="none", ending="provider_error", provider="")
    rollups.rebuild_due()
    found = added()
    assert (found["estimated"]["attempts"], found["estimated"]["output"]) == (1, 9)
    assert found["failed"] == {"attempts": 1, "silent": 1}


def test_unpriced_records_are_told(key: ApiKey) -> None:
    answered(key, utc(2026, 11, 3), service_tier="unheard-of")
    rollups.rebuild_due()
    assert (added()["billed"]["unpriced"], added()["billed"]["billed"]) == (1, 0)


def test_advisors_count_under_their_names(key: ApiKey) -> None:
    advisor = price("advisor-1")
    parts = [Part("advisor-1", TokenUsage(input=1000, output=10))]
    record = answered(key, utc(2026, 11, 3), TokenUsage(input=10), others=[advisor], parts=parts)
    rollups.rebuild_due()
    by_model: dict[str, Counter[str]] = {}
    for one in read():
        by_model.setdefault(one.upstream_model, Counter()).update(one.tokens, billed=one.billed_nanos, n=one.attempts)
    assert +by_model["advisor-1"] == {"input": 1000, "output": 10, "billed": 5_300_000}
    assert +by_model["sol-large"] == {"input": 10, "billed": record.cost_nanos - 5_300_000, "n": 1}


def test_stream_over_midnight_keeps_both_ends(key: ApiKey) -> None:
    record = make_record(key, utc(2026, 11, 3, 0, 5), started_at=utc(2026, 11, 2, 23, 40))
    add_attempt(record, started_at=utc(2026, 11, 2, 23, 40), duration_ms=25 * 60_000)
    rollups.rebuild_due()
    [row] = read()
    assert (row.started_quarter, row.ended_quarter) == (utc(2026, 11, 2, 23, 30), DAY)


# --- made again ---


def fill(key: ApiKey) -> None:
    """Every kind of row, in three quarters."""
    for minute in (3, 20, 50):
        answered(key, utc(2026, 11, 3, 8, minute))
    answered(key, utc(2026, 11, 3, 9), TokenUsage(input=7), metering="estimated")
    record = make_record(key, utc(2026, 11, 3, 9), TokenUsage(), metering="none", ending="client_left")
    add_attempt(record, 1, input=5, cache_read=0, cache_write=0, cache_write_1h=0, output=0)
    make_record(key, utc(2026, 11, 3, 9), TokenUsage(output=9), metering="checkpoint", ending="gateway_lost")
    parts = [Part("advisor-1", TokenUsage(input=1000))]
    answered(key, utc(2026, 11, 3, 9), TokenUsage(input=1), others=[price("advisor-1")], parts=parts)


def test_run_twice_gives_same_rows(key: ApiKey) -> None:
    fill(key)
    rollups.rebuild_due()
    columns = [field.attname for field in AttemptQuarter._meta.fields if field.attname != "id"]
    before = sorted(AttemptQuarter.objects.values_list(*columns), key=str)
    rollups.rebuild(key.pk, DAY.date())
    assert sorted(AttemptQuarter.objects.values_list(*columns), key=str) == before


def test_due_days_read_as_clean_ones(key: ApiKey) -> None:
    """Before the roll-up, after it, and with one key due while the other is not: the same figures."""
    fill(key)
    before = added()
    assert before["billed"]["attempts"] == 4
    rollups.rebuild_due()
    assert added() == before
    other = make_key(key.account, "other")
    answered(other, utc(2026, 11, 3, 10), TokenUsage(input=100))
    expected = before["billed"]["input"] + 100
    assert added()["billed"]["input"] == expected
    RollupDue.objects.create(api_key=key, day=DAY.date())
    assert added()["billed"]["input"] == expected
    RollupDue.objects.create(api_key=other, day=DAY.date() + dt.timedelta(days=1))
    assert added()["billed"]["input"] == expected


def test_other_providers_and_days_stay_out(key: ApiKey) -> None:
    answered(key, utc(2026, 11, 2, 23, 59))
    answered(key, utc(2026, 11, 4, 0, 1))
    make_record(key, utc(2026, 11, 3), provider="umbrella-cloud")
    assert read() == []
    rollups.rebuild_due()
    assert read() == []


def test_zones_far_apart_read_the_same(db: None) -> None:
    """The account's day is another one than the day asked for, on both sides of the date line."""
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        key = make_key(make_account(zone, timezone=zone))
        answered(key, utc(2026, 11, 3, 0, 1))
        answered(key, utc(2026, 11, 3, 23, 59))
    assert added()["billed"]["attempts"] == 4
    rollups.rebuild_due()
    assert added()["billed"]["attempts"] == 4


def test_month_is_read_by_index(key: ApiKey) -> None:
    answered(key, utc(2026, 11, 3))
    rollups.rebuild_due()
    with CaptureQueriesContext(connection) as queries:
        quarters.read("acme-cloud", DAY, NEXT)
    assert len(queries) == 2  # which keys' days are due, and the quarters of the others


def test_providers_are_found_one_by_one(key: ApiKey) -> None:
    for name in ("b", "a", "a", "c"):
        make_record(key, utc(2026, 11, 3), provider=name, upstream_model="sol-large")
    rollups.rebuild_due()
    with CaptureQueriesContext(connection) as queries:
        assert quarters.providers() == ["a", "b", "c"]
    assert len(queries) == 4
    assert quarters.models_of("a", DAY, NEXT) == ["sol-large"]


def test_tests_are_found_by_provider(db: None) -> None:
    for provider, at in (
        ("acme-cloud", utc(2026, 11, 3)),
        ("acme-cloud", utc(2026, 11, 4)),
        ("other", utc(2026, 11, 3)),
    ):
        ProviderTest.objects.create(
            provider=provider, upstream_model="s", wire_format="messages", started_at=at, ended_at=at
        )
    assert len(list(quarters.tests("acme-cloud", DAY, NEXT))) == 1
