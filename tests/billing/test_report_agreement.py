"""A figure is the sum of its records, and the same in the CSV and the XLSX, whatever the zone, day and hour."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing import money, rollups, usage_report, usage_sheet
from billing.models import ApiKey, UsageRecord
from billing.periods import day_start
from billing.report_query import Query
from billing.sheets import write_csv, write_xlsx
from billing.usage import TokenUsage
from tests.billing import xlsx
from tests.billing.factories import make_account, make_key, make_record, price

pytestmark = pytest.mark.django_db

ZONES = ("Asia/Taipei", "America/Los_Angeles", "Asia/Kathmandu")
EDGES = (
    dt.date(2026, 3, 8),  # Los Angeles: a day of 23 hours
    dt.date(2026, 11, 1),  # Los Angeles: a day of 25 hours, and a month's begin everywhere
    dt.date(2026, 11, 30),
    dt.date(2026, 12, 1),
)
YEAR = {"from": "2026-01-01", "to": "2026-12-31"}
AS_OF = dt.datetime(2026, 12, 31, 12, tzinfo=dt.UTC)

requests = st.lists(
    st.tuples(
        st.integers(0, len(ZONES) - 1),
        st.sampled_from(EDGES),
        st.integers(-26 * 60, 26 * 60),  # minutes about the day's begin
        st.integers(0, 200_000),  # tokens
        st.sampled_from(["gpt-5.6-sol", "claude-sonnet-5"]),
        st.integers(0, 180),  # minutes that it took: also across midnight
    ),
    min_size=1,
    max_size=12,
)


@contextmanager
def own_world() -> Iterator[list[ApiKey]]:
    """Three accounts, one per zone, that are gone afterwards; one key is named like a formula."""
    with transaction.atomic():
        names = ("=1+1", "@key", "production")
        yield [
            make_key(make_account(f"of {zone}", timezone=zone), name) for zone, name in zip(ZONES, names, strict=True)
        ]
        transaction.set_rollback(True)


def write(keys: list[ApiKey], asked: list[tuple[Any, ...]]) -> None:
    """Some are rolled up, the others' days are due."""
    for at, (zone, edge, minutes, tokens, model, took) in enumerate(asked):
        ended = day_start(edge, ZoneInfo(ZONES[zone])) + dt.timedelta(minutes=minutes)
        make_record(
            keys[zone], ended, TokenUsage(input=tokens, output=7), model=model, version=price(model),
            started_at=ended - dt.timedelta(minutes=took),
        )  # fmt: skip
        if at == len(asked) // 2:
            rollups.rebuild_due()


def from_records(*places: str) -> dict[tuple[str, ...], tuple[int, int, int]]:
    """Requests, input and nanos by places, added up here: the day is that of the zone's own clock at the end."""
    found: dict[tuple[str, ...], tuple[int, int, int]] = {}
    for record in UsageRecord.objects.select_related("account"):
        day = record.ended_at.astimezone(ZoneInfo(record.account.timezone)).date()
        names = {"day": f"{day}", "key": f"{record.account_name}/{record.key_name}", "model": record.model}
        place = tuple(names[name] for name in places)
        requests, tokens, nanos = found.get(place, (0, 0, 0))
        found[place] = (requests + 1, tokens + record.input, nanos + record.cost_nanos)
    return found


Table = dict[tuple[str, ...], tuple[int, int, int]]


def table(rows: list[list[Any]], width: int) -> tuple[Table, tuple[int, int, int]]:
    """A file's rows below its names, by place, and its total."""
    at = next(number for number, row in enumerate(rows) if "requests" in row)
    names = rows[at]

    def figures(row: list[Any]) -> tuple[int, int, int]:
        cost = money.parse(Decimal(row[names.index("cost")]))
        return int(row[names.index("requests")]), int(row[names.index("input")]), cost

    body, total = rows[at + 1 : -1], rows[-1]
    assert total[0] == "Total"
    return {tuple(map(str, row[:width])): figures(row) for row in body}, figures(total)


@pytest.mark.parametrize(("by", "then"), [("day", "key"), ("key", "model"), ("day", "none")])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=requests)
def test_figure_is_records_is_files(asked: list[tuple[Any, ...]], by: str, then: str, tmp_path: Path) -> None:
    with own_world() as keys:
        write(keys, asked)
        places = (by,) if then == "none" else (by, then)
        report, _days = usage_report.build(Query.parse({**YEAR, "by": by, "then": then}), AS_OF)
        expected = from_records(*places)

        names = usage_sheet.place_words
        shown = {
            tuple(names(report, row)): (row.now.requests, row.now.input, row.now.cost_nanos) for row in report.rows
        }
        assert shown == expected
        total = tuple(sum(figures[at] for figures in expected.values()) for at in range(3))
        (all_of_it,) = report.totals
        assert (all_of_it.now.requests, all_of_it.now.input, all_of_it.now.cost_nanos) == total

        sheet = usage_sheet.sheet(report, AS_OF)
        write_csv(sheet, tmp_path / "csv")
        in_csv = list(csv.reader(io.StringIO((tmp_path / "csv").read_text("utf-8-sig"))))
        unquoted = [[cell[1:] if cell.startswith("'") else cell for cell in row] for row in in_csv]
        assert table(unquoted, len(places)) == (expected, total)

        write_xlsx(usage_sheet.sheet(report, AS_OF), tmp_path / "xlsx")
        (in_xlsx,) = xlsx.read((tmp_path / "xlsx").read_bytes())
        assert table(in_xlsx, len(places)) == (expected, total)


def test_stream_across_midnight_counts_once() -> None:
    """It began on 31 October and ended on 1 November in Taipei: all of it is November's, none of it October's."""
    key = make_key(make_account(timezone="Asia/Taipei"))
    ended = dt.datetime(2026, 11, 1, 0, 0, 1, tzinfo=ZoneInfo("Asia/Taipei"))
    make_record(key, ended, started_at=ended - dt.timedelta(hours=1))

    def requests_in(month: str) -> int:
        query = Query.parse({"from": f"{month}-01", "to": f"{month}-30"})
        return sum(row.now.requests for row in usage_report.build(query, AS_OF)[0].totals)

    assert (requests_in("2026-10"), requests_in("2026-11")) == (0, 1)
    rollups.rebuild_due()
    assert (requests_in("2026-10"), requests_in("2026-11")) == (0, 1)
