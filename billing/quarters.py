"""Attempts summed by quarters of an hour: our side of a provider's bill, for the days of any time zone.

A provider's day may be any zone's, and every zone's midnight is at a quarter of an hour in UTC. A month is read by an
index, where the attempts themselves would have to be scanned, and joined to their records.

Made again by `rollups` from a key's day of records, under its lock and of its due rows; never added to. What is due is
read from the records and attempts themselves. Each attempt is one of:

- the last one of a record that has a metering: a customer pays for it, and its record knows all of it;
- any other: nobody pays, and its own columns hold what it reported, if it did;
- lost with its gateway before anybody wrote it down: its record stands for it.

Most records have one attempt, which is theirs: it is not even looked at, so that a day of 100,000 records is made again
in about half a second.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import (
    BigIntegerField,
    Case,
    CharField,
    Count,
    DateTimeField,
    Exists,
    F,
    Func,
    OuterRef,
    Q,
    QuerySet,
    Sum,
    TextField,
    Value,
    When,
)
from django.db.models.functions import Cast, Coalesce

from billing import seals
from billing.models import Attempt, AttemptQuarter, ProviderTest, RollupDue, UsageRecord
from billing.usage import BUCKETS

QUARTER = dt.timedelta(minutes=15)
Use = AttemptQuarter.Use

GROUPS = (
    "api_key_id", "day", "provider", "upstream_model", "started_quarter", "ended_quarter", "use", "currency",
)  # fmt: skip
COUNTS = ("attempts", "silent", "unpriced")
NANOS = tuple(f"{bucket}_nanos" for bucket in BUCKETS)
COLUMNS = (*GROUPS, *COUNTS, *BUCKETS, *NANOS, "billed_nanos")
"""Of AttemptQuarter, in the order of every SELECT below."""

MAX_NAMED = 5_000
"""Records that a statement names one by one."""

BROKEN_OFF = ("cut", "stalled", "timed_out", "client_left", "stopped", "gateway_lost")
"""Outcomes of attempts that a provider may bill though it reported nothing."""

Narrow = Callable[[str], Q]
"""The records meant, seen from a table that reaches them by a prefix ("" or "record__")."""


@dataclass(frozen=True, slots=True)
class QuarterSum:
    """Alike attempts, over all keys. `tokens`: bucket -> tokens; `nanos`: bucket -> what customers pay for them."""

    upstream_model: str
    started_quarter: dt.datetime
    ended_quarter: dt.datetime
    use: str
    currency: str
    attempts: int
    silent: int
    unpriced: int
    tokens: Mapping[str, int]
    nanos: Mapping[str, int]
    billed_nanos: int


class Quarter(Func):
    """The beginning of the quarter of an hour in which an instant lies, or that so many milliseconds later."""

    output_field = DateTimeField()

    def __init__(self, instant: Any, milliseconds: Any = 0) -> None:
        super().__init__(instant, milliseconds)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = "date_bin('15 minutes', %(expressions)s * interval '1 millisecond', 'epoch'::timestamptz)"
        return super().as_sql(compiler, connection, template=template, arg_joiner=" + ", **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Whole seconds and milliseconds apart: a Julian day in floating point is not exact enough for both."""
        instant, milliseconds = self.get_source_expressions()
        text, text_params = compiler.compile(instant)
        later, later_params = compiler.compile(milliseconds)
        seconds = f"CAST(round((julianday(substr({text}, 1, 19)) - 2440587.5) * 86400.0) AS INTEGER)"
        sql = (
            f"datetime(({seconds} * 1000 + CAST(substr({text}, 21, 3) AS INTEGER) + {later}) / 900000 * 900,"
            " 'unixepoch')"
        )
        return sql, (*text_params, *text_params, *later_params)


def quarter_of(instant: dt.datetime) -> dt.datetime:
    """The same in Python."""
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return epoch + (instant - epoch) // QUARTER * QUARTER


# --- writing ---


def rebuild(keys: Sequence[int], days: Sequence[dt.date]) -> None:
    """Make these days of these keys anew, inside the caller's transaction and locks."""
    AttemptQuarter.objects.filter(api_key_id__in=keys, day__in=days).delete()
    narrow = _of_days(keys, days)
    columns = ", ".join(connection.ops.quote_name(name) for name in COLUMNS)
    with connection.cursor() as cursor:
        for select in _selects(narrow):
            statement, params = select.query.sql_with_params()
            cursor.execute(f"INSERT INTO {AttemptQuarter._meta.db_table} ({columns}) {statement}", params)
    AttemptQuarter.objects.bulk_create(_parts(narrow), batch_size=500)


def _of_days(keys: Sequence[int], days: Sequence[dt.date]) -> Narrow:
    return lambda prefix: Q(**{f"{prefix}api_key_id__in": keys, f"{prefix}day__in": days})


def _selects(narrow: Narrow) -> list[QuerySet[Any, dict[str, Any]]]:
    """Everything but `_parts`, each attempt in exactly one of them, with the columns of COLUMNS."""
    written_down = Attempt.objects.filter(record_id=OuterRef("pk"))
    records = UsageRecord.objects.filter(narrow("")).exclude(provider="")
    attempts = Attempt.objects.filter(narrow("record__"))
    return [
        _summed(records.exclude(metering="none"), "", _paid()),
        _summed(attempts.filter(record__metering="none"), "record__", _unpaid_attempts()),
        *(_summed(failed, "record__", _unpaid_attempts()) for failed in _failed_before(records)),
        _summed(records.filter(~Exists(written_down), metering="none", ending="gateway_lost"), "", _unpaid_records()),
    ]


def _failed_before(records: QuerySet[UsageRecord]) -> Iterator[QuerySet[Attempt]]:
    """All attempts but the last one of records that somebody pays for.

    A second attempt shows by a small index that there is a first one that failed. PostgreSQL, asked for both at once,
    would read all attempts that there are.
    """
    later = Attempt.objects.filter(record_id=OuterRef("record_id"), number__gt=OuterRef("number"))
    retried = list(records.exclude(metering="none").filter(attempts__number=2).values_list("pk", flat=True))
    for first in range(0, len(retried), MAX_NAMED):
        yield Attempt.objects.filter(Exists(later), record__in=retried[first : first + MAX_NAMED])


def _summed(rows: QuerySet[Any], record: str, sums: Mapping[str, Any]) -> QuerySet[Any, dict[str, Any]]:
    """Rows of attempts (or of records in their place) grouped; sums by name of their column, `use` among them."""
    grouped = rows.order_by().annotate(
        of_key=F(f"{record}api_key_id"),
        on_day=F(f"{record}day"),
        began=Quarter("started_at"),
        over=Quarter("started_at", F("duration_ms")) if record else Quarter("ended_at"),
        as_use=sums["use"],
        in_currency=F(f"{record}currency"),
    )
    keys = ("of_key", "on_day", "provider", "upstream_model", "began", "over", "as_use", "in_currency")
    summed: QuerySet[Any, dict[str, Any]] = grouped.values(*keys).annotate(
        **{f"sum_{name}": sums[name] for name in COLUMNS if name not in GROUPS}
    )
    return summed


def _paid() -> dict[str, Any]:
    """What customers pay for, by their records."""
    reported = When(metering="reported", then=Value(Use.BILLED.value))
    return {
        "use": Case(reported, default=Value(Use.ESTIMATED.value), output_field=CharField()),
        "attempts": Count("*"),
        "silent": _zero(),
        "unpriced": Count("pk", filter=Q(unpriced=True)),
        **{name: Sum(name) for name in (*BUCKETS, *NANOS)},
        "billed_nanos": Sum("cost_nanos"),
    }


def _unpaid(silent: Any, tokens: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "use": Value(Use.FAILED.value, output_field=CharField()),
        "attempts": Count("*"),
        "silent": silent,
        "unpriced": _zero(),
        **tokens,
        **{name: _zero() for name in (*NANOS, "billed_nanos")},
    }


def _unpaid_attempts() -> dict[str, Any]:
    answered = Q(status__gte=200, status__lt=300) | Q(outcome__in=BROKEN_OFF)
    return _unpaid(Count("pk", filter=Q(input=None) & answered), {name: Coalesce(Sum(name), 0) for name in BUCKETS})


def _unpaid_records() -> dict[str, Any]:
    """Records of attempts that were lost with their gateway, and with them what they cost there."""
    return _unpaid(Count("*"), {name: _zero() for name in BUCKETS})


def _zero() -> Sum:
    """An aggregate, so that it does not get among the groups."""
    return Sum(Value(0), output_field=BigIntegerField())


def _parts(narrow: Narrow) -> list[AttemptQuarter]:
    """What other models did inside requests (an advisor): under their own names, and off their request's amount.

    Few records have any. Whoever wrote the JSON, a space may follow the colon or not.
    """
    per_million = Q(items_text__contains='"per_million": true') | Q(items_text__contains='"per_million":true')
    records = UsageRecord.objects.filter(narrow("")).exclude(items=[])
    records = records.annotate(items_text=Cast("items", TextField())).filter(per_million)
    return [row for record in records.iterator(chunk_size=500) for row in _rows_of_parts(record)]


def _rows_of_parts(record: UsageRecord) -> Iterator[AttemptQuarter]:
    parts = [item for item in record.items if item["per_million"]]
    for item in parts:
        bucket = item["bucket"]
        amount = {bucket: item["quantity"], f"{bucket}_nanos": item["amount_nanos"]}
        yield _row(record, item["model"], billed_nanos=item["amount_nanos"], **amount)
    yield _row(record, record.upstream_model, billed_nanos=-sum(item["amount_nanos"] for item in parts))


def _row(record: UsageRecord, model: str, **amounts: int) -> AttemptQuarter:
    return AttemptQuarter(
        api_key_id=record.api_key_id,
        day=record.day,
        provider=record.provider,
        upstream_model=model,
        started_quarter=quarter_of(record.started_at),
        ended_quarter=quarter_of(record.ended_at),
        use=Use.BILLED if record.metering == "reported" else Use.ESTIMATED,
        currency=record.currency,
        **{**dict.fromkeys((*COUNTS, *BUCKETS, *NANOS), 0), **amounts},
    )


# --- reading ---


def read(provider: str, start: dt.datetime, end: dt.datetime) -> list[QuarterSum]:
    """All attempts at a provider that ended in `start` <= t < `end` (whole quarters), as of now.

    Which keys' days are due is asked once: what is rolled up or becomes due meanwhile is neither lost nor read twice.
    """
    keys, days = _due(start, end)
    quarters = AttemptQuarter.objects.filter(provider=provider, ended_quarter__gte=start, ended_quarter__lt=end)
    if keys:
        quarters = quarters.exclude(api_key_id__in=keys, day__in=days)
    return [*_read_sums(quarters), *_read_records(provider, start, end, keys, days)]


def _due(start: dt.datetime, end: dt.datetime) -> tuple[list[int], list[dt.date]]:
    """The keys and the days that are due and may hold attempts of that time.

    A record's day is that of its end, in its account's zone, which is not before its attempts' and hardly ever more
    than a day after.
    """
    around = (start.date() - dt.timedelta(days=1), end.date() + dt.timedelta(days=2))
    due = seals.unsealed(RollupDue.objects.filter(day__range=around))
    pairs = set(due.order_by().values_list("api_key_id", "day").distinct())
    return sorted({key for key, _day in pairs}), sorted({day for _key, day in pairs})


def _read_sums(quarters: QuerySet[AttemptQuarter]) -> Iterator[QuarterSum]:
    alike = ("upstream_model", "started_quarter", "ended_quarter", "use", "currency")
    amounts = [name for name in COLUMNS if name not in GROUPS]
    rows = quarters.order_by().values(*alike).annotate(**{f"sum_{name}": Sum(name) for name in amounts})
    for row in rows.iterator(chunk_size=2000):
        yield _sum_of({name: row[name] for name in alike}, {name: row[f"sum_{name}"] for name in amounts})


def _read_records(
    provider: str, start: dt.datetime, end: dt.datetime, keys: Sequence[int], days: Sequence[dt.date]
) -> Iterator[QuarterSum]:
    """The same from the records and attempts of these keys' days."""
    if not keys:
        return
    narrow = _of_days(keys, days)
    for select in _selects(narrow):
        for row in select.filter(provider=provider, over__gte=start, over__lt=end).iterator(chunk_size=2000):
            found = dict(zip(COLUMNS, row.values(), strict=True))
            yield _sum_of(found, found)
    for part in _parts(narrow):
        if part.provider == provider and start <= part.ended_quarter < end:
            found = {name: getattr(part, name) for name in COLUMNS}
            yield _sum_of(found, found)


def _sum_of(alike: Mapping[str, Any], amounts: Mapping[str, Any]) -> QuarterSum:
    return QuarterSum(
        upstream_model=alike["upstream_model"],
        started_quarter=alike["started_quarter"],
        ended_quarter=alike["ended_quarter"],
        use=alike["use"],
        currency=alike["currency"],
        **{name: int(amounts[name]) for name in COUNTS},
        tokens={bucket: int(amounts[bucket]) for bucket in BUCKETS},
        nanos={bucket: int(amounts[f"{bucket}_nanos"]) for bucket in BUCKETS},
        billed_nanos=int(amounts["billed_nanos"]),
    )


def tests(provider: str, start: dt.datetime, end: dt.datetime) -> Iterable[ProviderTest]:
    """The operators' tests of a provider that ended in `start` <= t < `end`."""
    return ProviderTest.objects.filter(provider=provider, ended_at__gte=start, ended_at__lt=end)


def providers() -> list[str]:
    """The providers that attempts were made at: a look-up in the index for each, however many attempts there are."""
    found: list[str] = []
    names = AttemptQuarter.objects.order_by("provider").values_list("provider", flat=True)
    while (name := names.filter(provider__gt=found[-1] if found else "").first()) is not None:
        found.append(name)
    return found


def models_of(provider: str, start: dt.datetime, end: dt.datetime) -> list[str]:
    """The upstream models that were asked for there, in roll-ups of that time."""
    quarters = AttemptQuarter.objects.filter(provider=provider, ended_quarter__gte=start, ended_quarter__lt=end)
    return sorted(set(quarters.order_by().values_list("upstream_model", flat=True).distinct()))
