"""What /metrics answers: what processes count (`metrics`), and what was last read of the meter's health.

`serve --workers N` gives its workers a folder in which each keeps its counts; whoever is asked answers for all.
The meter's figures are of the whole installation and the same in every process: take their max(), not their sum().
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from billing.meter_health import Readings, checks
from streaming.meter_watch import WATCH, MeterWatch

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client's own name; it must be set before its first metric is made."""
STATES = {"good": 0, "warn": 1, "bad": 2}


def exposition(watch: MeterWatch = WATCH) -> bytes:
    """All metrics as Prometheus reads them. Reads no database; takes 2 ms for each provider and model, in a thread."""
    registry = CollectorRegistry()
    registry.register(MeterCollector(watch))
    return generate_latest(_counted()) + generate_latest(registry)


def _counted() -> CollectorRegistry:
    if SHARED_FOLDER not in os.environ:
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


class MeterCollector:
    """The readings as metrics; nothing before the first reading."""

    def __init__(self, watch: MeterWatch) -> None:
        self._watch = watch

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client."""
        if (readings := self._watch.latest) is None:
            return
        yield GaugeMetricFamily(
            "hopbase_meter_readings_age_seconds", "How old the meter's figures are.", value=self._watch.age_s
        )
        yield from _of_bills(readings)
        yield from _of_processes(readings)
        yield _shares(readings)
        yield _states(readings)


def _of_bills(readings: Readings) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "hopbase_oldest_open_stream_seconds", "For how long the oldest unsettled request has been under way.",
        value=_age(readings, readings.oldest_open),
    )  # fmt: skip
    yield GaugeMetricFamily(
        "hopbase_unpriced_records", "Records without a price, counted up to 100,000.", value=readings.unpriced.records
    )
    yield GaugeMetricFamily(
        "hopbase_unpriced_oldest_seconds", "For how long the oldest of them has had none.",
        value=_age(readings, readings.unpriced.since),
    )  # fmt: skip
    yield GaugeMetricFamily(
        "hopbase_rollup_lag_seconds", "For how long the oldest roll-up has been due.",
        value=_age(readings, readings.rollup_due_since),
    )  # fmt: skip


def _of_processes(readings: Readings) -> Iterator[Metric]:
    yield GaugeMetricFamily("hopbase_dead_processes", "Dead processes that wait for a sweep.", value=readings.dead)
    yield GaugeMetricFamily(
        "hopbase_dead_journal_bytes", "What the journals of dead processes on this host hold.",
        value=readings.dead_journals.bytes,
    )  # fmt: skip
    yield CounterMetricFamily("hopbase_sweeps", "Dead processes that were swept.", value=readings.swept_ever.processes)
    yield CounterMetricFamily(
        "hopbase_swept_streams", "Requests of dead processes that were settled from their last checkpoint.",
        value=readings.swept_ever.bills,
    )  # fmt: skip


def _shares(readings: Readings) -> Metric:
    family = GaugeMetricFamily(
        "hopbase_estimated_share", "Share of a provider's requests of the last day that we had to count.",
        labels=["provider"],
    )  # fmt: skip
    for one in readings.metered:
        family.add_metric([one.provider], one.estimated / one.requests if one.requests else 0.0)
    return family


def _states(readings: Readings) -> Metric:
    family = GaugeMetricFamily(
        "hopbase_meter_check", "The meter's checks: 0 good, 1 to be looked at, 2 unhealthy.", labels=["check"]
    )
    for check in checks(readings):
        family.add_metric([check.name], STATES[check.state])
    return family


def _age(readings: Readings, since: dt.datetime | None) -> float:
    return max(0.0, (readings.at - since).total_seconds()) if since else 0.0
