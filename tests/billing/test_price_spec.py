"""Prices between the configuration file and the table."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from billing.price_spec import describe_price, parse_price
from tests.billing.factories import STANDARD

SPEC: dict[str, Any] = {
    "model": "gpt-5.6-sol",
    "effective_from": "2026-01-01T00:00:00Z",
    "currency": "USD",
    "per_million": {
        "input": 5,
        "cache_read": Decimal("0.5"),
        "cache_write": "6.25",
        "cache_write_1h": 10,
        "output": Decimal("30.0"),
    },
    "tiers": {"priority": Decimal("2.0"), "flex": "0.50", "batch": {"input": "2.5", "output": 15}},
    "long_context": {"above": 272000, "input": Decimal("2.0"), "output": "1.5"},
    "server_tools": {"web_search": Decimal("0.01")},
}


def test_reads_the_documented_entry() -> None:
    assert parse_price(SPEC) == {
        "model": "gpt-5.6-sol",
        "effective_from": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "currency": "USD",
        **STANDARD,
        "tiers": {"priority": "2", "flex": "0.5", "batch": {"input": 2_500_000_000, "output": 15_000_000_000}},
        "long_context": {"above": 272000, "input": "2", "output": "1.5"},
        "server_tools": {"web_search": 10_000_000},
    }


def test_bucket_without_price_is_none() -> None:
    fields = parse_price({**SPEC, "per_million": {"input": 3}})
    assert (fields["input"], fields["output"]) == (3_000_000_000, None)


def test_description_gives_the_fields_back() -> None:
    fields = parse_price(SPEC)
    assert parse_price(describe_price(fields)) == fields
    assert describe_price(fields)["per_million"]["cache_read"] == "0.5"


def test_empty_parts_are_left_out() -> None:
    least = {name: SPEC[name] for name in ("model", "effective_from", "currency", "per_million")}
    assert set(describe_price(parse_price(least))) == set(least)


def test_zones_are_turned_to_utc() -> None:
    east = dt.datetime(2026, 1, 1, 8, tzinfo=dt.timezone(dt.timedelta(hours=8)))
    assert parse_price({**SPEC, "effective_from": east})["effective_from"] == dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"per_million": {"input": 0.1}}, r"per_million\.input: 0\.1 is not an exact amount: write it as text"),
        ({"per_million": {"input": "-1"}}, r"per_million\.input: -1 is negative"),
        ({"per_million": {"input": "1e20"}}, "too large to be kept"),
        ({"per_million": {"inputs": 1}}, "unknown key 'inputs'; it may have input, cache_read"),
        ({"per_million": {}}, "names no bucket"),
        ({"per_million": 5}, "per_million must be a mapping"),
        ({"per_million": None}, "per_million must be a mapping"),
        ({"tiers": {"default": 2}}, "default is served at the base price; leave it out"),
        ({"tiers": {"flex": 0.5}}, r"tiers\.flex: 0\.5 is not an exact amount"),
        ({"tiers": {"flex": {"inptu": 1}}}, r"tiers\.flex: unknown key 'inptu'"),
        ({"tiers": {True: 1}}, "key True must be text"),
        ({"long_context": {"above": 5, "input": 1}}, "long_context needs output"),
        ({"long_context": {"above": "5.5", "input": 1, "output": 1}}, "not a whole number of tokens"),
        ({"server_tools": {"web_search": "cheap"}}, r"server_tools\.web_search: 'cheap' is not an amount"),
        (
            {"server_tools": {"t" * 61: 1}},
            "server_tools: 't+' has 61 characters; write the first 60",
        ),
        ({"currency": "usd"}, "in capitals"),
        ({"effective_from": "2026-01-01"}, "with its zone"),
        ({"effective_from": dt.datetime(2026, 1, 1)}, "with its zone"),  # noqa: DTZ001 - naive on purpose
        ({"effective_from": dt.date(2026, 1, 1)}, "with its zone"),
        ({"effective_from": "2026-01-01T00:00:00.5Z"}, "whole seconds"),
        ({"effective_from": "soon"}, "not an instant"),
        ({"model": ""}, "model must be a name"),
        ({"modle": "x"}, "unknown key 'modle'"),
    ],
)
def test_fault_names_field_and_remedy(change: dict[Any, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_price({**SPEC, **change})


def test_fault_names_the_model() -> None:
    with pytest.raises(ValueError, match=r"^price of gpt-5\.6-sol: currency"):
        parse_price({**SPEC, "currency": None})
