"""A provider's file against our attempts, from its bytes to the rows that are kept."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
from collections import Counter
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.utils.timezone import now

from billing import reconciliation, rollups
from billing.csv_files import NotCsv
from billing.models import ApiKey, Attempt, Reconciliation, ReconciliationMapping, ReconciliationRow, UsageRecord
from billing.provider_files import Fault, FileMapping, guess
from billing.reconciliation import AlreadyUploaded, Unreadable, compare, keep_test, table_of, upload
from billing.usage import TokenUsage
from tests.billing.factories import make_account, make_key, make_record, utc

HEADER = "date,model,input_tokens,output_tokens,cost_usd\n"


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key()


def uploaded(
    rows: str, header: str = HEADER, provider: str = "acme-cloud", name: str = "october.csv"
) -> Reconciliation:
    return upload(provider, name, (header + rows).encode(), by="ada", now=now())


def compared(rows: str, header: str = HEADER, **changes: Any) -> Reconciliation:
    """A file compared as it would be proposed, with changes to the mapping."""
    kept = uploaded(rows, header)
    mapping = dataclasses.replace(reconciliation.proposal(kept, table_of(kept)), **changes)
    return compare(kept.pk, mapping, now=now())


def used(key: ApiKey, at: dt.datetime, input: int = 10, output: int = 20, **fields: Any) -> UsageRecord:
    fields = {"upstream_model": "sol", **fields}
    return make_record(key, at, TokenUsage(input=input, output=output), **fields)


def attempt(record: UsageRecord, number: int = 1, **fields: Any) -> Attempt:
    defaults = {
        "provider": "acme-cloud", "upstream_model": "sol", "outcome": "cut", "status": 200,
        "started_at": record.started_at, "duration_ms": 100,
    }  # fmt: skip
    return Attempt.objects.create(record=record, number=number, **{**defaults, **fields})


def rows(kept: Reconciliation) -> dict[tuple[int, str], tuple[str, dict[str, int]]]:
    """Day and model -> state, and the tokens of each kind that is not zero."""
    found = {}
    for row in kept.rows.all():
        kinds = {kind: sum(tokens.values()) for kind, tokens in row.kinds.items()}
        found[row.day.day, row.model] = row.state, {kind: tokens for kind, tokens in kinds.items() if tokens}
    return found


# --- each kind of difference ---


def test_same_figures_are_matched(key: ApiKey) -> None:
    record = used(key, utc(2026, 10, 3))
    kept = compared("2026-10-03,sol,10,20,0.0004\n")
    assert rows(kept) == {(3, "sol"): ("matched", {})}
    [row] = kept.rows.all()
    assert (row.cost_nanos, row.billed) == (400_000, {"USD": record.cost_nanos})
    assert (row.margin_nanos, row.price_nanos) == (record.cost_nanos - 400_000, 400_000 - record.cost_nanos)
    assert (row.attempts, row.lines, row.theirs, row.ours) == (
        1,
        1,
        {"input": 10, "output": 20},
        {"input": 10, "output": 20},
    )


def test_roll_ups_change_no_figure(key: ApiKey) -> None:
    used(key, utc(2026, 10, 3))
    attempt(
        used(key, utc(2026, 10, 3), metering="estimated"),
        input=1,
        cache_read=0,
        cache_write=0,
        cache_write_1h=0,
        output=0,
    )
    kept = compared("2026-10-03,sol,25,40,1\n")
    before = rows(kept)
    rollups.rebuild_due()
    assert rows(compare(kept.pk, FileMapping.from_json(kept.mapping), now=now())) == before


def test_failed_attempts_are_named(key: ApiKey) -> None:
    record = used(key, utc(2026, 10, 3))
    attempt(record, 1, input=10, cache_read=0, cache_write=0, cache_write_1h=0, output=0)
    attempt(record, 2, outcome="answered")
    kept = compared("2026-10-03,sol,20,20,1\n")
    assert rows(kept) == {(3, "sol"): ("differs", {"failed": 10})}
    assert kept.rows.get().attempts == 2


def test_silent_attempts_are_counted(key: ApiKey) -> None:
    record = used(key, utc(2026, 10, 3))
    attempt(record, 1, outcome="timed_out", status=None)
    attempt(record, 2, outcome="answered")
    kept = compared("2026-10-03,sol,21,20,1\n")
    assert (rows(kept)[3, "sol"][1], kept.rows.get().silent) == ({"unknown": 11}, 1)


def test_tests_are_named(key: ApiKey) -> None:
    used(key, utc(2026, 10, 3))
    usage = TokenUsage(input=5, output=1)
    moment = utc(2026, 10, 3, 9)
    keep_test("acme-cloud", "sol", "messages", by="ada", started_at=moment, ended_at=moment, usage=usage)
    keep_test("acme-cloud", "sol", "messages", by="ada", started_at=moment, ended_at=moment, usage=None)
    kept = compared("2026-10-03,sol,15,21,1\n")
    assert rows(kept) == {(3, "sol"): ("differs", {"test": 6})}
    assert (kept.rows.get().attempts, kept.rows.get().silent) == (3, 1)


def test_estimates_are_named(key: ApiKey) -> None:
    used(key, utc(2026, 10, 3), metering="estimated", ending="client_left")
    assert rows(compared("2026-10-03,sol,12,17,1\n")) == {(3, "sol"): ("differs", {"estimate": -1})}


def test_midnight_is_that_of_the_file(key: ApiKey) -> None:
    """A stream from 23:50 to 0:10 in Taipei, which the provider counts where it began."""
    used(key, utc(2026, 10, 3, 16, 10), started_at=utc(2026, 10, 3, 15, 50))
    used(key, utc(2026, 10, 3, 10))
    used(key, utc(2026, 10, 4, 10))
    kept = compared("2026-10-03,sol,20,40,1\n2026-10-04,sol,10,20,1\n", zone="Asia/Taipei")
    assert rows(kept) == {
        (3, "sol"): ("differs", {"boundary": 30}),
        (4, "sol"): ("differs", {"boundary": -30}),
    }
    assert kept.totals["all"]["kinds"]["boundary"] == 0


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "America/Los_Angeles", "Pacific/Chatham", "UTC"])
def test_any_zones_day_is_cut_at_its_midnight(key: ApiKey, zone: str) -> None:
    """A request a minute, over a day on which Los Angeles has 25 hours: each on its own day, none on two."""
    first = utc(2026, 11, 1, 0) - dt.timedelta(days=1)
    instants = [first + dt.timedelta(minutes=45 * step, seconds=7) for step in range(96)]
    for instant in instants:
        used(key, instant, input=1, output=0, started_at=instant)
    by_day = Counter(instant.astimezone(ZoneInfo(zone)).date() for instant in instants)
    lines = "".join(f"{day},sol,{count},0,0\n" for day, count in by_day.items())
    assert {state for state, _ in rows(compared(lines, zone=zone)).values()} == {"matched"}


def test_only_theirs_and_only_ours(key: ApiKey) -> None:
    used(key, utc(2026, 10, 4))
    kept = compared("2026-10-03,luna,10,0,1\n2026-10-05,luna,10,0,1\n")
    assert rows(kept) == {
        (3, "luna"): ("only_theirs", {"unknown": 10}),
        (4, "sol"): ("only_ours", {"unknown": -30}),
        (5, "luna"): ("only_theirs", {"unknown": 10}),
    }


def test_another_currency_has_no_margin(key: ApiKey) -> None:
    used(key, utc(2026, 10, 3))
    used(make_key(make_account("umbrella", currency="TWD")), utc(2026, 10, 3))
    row = compared("2026-10-03,sol,20,40,1\n").rows.get()
    assert (set(row.billed), row.margin_nanos, row.cost_nanos) == ({"USD", "TWD"}, None, 10**9)


def test_totals_are_the_rows_sums(key: ApiKey) -> None:
    chance = random.Random(3)
    lines = ""
    for day in range(1, 8):
        for model in ("sol", "luna"):
            tokens = chance.randrange(100)
            used(
                key,
                utc(2026, 10, day),
                input=tokens,
                upstream_model=model,
                metering=chance.choice(["reported", "estimated"]),
            )
            lines += f"2026-10-{day:02},{model},{chance.randrange(100)},{chance.randrange(40)},{chance.randrange(9)}\n"
    kept = compared(lines)
    whole = reconciliation.totals_of(kept.totals["all"])
    found = list(kept.rows.all())
    assert whole.theirs == sum(sum(row.theirs.values()) for row in found)
    assert (
        whole.ours
        == sum(sum(row.ours.values()) for row in found)
        == sum(r.input + r.output for r in UsageRecord.objects.all())
    )
    assert whole.theirs == whole.ours + whole.explained + whole.kinds["unknown"]
    assert whole.cost_nanos == sum(row.cost_nanos or 0 for row in found)
    assert whole.billed["USD"] == sum(record.cost_nanos for record in UsageRecord.objects.all())
    assert whole.margin_nanos == whole.billed["USD"] - whole.cost_nanos
    parts = [reconciliation.totals_of(part) for part in kept.totals["models"].values()]
    assert sum(part.theirs for part in parts) == whole.theirs
    assert sum(kept.totals["states"][state]["rows"] for state in kept.totals["states"]) == len(found)


# --- mappings ---


def test_mapping_is_remembered_per_provider(key: ApiKey) -> None:
    compared("03.04.2026,sol,1.5,2,0\n", zone="Asia/Taipei", unit="millions", currency="TWD", aliases={"sun": "sol"})
    later = uploaded("04.04.2026,sol,1.5,2,0\n")
    mapping = reconciliation.proposal(later, table_of(later))
    assert (mapping.zone, mapping.unit, mapping.currency, mapping.day_first) == ("Asia/Taipei", "millions", "TWD", True)
    assert mapping.aliases == {"sun": "sol"}
    other = uploaded("05.04.2026,sol,1.5,2,0\n", provider="umbrella-cloud")
    assert reconciliation.proposal(other, table_of(other)).unit == "tokens"


def test_new_columns_keep_names_and_zone(key: ApiKey) -> None:
    compared("2026-10-03,sol,1,2,0\n", zone="Asia/Taipei", aliases={"sun": "sol"})
    later = uploaded("2026-10-03,sol,1,2\n", header="day,model,input_tokens,output_tokens\n")
    mapping = reconciliation.proposal(later, table_of(later))
    assert (mapping.columns["day"], mapping.zone, mapping.aliases) == ("day", "Asia/Taipei", {"sun": "sol"})


def test_dated_names_are_proposed(key: ApiKey) -> None:
    used(key, utc(2026, 10, 3))
    rollups.rebuild_due()
    kept = compared("2026-10-03,sol-2026-08-06,10,20,1\n")
    assert rows(kept) == {(3, "sol"): ("matched", {})}
    assert ReconciliationMapping.objects.get().mapping["aliases"] == {"sol-2026-08-06": "sol"}


def test_names_hold_for_both_sides(key: ApiKey) -> None:
    """Routes to the dated name and to the plain one are one line of the bill."""
    used(key, utc(2026, 10, 3), upstream_model="sol-2026-08-06")
    used(key, utc(2026, 10, 3))
    kept = compared("2026-10-03,sol-2026-08-06,20,40,1\n", aliases={"sol-2026-08-06": "sol"})
    assert rows(kept) == {(3, "sol"): ("matched", {})}


# --- whole or not at all ---


def test_bad_lines_save_nothing(key: ApiKey) -> None:
    kept = uploaded("2026-10-03,sol,10,20,1\nTotal,,10,20,1\n2026-10-04,sol,x,20,1\n")
    mapping = guess(table_of(kept))
    with pytest.raises(Unreadable) as refused:
        compare(kept.pk, mapping, now=now())
    assert refused.value.faults == (Fault(3, "no_model", "model"), Fault(4, "number", "input_with_cache", "x"))
    kept.refresh_from_db()
    assert (kept.compared_at, kept.mapping) == (None, None)
    assert not ReconciliationRow.objects.exists()
    assert not ReconciliationMapping.objects.exists()


def test_failed_comparison_keeps_the_one_before(key: ApiKey) -> None:
    kept = compared("2026-10-03,sol,10,20,1\n2026-10-04,sol,1,2,1\n")
    before = list(kept.rows.values())
    with pytest.raises(Unreadable):
        compare(kept.pk, FileMapping({"day": "date", "model": "model", "input": "model"}), now=now())
    assert list(kept.rows.values()) == before


def test_made_again_it_takes_the_place(key: ApiKey) -> None:
    kept = compared("2026-10-03,sol,10,20,1\n")
    assert rows(kept)[3, "sol"][0] == "only_theirs"
    used(key, utc(2026, 10, 3))
    again = compare(kept.pk, FileMapping.from_json(kept.mapping), now=now())
    assert rows(again) == {(3, "sol"): ("matched", {})}


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("2026-10-03,,,,\n", "no_lines"),
        ("1970-01-01,sol,1,1,1\n2026-10-03,sol,1,1,1\n", "too_long"),
        ("2026-10-03,sol,1,1,100000000\n" * 93, "sums"),
    ],
)
def test_what_makes_no_sense_is_refused(db: None, lines: str, code: str) -> None:
    kept = uploaded(lines)
    with pytest.raises(Unreadable) as refused:
        compare(kept.pk, guess(table_of(kept)), now=now())
    assert [(fault.number, fault.code) for fault in refused.value.faults] == [(0, code)]


def test_period_may_be_longer_not_shorter(key: ApiKey) -> None:
    used(key, utc(2026, 10, 6))
    kept = uploaded("2026-10-03,sol,1,1,1\n2026-10-04,sol,1,1,1\n")
    mapping = guess(table_of(kept))
    longer = compare(kept.pk, mapping, now=now(), last=dt.date(2026, 10, 7))
    assert rows(longer)[6, "sol"] == ("only_ours", {"unknown": -30})
    assert (longer.first_day, longer.last_day) == (dt.date(2026, 10, 3), dt.date(2026, 10, 7))
    for days, code in (((4, 7), "outside"), ((9, 7), "order")):
        first, last = (dt.date(2026, 10, day) for day in days)
        with pytest.raises(Unreadable) as refused:
            compare(kept.pk, mapping, now=now(), first=first, last=last)
        assert refused.value.faults[0].code == code


def test_same_file_is_recognised(db: None) -> None:
    first = uploaded("2026-10-03,sol,1,1,1\n")
    with pytest.raises(AlreadyUploaded) as known:
        uploaded("2026-10-03,sol,1,1,1\n", name="renamed.csv", provider="umbrella-cloud")
    assert known.value.reconciliation == first
    assert reconciliation.raw_file(first) == (HEADER + "2026-10-03,sol,1,1,1\n").encode()


def test_no_table_is_not_kept(db: None) -> None:
    with pytest.raises(NotCsv):
        upload("acme-cloud", "picture.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), by="ada", now=now())
    assert not Reconciliation.objects.exists()
