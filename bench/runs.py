"""The runs on the wire: each measures every system that can take part, and returns rows.

A row is a dict: run, system, what was done, and its figures. HopBase's runs fail where a record is missing or wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import uvloop

from bench import load
from bench.systems import (
    BenchFailed,
    Cores,
    Missing,
    System,
    configure,
    hopbase,
    litellm,
    nginx,
    stores,
    upstream,
)
from bench.upstream import EVENTS

Row = dict[str, Any]
LITELLM_STREAMS = 10
"""More saturate it, and its CPU per event would mean nothing."""
BURST_CLIENTS = 32
IDLE_FEW, IDLE_MANY = 10, 1000
MEGABYTE_STREAMS = 100


@dataclass
class Bench:
    """One run of the benchmark: how long each measurement lasts, what was measured, and what could not be."""

    duration_s: float
    rows: list[Row]
    missing: dict[str, str]

    @contextlib.contextmanager
    def system(self, start: Callable[..., Any], *arguments: Any) -> Iterator[System | None]:
        """A system, or None with the reason noted."""
        with contextlib.ExitStack() as stack:
            try:
                found = stack.enter_context(start(*arguments))
            except Missing as missing:
                self.missing[start.__name__] = str(missing)
                found = None
            yield found

    def add(self, run: str, system: str, **figures: Any) -> Row:
        row = {"run": run, "system": system, **figures}
        self.rows.append(row)
        print("  ".join(f"{name}={value}" for name, value in row.items()), flush=True)
        return row

    def figure(self, run: str, system: str, name: str) -> float | None:
        """A figure that was measured, or None."""
        found = [row[name] for row in self.rows if (row["run"], row["system"]) == (run, system) and name in row]
        return float(found[-1]) if found else None


def paced(bench: Bench) -> None:
    """100 streams at a time, an event each 20 ms: CPU per event and what is added to the first event's time."""
    cores = Cores.of_this_machine()
    with upstream(cores) as provider:
        direct = drive(bench, "paced", provider, 100, "paced", None)
        with bench.system(nginx, provider, cores) as system:
            if system:
                drive(bench, "paced", system, 100, "paced", direct)
        with bench.system(litellm, provider, cores) as system:
            if system:
                drive(bench, "paced", system, LITELLM_STREAMS, "paced", direct)
        with stores(cores) as environment:
            configure(environment, provider.port)
            with hopbase(environment, cores) as system:
                drive(bench, "paced", system, 100, "paced", direct)
                drive(bench, "paced at a tenth", system, 10, "paced", direct)
                drive(bench, "paced, renamed model", system, 100, "paced-renamed", direct)
            with hopbase(environment, cores, server="daphne") as system:
                drive(bench, "paced", replace(system, name="hopbase on daphne"), 100, "paced", direct)


def burst(bench: Bench) -> None:
    """32 connections, streams that come at once: streams a second."""
    cores = Cores.of_this_machine()
    with upstream(cores) as provider:
        drive(bench, "burst", provider, BURST_CLIENTS, "burst", None)
        with bench.system(nginx, provider, cores) as system:
            if system:
                drive(bench, "burst", system, BURST_CLIENTS, "burst", None)
        with bench.system(litellm, provider, cores) as system:
            if system:
                drive(bench, "burst", system, BURST_CLIENTS, "burst", None)
        with stores(cores) as environment:
            configure(environment, provider.port)
            with hopbase(environment, cores) as system:
                drive(bench, "burst", system, BURST_CLIENTS, "burst", None)
                drive(bench, "burst at a tenth", system, max(BURST_CLIENTS // 10, 1), "burst", None)
            with hopbase(environment, cores, server="daphne") as system:
                drive(bench, "burst", replace(system, name="hopbase on daphne"), BURST_CLIENTS, "burst", None)


def workers(bench: Bench) -> None:
    """Two workers against one, on as many cores each: only where a core is left for load, upstream and stores."""
    if len(Cores.of_this_machine().others) + 1 < 3:
        bench.missing["workers"] = "two workers want two cores, and load, upstream and stores a third: here are fewer"
        return
    for count in (1, 2):
        cores = Cores.of_this_machine(count)
        with upstream(cores) as provider, stores(cores) as environment:
            configure(environment, provider.port)
            with hopbase(environment, cores, workers=count) as system:
                drive(bench, "burst", replace(system, name=f"hopbase, {count} workers"), BURST_CLIENTS, "burst", None)


def idle(bench: Bench) -> None:
    """Streams that have begun and say nothing: resident memory of each, from 10 to 1,000 of them."""
    cores = Cores.of_this_machine()
    with upstream(cores) as provider:
        with bench.system(nginx, provider, cores) as system:
            if system:
                uvloop.run(_idle(bench, system))
        with stores(cores) as environment:
            configure(environment, provider.port)
            with hopbase(environment, cores) as system:
                uvloop.run(_idle(bench, system))


async def _idle(bench: Bench, system: System) -> None:
    streams, sent = load.Idle(), load.request(system.key, "idle")
    await streams.open(system.port, sent, IDLE_FEW)
    await asyncio.sleep(2)
    few, began = system.spent(), asyncio.get_running_loop().time()
    await streams.open(system.port, sent, IDLE_MANY - IDLE_FEW)
    await asyncio.sleep(3)
    settled, at = system.spent(), asyncio.get_running_loop().time()
    await asyncio.sleep(4)
    after, took_s = system.spent(), asyncio.get_running_loop().time() - at
    streams.leave()
    bench.add(
        "idle", system.name, streams=IDLE_MANY, kb_per_stream=round((settled.resident - few.resident) / 990 / 1024, 1),
        cpu_percent=round((after.cpu_s - settled.cpu_s) / took_s * 100, 1), opened_in_s=round(at - began, 1),
    )  # fmt: skip


def prompts(bench: Bench) -> None:
    """1 MB prompts at 100 streams: memory while they run."""
    cores = Cores.of_this_machine()
    with upstream(cores) as provider, stores(cores) as environment:
        configure(environment, provider.port)
        with hopbase(environment, cores) as system:
            drive(bench, "small prompts", system, MEGABYTE_STREAMS, "paced", None)
            drive(bench, "1 MB prompts", system, MEGABYTE_STREAMS, "paced", None, prompt="lorem ipsum " * 87_381)


def drive(
    bench: Bench, run: str, system: System, streams: int, model: str, direct: load.Outcome | None, **request: str
) -> load.Outcome:
    """One load on one system: warmed up, measured, and checked record by record where it keeps any."""
    sent = load.request(system.key, model, **request)
    already = system.records()
    warm_up = uvloop.run(load.run(system.port, sent, streams, 0.1))
    system.await_records(warm_up.streams, already)
    already = system.records()
    before = system.spent()
    outcome = uvloop.run(load.run(system.port, sent, streams, bench.duration_s))
    after = system.spent()
    if outcome.failures or outcome.events != outcome.streams * EVENTS:
        raise BenchFailed(
            f"{run}, {system.name}: {outcome.failures} failures, {outcome.events} events in {outcome.streams} streams"
        )
    system.await_records(outcome.streams, already)
    figures: Row = {
        "at_a_time": streams,
        "streams": outcome.streams,
        "streams_per_s": round(outcome.streams / outcome.took_s, 1),
        "first_ms_p50": outcome.quantile(0.5),
        "first_ms_p99": outcome.quantile(0.99),
    }
    if direct is not None:
        figures["added_ms_p50"] = round(outcome.quantile(0.5) - direct.quantile(0.5), 2)
        figures["added_ms_p99"] = round(outcome.quantile(0.99) - direct.quantile(0.99), 2)
    if system.process is not None:
        cpu_s = after.cpu_s - before.cpu_s
        figures["cpu_us_per_event"] = round(cpu_s / outcome.events * 1e6, 1)
        figures["cpu_ms_per_stream"] = round(cpu_s / outcome.streams * 1e3, 3)
        figures["cpu_percent"] = round(cpu_s / outcome.took_s * 100)
        figures["resident_mb"] = round(after.resident / 1e6)
    bench.add(run, system.name, **figures)
    return outcome
