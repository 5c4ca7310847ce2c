"""What a report's URL means: read and written without loss, and which days are compared with which."""

from __future__ import annotations

import datetime as dt
from urllib.parse import parse_qsl

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from billing.report_query import (
    COMPARISONS,
    CUSTOM,
    DIMENSIONS,
    LAST_MONTH,
    MAX_DAYS,
    NONE,
    PREVIOUS,
    SAME_DAYS,
    THIS_MONTH,
    BadQuery,
    Query,
    Span,
)

NAMES = st.one_of(
    st.none(), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
)


def day(text: str) -> dt.date:
    return dt.date.fromisoformat(text)


def span(first: str, last: str) -> Span:
    return Span(day(first), day(last))


def periods(given: dict[str, str], books: str = "2026-11-14", latest: str = "") -> tuple[Span, Span | None]:
    found = Query.parse(given).periods(day(books), day(latest or books))
    return found.now, found.before


@st.composite
def queries(draw: st.DrawFn) -> Query:
    by = draw(st.sampled_from(DIMENSIONS))
    period = draw(st.sampled_from((THIS_MONTH, LAST_MONTH, CUSTOM)))
    first = draw(st.dates(dt.date(2000, 1, 1), dt.date(2900, 1, 1)))
    last = first + dt.timedelta(days=draw(st.integers(0, MAX_DAYS - 1)))
    return Query(
        period=period,
        first=first if period == CUSTOM else None,
        last=last if period == CUSTOM else None,
        compare=draw(st.sampled_from(COMPARISONS)),
        by=by,
        then=draw(st.sampled_from([None, *(name for name in DIMENSIONS if name != by)])),
        account=draw(st.one_of(st.none(), st.integers(1, 10**12))),
        key=draw(st.one_of(st.none(), st.integers(1, 10**12))),
        model=draw(NAMES),
        provider=draw(NAMES),
        currency=draw(st.sampled_from([None, "USD", "TWD"])),
    )


@given(queries())
def test_url_parses_to_the_same(query: Query) -> None:
    assert Query.parse(dict(parse_qsl(query.url(), keep_blank_values=True))) == query


@given(queries(), st.dates(dt.date(2001, 1, 1), dt.date(2900, 1, 1)))
@example(Query(period=CUSTOM, first=dt.date(2000, 3, 30), last=dt.date(2000, 3, 30)), dt.date(2001, 1, 1))
def test_before_never_overlaps(query: Query, today: dt.date) -> None:
    found = query.periods(today, today)
    if found.before is None:
        assert query.compare == NONE
        return
    assert found.before.last < found.now.first
    beside = [one for one in map(found.counterpart, found.before) if one is not None]
    assert len(set(beside)) == len(beside)
    if query.compare == SAME_DAYS:
        assert set(beside) <= set(found.now)
        assert all(one.day == before.day for before in found.before if (one := found.counterpart(before)))


def test_default_is_the_shortest() -> None:
    assert Query().url() == ""
    assert Query.parse({"period": "", "from": "", "account": ""}) == Query()
    assert Query.parse({"by": "key"}).then is None


@pytest.mark.parametrize(
    ("given", "now", "before"),
    [
        ({}, ("2026-11-01", "2026-11-14"), ("2026-10-01", "2026-10-14")),
        ({"compare": PREVIOUS}, ("2026-11-01", "2026-11-14"), ("2026-10-01", "2026-10-31")),
        ({"period": LAST_MONTH}, ("2026-10-01", "2026-10-31"), ("2026-09-01", "2026-09-30")),
        ({"period": LAST_MONTH, "compare": PREVIOUS}, ("2026-10-01", "2026-10-31"), ("2026-09-01", "2026-09-30")),
        ({"from": "2026-03-01", "to": "2026-03-31"}, ("2026-03-01", "2026-03-31"), ("2026-02-01", "2026-02-28")),
        ({"from": "2026-11-10"}, ("2026-11-10", "2026-11-10"), ("2026-10-10", "2026-10-10")),
        ({"from": "2026-10-20", "to": "2026-11-25"}, ("2026-10-20", "2026-11-25"), ("2026-08-20", "2026-09-25")),
        (
            {"from": "2026-11-10", "to": "2026-11-12", "compare": PREVIOUS},
            ("2026-11-10", "2026-11-12"),
            ("2026-11-07", "2026-11-09"),
        ),
    ],
)
def test_periods_are_these(given: dict[str, str], now: tuple[str, str], before: tuple[str, str]) -> None:
    assert periods(given) == (span(*now), span(*before))


def test_running_month_reaches_the_latest_day() -> None:
    """Somewhere it is tomorrow already; but the next month is no part of this one."""
    assert periods({}, "2026-11-14", "2026-11-15")[0] == span("2026-11-01", "2026-11-15")
    assert periods({}, "2026-11-30", "2026-12-01")[0] == span("2026-11-01", "2026-11-30")


def test_day_without_counterpart_is_told() -> None:
    found = Query.parse({"compare": PREVIOUS}).periods(day("2026-11-30"), day("2026-11-30"))
    assert found.counterpart(day("2026-10-31")) is None
    assert found.counterpart(day("2026-10-30")) == day("2026-11-30")


@pytest.mark.parametrize(
    ("given", "field", "code"),
    [
        ({"period": "ever"}, "period", "unknown"),
        ({"period": CUSTOM}, "from", "date"),
        ({"from": "2026-13-01"}, "from", "date"),
        ({"from": "20261101"}, "from", "date"),
        ({"from": "1999-01-01"}, "from", "date"),
        ({"from": "2026-11-02", "to": "2026-11-01"}, "from", "order"),
        ({"from": "2020-01-01", "to": "2026-11-01"}, "to", "long"),
        ({"by": "colour"}, "by", "unknown"),
        ({"by": "day", "then": "day"}, "then", "twice"),
        ({"account": "1 OR 1"}, "account", "unknown"),
        ({"key": "９"}, "key", "unknown"),
        ({"model": "x" * 201}, "model", "unknown"),
        ({"provider": "a\0b"}, "provider", "unknown"),
        ({"compare": "tomorrow"}, "compare", "unknown"),
    ],
)
def test_faults_name_their_field(given: dict[str, str], field: str, code: str) -> None:
    with pytest.raises(BadQuery) as caught:
        Query.parse(given)
    assert (caught.value.field, caught.value.code) == (field, code)
