"""/metrics: what was last read of the meter, beside what the process counts; never a query."""

from __future__ import annotations

import datetime as dt

from prometheus_client.parser import text_string_to_metric_families

from billing.meter_health import Readings
from billing.meter_health.readings import Journals, Metered, Noted, Unpriced
from streaming.exposition import exposition
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
