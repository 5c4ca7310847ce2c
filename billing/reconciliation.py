"""A provider's file against our attempts: uploaded, mapped, compared and kept.

    upload(…)        keeps a file that can be read as a table, once: the same bytes again are AlreadyUploaded
    proposal(…)      how it would be read: as last time, as the provider's files are, or as its column names suggest
    compare(…)       reads it, compares it with our attempts as of now, and keeps both sides and the mapping

A comparison is kept as it was made, for whoever signs it; made again it takes the place of the one before, whole or not
at all. The file itself is kept too, so that it can be read anew in another way.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from django.db import IntegrityError, transaction

from billing import csv_files, matching, provider_files, quarters
from billing.csv_files import CsvFile
from billing.matching import Compared, Ours, Terms
from billing.models import ProviderTest, Reconciliation, ReconciliationMapping, ReconciliationRow
from billing.periods import day_start, local_day
from billing.provider_files import Fault, FileMapping, Reading
from billing.usage import BUCKETS, TokenUsage

MAX_BYTES = 10 * 1024 * 1024
"""Of a file; a provider's month by day and model is a hundredth of it."""

MAX_DAYS = 400
"""Of a comparison: a year and a month. A longer one is mostly a date that was read wrongly."""

DAY = dt.timedelta(days=1)


class AlreadyUploaded(Exception):
    """The same file, byte for byte, was uploaded before."""

    def __init__(self, reconciliation: Reconciliation) -> None:
        super().__init__(reconciliation.file_name)
        self.reconciliation = reconciliation


class Unreadable(Exception):
    """Lines that cannot be read, or a whole that makes no sense; nothing was saved.

    Faults of the whole have the number 0: `no_lines`, `sums` (too large), `order`, `too_long` (`value`: days), and
    `outside`, with the day as `value`.
    """

    def __init__(self, *faults: Fault) -> None:
        super().__init__(f"{len(faults)} faults")
        self.faults = faults


# --- files ---


def upload(provider: str, file_name: str, raw: bytes, *, by: str, now: dt.datetime) -> Reconciliation:
    """Keep a file for a provider. AlreadyUploaded where it is there; csv_files.NotCsv where it is no table."""
    sha256 = hashlib.sha256(raw).hexdigest()
    _refuse_known(sha256)
    csv_files.read(raw)
    try:
        with transaction.atomic():
            return Reconciliation.objects.create(
                provider=provider, file_name=file_name[-200:], sha256=sha256, content=zlib.compress(raw),
                uploaded_by=by[:150], uploaded_at=now,
            )  # fmt: skip
    except IntegrityError:  # somebody was faster
        _refuse_known(sha256)
        raise


def _refuse_known(sha256: str) -> None:
    if known := Reconciliation.objects.defer("content").filter(sha256=sha256).first():
        raise AlreadyUploaded(known)


def raw_file(reconciliation: Reconciliation) -> bytes:
    """The file as it was uploaded."""
    return zlib.decompress(reconciliation.content)


def table_of(reconciliation: Reconciliation) -> CsvFile:
    """The file as a table."""
    return csv_files.read(raw_file(reconciliation))


def proposal(reconciliation: Reconciliation, file: CsvFile) -> FileMapping:
    """The mapping to begin with. Names of models that were mapped before stay so, for later files too."""
    remembered = ReconciliationMapping.objects.filter(provider=reconciliation.provider).first()
    kept = reconciliation.mapping or (remembered.mapping if remembered else None)
    if kept is None:
        mapping = provider_files.guess(file)
    else:
        mapping = FileMapping.from_json(kept)
        if not provider_files.fitting(mapping, file):
            guessed = provider_files.guess(file)
            mapping = dataclasses.replace(guessed, aliases=mapping.aliases, zone=mapping.zone)
    return with_aliases(reconciliation.provider, mapping, file)


def with_aliases(provider: str, mapping: FileMapping, file: CsvFile) -> FileMapping:
    """The mapping with a proposal for each model name that is neither mapped yet nor one of ours."""
    if not {"day", "model"} <= set(mapping.columns):
        return mapping
    reading = provider_files.read(file, mapping)
    if reading.days is None:
        return mapping
    proposed = provider_files.aliases(reading.models, known_models(provider, *reading.days, mapping.zone))
    return dataclasses.replace(mapping, aliases={**proposed, **mapping.aliases})


def known_models(provider: str, first: dt.date, last: dt.date, zone: str) -> list[str]:
    """Upstream models that we asked a provider for in a period, by our roll-ups."""
    if (last - first).days > MAX_DAYS:
        return []
    there = ZoneInfo(zone)
    return quarters.models_of(provider, day_start(first, there), day_start(last + DAY, there))


# --- comparing ---


def compare(
    reconciliation_id: int,
    mapping: FileMapping,
    *,
    now: dt.datetime,
    first: dt.date | None = None,
    last: dt.date | None = None,
) -> Reconciliation:
    """Read a file and compare it with our attempts, for its own days or for a longer period that holds them.

    Unreadable where any line cannot be read: then nothing is changed.
    """
    reconciliation = Reconciliation.objects.get(pk=reconciliation_id)
    reading = provider_files.read(table_of(reconciliation), mapping)
    first, last = _period(reading, first, last)
    rows = list(_compared(reconciliation.provider, reading, mapping, first, last))
    with transaction.atomic():
        kept = Reconciliation.objects.select_for_update().get(pk=reconciliation_id)
        kept.rows.all().delete()
        ReconciliationRow.objects.bulk_create([_row(kept, row) for row in rows], batch_size=500)
        kept.mapping, kept.first_day, kept.last_day = mapping.as_json(), first, last
        kept.compared_at, kept.totals = now, _totals(rows)
        kept.save(update_fields=["mapping", "first_day", "last_day", "compared_at", "totals"])
        ReconciliationMapping.objects.update_or_create(
            provider=kept.provider, defaults={"mapping": kept.mapping, "changed_at": now}
        )
    return kept


def _period(reading: Reading, first: dt.date | None, last: dt.date | None) -> tuple[dt.date, dt.date]:
    """The days to compare, or what is wrong with the file or with them."""
    if reading.faults:
        raise Unreadable(*reading.faults)
    if reading.days is None:
        raise Unreadable(Fault(0, "no_lines"))
    begin, end = first or reading.days[0], last or reading.days[1]
    if begin > end:
        raise Unreadable(Fault(0, "order"))
    outside = [line for line in reading.lines if not begin <= line.day <= end]
    if outside:
        raise Unreadable(*(Fault(line.number, "outside", "day", str(line.day)) for line in outside))
    if (days := (end - begin).days + 1) > MAX_DAYS:
        raise Unreadable(Fault(0, "too_long", value=str(days)))
    return begin, end


def _compared(
    provider: str, reading: Reading, mapping: FileMapping, first: dt.date, last: dt.date
) -> Sequence[Compared]:
    try:
        theirs = provider_files.sums(reading.lines, mapping.aliases)
    except OverflowError:
        raise Unreadable(Fault(0, "sums")) from None
    terms = Terms(first, last, mapping.buckets, mapping.currency, mapping.has_cost)
    return matching.compare(theirs, ours(provider, mapping, first, last), terms)


def ours(provider: str, mapping: FileMapping, first: dt.date, last: dt.date) -> Iterator[Ours]:
    """Our attempts from the day before a period to the day after it, by the zone's days and the provider's models."""
    zone = ZoneInfo(mapping.zone)
    days = _Days(zone)
    start, end = day_start(first - DAY, zone), day_start(last + 2 * DAY, zone)
    for one in quarters.read(provider, start, end):
        yield Ours(
            day=days.day_of(one.ended_quarter),
            model=mapping.aliases.get(one.upstream_model, one.upstream_model),
            use=one.use,
            tokens=one.tokens,
            attempts=one.attempts,
            edge=days.edge(one.started_quarter, one.ended_quarter),
            currency=one.currency,
            nanos=one.nanos if one.use != "failed" else {},
            billed_nanos=one.billed_nanos,
            silent=one.silent,
            unpriced=one.unpriced,
        )
    yield from _tests(quarters.tests(provider, start, end), mapping, zone)


def _tests(tests: Iterable[ProviderTest], mapping: FileMapping, zone: ZoneInfo) -> Iterator[Ours]:
    for test in tests:
        model = mapping.aliases.get(test.upstream_model, test.upstream_model)
        tokens = {bucket: getattr(test, bucket) or 0 for bucket in BUCKETS}
        yield Ours(local_day(test.ended_at, zone), model, "test", tokens, silent=int(test.output is None))


class _Days:
    """A zone's days by quarters, each looked up once: a month has three thousand of them, and rows by the dozen."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone
        self._days: dict[dt.datetime, dt.date] = {}

    def day_of(self, quarter: dt.datetime) -> dt.date:
        if quarter not in self._days:
            self._days[quarter] = local_day(quarter, self._zone)
        return self._days[quarter]

    def edge(self, started: dt.datetime, ended: dt.datetime) -> int:
        """-1: it began on the day before, or ended in the first quarter of its day, which is midnight for a clock that
        is a little slow; 1: it ended in the last quarter."""
        day = self.day_of(ended)
        if self.day_of(started) < day or self.day_of(ended - quarters.QUARTER) < day:
            return -1
        return int(self.day_of(ended + quarters.QUARTER) > day)


# --- keeping ---


def _row(reconciliation: Reconciliation, row: Compared) -> ReconciliationRow:
    theirs = row.theirs
    return ReconciliationRow(
        reconciliation=reconciliation,
        day=row.day,
        model=row.model,
        state=row.state,
        attempts=row.attempts,
        silent=row.silent,
        unpriced=row.unpriced,
        requests=theirs.requests if theirs else None,
        lines=theirs.lines if theirs else 0,
        theirs=dict(theirs.tokens) if theirs else None,
        ours=row.ours,
        kinds=row.kinds,
        unexplained=row.unexplained,
        cost_nanos=row.cost_nanos,
        billed=row.billed,
        margin_nanos=row.margin_nanos,
        price_nanos=row.price_nanos,
    )


def _totals(rows: Sequence[Compared]) -> dict[str, Any]:
    """What the page shows above the rows: sums of all, by state and by model."""
    by_state = {state: [row for row in rows if row.state == state] for state in matching.STATES}
    return {
        "all": dataclasses.asdict(matching.total(rows)),
        "states": {state: dataclasses.asdict(matching.total(found)) for state, found in by_state.items()},
        "models": {model: dataclasses.asdict(sums) for model, sums in matching.totals_by_model(rows).items()},
    }


def totals_of(kept: Mapping[str, Any]) -> matching.Totals:
    """Sums as they were kept."""
    return matching.Totals(**kept)


# --- tests of providers ---


def keep_test(
    provider: str,
    upstream_model: str,
    wire_format: str,
    *,
    by: str,
    started_at: dt.datetime,
    ended_at: dt.datetime,
    usage: TokenUsage | None,
) -> ProviderTest:
    """Keep a real call with which somebody tried a provider: its bill holds it, and no record does."""
    tokens = usage.checked()[0].buckets() if usage else {}
    return ProviderTest.objects.create(
        provider=provider, upstream_model=upstream_model, wire_format=wire_format, tested_by=by[:150],
        started_at=started_at, ended_at=ended_at, **tokens,
    )  # fmt: skip
