"""What a process counts for Prometheus. Touched once per request, never per event.

Where OpenTelemetry's GenAI conventions (1.42) have a name, it is theirs, with their labels and buckets; all else is
`hopbase_…`. A label's values come from the catalogue or from our own lists, never from a client.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TypeVar

from prometheus_client import Counter, Gauge, Histogram

from streaming.protocols.counts import ZERO_WITH_OUTPUT

REQUESTS = Counter("hopbase_requests_total", "Requests that have ended.", ["wire_format", "ending", "metering"])
REFUSALS = Counter("hopbase_refusals_total", "Requests that the gateway refused itself.", ["code"])
TOKENS = Counter("hopbase_tokens_total", "Tokens billed.", ["bucket"])
LIMIT_REFUSALS = Counter("hopbase_limit_refusals_total", "Requests that a limit of their key stopped.", ["limit"])
ATTEMPTS = Counter("hopbase_attempts_total", "Upstream calls that have ended.", ["provider", "outcome"])
UPSTREAM_FAILURES = Counter(
    "hopbase_upstream_failures_total", "Attempts that failed before any output.", ["provider", "kind"]
)
OPEN_STREAMS = Gauge("hopbase_open_requests", "Requests under way.", multiprocess_mode="livesum")
COOL_DOWNS = Counter("hopbase_cool_downs_total", "Cool-downs of routes that have begun.", ["kind"])
COOLING = Gauge("hopbase_cooling_routes", "Routes that cool down, as this process knows.", multiprocess_mode="livemax")
OUT = Gauge("hopbase_routes_out", "Routes that are out until an operator acts.", multiprocess_mode="livemax")
SETTLE = Histogram(
    "hopbase_settle_seconds", "Time from a request's end to its committed bill.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 300),
)  # fmt: skip
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

PROCESSES = Gauge("hopbase_processes", "Processes that serve.", multiprocess_mode="livesum")
RESIDENT = Gauge("hopbase_resident_bytes", "Memory of the processes that serve.", multiprocess_mode="livesum")
CPU = Counter("hopbase_cpu_seconds_total", "Processor time of the processes that serve.")
LOOP_DELAY = Histogram(
    "hopbase_loop_delay_seconds", "How late the event loop wakes who sleeps, looked at once a second.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
)  # fmt: skip

OPERATION = "chat"
"""The conventions' word for what all three wire formats do."""
GEN_AI_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
DURATIONS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN = Histogram(
    "gen_ai_server_time_to_first_token_seconds", "Time from a stream's request to its first real output.",
    GEN_AI_LABELS, buckets=(
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
        30, 60, 120,  # the conventions end at 10; models that think first do not
    ),
)  # fmt: skip
CHUNK = Histogram(
    "gen_ai_client_operation_time_per_output_chunk_seconds",
    "A stream's mean time from one output event to the next, once for each stream.", GEN_AI_LABELS, buckets=DURATIONS,
)  # fmt: skip
DURATION = Histogram(
    "gen_ai_server_request_duration_seconds", "Time from a request to its end.", (*GEN_AI_LABELS, "error_type"),
    buckets=(*DURATIONS, 163.84, 327.68, 655.36),
)  # fmt: skip
TOKEN_USAGE = Histogram(
    "gen_ai_client_token_usage", "Tokens billed of a request, all input and all output.",
    (*GEN_AI_LABELS, "gen_ai_token_type"), buckets=[4**power for power in range(14)],
)  # fmt: skip


Labelled = TypeVar("Labelled", Counter, Histogram)


@cache
def labelled(metric: Labelled, *labels: str) -> Labelled:
    """The child of a metric with these labels: a tenth of what prometheus_client's own look-up costs."""
    return metric.labels(*labels)


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
