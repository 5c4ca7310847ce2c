"""Usage records in ClickHouse as well: what goes there, how often, and when reports believe it.

The server here only listens and answers as told. That a real one understands what is said was tried by hand, with
ClickHouse in a process (chDB 4.4, too large to install for it): docs/operations/scaling.md.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.management import CommandError, call_command

from billing import clickhouse, tasks, usage_report
from billing.clickhouse import Store, Unavailable
from billing.models import ApiKey, DroppedMonth, RecordToShip, UsageRecord
from billing.report_query import Query
from billing.usage_sums import Cut, Figures
from tests import settings as our_settings
from tests.billing.factories import make_key, make_record, utc

postgresql = pytest.mark.skipif(not our_settings.POSTGRESQL, reason="records are shipped from PostgreSQL")
NOVEMBER = Cut(dt.date(2026, 11, 1), dt.date(2026, 11, 30))


class House:
    """What was asked, and what is answered: a status and a body, or nothing at all."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[str, str], bytes, dict[str, str]]] = []
        self.answer: tuple[int, bytes] | None = (200, b"")
        house = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                query = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                house.asked.append((query, body, {name.lower(): value for name, value in self.headers.items()}))
                if house.answer is not None:
                    self.send_response(house.answer[0])
                    self.send_header("content-length", str(len(house.answer[1])))
                    self.end_headers()
                    self.wfile.write(house.answer[1])

            def log_message(self, *arguments: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def inserts(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """Token and rows of each insert."""
        return [
            (query["insert_deduplication_token"], [json.loads(line) for line in body.splitlines()])
            for query, body, _ in self.asked
            if query["query"].startswith("INSERT")
        ]


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def store(house: House, settings: Any) -> Store:
    settings.CLICKHOUSE_URL, settings.CLICKHOUSE_USER, settings.CLICKHOUSE_PASSWORD = (
        house.url,
        "reader",
        "s3cret-walrus",
    )
    found = clickhouse.store()
    assert found is not None
    return found


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key()


@postgresql
def test_each_change_is_noted(key: ApiKey, store: Store) -> None:
    before = make_record(key, utc(2026, 11, 2))
    assert RecordToShip.objects.count() == 0
    assert clickhouse.begin(store) == 1
    after = make_record(key, utc(2026, 11, 3))
    UsageRecord.objects.filter(pk=after.pk).update(cost_nanos=7)
    UsageRecord.objects.update(reason="what does not go there")
    noted = RecordToShip.objects.order_by("pk").values_list("record_id", flat=True)
    assert list(noted) == [before.pk, after.pk, after.pk]


@postgresql
def test_batches_go_once(key: ApiKey, store: Store, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clickhouse, "BATCH", 2)
    records = [make_record(key, utc(2026, 11, day)) for day in range(1, 6)]
    clickhouse.begin(store)
    assert clickhouse.ship(store) == 5
    assert clickhouse.ship(store) == 0
    tokens, batches = zip(*house.inserts, strict=True)
    assert len(set(tokens)) == 3
    rows = [row for batch in batches for row in batch]
    assert sorted(row["id"] for row in rows) == sorted(str(record.pk) for record in records)
    assert rows[0].keys() == {*clickhouse.TYPES, "version"}
    assert {(row["cost_nanos"], row["account_id"]) for row in rows} == {(records[0].cost_nanos, key.account_id)}
    assert house.asked[0][2]["x-clickhouse-key"] == "s3cret-walrus"


@postgresql
@pytest.mark.parametrize("answer", [(500, b"Code: 241. Memory limit"), None], ids=["refused", "no answer"])
def test_what_was_not_taken_goes_again(key: ApiKey, store: Store, house: House, answer: Any) -> None:
    """The same token for the same rows: whether the first one arrived is not known."""
    make_record(key, utc(2026, 11, 2))
    clickhouse.begin(store)
    house.answer = answer
    assert tasks.ship_records() == 0
    assert RecordToShip.objects.count() == 1
    house.answer = (200, b"")
    assert tasks.ship_records() == 1
    first, second = house.inserts
    assert first == second


@postgresql
def test_later_change_has_higher_version(key: ApiKey, store: Store, house: House) -> None:
    record = make_record(key, utc(2026, 11, 2))
    clickhouse.begin(store)
    clickhouse.ship(store)
    UsageRecord.objects.filter(pk=record.pk).update(cost_nanos=7)
    clickhouse.ship(store)
    (_, [first]), (_, [second]) = house.inserts
    assert (first["id"], first["cost_nanos"]) == (second["id"], record.cost_nanos)
    assert second["cost_nanos"] == 7
    assert second["version"] > first["version"]


@postgresql
def test_fresh_once_everything_is_there(key: ApiKey, store: Store) -> None:
    make_record(key, utc(2026, 11, 2))
    assert not clickhouse.fresh()
    clickhouse.begin(store)
    assert not clickhouse.fresh()
    clickhouse.ship(store)
    assert clickhouse.fresh()
    make_record(key, utc(2026, 11, 3))
    assert clickhouse.fresh()  # it is seconds old
    RecordToShip.objects.update(created_at=utc(2026, 11, 3))
    assert not clickhouse.fresh()
    clickhouse.end()
    assert not clickhouse.fresh()


def test_never_fresh_on_sqlite(db: None) -> None:
    if not our_settings.POSTGRESQL:
        assert not clickhouse.fresh()
        with pytest.raises(CommandError, match="from PostgreSQL alone"):
            call_command("ship_records")


def test_sums_name_their_values_apart(store: Store, house: House) -> None:
    """No value of a filter is part of the statement."""
    house.answer = (200, b'["2026-11-02","gpt","USD",3,1,0,0,10,20,0,0,30,4,1630000]\n')
    odd = "it's \\ a\ttab"
    found = clickhouse.sums(store, Cut(NOVEMBER.first, NOVEMBER.last, key=7, model=odd), ("day", "model", "currency"))
    assert found == {
        (dt.date(2026, 11, 2), "gpt", "USD"): Figures(
            requests=3, interrupted=1, input=10, cache_read=20, output=30, reasoning=4, cost_nanos=1630000
        )
    }
    [(query, _, _)] = house.asked
    assert odd not in query["query"]
    assert (query["param_key"], query["param_model"]) == ("7", "it's \\\\ a\\ttab")
    house.answer = (200, b"")
    clickhouse.sums(store, NOVEMBER, ("day", "currency"), only={"model": [odd, "b"]})
    assert house.asked[1][0]["param_only_model"] == "['it\\'s \\\\ a\ttab', 'b']"


@pytest.fixture
def asked_for() -> Callable[[], usage_report.Report]:
    query = Query.parse({"from": "2026-11-01", "to": "2026-11-30", "by": "model"})
    return lambda: usage_report.build(query, utc(2026, 11, 30))[0]


@postgresql
def test_report_reads_it_while_fresh(
    key: ApiKey,
    store: Store,
    house: House,
    asked_for: Callable[[], usage_report.Report],
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_record(key, utc(2026, 11, 2))
    true = asked_for().totals
    assert house.asked == []  # it has nothing yet
    clickhouse.begin(store)
    clickhouse.ship(store)
    house.answer = (200, b'["gpt-5.6-sol","USD",3,1,0,0,10,20,0,0,30,4,1630000]\n')
    assert [row.now.requests for row in asked_for().totals] == [3]
    house.answer = (503, b"")
    with caplog.at_level(logging.WARNING):
        assert asked_for().totals == true
    assert "ClickHouse does not answer (status 503" in caplog.text
    RecordToShip.objects.create(record_id=key.account.records.get().pk, created_at=utc(2026, 11, 3))
    asked = len(house.asked)
    assert asked_for().totals == true
    assert len(house.asked) == asked


@postgresql
def test_sealed_days_are_not_asked_there(
    key: ApiKey, store: Store, house: House, asked_for: Callable[[], usage_report.Report]
) -> None:
    """It may have been filled after their records were dropped."""
    clickhouse.begin(store)
    house.answer = (200, b"")
    asked_for()
    asked = len(house.asked)
    DroppedMonth.objects.create(
        end=utc(2026, 11, 1, 0), last_day=utc(2026, 11, 1).date(), records=1, dropped_at=utc(2026, 11, 30)
    )
    asked_for()
    assert len(house.asked) == asked


def test_faults_tell_no_secret(store: Store, house: House) -> None:
    house.answer = None
    with pytest.raises(Unavailable) as fault:
        store.ask("SELECT 1")
    assert "127.0.0.1" not in str(fault.value)
    assert "walrus" not in repr(store) + str(fault.value)
    assert house.url not in repr(store)


def test_nothing_set_ships_nothing(db: None) -> None:
    assert clickhouse.store() is None
    assert tasks.ship_records() == 0


@postgresql
def test_commands(key: ApiKey, store: Store, house: House, capsys: pytest.CaptureFixture[str]) -> None:
    make_record(key, utc(2026, 11, 2))
    call_command("ship_records", "--begin")
    with pytest.raises(CommandError, match="end `ship_records` before"):
        call_command("records_by_month")
    call_command("ship_records")
    call_command("ship_records", "--end")
    assert "1 records are noted" in (said := capsys.readouterr().out)
    assert "1 records sent" in said
    house.answer = (401, b"who?")
    with pytest.raises(CommandError, match="status 401: who"):
        call_command("ship_records", "--begin")
