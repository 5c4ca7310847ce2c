"""The short form of `python -m bench.survival`: two deaths, and both stores restarted, under a load of streams."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests import settings
from tests.end_to_end.survival_run import Plan, World, figures, judge

PLAN = Plan(streams=160, seconds=9.0, kill_every_s=4.0, database_at_s=2.5, store_at_s=6.5, away_s=1.5, words=30)


def test_deaths_and_outages_lose_no_bill() -> None:
    folder: Path = settings.new_folder("hb-live-")
    with World(PLAN, folder) as world:
        run = asyncio.run(world.play())
        verdict = judge(world)
    assert verdict.wrong == []
    seen = figures(verdict, run)
    assert seen["killed"] == 2
    assert seen["got a byte"] > PLAN.streams / 3
    assert {"reported", "killed", "interrupted, o200k"} <= set(seen["accuracy"])
