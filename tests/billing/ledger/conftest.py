"""A key to bill, and ledgers that are stopped after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from billing.ledger import Ledger
from billing.models import ApiKey
from tests.billing.ledger.entries import make_key

StartLedger = Callable[..., Ledger]


@pytest.fixture
def key(transactional_db: None) -> ApiKey:
    return make_key()


@pytest.fixture
def start_ledger(transactional_db: None) -> Iterator[StartLedger]:
    started: list[Ledger] = []

    def start(**seams: Any) -> Ledger:
        ledger = Ledger(**seams)
        ledger.start()
        started.append(ledger)
        return ledger

    yield start
    for ledger in started:
        ledger.stop(0.2)


@pytest.fixture
def ledger(start_ledger: StartLedger) -> Ledger:
    return start_ledger()
