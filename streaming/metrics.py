"""What a process counts for Prometheus. Touched once per request, never per event."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("hopbase_requests_total", "Requests that have ended.", ["wire_format", "ending", "metering"])
REFUSALS = Counter("hopbase_refusals_total", "Requests that the gateway refused itself.", ["code"])
TOKENS = Counter("hopbase_tokens_total", "Tokens billed.", ["bucket"])
UPSTREAM_FAILURES = Counter("hopbase_upstream_failures_total", "Attempts that failed before any output.", ["kind"])
OPEN_STREAMS = Gauge("hopbase_open_requests", "Requests under way.", multiprocess_mode="livesum")
FIRST_OUTPUT = Histogram(
    "hopbase_first_output_seconds", "Time from the request to the first real output.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
)  # fmt: skip
COOLING = Gauge("hopbase_cooling_routes", "Routes that cool down, as this process knows.", multiprocess_mode="max")
JOURNAL = Gauge(
    "hopbase_journal_bytes", "What waits on the local disk for a database that is away.", multiprocess_mode="livesum"
)
UNSETTLED = Gauge("hopbase_unsettled_operations", "Operations that wait for the ledger.", multiprocess_mode="livesum")
LIMITS_PER_PROCESS = Gauge(
    "hopbase_limits_per_process", "1 while Redis is away and each process counts limits alone.", multiprocess_mode="max"
)
BUDGET_ALARMS = Counter("hopbase_budget_alarms_total", "Budgets that passed a share of their month.", ["percent"])
