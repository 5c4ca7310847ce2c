"""/metrics: what was last read of the meter, beside what the process counts; never a query."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from billing.meter_health import Readings
from billing.meter_health.readings import Journals, Metered, Noted, Unpriced
from streaming.exposition import SHARED_FOLDER, exposition
from streaming.meter_watch import STALE_S, MeterWatch

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
READINGS = Readings(
    at=NOW,
    dead=2,
    dead_journals=Journals(1, 345, 3, NOW),
    open_streams=4,
    oldest_open=NOW - dt.timedelta(seconds=90),
    swept_ever=Noted(bills=17, processes=5),
    unpriced=Unpriced(8, NOW - dt.timedelta(seconds=60)),
    metered=[Metered("acme", 200, 50), Metered("beta", 10, 0)],
    rollup_due_since=NOW - dt.timedelta(seconds=30),
)


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def sample(text: bytes, name: str, **labels: str) -> float:
    found = [
        one.value
        for family in text_string_to_metric_families(text.decode())
        for one in family.samples
        if (one.name, one.labels) == (name, labels)
    ]
    assert len(found) == 1, name
    return float(found[0])


def test_meter_is_told_as_read() -> None:
    """No database is set up here: a query would fail."""
    clock = Seconds()
    watch = MeterWatch(clock)
    watch.take(READINGS)
    clock.now += 7
    text = exposition(watch)
    expected = {
        "hopbase_meter_readings_age_seconds": 7, "hopbase_oldest_open_stream_seconds": 90, "hopbase_dead_processes": 2,
        "hopbase_dead_journal_bytes": 345, "hopbase_sweeps_total": 5, "hopbase_swept_streams_total": 17,
        "hopbase_unpriced_records": 8, "hopbase_unpriced_oldest_seconds": 60, "hopbase_rollup_lag_seconds": 30,
    }  # fmt: skip
    assert {name: sample(text, name) for name in expected} == expected
    assert sample(text, "hopbase_estimated_share", provider="acme") == 0.25
    assert sample(text, "hopbase_estimated_share", provider="beta") == 0
    states = {name: sample(text, "hopbase_meter_check", check=name) for name in ("unpriced", "rollup_lag", "journals")}
    assert states == {"unpriced": 2, "rollup_lag": 0, "journals": 1}


def test_every_family_stands_once() -> None:
    watch = MeterWatch()
    watch.take(READINGS)
    names = [family.name for family in text_string_to_metric_families(exposition(watch).decode())]
    assert len(names) == len(set(names))
    assert {"hopbase_ledger_late_writes", "hopbase_ledger_dropped", "hopbase_journal_bytes"} <= set(names)


def test_nothing_is_made_up_before_the_first_reading() -> None:
    assert b"hopbase_unpriced_records" not in exposition(MeterWatch())


def test_old_readings_are_stale() -> None:
    clock = Seconds()
    watch = MeterWatch(clock)
    assert watch.fresh is None
    watch.take(READINGS)
    clock.now += STALE_S - 1
    assert watch.fresh is READINGS
    clock.now += 2
    assert (watch.fresh, watch.latest) == (None, READINGS)


COUNTS = """
from streaming import metrics
metrics.labelled(metrics.ATTEMPTS, "acme", "answered").inc()
metrics.labelled(metrics.DURATION, "chat", "acme", "m", "").observe(0.3)
metrics.OPEN_STREAMS.set(2)
metrics.COOLING.set({cooling})
"""


def test_workers_are_added_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Counters, histograms and open requests are sums; what each knows of all routes is not."""
    monkeypatch.setenv(SHARED_FOLDER, str(tmp_path))
    workers = [subprocess.Popen([sys.executable, "-c", COUNTS.format(cooling=number)]) for number in (1, 3)]
    assert [worker.wait(20) for worker in workers] == [0, 0]
    text = exposition(MeterWatch())
    labels = {"gen_ai_operation_name": "chat", "gen_ai_provider_name": "acme", "gen_ai_request_model": "m"}
    assert sample(text, "hopbase_attempts_total", provider="acme", outcome="answered") == 2
    assert sample(text, "gen_ai_server_request_duration_seconds_count", **labels, error_type="") == 2
    assert sample(text, "gen_ai_server_request_duration_seconds_bucket", **labels, error_type="", le="0.32") == 2
    assert (sample(text, "hopbase_open_requests"), sample(text, "hopbase_cooling_routes")) == (4, 3)
