"""Records as a file: every one that the filters show, once, whatever is written meanwhile."""

from __future__ import annotations

import csv
import uuid
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from billing.models import ApiKey, UsageRecord
from billing.record_export import READ, RecordQuery, pages, sheet
from billing.report_query import BadQuery
from billing.sheets import write_csv
from tests.billing.factories import make_account, make_key, make_record, price, utc

pytestmark = pytest.mark.django_db
LATER = utc(2026, 12, 1)
IDENTITY = READ.index("id")


@pytest.fixture
def key() -> ApiKey:
    return make_key(make_account(timezone="Asia/Taipei"))


def query(**given: str) -> RecordQuery:
    return RecordQuery.parse(given)


def identities(found: RecordQuery, size: int = 3) -> list[uuid.UUID]:
    return [row[IDENTITY] for page in pages(found, LATER, size) for row in page]


def test_no_page_is_cut_or_doubled(key: ApiKey) -> None:
    """Several records end at the same instant, on both sides of a page's end."""
    for at in range(10):
        make_record(key, utc(2026, 11, 3, 8, at // 4))
    for size in (1, 2, 3, 4, 5, 10, 11):
        found = identities(query(), size)
        assert len(found) == len(set(found)) == 10
    newest = list(UsageRecord.objects.order_by("-ended_at", "-id").values_list("id", flat=True))
    assert identities(query()) == newest


def test_new_records_do_not_shift_pages(key: ApiKey) -> None:
    """What comes in while the file is written neither doubles a row nor pushes one out."""
    kept = {make_record(key, utc(2026, 11, 3, 8, at)).pk for at in range(6)}
    reading = pages(query(), LATER, 2)
    found = [row[IDENTITY] for row in next(reading)]
    for minute in (30, 31):
        make_record(key, utc(2026, 11, 3, 8, minute))
    found += [row[IDENTITY] for page in reading for row in page]
    assert len(found) == len(set(found))
    assert set(found) == kept


def test_later_records_stay_out(key: ApiKey) -> None:
    record = make_record(key, utc(2026, 11, 3))
    make_record(key, LATER)
    assert identities(query()) == [record.pk]


def test_filters_are_the_lists(key: ApiKey) -> None:
    other = make_key(make_account("umbrella", currency="TWD"))
    cut = make_record(key, utc(2026, 11, 3), ending="client_left", metering="estimated")
    unpriced = make_record(key, utc(2026, 11, 4), service_tier="scale")
    taiwan = make_record(other, utc(2026, 11, 5), version=price("m", currency="TWD"), provider="other-cloud", model="m")
    every = {cut.pk, unpriced.pk, taiwan.pk}
    for given, expected in [
        ({}, every),
        ({"account": str(key.account_id)}, {cut.pk, unpriced.pk}),
        ({"api_key": str(other.pk)}, {taiwan.pk}),
        ({"api_key__in": f"{other.pk},{key.pk}"}, every),
        ({"metering__in": "estimated,checkpoint"}, {cut.pk}),
        ({"ending__in": "client_left,stalled"}, {cut.pk}),
        ({"ending": "complete"}, {unpriced.pk, taiwan.pk}),
        ({"unpriced": "1"}, {unpriced.pk}),
        ({"unpriced": "0"}, {cut.pk, taiwan.pk}),
        ({"currency": "TWD", "provider": "other-cloud", "model": "m"}, {taiwan.pk}),
        ({"provider": ""}, set()),
        ({"day": "2026-11-04"}, {unpriced.pk}),
        ({"day__gte": "2026-11-04", "day__lte": "2026-11-05"}, {unpriced.pk, taiwan.pk}),
        ({"since": "2026-11-03T12:00:01+00:00"}, {unpriced.pk, taiwan.pk}),
    ]:
        assert set(identities(query(**given))) == expected, given


@pytest.mark.parametrize(
    "given",
    [
        {"q": "req-1"}, {"line": "5"}, {"at": "2026-11-03 14:05"}, {"cost_nanos__gt": "5"}, {"account": "x"},
        {"day": "today"}, {"since": "2026-11-03T12:00:00"}, {"model": "m\0"}, {"account": "９"},
        {"api_key__in": "1,x"},
    ],
)  # fmt: skip
def test_what_is_no_filter_is_refused(given: dict[str, str]) -> None:
    """Better no file than one with more in it than the list shows."""
    with pytest.raises(BadQuery):
        RecordQuery.parse(given)


def test_url_parses_to_the_same() -> None:
    asked = query(account="7", metering__in="estimated,checkpoint", provider="", model="a&b=c")
    assert RecordQuery.parse(dict(parse_qsl(asked.url(), keep_blank_values=True))) == asked


def rows_of(asked: RecordQuery, folder: Path) -> list[dict[str, str]]:
    write_csv(sheet(asked, LATER), folder / "made")
    lines = list(csv.reader((folder / "made").read_text("utf-8-sig").splitlines()))
    at = next(number for number, line in enumerate(lines) if "request id" in line)
    return [dict(zip(lines[at], line, strict=True)) for line in lines[at + 1 :]]


def test_file_tells_time_money_and_total(key: ApiKey, tmp_path: Path) -> None:
    record = make_record(key, utc(2026, 11, 3, 17), request_name="=HYPERLINK(1)")
    make_record(key, utc(2026, 11, 3, 16), service_tier="scale")
    first, second, total = rows_of(query(), tmp_path)
    assert first["ended"] == "2026-11-04 01:00:00.000+08:00"
    assert (first["time zone"], first["day"]) == ("Asia/Taipei", "2026-11-04")
    assert first["request id"] == "'=HYPERLINK(1)"
    assert (first["cost"], first["unpriced"], first["currency"]) == ("0.001630000", "0", "USD")
    assert (second["cost"], second["unpriced"]) == ("", "1")
    assert (total["request id"], total["input"], total["output"]) == ("2", "28", "104")
    assert (total["cost"], total["unpriced"], total["currency"]) == ("0.001630000", "1", "USD")
    assert record.cost_nanos == 1_630_000


def test_totals_are_by_currency(key: ApiKey, tmp_path: Path) -> None:
    make_record(key, utc(2026, 11, 3))
    make_record(make_key(make_account("umbrella", currency="TWD")), utc(2026, 11, 3), version=price(currency="TWD"))
    totals = rows_of(query(), tmp_path)[2:]
    assert [(total["currency"], total["request id"]) for total in totals] == [("TWD", "1"), ("USD", "1")]
