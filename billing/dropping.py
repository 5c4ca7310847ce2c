"""Dropping old months of usage records: when one may go, and that nothing of it is lost. PostgreSQL's partitions only.

    old(now)                    the months that are past their time, oldest first
    in_the_way(month, now)      why one may not go; one sentence per reason
    drop(month, now=now)        into a file, then out of the database; or Refused, and nothing is changed
    drop_old(now)               all that may go, up to the first that may not

The file is written, and read again, in the transaction that drops: while it runs nobody changes that month, and only
for an instant at its end does anybody else wait. What is read again has to agree with the table, to the nano and for
each invoice, and every record's amounts with its own quantities and prices. Whatever is in doubt stays.

Records that an adjustment names stay behind in the default partition: it refers to them for ever.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import orjson
from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import Count, Q, QuerySet, Sum

from billing import audit, locks, money, partitions, proofs, record_archive, seals
from billing.models import (
    Adjustment,
    Attempt,
    DroppedInvoice,
    DroppedMonth,
    DroppedRecord,
    Invoice,
    OpenStream,
    RecordToShip,
    RollupDue,
    UsageDay,
    UsageRecord,
)
from billing.partitions import RECORD, Partition
from billing.record_archive import Written

LOCK_S = 5.0
"""How long the last step waits for those who read and write, and they behind it; the next round tries again."""
ISSUED = (Invoice.Status.OPEN, Invoice.Status.PAID)
ADJUSTED = f"EXISTS (SELECT 1 FROM {Adjustment._meta.db_table} a WHERE a.record_id = r.id)"  # noqa: S608 - our own names
"""Whether a row `r` stays behind."""

Tell = Callable[[int, int], None]


class Refused(Exception):
    """A month stays, and nothing was changed: one sentence per reason."""

    def __init__(self, month: Partition, reasons: list[str]) -> None:
        super().__init__(f"{month.name} stays: {'; '.join(reasons)}")
        self.reasons = reasons


class Facts(NamedTuple):
    """What a month holds. `costs`: by invoice and currency, records and nanos, without those that stay behind."""

    records: int
    last_day: dt.date
    costs: dict[tuple[int | None, str], tuple[int, int]]

    @property
    def going(self) -> int:
        return sum(records for records, _ in self.costs.values())

    def by_currency(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for (_, currency), (_, nanos) in self.costs.items():
            found[currency] += nanos
        return dict(found)


@dataclass(slots=True)
class Parts:
    """What a file holds: `invoices` by their ids, `costs` as those of `Facts`."""

    sha256: str = ""
    invoices: dict[int, proofs.Counted] = field(default_factory=dict)
    costs: dict[tuple[int | None, str], tuple[int, int]] = field(default_factory=dict)


def old(now: dt.datetime) -> list[Partition]:
    """The months that ended longer ago than HOPBASE_RECORDS_KEEP_MONTHS, oldest first; none where that is not set."""
    if not settings.RECORDS_KEEP_MONTHS or not partitions.is_partitioned(connection):
        return []
    months = 12 * now.year + now.month - 1 - settings.RECORDS_KEEP_MONTHS
    until = dt.datetime(months // 12, months % 12 + 1, 1, tzinfo=dt.UTC)
    return [one for one in partitions.partitions(connection) if one.end <= until]


def in_the_way(month: Partition, now: dt.datetime) -> list[str]:
    """Why a month may not be dropped now, as far as can be told before its file is made."""
    with transaction.atomic(), connection.cursor() as cursor:
        facts = _facts(cursor, month)
        return [*_of_folder(), *_of_month(cursor, month, facts, now), *_of_days(month, facts), *_of_sums(facts)]


def drop_old(now: dt.datetime, tell: Tell = lambda done, total: None) -> tuple[list[DroppedMonth], Refused | None]:
    """Drop what may go; returns that, and why the first month that may not stays, if there is one."""
    dropped: list[DroppedMonth] = []
    for month in old(now):
        try:
            dropped.append(drop(month, now=now, tell=tell))
        except Refused as refused:
            return dropped, refused
    return dropped, None


@audit.acting("drop_records")
def drop(
    month: Partition, *, now: dt.datetime, tell: Tell = lambda done, total: None, lock_s: float = LOCK_S
) -> DroppedMonth:
    """Write a month's file and drop the month. Refused: it stays, and a file that was written by then is left there."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            return _drop(cursor, month, now, tell, lock_s)
    except DatabaseError as error:
        raise Refused(month, [f"the database did not let it happen now ({str(error).splitlines()[0]})"]) from error
    except (OSError, EOFError, zlib.error) as error:
        raise Refused(month, [f"its file cannot be written and read again ({error})"]) from error


def _drop(cursor: CursorWrapper, month: Partition, now: dt.datetime, tell: Tell, lock_s: float) -> DroppedMonth:
    def require(reasons: Iterable[str]) -> None:
        if found := list(reasons):
            raise Refused(month, found)

    cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{round(lock_s * 1000)}ms"])
    locks.hold("drop records")
    if old(now)[:1] != [month]:
        require(["it is not the oldest one that is past its time"])
    cursor.execute(f'LOCK TABLE "{month.name}" IN SHARE MODE')  # nobody changes it from here on
    facts, staying = _facts(cursor, month), _staying(cursor, month)
    require([*_of_folder(), *_of_month(cursor, month, facts, now), *_of_days(month, facts), *_of_sums(facts)])

    folder = cast(Path, settings.RECORDS_ARCHIVE)
    written = record_archive.write(
        folder, _file_name(month), month.name, ADJUSTED, lambda done: tell(done, facts.going)
    )
    parts = _read_again(written)
    require(_of_file(written, parts, facts))
    invoices = _locked_invoices(cursor, month, facts)
    require(_of_invoices(invoices))
    _take_attempts(cursor, month)

    cursor.execute(f"LOCK TABLE ONLY {RECORD} IN ACCESS EXCLUSIVE MODE")  # from here on everybody waits
    if _staying(cursor, month) != staying:
        require(["an adjustment that names one of its records was made meanwhile"])
    partitions.take_out(cursor, month.name, ADJUSTED)
    require(_of_days(month, facts))
    if not set(_records_until(facts.last_day).values_list("invoice_id", flat=True).distinct()) <= invoices.keys():
        require(["the invoices of its days changed meanwhile"])
    return _note(month, facts, written, parts, list(invoices), now)


# --- why not ---


def _of_folder() -> Iterator[str]:
    folder: Path | None = settings.RECORDS_ARCHIVE
    if folder is None or not folder.is_dir() or not os.access(folder, os.W_OK):
        yield f"HOPBASE_RECORDS_ARCHIVE ({folder}) is no folder that can be written here"


def _of_month(cursor: CursorWrapper, month: Partition, facts: Facts, now: dt.datetime) -> Iterator[str]:
    """What is wrong with the month's own records."""
    if partitions.partitions(connection)[:1] != [month]:
        yield "an older month is still there"
    issued = f"SELECT id FROM {Invoice._meta.db_table} WHERE status IN ('open', 'paid')"  # noqa: S608 - our own names
    unbilled = f'"{month.name}" WHERE unpriced OR invoice_id IS NULL OR invoice_id NOT IN ({issued})'
    if count := _count(cursor, unbilled):
        yield f"{count} of its {facts.records} records are on no issued invoice"
    if count := _count(cursor, f'{RecordToShip._meta.db_table} s JOIN "{month.name}" r ON r.id = s.record_id'):
        yield f"{count} changes of its records wait for ClickHouse"
    if facts.last_day >= (now - seals.SEALED_AFTER).date():
        yield f"a request of it ended on {facts.last_day}, which is not long ago"


def _of_days(month: Partition, facts: Facts) -> Iterator[str]:
    """What is wrong with the days that it would seal, and their records in other months."""
    last = facts.last_day
    if count := RollupDue.objects.filter(day__lte=last).count():
        yield f"roll-ups of days up to {last} are due: {count}"
    if count := OpenStream.objects.filter(started_at__lt=month.end).count():
        yield f"requests that began before its end are not settled: {count}"
    if count := _elsewhere(month, last).exclude(invoice__status__in=ISSUED, unpriced=False).count():
        yield f"{count} records of days up to {last} that are in later months are on no issued invoice"


def _of_sums(facts: Facts) -> Iterator[str]:
    """Whether the sums that will stand for the records are theirs: of all days that were not sealed before."""
    before = seals.last_day()
    days = Q() if before is None else Q(day__gt=before)
    summed = UsageDay.objects.filter(days, day__lte=facts.last_day)
    counted = _records_until(facts.last_day).filter(days)
    by = ("day", "currency")
    sums = {tuple(row) for row in summed.order_by().values_list(*by).annotate(Sum("requests"), Sum("cost_nanos"))}
    true = {tuple(row) for row in counted.order_by().values_list(*by).annotate(Count("pk"), Sum("cost_nanos"))}
    if differ := sorted({row[0] for row in sums ^ true}):
        yield f"roll-ups and records differ on {len(differ)} days, the first of them {differ[0]}"


def _of_file(written: Written, parts: Parts, facts: Facts) -> Iterator[str]:
    """Whether what was read again is what the table has."""
    if parts.sha256 != written.sha256 or written.records != facts.going or parts.costs != facts.costs:
        yield f"{written.path.name}, read again, is not what the table has"
    if odd := sum(part.odd_count for part in parts.invoices.values()):
        yield f"the amounts of {odd} records do not follow from their own quantities and prices"


def _of_invoices(invoices: Mapping[int, str]) -> Iterator[str]:
    if open_again := [pk for pk, status in invoices.items() if status not in ISSUED]:
        yield f"{len(open_again)} of its invoices are not issued any more"


def _count(cursor: CursorWrapper, rows: str) -> int:
    cursor.execute(f"SELECT count(*) FROM {rows}")  # noqa: S608 - names of our own
    return int(cursor.fetchone()[0])


# --- what there is ---


def _facts(cursor: CursorWrapper, month: Partition) -> Facts:
    cursor.execute(f'SELECT count(*), max(day) FROM "{month.name}"')  # noqa: S608 - our own name
    records, last_day = cursor.fetchone()
    cursor.execute(
        "SELECT invoice_id, currency, count(*), sum(cost_nanos)"  # noqa: S608 - names of our own
        f' FROM "{month.name}" r WHERE NOT {ADJUSTED} GROUP BY 1, 2'
    )
    costs = {(invoice, currency): (count, int(nanos)) for invoice, currency, count, nanos in cursor.fetchall()}
    return Facts(records, last_day or (month.end - dt.timedelta(days=1)).date(), costs)


def _staying(cursor: CursorWrapper, month: Partition) -> list[uuid.UUID]:
    """The records that adjustments name."""
    cursor.execute(f'SELECT r.id FROM "{month.name}" r WHERE {ADJUSTED} ORDER BY 1')  # noqa: S608 - names of our own
    return [pk for (pk,) in cursor.fetchall()]


def _records_until(last: dt.date) -> QuerySet[UsageRecord]:
    """The records of days up to this one, in any zone, by the index on their end."""
    end = dt.datetime.combine(last, dt.time(), dt.UTC) + dt.timedelta(days=2)
    return UsageRecord.objects.filter(day__lte=last, ended_at__lt=end).order_by()


def _elsewhere(month: Partition, last: dt.date) -> QuerySet[UsageRecord]:
    """Those of them that are in no month up to this one: it is there, or was taken out by now."""
    late = Q(started_at__gte=month.end)
    if month.start is not None:
        late |= Q(started_at__lt=month.start)
    return _records_until(last).filter(late)


def _locked_invoices(cursor: CursorWrapper, month: Partition, facts: Facts) -> dict[int, str]:
    """The invoices of the days to be sealed, by their ids: none is made void, nor paid, until the transaction ends."""
    cursor.execute(f'SELECT DISTINCT invoice_id FROM "{month.name}"')  # noqa: S608 - our own name
    ids = {pk for (pk,) in cursor.fetchall()}
    ids |= set(_elsewhere(month, facts.last_day).values_list("invoice_id", flat=True).distinct())
    cursor.execute(
        f"SELECT id, status FROM {Invoice._meta.db_table} WHERE id = ANY(%s) ORDER BY id FOR SHARE",  # noqa: S608
        [sorted(ids)],
    )
    return dict(cursor.fetchall())


def _read_again(written: Written) -> Parts:
    """What the file holds, by the lines of each invoice, as a proof adds them up."""
    digest, found = hashlib.sha256(), Parts()
    invoices: dict[int, Invoice] = {}
    for line in record_archive.lines(written.path):
        digest.update(line)
        told = orjson.loads(line)
        told["ended_at"] = dt.datetime.fromisoformat(told["ended_at"])
        record = cast(UsageRecord, SimpleNamespace(**told))  # a model's own making takes longer than all else here
        pk = told["invoice_id"]
        if pk not in found.invoices:
            invoices[pk] = Invoice.objects.get(pk=pk)
            found.invoices[pk] = proofs.Counted(invoices[pk])
        found.invoices[pk].add(record)
        count, nanos = found.costs.get((pk, record.currency), (0, 0))
        found.costs[pk, record.currency] = (count + 1, nanos + record.cost_nanos)
    found.sha256 = digest.hexdigest()
    return found


# --- what is done ---


def _take_attempts(cursor: CursorWrapper, month: Partition) -> None:
    """The attempts go with their records, whose identities are kept."""
    going = f'SELECT r.id FROM "{month.name}" r WHERE NOT {ADJUSTED}'  # noqa: S608 - names of our own
    cursor.execute(f"DELETE FROM {Attempt._meta.db_table} WHERE record_id IN ({going})")  # noqa: S608 - the same
    cursor.execute(f"INSERT INTO {DroppedRecord._meta.db_table} (id) {going}")


def _note(
    month: Partition, facts: Facts, written: Written, parts: Parts, invoices: Sequence[int], now: dt.datetime
) -> DroppedMonth:
    dropped = DroppedMonth.objects.create(
        partition=month.name, start=month.start, end=month.end, last_day=facts.last_day, records=facts.going,
        costs=facts.by_currency(), file_name=written.path.name, sha256=written.sha256, dropped_at=now,
    )  # fmt: skip
    rows = []
    for pk in invoices:
        part = parts.invoices.get(pk)
        row = DroppedInvoice(month=dropped, invoice_id=pk, records=0, cost_nanos=0)
        if part is not None:
            row.records, row.cost_nanos, row.sums = part.records, part.cost_nanos, part.kept()
        rows.append(row)
    DroppedInvoice.objects.bulk_create(rows, batch_size=500)
    costs = ", ".join(f"{currency} {money.show(nanos)}" for currency, nanos in sorted(facts.by_currency().items()))
    audit.note(dropped, f"{facts.going} records dropped ({costs}); in {written.path.name}, SHA-256 {written.sha256}")
    return dropped


def _file_name(month: Partition) -> str:
    return f"usage-records-before-{month.end:%Y-%m}" if month.start is None else f"usage-records-{month.start:%Y-%m}"
