"""A wire format is known wherever formats are named: modules that cannot ask each other keep lists of their own."""

from __future__ import annotations

from pathlib import Path

from billing.admin import filters
from streaming import provider_tests, routing
from streaming.configuration import entries
from streaming.protocols import WIRE_FORMATS

STREAMS = Path(__file__).resolve().parents[2] / "streams"


def test_each_has_a_path() -> None:
    served = [route.callback.consumer_initkwargs.get("wire") for route in routing.api_routes]
    assert {wire.name for wire in served if wire} == WIRE_FORMATS.keys()


def test_all_lists_agree() -> None:
    assert set(entries.WIRE_FORMATS) == filters.WIRE_FORMATS.keys() == WIRE_FORMATS.keys()
    assert provider_tests.BODIES.keys() == WIRE_FORMATS.keys()


def test_each_has_recorded_streams() -> None:
    assert {folder.name for folder in STREAMS.iterdir() if list(folder.glob("*.sse"))} == WIRE_FORMATS.keys()
