"""Sums of usage over any days, filters and dimensions: the one place where reports get their figures.

    sums(Cut(first, last, account=7), ("day", "model"))    {(day, model): Figures}

Days that are up to date come from `UsageDay`, days that are due from the records themselves, so a sum is exact at the
moment of asking. A due day's record may come in after the look at what is due: then its day shows as it was before. A
day that is rebuilt meanwhile is read from the records all the same, which are never wrong.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from django.db import connection, transaction
from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from billing import seals
from billing.models import RollupDue, UsageDay, UsageRecord
from billing.money import NANOS
from billing.rollups import ESTIMATED, INTERRUPTED
from billing.usage import BUCKETS

COLUMNS = {
    "day": "day",
    "account": "account_id",
    "key": "api_key_id",
    "model": "model",
    "provider": "provider",
    "currency": "currency",
}
"""Dimension -> column, the same in records and daily sums."""

MAX_DUE = 2_000
"""Keys' days that a statement names one by one. Where more are due, all keys' records of such a day are read."""


@dataclass(slots=True)
class Figures:
    """What adds up. Tokens by bucket, `reasoning` of the output; `unpriced` requests have no part in the cost."""

    requests: int = 0
    interrupted: int = 0
    estimated: int = 0
    unpriced: int = 0
    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int = 0
    cost_nanos: int = 0

    def add(self, other: Figures) -> None:
        """Take another's figures in; its currency must be the same."""
        self.requests += other.requests
        self.interrupted += other.interrupted
        self.estimated += other.estimated
        self.unpriced += other.unpriced
        self.input += other.input
        self.cache_read += other.cache_read
        self.cache_write += other.cache_write
        self.cache_write_1h += other.cache_write_1h
        self.output += other.output
        self.reasoning += other.reasoning
        self.cost_nanos += other.cost_nanos

    @property
    def prompt(self) -> int:
        """Input tokens, cached and written ones included."""
        return self.input + self.cache_read + self.cache_write + self.cache_write_1h

    @property
    def tokens(self) -> int:
        """All buckets."""
        return self.prompt + self.output


NAMES = tuple(field.name for field in fields(Figures))


class DaySum(Sum):
    """A sum as the database has it (on PostgreSQL a Decimal): `_grouped` makes integers of a whole row at once."""

    convert_value = property(lambda self: self._convert_value_noop)


class MoneySum(DaySum):
    """A sum of nanos, however large: SQLite, whose sums end at 2^63, sums whole units and the rest apart."""

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        column = "%(expressions)s"
        units = f"{column} / {NANOS}"
        template = f"SUM({units}) || ' ' || SUM({column} - {units} * {NANOS})"
        return self.as_sql(compiler, connection, template=template, **context)

    def get_db_converters(self, connection: Any) -> list[Any]:
        return [_joined] if connection.vendor == "sqlite" else []


def _joined(value: str | None, *_context: object) -> int | None:
    if value is None:
        return None
    units, rest = value.split()
    return int(units) * NANOS + int(rest)


OF_DAYS = {**{name: DaySum(name) for name in NAMES}, "cost_nanos": MoneySum("cost_nanos")}
OF_RECORDS = {
    "requests": Count("*"),
    "interrupted": Count("id", filter=Q(ending__in=INTERRUPTED)),
    "estimated": Count("id", filter=Q(metering__in=ESTIMATED)),
    "unpriced": Count("id", filter=Q(unpriced=True)),
    **{name: Coalesce(Sum(name), 0) for name in (*BUCKETS, "reasoning")},
    "cost_nanos": MoneySum("cost_nanos"),
}


@dataclass(frozen=True, slots=True)
class Cut:
    """Which usage: days of each account's own zone, both ends included, and the filters of a report."""

    first: dt.date
    last: dt.date
    account: int | None = None
    key: int | None = None
    model: str | None = None
    provider: str | None = None
    currency: str | None = None

    def condition(self) -> Q:
        """The cut as a condition on records or on daily sums."""
        chosen = {COLUMNS[name]: getattr(self, name) for name in COLUMNS if getattr(self, name, None) is not None}
        return Q(day__gte=self.first, day__lte=self.last, **chosen)


def sums(
    cut: Cut,
    by: Sequence[str],
    *,
    only: Mapping[str, Collection[Any]] | None = None,
    figures: Sequence[str] = NAMES,
    max_due: int = MAX_DUE,
) -> dict[tuple[Any, ...], Figures]:
    """The figures of a cut by dimensions (names of COLUMNS); combinations without requests are absent.

    `only`: dimension -> the values that are wanted of it. `figures`: those that are wanted; the others stay 0.
    """
    columns = [COLUMNS[name] for name in by]
    chosen = {f"{COLUMNS[name]}__in": list(values) for name, values in (only or {}).items()}
    wanted, due = cut.condition() & Q(**chosen), _due(cut, max_due)
    found: dict[tuple[Any, ...], Figures] = {}
    clean = UsageDay.objects.filter(wanted) if due is None else UsageDay.objects.filter(wanted & ~due)
    _collect(found, _grouped(clean, columns, OF_DAYS, figures))
    if due is not None:
        _collect(found, _grouped(UsageRecord.objects.filter(wanted & due), columns, OF_RECORDS, figures))
    return found


@contextmanager
def one_snapshot() -> Iterator[None]:
    """Several sums that agree with each other, whatever is written meanwhile (PostgreSQL, outside a transaction).

    On SQLite a transaction would keep all writers waiting: there two sums of a page may be a request apart.
    """
    if connection.vendor != "postgresql" or connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def _collect(found: dict[tuple[Any, ...], Figures], rows: Iterable[tuple[tuple[Any, ...], Figures]]) -> None:
    for key, figures in rows:
        if key in found:
            found[key].add(figures)
        else:
            found[key] = figures


def _grouped(
    rows: QuerySet[Any], columns: Sequence[str], measures: Mapping[str, Any], names: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], Figures]]:
    """Without columns: one row, of zeros where there is no usage."""
    named = {f"sum_{name}": measures[name] for name in names}
    if not columns:
        row = rows.aggregate(**named)
        yield (), Figures(**{name: int(row[f"sum_{name}"] or 0) for name in names})
        return
    width, whole = len(columns), tuple(names) == NAMES
    for values in rows.order_by().values(*columns).annotate(**named).values_list(*columns, *named):
        sums = map(int, values[width:])
        yield values[:width], Figures(*sums) if whole else Figures(**dict(zip(names, sums, strict=True)))


def _due(cut: Cut, most: int) -> Q | None:
    """The condition that divides the cut in two: what it holds is read from records, the rest from daily sums."""
    asked = Q(day__gte=cut.first, day__lte=cut.last)
    if cut.key is not None:
        asked &= Q(api_key_id=cut.key)
    if cut.account is not None:
        asked &= Q(api_key__account_id=cut.account)
    pairs = seals.unsealed(RollupDue.objects.filter(asked)).order_by().values_list("day", "api_key_id").distinct()
    found = list(pairs[: most + 1])
    if not found:
        return None
    if len(found) > most:
        return Q(day__in=list(pairs.values_list("day", flat=True)))
    return _named(found)


def _named(pairs: Iterable[tuple[dt.date, int]]) -> Q:
    """Keys' days, one by one; days on which the same keys are due share a term."""
    keys_of: dict[dt.date, set[int]] = {}
    for day, key in pairs:
        keys_of.setdefault(day, set()).add(key)
    days_of: dict[tuple[int, ...], list[dt.date]] = {}
    for day, keys in keys_of.items():
        days_of.setdefault(tuple(sorted(keys)), []).append(day)
    terms = (Q(api_key_id__in=keys, day__in=days) for keys, days in days_of.items())
    return Q(*terms, _connector=Q.OR)
