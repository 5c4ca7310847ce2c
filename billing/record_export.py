"""Usage records as a table: those that a list's filters show, newest first, read page by page.

    query = RecordQuery.parse({"account": "7", "day__gte": "2026-11-01", "metering__in": "estimated,checkpoint"})
    sheet(query, before)        all of them that ended before a moment

Pages go by the last row's time and id, not by a number of rows, so that none is cut or doubled whatever is written
meanwhile. Memory holds one page.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from billing import money, seals
from billing.models import Account, UsageRecord
from billing.periods import parse_day
from billing.report_query import LONGEST_TEXT, BadQuery
from billing.row_ids import NO_ROW, row_id
from billing.sheets import Cell, Column, Sheet
from billing.usage import BUCKETS

PAGE = 2_000
"""Records per statement."""

DAY = dt.timedelta(days=1)
FIELDS = {
    "account": "account_id",
    "account__id__exact": "account_id",
    "api_key": "api_key_id",
    "api_key__in": "api_key_id__in",
    "invoice": "invoice_id",
    "model": "model",
    "provider": "provider",
    "currency": "currency",
    "wire_format": "wire_format",
    "ending": "ending",
    "ending__in": "ending__in",
    "metering": "metering",
    "metering__in": "metering__in",
    "unpriced": "unpriced",
    "day": "day",
    "day__gte": "day__gte",
    "day__lte": "day__lte",
    "since": "ended_at__gte",
}
"""What a list's URL may say -> look-up. `since` is a moment: where a list looks back some days, the export is exact."""

READ = (
    "ended_at", "id", "account__timezone", "day", "account_name", "key_name", "request_name", "model", "provider",
    "upstream_model", "wire_format", "ending", "metering", *BUCKETS, "reasoning", "service_tier",
    "price_version", "unpriced", "invoice__number", "cost_nanos", "currency",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Filters by name (see FIELDS), as texts; each was read once, so that none is left out unseen."""

    given: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> RecordQuery:
        """BadQuery for what is no filter here: better no file than one with more in it than the list shows."""
        query = cls(tuple(sorted((name, value) for name, value in given.items() if value or name == "provider")))
        for name, value in query.given:
            _value(name, value)
        return query

    def url(self) -> str:
        """The query of a URL that parses to the same."""
        return urlencode(self.given)

    def records(self, before: dt.datetime) -> QuerySet[UsageRecord]:
        """The records that ended before a moment."""
        wanted = Q(ended_at__lt=before)
        for name, value in self.given:
            wanted &= Q(**{FIELDS[name]: _value(name, value)})
        return UsageRecord.objects.filter(wanted, *self._bounds())

    def _bounds(self) -> Iterator[Q]:
        """Drop nothing of any zone's day, but let the index on `ended_at` find it."""
        for name, value in self.given:
            if name.startswith("day"):
                start = dt.datetime.combine(parse_day(value), dt.time(), dt.UTC)
                if name != "day__lte":
                    yield seals.ends_of_days_from(start.date())
                if name != "day__gte":
                    yield Q(ended_at__lt=start + 2 * DAY)

    def reaches(self, moment: dt.datetime) -> bool:
        """Whether it asks for records from before a moment too."""
        firsts = [_value(name, value) for name, value in self.given if name in ("day", "day__gte")]
        since = [_value(name, value) for name, value in self.given if name == "since"]
        return all(day <= moment.date() for day in firsts) and all(one < moment for one in since)


def _value(name: str, value: str) -> Any:
    if name not in FIELDS or len(value) > LONGEST_TEXT or "\0" in value:
        raise BadQuery(name, "unknown")
    if name.startswith("day"):
        return _day(name, value)
    try:
        if FIELDS[name].endswith("_id"):
            return _whole(value)
        if name == "api_key__in":
            return [_whole(one) for one in value.split(",")]
        if name == "since":
            return _moment(value)
    except ValueError:
        raise BadQuery(name, "unknown") from None
    if name == "unpriced":
        return value == "1"
    return value.split(",") if name.endswith("__in") else value


def _day(name: str, value: str) -> dt.date:
    try:
        return parse_day(value)
    except ValueError:
        raise BadQuery(name, "date") from None


def _whole(value: str) -> int:
    if (found := row_id(value)) == NO_ROW:
        raise ValueError(value)
    return found


def _moment(value: str) -> dt.datetime:
    moment = parse_datetime(value)
    if moment is None or moment.tzinfo is None:
        raise ValueError(value)
    return moment


def pages(query: RecordQuery, before: dt.datetime, size: int = PAGE) -> Iterator[list[tuple[Any, ...]]]:
    """The values of READ, newest first, a page at a time."""
    records = query.records(before).order_by("-ended_at", "-id")
    after = Q()
    while page := list(records.filter(after).values_list(*READ)[:size]):
        yield page
        ended_at, identity = page[-1][:2]
        after = Q(ended_at__lte=ended_at) & (Q(ended_at__lt=ended_at) | Q(id__lt=identity))


@dataclass(slots=True)
class _Total:
    requests: int = 0
    unpriced: int = 0
    cost_nanos: int = 0


class _Rows:
    """The sheet's rows, and after the last one its totals by currency."""

    def __init__(self, query: RecordQuery, before: dt.datetime) -> None:
        self._pages = pages(query, before)
        self._totals: dict[str, _Total] = {}
        self._tokens: dict[str, list[int]] = {}

    def __iter__(self) -> Iterator[list[Cell]]:
        for page in self._pages:
            for values in page:
                yield self._row(dict(zip(READ, values, strict=True)))

    def _row(self, record: dict[str, Any]) -> list[Cell]:
        total = self._totals.setdefault(record["currency"], _Total())
        total.requests += 1
        total.unpriced += record["unpriced"]
        total.cost_nanos += record["cost_nanos"]
        tokens = self._tokens.setdefault(record["currency"], [0] * len(BUCKETS))
        for at, bucket in enumerate(BUCKETS):
            tokens[at] += record[bucket]
        ended_at = record["ended_at"].astimezone(ZoneInfo(record["account__timezone"]))
        return [
            ended_at.isoformat(sep=" ", timespec="milliseconds"), record["account__timezone"], record["day"],
            record["account_name"], record["key_name"],
            record["request_name"], record["model"], record["provider"], record["upstream_model"],
            record["wire_format"], record["ending"], record["metering"],
            *(record[bucket] for bucket in BUCKETS), record["reasoning"], record["service_tier"],
            record["price_version"], record["invoice__number"], 1 if record["unpriced"] else 0,
            None if record["unpriced"] else money.to_decimal(record["cost_nanos"]), record["currency"],
        ]  # fmt: skip

    def totals(self) -> Iterator[list[Cell]]:
        for currency in sorted(self._totals):
            total = self._totals[currency]
            cost = None if total.unpriced == total.requests else money.to_decimal(total.cost_nanos)
            blank: list[Cell] = [None] * 6
            yield [
                _("Total"), *blank[:4], total.requests, *blank, *self._tokens[currency], *blank[:4], total.unpriced,
                cost, currency,
            ]  # fmt: skip


class _Late:
    """Totals that are known once the rows were read."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[list[Cell]]:
        return self._rows.totals()


def sheet(query: RecordQuery, before: dt.datetime) -> Sheet:
    """The records as a file, with their totals by currency."""
    rows = _Rows(query, before)
    return Sheet(
        title=_("Requests"),
        head=[
            (_("Time zone"), _("Each account's own, named in its column")),
            *_filter_words(query),
            *_left_out(query),
            (_("Figures to"), f"{before.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"),
        ],
        columns=[Column(name, width, places) for name, width, places in _columns()],
        rows=rows,
        totals=_Late(rows),
    )


def _left_out(query: RecordQuery) -> Iterator[tuple[str, str]]:
    """What the filters mean and the file does not have."""
    until = seals.dropped_until()
    if until is not None and query.reaches(until):
        words = _("requests that began before %(moment)s UTC, which are in files of their own")
        yield _("Not included"), words % {"moment": f"{until.astimezone(dt.UTC):%Y-%m-%d %H:%M}"}


def _filter_words(query: RecordQuery) -> Iterator[tuple[str, str]]:
    for name, value in query.given:
        if FIELDS[name] == "account_id":
            value = Account.objects.filter(pk=value).values_list("name", flat=True).first() or value
        yield name, value


def _columns() -> list[tuple[str, int, int]]:
    """Names, widths and decimal places, in the order of the rows."""
    return [
        (_("ended"), 30, 0), (_("time zone"), 18, 0), (_("day"), 12, 0), (_("account"), 20, 0), (_("key"), 20, 0),
        (_("request id"), 38, 0), (_("model"), 22, 0), (_("provider"), 18, 0), (_("upstream model"), 22, 0),
        (_("wire format"), 18, 0), (_("ending"), 14, 0), (_("metering"), 12, 0),
        (_("input"), 12, 0), (_("cache read"), 12, 0), (_("cache write"), 12, 0), (_("cache write, 1 h"), 12, 0),
        (_("output"), 12, 0), (_("reasoning"), 12, 0), (_("service tier"), 12, 0), (_("price version"), 36, 0),
        (_("invoice"), 14, 0), (_("unpriced"), 10, 0), (_("cost"), 20, 9), (_("currency"), 10, 0),
    ]  # fmt: skip
