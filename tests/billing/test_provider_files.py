"""Providers' exports: what their columns mean, how their numbers and days are written, what cannot be read."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing import csv_files
from billing.csv_files import CsvFile
from billing.money import NANOS
from billing.provider_files import (
    Fault,
    FileMapping,
    Reading,
    TheirLine,
    aliases,
    fitting,
    guess,
    read,
    read_day,
    sums,
)

OPENAI_USAGE = """\
start_time,end_time,start_time_iso,end_time_iso,input_tokens,output_tokens,num_model_requests,project_id,model,\
input_cached_tokens,input_uncached_tokens
1790985600,1791072000,2026-10-03T00:00:00+00:00,2026-10-04T00:00:00+00:00,5000,1000,5,proj_1,gpt-5.6-sol-2026-08-06,4000,1000
1791072000,1791158400,2026-10-04T00:00:00+00:00,2026-10-05T00:00:00+00:00,,,,,,,
"""
OPENAI_COSTS = """\
start_time,end_time,start_time_iso,end_time_iso,amount_value,amount_currency,quantity,line_item,organization_name
1790985600,1791072000,2026-10-03T00:00:00,2026-10-04T00:00:00,0.003835980000000000000000000000,\
usd,,"gpt-5.6-sol-2026-08-06, input",Northwind
1790985600,1791072000,2026-10-03T00:00:00,2026-10-04T00:00:00,0.0000000015,\
usd,,"gpt-5.6-sol-2026-08-06, output",Northwind
1791072000,1791158400,2026-10-04T00:00:00,2026-10-05T00:00:00,,,,,
"""
ANTHROPIC_USAGE = """\
usage_date_utc,model_version,api_key,workspace,usage_type,context_window,usage_input_tokens_no_cache,\
usage_input_tokens_cache_write_5m,usage_input_tokens_cache_write_1h,usage_input_tokens_cache_read,usage_output_tokens,\
web_search_count,inference_geo,speed
2026-10-03,claude-sonnet-5-20260115,key,Default,standard,≤ 200k,100,20,30,4000,500,10,global,
"""
ANTHROPIC_COSTS = """\
usage_date_utc,model,workspace,api_key,usage_type,context_window,token_type,cost_usd,list_price_usd,cost_type
2026-10-03,Claude Sonnet 5,Default,key,message,≤ 200k,input_no_cache,0.05,0.05,token
2026-10-03,Claude Sonnet 5,Default,key,message,≤ 200k,output,0.02,0.02,token
"""
DAY = dt.date(2026, 10, 3)
UTC = ZoneInfo("UTC")


def guessed(raw: str) -> tuple[FileMapping, Reading]:
    file = csv_files.read(raw.encode())
    mapping = guess(file)
    return mapping, read(file, mapping)


# --- whole files ---


def test_openai_usage_reads_as_it_comes() -> None:
    mapping, found = guessed(OPENAI_USAGE)
    assert (mapping.buckets, mapping.has_cost) == (("input", "cache_read", "output"), False)
    tokens = {"input": 1000, "cache_read": 4000, "output": 1000}
    assert found == Reading((TheirLine(2, DAY, "gpt-5.6-sol-2026-08-06", tokens, 5, None),), (), empty=1)


def test_input_that_holds_the_cache() -> None:
    """The same export without its column of uncached input."""
    mapping, found = guessed(OPENAI_USAGE.replace(",input_uncached_tokens", ",x"))
    assert mapping.columns["input_with_cache"] == "input_tokens"
    assert found.lines[0].tokens == {"input": 1000, "cache_read": 4000, "output": 1000}


def test_openai_costs_round_at_the_nano() -> None:
    mapping, found = guessed(OPENAI_COSTS)
    assert (mapping.buckets, mapping.has_cost, mapping.currency) == ((), True, "USD")
    assert [line.cost_nanos for line in found.lines] == [3_835_980, 2]
    [theirs] = sums(found.lines, {"gpt-5.6-sol-2026-08-06": "sol"})
    assert (theirs.model, theirs.cost_nanos, theirs.lines, theirs.tokens) == ("sol", 3_835_982, 2, {})


def test_anthropic_usage_reads_as_it_comes() -> None:
    mapping, found = guessed(ANTHROPIC_USAGE)
    tokens = {"input": 100, "cache_read": 4000, "cache_write": 20, "cache_write_1h": 30, "output": 500}
    assert mapping.buckets == tuple(tokens)
    assert found.lines == (TheirLine(2, DAY, "claude-sonnet-5-20260115", tokens, None, None),)


def test_anthropic_costs_add_up() -> None:
    _, found = guessed(ANTHROPIC_COSTS)
    [theirs] = sums(found.lines, {})
    assert (theirs.model, theirs.cost_nanos) == ("Claude Sonnet 5", 70_000_000)


def test_anthropic_input_leaves_the_cache_out() -> None:
    mapping, _ = guessed("date,model,input_tokens,cache_creation_input_tokens,output_tokens\n2026-10-03,opus,1,2,3\n")
    assert (mapping.columns["input"], "input_with_cache" in mapping.columns) == ("input_tokens", False)


def test_german_invoice_reads_as_it_comes() -> None:
    raw = "Date;Model;Input Tokens;Output Tokens;Cost\n03.10.2026;sol;1.234.567;2.000;1.234,50 €\n"
    mapping, found = guessed(raw)
    assert (mapping.decimal, mapping.day_first) == (",", True)
    tokens = {"input": 1_234_567, "output": 2000}
    assert found.lines == (TheirLine(2, DAY, "sol", tokens, None, 1234_500_000_000),)


def test_repeated_days_and_models_add_up() -> None:
    lines = [TheirLine(at, DAY, name, {"input": at}, 1, None) for at, name in ((2, "a"), (3, "a-2026-01-01"))]
    [theirs] = sums(lines, {"a-2026-01-01": "a"})
    assert (theirs.tokens, theirs.requests, theirs.cost_nanos, theirs.lines) == ({"input": 5}, 2, None, 2)


def test_sums_beyond_a_column_are_refused() -> None:
    lines = [TheirLine(at, DAY, "a", {}, None, 10**8 * NANOS) for at in range(100)]
    with pytest.raises(OverflowError):
        sums(lines, {})


def test_mapping_survives_json() -> None:
    mapping, _ = guessed(OPENAI_USAGE)
    assert FileMapping.from_json(mapping.as_json()) == mapping


def test_remembered_mapping_fits_or_not() -> None:
    mapping, _ = guessed(OPENAI_USAGE)
    assert fitting(mapping, csv_files.read(OPENAI_USAGE.encode()))
    assert not fitting(mapping, csv_files.read(ANTHROPIC_USAGE.encode()))


# --- cells ---


def one(cells: dict[str, str], **terms: Any) -> Reading:
    """A file of one line, read with a column for each cell."""
    whole = {"day": "2026-10-03", "model": "sol", **cells}
    file = CsvFile(tuple(whole), (csv_files.CsvLine(2, tuple(whole.values())),), ",")
    return read(file, FileMapping({name: name for name in whole}, **terms))


@pytest.mark.parametrize(
    ("text", "decimal", "nanos"),
    [
        ("0", ".", 0), ("", ".", 0), ("1,234.5", ".", 1234.5), ("1.234,5", ",", 1234.5), ("$1,234", ".", 1234),
        ("USD 1.50", ".", 1.5), ("1,50 EUR", ",", 1.5), ("US$ 2", ".", 2), ("NT$3", ".", 3), ("(1.5)", ".", -1.5),
        ("-1.5", ".", -1.5), ("−1.5", ".", -1.5), ("-$1.50", ".", -1.5), ("$-1.50", ".", -1.5), ("1 234", ".", 1234),
        ("1'234.5", ".", 1234.5), ("1.2E+3", ".", 1200), ("12,34,567", ".", 1234567), (".5", ".", 0.5),
        ("1\u00a0234,5", ",", 1234.5), ("5.", ".", 5),
    ],
)  # fmt: skip
def test_amounts_as_people_write_them(text: str, decimal: str, nanos: float) -> None:
    found = one({"cost": text}, decimal=decimal)
    assert found.faults == ()
    assert found.lines[0].cost_nanos == round(nanos * NANOS)


@pytest.mark.parametrize(
    "text", ["abc", "1,23", "1.2.3", "--1", "1e", "e5", "1,2345", "$", "USD", "-", "1;2", "NaN", "inf", "1e400", "0x1"]
)
def test_what_is_no_number_is_named(text: str) -> None:
    assert one({"cost": text}).faults == (Fault(2, "number", "cost", text),)


@pytest.mark.parametrize(
    ("cells", "code", "field"),
    [
        ({"input": "-1"}, "negative", "input"),
        ({"input": "1.5"}, "fraction", "input"),
        ({"input": "1e13"}, "too_large", "input"),
        ({"cost": "100000001"}, "too_large", "cost"),
        ({"input_with_cache": "5", "cache_read": "6"}, "cache_exceeds_input", "input_with_cache"),
        ({"day": ""}, "no_day", "day"),
        ({"day": "Total"}, "day", "day"),
        ({"day": "2026-02-30"}, "day", "day"),
        ({"day": "2026-10-03T25:00:00Z"}, "day", "day"),
        ({"model": "", "input": "1"}, "no_model", "model"),
        ({"model": "m" * 201}, "long_model", "model"),
    ],
)
def test_bad_cells_are_named(cells: dict[str, str], code: str, field: str) -> None:
    found = one({"output": "7", **cells})
    assert [(fault.number, fault.code, fault.field) for fault in found.faults] == [(2, code, field)]
    assert found.lines == ()


def test_units_scale_tokens_alone() -> None:
    found = one({"input": "1.5", "requests": "7", "cost": "2"}, unit="millions").lines[0]
    assert (found.tokens["input"], found.requests, found.cost_nanos) == (1_500_000, 7, 2 * NANOS)
    assert one({"input": "12"}, unit="thousands").lines[0].tokens == {"input": 12_000}


def test_short_and_long_lines_are_named() -> None:
    file = csv_files.read(b"day,model,input\n2026-10-03,sol\n2026-10-03,sol,1,,\n2026-10-03,sol,1,2\n")
    found = read(file, FileMapping({"day": "day", "model": "model", "input": "input"}))
    assert [line.number for line in found.lines] == [3]
    assert found.faults == (Fault(2, "cells", value="2/3"), Fault(4, "cells", value="4/3"))


@given(st.text(max_size=40))
def test_no_cell_breaks_the_reading(text: str) -> None:
    for name in ("day", "model", "input", "cost"):
        found = one({"input": "1", name: text})
        assert len(found.lines) + len(found.faults) + found.empty == 1


# --- days ---


@pytest.mark.parametrize(
    ("text", "zone", "day"),
    [
        ("2026-10-03", "UTC", 3), ("2026/10/3", "UTC", 3), ("20261003", "UTC", 3), ("2026年10月3日", "UTC", 3),
        ("Oct 3, 2026", "UTC", 3), ("3 October 2026", "UTC", 3), ("03-Oct-2026", "UTC", 3), ("10/03/2026", "UTC", 3),
        ("2026-10-03T16:30:00Z", "Asia/Taipei", 4), ("2026-10-03 16:30:00 UTC", "Asia/Taipei", 4),
        ("2026-10-03T16:30:00", "Asia/Taipei", 3), ("2026-10-03 0:30", "America/Los_Angeles", 3),
        ("2026-10-03T23:30:00-07:00", "UTC", 4), ("2026-10-03T23:30:00.123456+0000", "UTC", 3),
        ("1790985600", "UTC", 3), ("1790985600", "America/Los_Angeles", 2), ("1790985600000", "Asia/Taipei", 3),
        ("1790985600.5", "UTC", 3), ("10/03/2026 11:59 PM", "UTC", 3), ("10/03/2026 11:59 PM UTC", "Asia/Taipei", 4),
        ("10/03/2026 12:10 AM UTC", "America/Los_Angeles", 2),
    ],
)  # fmt: skip
def test_days_as_providers_write_them(text: str, zone: str, day: int) -> None:
    assert read_day(text, ZoneInfo(zone)) == dt.date(2026, 10, day)


def test_day_may_stand_before_month() -> None:
    assert read_day("03/04/2026", UTC) == dt.date(2026, 3, 4)
    assert read_day("03/04/2026", UTC, day_first=True) == dt.date(2026, 4, 3)


@pytest.mark.parametrize(
    ("days", "day_first"), [(("03/04/2026", "05/04/2026"), False), (("03/04/2026", "13/04/2026"), True)]
)
def test_later_lines_show_the_order(days: tuple[str, str], day_first: bool) -> None:
    raw = "date,model,cost\n" + "".join(f"{day},sol,1\n" for day in days)
    assert guess(csv_files.read(raw.encode())).day_first is day_first


@given(st.integers(1_577_836_800, 1_893_456_000), st.sampled_from(["Asia/Kathmandu", "UTC"]))
def test_instants_fall_on_the_zones_day(second: int, zone: str) -> None:
    aware = dt.datetime.fromtimestamp(second, dt.UTC)
    there = aware.astimezone(ZoneInfo(zone)).date()
    for text in (aware.isoformat(), str(int(aware.timestamp())), f"{aware:%Y-%m-%d %H:%M:%S} UTC"):
        assert read_day(text, ZoneInfo(zone)) == there


# --- names ---


def test_dated_and_spelled_names_are_proposed() -> None:
    theirs = ["gpt-5.6-sol-2026-08-06", "Claude Haiku 4.5", "claude-opus-5", "models/gemini-3-pro", "unheard-of"]
    ours = ["gpt-5.6-sol", "claude-haiku-4-5-20251001", "claude-opus-5", "gemini-3-pro"]
    assert aliases(theirs, ours) == {
        "gpt-5.6-sol-2026-08-06": "gpt-5.6-sol",
        "Claude Haiku 4.5": "claude-haiku-4-5-20251001",
        "models/gemini-3-pro": "gemini-3-pro",
    }


def test_two_candidates_are_not_guessed_at() -> None:
    assert aliases(["sol-2026-08-06"], ["sol-2026-01-01", "sol"]) == {}
