"""The sweep: what dead processes leave becomes records, once, whoever sweeps and however often."""

from __future__ import annotations

import datetime as dt
import json
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connections
from uuid_utils.compat import uuid7

from billing import tasks
from billing.ledger import BroughtObjects, Journal, Ledger, OpenRow
from billing.ledger.encoding import reported_as_json
from billing.models import ApiKey, GatewayProcess, MeterEvent, OpenStream, RollupDue, StoredObject, UsageRecord
from billing.processes import Folder
from billing.sweep import LOST_ANSWER, LOST_STREAM, Swept, as_checkpoint, lost_settlement, sweep, sweep_at_start
from billing.usage import INPUT_ABSENT, OUTPUT_PLACEHOLDER, Part, ReportedUsage, TokenUsage
from tests.billing.admin_world import make_price
from tests.billing.factories import price, priced
from tests.billing.ledger.entries import checkpoint, checkpoint_row, make_key, opening, settlement

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
OUTPUT_NANOS = 30_000
"""Of one token at the standard price; one of input is 5,000."""


@pytest.fixture
def key(transactional_db: None) -> ApiKey:
    make_price()
    return make_key()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def dead(folder: Folder) -> uuid.UUID:
    """A process that has died: its lock file is there, and nobody holds it."""
    id = uuid7()
    lock = folder.hold(id)
    assert lock is not None
    lock.close()
    return id


def make_stream(key: ApiKey, process: uuid.UUID, **fields: Any) -> OpenStream:
    """A stream whose last checkpoint says 9 tokens of input and 40 of output."""
    id = uuid7()
    given = {
        "id": id, "api_key": key, "account": key.account, "key_name": key.name, "account_name": "northwind",
        "request_name": f"trace-{id.hex}", "process": process, "model": "gpt-5.6-sol", "wire_format": "messages",
        "stream": True, "provider": "acme", "upstream_model": "sol-2", "attempt": 2, "started_at": NOW,
        "counted_input": 9, "counted_output": 40, "last_output_at": NOW + dt.timedelta(seconds=3),
        "checkpoint_at": NOW + dt.timedelta(seconds=4), "tier_asked": "flex", "retry_count": 1,
        "attempt_started_at": NOW + dt.timedelta(seconds=1), "first_output_at": NOW + dt.timedelta(seconds=2),
        "provider_request_id": "prov-1",
    }  # fmt: skip
    return OpenStream.objects.create(**{**given, **fields})


def none_silent(processes: Any) -> set[uuid.UUID]:
    return set()


def test_lost_stream_gets_its_record(key: ApiKey, folder: Folder, dead: uuid.UUID) -> None:
    GatewayProcess.objects.create(id=dead, label="gw", started_at=NOW)
    stream = make_stream(key, dead)
    assert sweep(folder=folder) == Swept(streams=1, processes=1)
    record = UsageRecord.objects.get()
    assert (record.id, record.request_name) == (stream.id, stream.request_name)
    assert (record.ending, record.metering, record.reason) == ("gateway_lost", "checkpoint", LOST_STREAM)
    assert (record.input, record.output, record.cost_nanos) == (9, 40, 9 * 5_000 + 40 * OUTPUT_NANOS)
    assert (record.provider, record.upstream_model) == ("acme", "sol-2")
    assert (record.started_at, record.ended_at) == (NOW, stream.checkpoint_at)
    assert RollupDue.objects.get().day == record.day
    assert (OpenStream.objects.count(), GatewayProcess.objects.count(), folder.processes()) == (0, 0, set())


def test_lost_stream_tells_what_it_knew(key: ApiKey, folder: Folder, dead: uuid.UUID) -> None:
    """What was asked, when the first output came, and the attempt that was under way."""
    reported = ReportedUsage(TokenUsage(input=9, output=33), raw={"output_tokens": 33})
    stream = make_stream(key, dead, reported=reported_as_json(reported))
    sweep(folder=folder)
    record = UsageRecord.objects.get()
    assert (record.tier_asked, record.retry_count, record.first_output_at) == ("flex", 1, stream.first_output_at)
    attempt = record.attempts.get()
    assert (attempt.number, attempt.provider, attempt.upstream_model) == (2, "acme", "sol-2")
    assert (attempt.outcome, attempt.reason, attempt.status) == ("gateway_lost", LOST_STREAM, None)
    assert (attempt.provider_request_id, attempt.usage) == ("prov-1", {"output_tokens": 33})
    assert attempt.started_at == stream.attempt_started_at
    assert (attempt.headers_ms, attempt.first_output_ms, attempt.duration_ms) == (None, 1000, 3000)


def test_living_process_is_left_alone(key: ApiKey, folder: Folder) -> None:
    alive = uuid7()
    lock = folder.hold(alive)
    assert lock is not None
    GatewayProcess.objects.create(id=alive, label="gw", started_at=NOW)
    make_stream(key, alive)
    assert sweep(folder=folder) == Swept()
    assert (OpenStream.objects.count(), GatewayProcess.objects.count()) == (1, 1)
    lock.close()


def test_foreign_process_is_watched(key: ApiKey, folder: Folder, dead: uuid.UUID) -> None:
    gone, alive = uuid7(), uuid7()
    make_stream(key, gone)
    make_stream(key, alive)
    GatewayProcess.objects.create(id=alive, label="gw", started_at=NOW)
    watched: list[uuid.UUID] = []

    def silent(processes: Any) -> set[uuid.UUID]:
        watched.extend(processes)
        return {gone}

    assert sweep(folder=folder, are_silent=silent) == Swept(streams=1, processes=2)
    assert set(watched) == {gone, alive}
    assert OpenStream.objects.get().process == alive


def test_second_sweep_changes_nothing(key: ApiKey, folder: Folder, dead: uuid.UUID) -> None:
    make_stream(key, dead)
    sweep(folder=folder)
    before = UsageRecord.objects.values().get()
    assert sweep(folder=folder, are_silent=none_silent) == Swept()
    assert UsageRecord.objects.values().get() == before


def test_two_sweepers_at_once(key: ApiKey, tmp_path: Path) -> None:
    """Of two hosts, so that no lock keeps them apart."""
    process = uuid7()
    streams = [make_stream(key, process, counted_output=n) for n in range(1, 61)]
    begin = threading.Barrier(2)

    def all_silent(processes: set[uuid.UUID]) -> set[uuid.UUID]:
        begin.wait(10)
        return processes

    def run(host: str) -> Swept:
        try:
            return sweep(folder=Folder(tmp_path / host), are_silent=all_silent)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, ("one", "two")))
    kept = dict(UsageRecord.objects.values_list("id", "output"))
    assert kept == {stream.id: stream.counted_output for stream in streams}
    assert OpenStream.objects.count() == 0


def test_sweep_races_a_living_owner(key: ApiKey, tmp_path: Path) -> None:
    """A sweeper that takes a living process for dead, while its owner settles: the owner's figures stay."""
    process = uuid7()
    rows = [opening(key, process=process, started_at=NOW) for _ in range(40)]
    ledger = Ledger()
    ledger.start()
    for opened in [ledger.open(row) for row in rows]:
        opened.result(5)
    ledger.checkpoint(checkpoint(*(checkpoint_row(row) for row in rows), process=process)).result(5)

    def sweeps() -> None:
        try:
            for _ in range(3):
                sweep(folder=Folder(tmp_path), are_silent=lambda processes: set(processes))
        finally:
            connections.close_all()

    thread = threading.Thread(target=sweeps)
    thread.start()
    settled = [ledger.settle(settlement(row)) for row in rows]
    for done in settled:
        done.result(20)
    thread.join()
    assert ledger.stop(5)
    assert {(record.ending, record.output) for record in UsageRecord.objects.all()} == {("complete", 52)}
    assert (UsageRecord.objects.count(), OpenStream.objects.count()) == (40, 0)


def test_owner_that_lives_puts_rows_back(key: ApiKey, tmp_path: Path) -> None:
    """Swept for dead, it goes on; swept again after its real death, it has its last checkpoint."""
    process, folder = uuid7(), Folder(tmp_path)
    row, ledger = opening(key, process=process, started_at=NOW), Ledger()
    ledger.start()
    ledger.open(row).result(5)
    all_silent: Callable[[Any], set[uuid.UUID]] = set
    sweep(folder=folder, are_silent=all_silent)
    assert UsageRecord.objects.get().metering == "none"
    at = NOW + dt.timedelta(seconds=8)
    ledger.checkpoint(checkpoint(checkpoint_row(row, counted_output=70, at=at), process=process)).result(5)
    assert OpenStream.objects.get().id == row.id
    ledger.stop(5)
    sweep(folder=folder, are_silent=all_silent)
    record = UsageRecord.objects.get()
    assert (record.metering, record.output, record.ended_at) == ("checkpoint", 70, at)


# --- journals ---


def leave_journal(folder: Folder, process: uuid.UUID, entries: list[Any], names: Any = None) -> Path:
    journal = Journal(folder.journal_path(process))
    assert journal.append(entries, names or {})
    journal.close()
    return journal.path


def test_journal_of_the_dead_is_replayed(key: ApiKey, folder: Folder, dead: uuid.UUID) -> None:
    ended, begun, refused = (make_stream(key, dead) for _ in range(3))
    rows = {stream.id: as_checkpoint(stream).open for stream in (ended, begun)}
    later = NOW + dt.timedelta(seconds=30)
    brought = BroughtObjects(ended.id, key.account_id, "acme", "sol", 1, ("resp_1",), NOW)
    entries = [
        settlement(rows[ended.id]), brought, refused.id,
        checkpoint_row(rows[begun.id], counted_output=90, at=later), checkpoint_row(rows[ended.id]),
    ]  # fmt: skip
    path = leave_journal(folder, dead, entries)
    assert sweep(folder=folder) == Swept(streams=1, replayed=3, processes=1)
    kept = {record.id: record for record in UsageRecord.objects.all()}
    assert set(kept) == {ended.id, begun.id}
    assert (kept[ended.id].ending, kept[ended.id].request_name) == ("complete", ended.request_name)
    assert (kept[begun.id].output, kept[begun.id].ended_at) == (90, later)
    assert (OpenStream.objects.count(), StoredObject.objects.count(), path.exists()) == (0, 1, False)


def test_journal_knows_rows_that_are_gone(key: ApiKey, folder: Folder, dead: uuid.UUID) -> None:
    rows = [opening(key, process=dead, started_at=NOW) for _ in range(2)]
    names = {row.id: f"trace-{n}" for n, row in enumerate(rows)}
    leave_journal(folder, dead, [settlement(rows[0]), checkpoint_row(rows[1])], names)
    sweep(folder=folder)
    assert dict(UsageRecord.objects.values_list("id", "request_name")) == names


def test_replay_after_half_a_replay(key: ApiKey, folder: Folder, dead: uuid.UUID) -> None:
    """A sweeper that died between its commit and the journal's end: all is there, and nothing is doubled."""
    row = as_checkpoint(make_stream(key, dead)).open
    entries = [settlement(row), checkpoint_row(row)]
    for _ in range(3):
        lock = folder.hold(dead)
        assert lock is not None
        lock.close()
        leave_journal(folder, dead, entries)
        sweep(folder=folder)
    assert UsageRecord.objects.get().ending == "complete"


def test_journal_of_the_living_is_left(key: ApiKey, folder: Folder) -> None:
    alive = uuid7()
    lock = folder.hold(alive)
    path = leave_journal(folder, alive, [settlement(opening(key))])
    assert sweep(folder=folder) == Swept()
    assert (UsageRecord.objects.count(), path.exists(), lock is not None) == (0, True, True)


def test_poison_stream_harms_no_other(key: ApiKey, folder: Folder, dead: uuid.UUID) -> None:
    absurd = ReportedUsage(TokenUsage(input=10**30, output=-4), raw={"text": "x" * 100_000})
    bad = make_stream(key, dead, reported=reported_as_json(absurd), model="nul\ufffd")
    odd = make_stream(key, dead, reported={"usage": {"no": "such"}, "colour": 3})
    good = make_stream(key, dead)
    assert sweep(folder=folder).streams == 3
    costs = dict(UsageRecord.objects.values_list("id", "cost_nanos"))
    assert costs[odd.id] == costs[good.id] > 0
    assert UsageRecord.objects.get(id=bad.id).unpriced


# --- what is billed ---


def lost(row: OpenRow | None = None, **fields: Any) -> Any:
    made = checkpoint_row(row or opening(KEY, started_at=NOW), **fields)
    return lost_settlement(made, KEY.account, priced(price(), price("advisor-1")))


class KEY:
    """Enough of a key for rows that go nowhere."""

    id, account_id, name = 1, 1, "production"

    class account:
        timezone, currency = "UTC", "USD"


def test_lost_stream_keeps_its_factor(key: ApiKey, folder: Folder, dead: uuid.UUID) -> None:
    make_stream(key, dead, count_factor_ppm=1_250_000)
    sweep(folder=folder)
    record = UsageRecord.objects.get()
    assert (record.counted_output, record.count_factor_ppm, record.text_only) == (40, 1_250_000, False)


def test_nothing_produced_costs_nothing() -> None:
    record = lost(last_output_at=None, counted_output=0, counted_input=0)
    assert (record.metering, record.rating.cost_nanos, record.ending) == ("none", 0, "gateway_lost")


def test_reported_input_alone_costs_nothing() -> None:
    prelude = ReportedUsage(TokenUsage(input=900, output=1), flags=(OUTPUT_PLACEHOLDER,))
    record = lost(last_output_at=None, counted_output=0, reported=prelude)
    assert (record.metering, record.rating.cost_nanos) == ("none", 0)


def test_reported_usage_wins_over_counts() -> None:
    running = ReportedUsage(TokenUsage(input=14, cache_read=100, output=33), "priority", raw={"n": 1})
    record = lost(reported=running)
    assert (record.usage, record.metering, record.service_tier) == (running.usage, "checkpoint", "priority")


def test_counts_stand_in_for_placeholders() -> None:
    prelude = ReportedUsage(TokenUsage(input=900, output=1), flags=(OUTPUT_PLACEHOLDER,))
    assert lost(reported=prelude).usage == TokenUsage(input=900, output=40)
    absent = ReportedUsage(TokenUsage(output=33), flags=(INPUT_ABSENT,))
    assert lost(reported=absent).usage == TokenUsage(input=9, output=33)


def test_parts_of_other_models_are_billed() -> None:
    told = ReportedUsage(TokenUsage(input=1, output=1), parts=(Part("advisor-1", TokenUsage(output=10)),))
    assert lost(reported=told).rating.cost_nanos == 5_000 + OUTPUT_NANOS * 11


def test_lost_answer_is_shown_as_such() -> None:
    record = lost(opening(KEY, stream=False, started_at=NOW), reported=ReportedUsage(TokenUsage(output=9)))
    assert (record.metering, record.rating.cost_nanos, record.reason) == ("none", 0, LOST_ANSWER)


def test_unknown_price_is_unpriced(key: ApiKey, folder: Folder, dead: uuid.UUID) -> None:
    make_stream(key, dead, model="nobody-knows")
    sweep(folder=folder)
    assert UsageRecord.objects.get().unpriced


def test_row_without_checkpoint_ends_as_it_began(key: ApiKey, folder: Folder, dead: uuid.UUID) -> None:
    fresh = {
        "checkpoint_at": None, "last_output_at": None, "first_output_at": None, "attempt_started_at": None,
        "counted_input": 0, "counted_output": 0,
    }  # fmt: skip
    make_stream(key, dead, **fresh)
    sweep(folder=folder)
    record = UsageRecord.objects.get()
    assert (record.ended_at, record.metering, record.cost_nanos) == (NOW, "none", 0)
    assert (record.attempts.get().started_at, record.attempts.get().duration_ms) == (NOW, 0)


# --- who calls it ---


@pytest.fixture
def here(settings: Any, tmp_path: Path) -> Folder:
    settings.VAR_DIR = tmp_path
    return Folder(tmp_path)


def test_command_says_how_many(key: ApiKey, here: Folder, dead: uuid.UUID, capsys: pytest.CaptureFixture[str]) -> None:
    make_stream(key, dead)
    call_command("sweep", "--json")
    assert json.loads(capsys.readouterr().out) == {"streams": 1, "replayed": 0, "processes": 1}
    call_command("sweep")
    assert "0 lost streams" in capsys.readouterr().out


def test_task_sweeps(key: ApiKey, here: Folder, dead: uuid.UUID) -> None:
    make_stream(key, dead)
    assert (tasks.sweep(), tasks.sweep()) == (1, 0)


def test_start_sweeps_until_it_can(
    key: ApiKey, folder: Folder, dead: uuid.UUID, caplog: pytest.LogCaptureFixture
) -> None:
    make_stream(key, dead)
    tries: list[int] = []

    def away_at_first() -> Swept:
        tries.append(1)
        if len(tries) < 3:
            raise OperationalError("away")
        return sweep(folder=folder)

    sweep_at_start(threading.Event(), retry_s=0.01, once=away_at_first)
    assert (len(tries), UsageRecord.objects.count()) == (3, 1)
    assert "the sweep will be tried again: OperationalError" in caplog.text


def test_sweep_leaves_a_note(key: ApiKey, folder: Folder, dead: uuid.UUID) -> None:
    GatewayProcess.objects.create(id=dead, label="gw-2", started_at=NOW)
    make_stream(key, dead)
    Journal(folder.journal_path(dead)).append([settlement(opening(key)), settlement(opening(key))], {})
    sweep(folder=folder)
    kept = {event.kind: event for event in MeterEvent.objects.filter(process=dead)}
    assert {kind: (event.count, event.detail) for kind, event in kept.items()} == {
        "swept": (1, "gw-2"), "late": (2, "gw-2"),
    }  # fmt: skip
    sweep(folder=folder, are_silent=none_silent)
    assert MeterEvent.objects.count() == 2
