"""What a process counts for Prometheus. Touched once per request, never per event."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Gauge, Histogram

from streaming.protocols.counts import ZERO_WITH_OUTPUT

REQUESTS = Counter("hopbase_requests_total", "Requests that have ended.", ["wire_format", "ending", "metering"])
REFUSALS = Counter("hopbase_refusals_total", "Requests that the gateway refused itself.", ["code"])
TOKENS = Counter("hopbase_tokens_total", "Tokens billed.", ["bucket"])
UPSTREAM_FAILURES = Counter("hopbase_upstream_failures_total", "Attempts that failed before any output.", ["kind"])
OPEN_STREAMS = Gauge("hopbase_open_requests", "Requests under way.", multiprocess_mode="livesum")
FIRST_OUTPUT = Histogram(
    "hopbase_first_output_seconds", "Time from the request to the first real output.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)  # fmt: skip
COOLING = Gauge("hopbase_cooling_routes", "Routes that cool down, as this process knows.", multiprocess_mode="livemax")
JOURNAL = Gauge(
    "hopbase_journal_bytes", "What waits on the local disk for a database that is away.", multiprocess_mode="livesum"
)
UNSETTLED = Gauge("hopbase_unsettled_operations", "Operations that wait for the ledger.", multiprocess_mode="livesum")
LIMITS_PER_PROCESS = Gauge(
    "hopbase_limits_per_process", "1 while Redis is away and each process counts limits alone.",
    multiprocess_mode="livemax",
)  # fmt: skip
BUDGET_ALARMS = Counter("hopbase_budget_alarms_total", "Budgets that passed a share of their month.", ["percent"])
LEDGER_LATE = Counter("hopbase_ledger_late_writes_total", "Bills that a database away held up, and that are written.")
LEDGER_DROPPED = Counter("hopbase_ledger_dropped_total", "Bills that the database refused for good.")
LEDGER_UNJOURNALLED = Counter("hopbase_ledger_unjournalled_total", "Bills that the local disk refused as well.")
UNKNOWN_COUNTERS = Counter(
    "hopbase_unknown_counters_total", "Usage counters of a provider that are not zero and not billed.", ["provider"]
)
ZERO_USAGE = Counter("hopbase_zero_usage_total", "Answers with output whose usage says zero.", ["provider"])


def count_flags(provider: str, flags: Iterable[str]) -> None:
    """Count what an answer's usage was flagged with. A counter's name is a provider's word: no label of ours."""
    for flag in flags:
        if flag.startswith("unknown:"):
            UNKNOWN_COUNTERS.labels(provider).inc()
        elif flag == ZERO_WITH_OUTPUT:
            ZERO_USAGE.labels(provider).inc()


class Follower:
    """Lets a counter follow a number that only grows, and that another thread counts."""

    def __init__(self, counter: Counter) -> None:
        self._counter, self._seen = counter, 0

    def follow(self, number: int) -> None:
        """Count what has come since the last time."""
        self._counter.inc(number - self._seen)
        self._seen = number
