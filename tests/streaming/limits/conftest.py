"""Processes on one Valkey, closed after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.streaming.limits.processes import Database, Process

Start = Callable[..., Process]


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
async def start(valkey: str, database: Database) -> AsyncIterator[Start]:
    started: list[Process] = []

    def make(**seams: object) -> Process:
        process = Process(seams.pop("url", valkey), database, **seams)  # type: ignore[arg-type]
        started.append(process)
        return process

    yield make
    for process in started:
        await process.close()
