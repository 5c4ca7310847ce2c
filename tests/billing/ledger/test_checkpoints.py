"""Checkpoints: what open rows then say, what comes back, and what never does."""

from __future__ import annotations

import logging

import pytest

from billing.ledger import Ledger, OpenRow
from billing.ledger.encoding import reported_from_json
from billing.models import ApiKey, GatewayProcess, OpenStream
from billing.usage import ReportedUsage, TokenUsage
from tests.billing.ledger.entries import (
    ENDED,
    PROCESS,
    STARTED,
    checkpoint,
    checkpoint_row,
    nested,
    opening,
    settlement,
)


@pytest.fixture
def opened(ledger: Ledger, key: ApiKey) -> OpenRow:
    row = opening(key, wished_name="trace-1")
    ledger.open(row).result(5)
    return row


def test_open_row_says_how_far(ledger: Ledger, opened: OpenRow) -> None:
    reported = ReportedUsage(TokenUsage(input=9, output=3), "flex", raw={"n": 1}, flags=("zero_with_output",))
    row = checkpoint_row(opened, provider="other", upstream_model="sol-2", attempt=2, reported=reported)
    ledger.checkpoint(checkpoint(row)).result(5)
    found = OpenStream.objects.get()
    assert (found.counted_input, found.counted_output, found.attempt) == (9, 40, 2)
    assert (found.provider, found.upstream_model) == ("other", "sol-2")
    assert (found.last_output_at, found.checkpoint_at) == (ENDED, ENDED)
    assert (found.first_output_at, found.attempt_started_at) == (STARTED, STARTED)
    assert found.provider_request_id == "req_at_acme"
    assert reported_from_json(found.reported) == reported
    assert (found.request_name, found.model) == ("trace-1", opened.model)


def test_admission_is_on_the_row(ledger: Ledger, key: ApiKey) -> None:
    """What the provider was asked for, and how long it may be silent: for those who look while it runs."""
    ledger.open(opening(key, tier_asked="flex", retry_count=2, silence_limit_s=120)).result(5)
    found = OpenStream.objects.get()
    assert (found.tier_asked, found.retry_count, found.silence_limit_s) == ("flex", 2, 120)
    assert (found.attempt_started_at, found.first_output_at, found.provider_request_id) == (None, None, "")


def test_heartbeat_goes_up(ledger: Ledger, key: ApiKey) -> None:
    for number in (1, 2, 3):
        ledger.checkpoint(checkpoint(heartbeat=number)).result(5)
        process = GatewayProcess.objects.get()
        assert (process.id, process.label, process.heartbeat) == (PROCESS, "gw:1", number)


def test_stop_comes_back_for_silent_rows(ledger: Ledger, opened: OpenRow, key: ApiKey) -> None:
    other = opening(key)
    ledger.open(other).result(5)
    OpenStream.objects.filter(id=other.id).update(stop_requested=True)
    told = ledger.checkpoint(checkpoint(checkpoint_row(opened))).result(5)
    assert (told.stops, told.vanished) == ({other.id}, frozenset())


def test_vanished_row_is_put_back(ledger: Ledger, opened: OpenRow) -> None:
    OpenStream.objects.all().delete()
    assert ledger.checkpoint(checkpoint(checkpoint_row(opened))).result(5).vanished == frozenset()
    found = OpenStream.objects.get()
    assert (found.id, found.request_name, found.counted_output) == (opened.id, "trace-1", 40)


def test_unchanged_vanished_row_is_told(ledger: Ledger, opened: OpenRow) -> None:
    OpenStream.objects.all().delete()
    assert ledger.checkpoint(checkpoint()).result(5).vanished == {opened.id}


def test_put_back_under_own_name(ledger: Ledger, opened: OpenRow, key: ApiKey) -> None:
    """Another process gave the name away while the row was gone."""
    OpenStream.objects.all().delete()
    OpenStream.objects.create(
        id=opening(key).id, api_key=key, account=key.account, key_name="k", account_name="a", request_name="trace-1",
        process=opening(key).id, model="m", wire_format="messages", stream=True, started_at=ENDED,
    )  # fmt: skip
    ledger.checkpoint(checkpoint(checkpoint_row(opened))).result(5)
    assert OpenStream.objects.get(id=opened.id).request_name == opened.own_name


def test_late_checkpoint_brings_nothing_back(ledger: Ledger, opened: OpenRow) -> None:
    ledger.settle(settlement(opened))
    told = ledger.checkpoint(checkpoint(checkpoint_row(opened))).result(5)
    assert OpenStream.objects.count() == 0
    assert told.vanished == frozenset()


def test_checkpoint_and_end_in_one_group(key: ApiKey, transactional_db: None) -> None:
    row, ledger = opening(key), Ledger()
    ledger.open(row)
    ledger.settle(settlement(row))
    ledger.checkpoint(checkpoint(checkpoint_row(row)))
    ledger.start()
    assert ledger.stop(5)
    assert OpenStream.objects.count() == 0


def test_absurd_figures_are_clamped(ledger: Ledger, opened: OpenRow) -> None:
    odd = ReportedUsage(TokenUsage(input=10**30), raw={"text": "\0\ud800", "deep": nested(300)})
    row = checkpoint_row(opened, counted_output=10**30, attempt=10**6, reported=odd)
    ledger.checkpoint(checkpoint(row)).result(5)
    found = OpenStream.objects.get()
    assert (found.counted_output, found.attempt) == (10**12, 2**15 - 1)
    assert reported_from_json(found.reported) == ReportedUsage(odd.usage)


def test_poison_row_harms_no_other(ledger: Ledger, key: ApiKey, caplog: pytest.LogCaptureFixture) -> None:
    rows = [opening(key) for _ in range(9)]
    for row in rows:
        ledger.open(row).result(5)
    marks = [checkpoint_row(row, attempt=None if row is rows[4] else 1) for row in rows]
    ledger.checkpoint(checkpoint(*marks)).result(5)
    counted = dict(OpenStream.objects.values_list("id", "counted_output"))
    assert [counted[row.id] for row in rows] == [0 if row is rows[4] else 40 for row in rows]
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == [f"the ledger cannot keep Checkpoint of {PROCESS}: IntegrityError"]
