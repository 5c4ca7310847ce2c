"""What the readings mean: each check turns at its threshold, in words of both languages."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from django.urls import reverse

from billing.meter_health import Check, Readings, checks
from billing.meter_health.checks import DUE_BAD, DUE_WARN, JOURNAL, OPEN, SWEPT
from billing.meter_health.readings import MOST_UNPRICED, Flagged, Journals, Kind, Metered, Noted, Unpriced

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
HEALTHY = Readings(at=NOW, redis_answers=True)


def check(name: str, **read: Any) -> Check:
    return next(one for one in checks(replace(HEALTHY, **read)) if one.name == name)


def since(age: dt.timedelta) -> dt.datetime:
    return NOW - age


def test_nothing_is_wrong_at_first() -> None:
    found = checks(HEALTHY)
    assert {one.state for one in found} == {"good"}
    assert len({one.name for one in found}) == len(found) == 13
    assert all(one.title and one.value and one.threshold and one.advice for one in found)


def test_links_lead_to_pages() -> None:
    for one in checks(HEALTHY):
        assert one.link is None or reverse(f"admin:{one.link.view}")


@pytest.mark.parametrize(
    ("name", "read", "state"),
    [
        ("journals", {"living_journals": Journals(1, 100, 2, since(SECOND))}, "warn"),
        ("journals", {"living_journals": Journals(1, 100, 2, since(JOURNAL + SECOND))}, "bad"),
        ("journals", {"dead_journals": Journals(1, 100, 2, since(JOURNAL + SECOND))}, "bad"),
        ("dead_processes", {"dead": 1}, "warn"),
        ("dead_processes", {"dead": 1, "dead_since": since(SWEPT)}, "warn"),
        ("dead_processes", {"dead": 1, "dead_since": since(SWEPT + SECOND)}, "bad"),
        ("sweeps", {"noted": {Kind.SWEPT: Noted(0, 1)}}, "warn"),
        ("dropped", {"noted": {Kind.DROPPED: Noted(1, 1)}}, "bad"),
        ("unjournalled", {"noted": {Kind.UNJOURNALLED: Noted(1, 1)}}, "bad"),
        ("late_writes", {"noted": {Kind.LATE: Noted(1, 1)}}, "warn"),
        ("open_streams", {"open_streams": 1, "oldest_open": since(OPEN - SECOND)}, "good"),
        ("open_streams", {"open_streams": 1, "oldest_open": since(OPEN)}, "warn"),
        ("unpriced", {"unpriced": Unpriced(1, NOW)}, "bad"),
        ("unknown_counters", {"flagged": [Flagged("unknown:a", "acme", 1, NOW)]}, "warn"),
        ("unknown_counters", {"flagged": [Flagged("zero_with_output", "acme", 1, NOW)]}, "good"),
        ("zero_usage", {"flagged": [Flagged("zero_with_output", "acme", 1, NOW)]}, "warn"),
        ("zero_usage", {"flagged": [Flagged("unknown:a", "acme", 1, NOW)]}, "good"),
        ("estimated_share", {"metered": [Metered("acme", 50, 4)]}, "good"),
        ("estimated_share", {"metered": [Metered("acme", 50, 5)]}, "warn"),
        ("estimated_share", {"metered": [Metered("acme", 50, 15)]}, "bad"),
        ("estimated_share", {"metered": [Metered("acme", 49, 49)]}, "good"),
        ("rollup_lag", {"rollup_due_since": since(DUE_WARN - SECOND)}, "good"),
        ("rollup_lag", {"rollup_due_since": since(DUE_WARN)}, "warn"),
        ("rollup_lag", {"rollup_due_since": since(DUE_BAD + SECOND)}, "bad"),
        ("redis", {"redis_answers": False}, "warn"),
        ("redis", {"redis_answers": None}, "good"),
    ],
)
def test_check_turns_at_its_threshold(name: str, read: dict[str, Any], state: str) -> None:
    assert check(name, **read).state == state
    others = {one.name: one.state for one in checks(replace(HEALTHY, **read)) if one.name != name}
    assert "bad" not in others.values()


def test_values_say_how_much() -> None:
    journals = check(
        "journals", living_journals=Journals(2, 12_345, 67, NOW), dead_journals=Journals(1, 8, 1, since(SECOND))
    )
    assert journals.value == ("of living processes: 67 entries, 12,345 bytes", "of dead processes: 1 entries, 8 bytes")
    assert journals.since == since(SECOND)
    assert check("rollup_lag", rollup_due_since=since(dt.timedelta(minutes=4))).value == ("4 min",)
    assert check("estimated_share", metered=[Metered("acme", 1000, 123)]).value == ("acme: 12.3 % of 1,000 requests",)
    found = check("unknown_counters", flagged=[Flagged("unknown:a.b", "acme", 1200, NOW)])
    assert found.value == ("acme: a.b on 1,200 requests",)


def test_unpriced_names_are_cut_off() -> None:
    names = tuple(f"a/k{n} 2026-11" for n in range(8))
    found = check("unpriced", unpriced=Unpriced(MOST_UNPRICED, NOW, ("m",), names))
    assert found.value == (
        "100,000 or more",
        "models: m",
        "blocked invoices: a/k0 2026-11, a/k1 2026-11, a/k2 2026-11, a/k3 2026-11, a/k4 2026-11 and 3 more",
    )
