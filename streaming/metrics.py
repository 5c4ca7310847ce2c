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
UNSETTLED = Gauge("hopbase_unsettled_operations", "Operations that wait for the ledger.", multiprocess_mode="livesum")
