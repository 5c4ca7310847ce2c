from __future__ import annotations

import pytest

from streaming.protocols import counts


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (5, 5),
        (0, 0),
        (-3, -3),
        (14.0, 14),
        (10**30, 10**30),
        (None, None),
        (True, None),
        ("5", None),
        (float("nan"), None),
        (float("inf"), None),
        ([5], None),
    ],
)
def test_counters_are_read_as_integers(value: object, wanted: int | None) -> None:
    assert counts.whole(value) == wanted


def test_first_spelling_with_a_number_stands() -> None:
    assert counts.first(None, "7", 0, 5) == 0
    assert counts.first(None, {}) is None


def test_tools_are_named_without_their_suffix() -> None:
    told = {"web_search_requests": 2, "x_search_calls": 3, "mcp_calls": 0, "tool_calls_executed": 9, "odd_calls": None}
    assert counts.server_tools(told) == {"web_search": 2, "x_search": 3}


def test_unknown_counters_are_named_by_their_path() -> None:
    usage = {"a": 1, "b": {"c": 2, "d": 0, "e": True}, "f": 1.5, "g": {"h": 3}, "i": [4]}
    assert list(counts.unknown_flags(usage, {"a", "g"})) == ["unknown:b.c"]
