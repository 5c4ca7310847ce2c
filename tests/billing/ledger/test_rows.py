"""What entries become in the tables."""

from __future__ import annotations

import datetime as dt

import pytest

from billing.ledger import Ledger
from billing.ledger.groups import ATTEMPTS, OBJECTS, OPEN_STREAMS, RECORDS
from billing.ledger.rows import attempt_rows, object_rows, open_row, record_row
from billing.models import Account, ApiKey, Attempt, OpenStream, RollupDue, UsageRecord
from billing.usage import MAX_COUNT, TokenUsage
from tests.billing.ledger.entries import ENDED, PROCESS, RAW, STARTED, attempt, brought, opening, settlement

TRIAL = ApiKey(id=1, name="production", account_id=1)


def test_rows_fill_every_column() -> None:
    row = opening(TRIAL)
    assert set(open_row(row, "n")) == set(OPEN_STREAMS.columns)
    assert set(record_row(settlement(row), "n")) == set(RECORDS.columns)
    assert set(attempt_rows(settlement(row))[0]) == set(ATTEMPTS.columns)
    assert set(object_rows(brought(row, "resp_1"))[0]) == set(OBJECTS.columns)


def test_open_row_is_kept(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    assert ledger.open(row).result(5) == row.own_name
    kept = OpenStream.objects.get(id=row.id)
    assert (kept.api_key, kept.account_id, kept.process) == (key, key.account_id, PROCESS)
    assert (kept.key_name, kept.account_name, kept.request_name) == ("production", "northwind", row.own_name)
    assert (kept.started_at, kept.stream, kept.attempt, kept.object_ids) == (STARTED, True, 1, [])
    assert (kept.counted_input, kept.reported, kept.checkpoint_at, kept.stop_requested) == (0, None, None, False)


def test_record_keeps_everything(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    ledger.open(row)
    ledger.settle(settlement(row)).result(5)
    kept = UsageRecord.objects.get(id=row.id)
    assert (kept.ending, kept.metering, kept.tier_asked, kept.service_tier) == (
        "complete", "reported", "auto", "default",
    )  # fmt: skip
    assert (kept.input, kept.output, kept.reasoning, kept.server_tools) == (14, 52, 12, {"web_search": 1})
    assert (kept.counted_input, kept.counted_output, kept.retry_count) == (None, 50, 1)
    assert (kept.raw_usage, kept.object_ids) == (RAW, ["resp_1"])
    assert kept.flags == ["zero_with_output", "unknown:audio_tokens"]
    assert (kept.provider, kept.upstream_model) == ("acme-cloud", "gpt-5.6-sol-2026")
    assert (kept.started_at, kept.first_output_at, kept.ended_at) == (STARTED, STARTED, ENDED)
    assert kept.invoice is None
    assert not OpenStream.objects.exists()


@pytest.mark.parametrize(("counted", "kept_ppm"), [(50, 1_250_000), (None, None)])
def test_factor_is_kept_with_counts(ledger: Ledger, key: ApiKey, counted: int | None, kept_ppm: int | None) -> None:
    """On the open row as what its counts will be scaled by, on the record where there are any."""
    row = opening(key, count_factor_ppm=1_250_000)
    ledger.open(row).result(5)
    assert OpenStream.objects.get(id=row.id).count_factor_ppm == 1_250_000
    ledger.settle(settlement(row, counted_output=counted, text_only=True)).result(5)
    kept = UsageRecord.objects.get(id=row.id)
    assert (kept.counted_output, kept.count_factor_ppm, kept.text_only) == (counted, kept_ppm, True)


def test_record_keeps_its_price(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    ledger.settle(settlement(row)).result(5)
    kept = UsageRecord.objects.get(id=row.id)
    assert (kept.currency, kept.price_version, kept.unpriced) == ("USD", "gpt-5.6-sol@2026-01-01T00:00:00Z", False)
    assert (kept.input_nanos, kept.cache_read_nanos, kept.output_nanos) == (70_000, 0, 1_560_000)
    assert kept.unit_prices == {"input": 5 * 10**9, "output": 30 * 10**9}
    assert kept.items == [
        {
            "model": "gpt-5.6-sol", "bucket": "web_search", "quantity": 1, "unit_nanos": 10**7, "per_million": False,
            "amount_nanos": 10**7, "price_version": "gpt-5.6-sol@2026-01-01T00:00:00Z",
        }
    ]  # fmt: skip
    assert kept.cost_nanos == 70_000 + 1_560_000 + 10**7


def test_attempts_are_kept(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    failed = attempt(
        outcome="failed", status=503, reason="overloaded", usage={"input_tokens": 9}, headers_ms=None,
        tokens=TokenUsage(input=9, output=10**14),
    )  # fmt: skip
    ledger.settle(settlement(row, attempts=(failed, attempt(number=2, object_ids=("resp_1",))))).result(5)
    first, second = Attempt.objects.filter(record=row.id)
    assert (first.outcome, first.status, first.reason, first.usage) == (
        "failed", 503, "overloaded", {"input_tokens": 9},
    )  # fmt: skip
    assert (first.headers_ms, second.headers_ms, second.first_output_ms, second.duration_ms) == (None, 210, 480, 812)
    assert (second.object_ids, second.provider_request_id, second.usage) == (["resp_1"], "req_at_acme", None)
    assert (first.input, first.cache_read, first.output, second.input) == (9, 0, MAX_COUNT, None)


@pytest.mark.parametrize(
    ("zone", "day", "hour"),
    [
        ("UTC", dt.date(2026, 11, 30), dt.datetime(2026, 11, 30, 16, tzinfo=dt.UTC)),
        ("Asia/Taipei", dt.date(2026, 12, 1), dt.datetime(2026, 11, 30, 16, tzinfo=dt.UTC)),
        ("Asia/Kathmandu", dt.date(2026, 11, 30), dt.datetime(2026, 11, 30, 16, 15, tzinfo=dt.UTC)),
    ],
)
def test_end_decides_the_day(ledger: Ledger, key: ApiKey, zone: str, day: dt.date, hour: dt.datetime) -> None:
    Account.objects.update(timezone=zone)
    row = opening(key)
    ledger.settle(settlement(row, zone=zone)).result(5)
    kept = UsageRecord.objects.get(id=row.id)
    assert (kept.day, kept.hour_start) == (day, hour)
    assert list(RollupDue.objects.values_list("api_key", "day")) == [(key.id, day)]


def test_unstorable_text_is_replaced(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    raw = {"a\0": ["\ud800", {"b": "\0"}], "count": 2**70}
    ledger.settle(settlement(row, reason="cut\0 \udfff", raw=raw, service_tier="t" * 90)).result(5)
    kept = UsageRecord.objects.get(id=row.id)
    assert kept.reason == "cut\ufffd \ufffd"
    assert kept.raw_usage == {"a\ufffd": ["\ufffd", {"b": "\ufffd"}], "count": 2**70}
    assert kept.service_tier == "t" * 40


def test_counts_are_clamped(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    usage = TokenUsage(input=-5, output=10**15, server_tools={"web_search": -1})
    out_of_range = attempt(status=10**6, headers_ms=-3, duration_ms=10**12)
    ledger.settle(
        settlement(row, usage=usage, counted_input=10**14, retry_count=99_999, attempts=(out_of_range,))
    ).result(5)
    kept = UsageRecord.objects.get(id=row.id)
    assert (kept.input, kept.output, kept.server_tools) == (0, MAX_COUNT, {"web_search": 0})
    assert (kept.counted_input, kept.retry_count) == (MAX_COUNT, 2**15 - 1)
    assert kept.flags[2:] == ["negative:input", "too_large:output", "negative:web_search"]
    kept_attempt = Attempt.objects.get()
    assert (kept_attempt.headers_ms, kept_attempt.duration_ms) == (0, 2**31 - 1)


def test_long_raw_usage_is_cut(ledger: Ledger, key: ApiKey) -> None:
    row = opening(key)
    ledger.settle(settlement(row, raw={"text": "é" * 20_000})).result(5)
    raw = UsageRecord.objects.get(id=row.id).raw_usage
    assert raw["truncated"] is True
    assert raw["begin"].startswith('{"text":"éé')
