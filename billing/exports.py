"""Exports: files too long to wait for, made by a worker and kept for a week.

    export = ask(user, Kind.RECORDS, Format.CSV, query)     the row, and a hint to the broker
    run(export.pk)                                          the worker's part
    tend(now)                                               what was left lying is run, what is old is removed

The row is the record, the broker only a hint: what it loses is found by `tend`. A run writes into a folder of its own
and puts the file in place at its end, if nobody else did; so a task that is delivered twice leaves one file, and one
that is killed half-way begins anew. The file's place must be the same for workers and for the admin.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now
from django.utils import translation
from django.utils.timezone import now

from billing import (
    broker,
    invoice_documents,
    jobs,
    record_export,
    sheets,
    statement_pdf,
    statements,
    usage_report,
    usage_sheet,
)
from billing.models import Export, Invoice
from billing.record_export import RecordQuery
from billing.report_query import BadQuery, Query
from billing.sheets import Cell, Sheet

if TYPE_CHECKING:
    from django.contrib.auth.models import User


Kind, Format, State = Export.Kind, Export.Format, Export.State

TASK = "billing.tasks.run_export"
DIRECT_ROWS = 5_000
"""A file of so many rows is made while one waits; longer ones by a worker."""

KEPT = dt.timedelta(days=7)
TELL_ROWS = 2_000
"""Rows between two words on progress."""

WRITERS = {Format.CSV: sheets.write_csv, Format.XLSX: sheets.write_xlsx}
CONTENT_TYPES = {
    Format.CSV: "text/csv; charset=utf-8",
    Format.XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    Format.PDF: "application/pdf",
}


def folder() -> Path:
    """Where the files are; made for us alone."""
    place: Path = settings.VAR_DIR / "exports"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place


def path(export: Export) -> Path:
    """Where an export's file is, once it is done."""
    return folder() / f"{export.pk}.{export.format}"


def ask(owner: User, kind: str, format_: str, query: str, *, language: str) -> Export:
    """Ask a worker for a file. The hint goes out after the commit; a broker that is away only makes it later."""
    asked_at = now()
    export = Export.objects.create(
        owner=owner,
        kind=kind,
        format=format_,
        query=query,
        language=language,
        created_at=asked_at,
        file_name=file_name(kind, format_, asked_at),
    )
    transaction.on_commit(lambda: _hint(export))
    return export


def file_name(kind: str, format_: str, asked_at: dt.datetime) -> str:
    """`usage-20261103-140509.csv`, in UTC: names of customers stay out of the names of files."""
    return f"{kind}-{asked_at.astimezone(dt.UTC):%Y%m%d-%H%M%S}.{format_}"


def run(export_id: uuid.UUID) -> None:
    """Make an export's file. Done, failed and expired ones are left alone."""
    export = Export.objects.filter(pk=export_id, state__in=jobs.OPEN).first()
    if export is None:
        return
    if export.tries >= jobs.MAX_TRIES:
        _fail(export, jobs.TOO_OFTEN)
        return
    _tell(export, state=State.RUNNING, tries=export.tries + 1, rows_done=0)
    with (
        jobs.trying(partial(_tell, export), partial(_rows_done, export)),
        _own_folder() as own,
        translation.override(export.language),
    ):
        made = own / "made"
        try:
            rows = make(export, made)
        except BadQuery as fault:
            _fail(export, str(fault))
            return
        _put_in_place(export, made, rows)


def make(export: Export, made: Path) -> int | None:
    """Write the file as the export asks, and return its rows (None: it has pages). BadQuery: it cannot be made."""
    if export.format == Format.PDF:
        made.write_bytes(_pages(export))
        return None
    asked, total = _sheet(export)
    _tell(export, rows_total=total)
    counted = _Counted(export, asked.rows)
    write = WRITERS[Format(export.format)]
    write(Sheet(asked.title, asked.head, asked.columns, counted, asked.totals), made)
    return counted.rows


def tend(at: dt.datetime) -> int:
    """Run what waits or has stood still, remove what is past its time; returns how many were run."""
    for export in Export.objects.filter(state=State.DONE, expires_at__lt=at):
        path(export).unlink(missing_ok=True)
        _tell(export, state=State.EXPIRED)
    _sweep_folders(at)
    return jobs.tend(Export.objects, "created_at", at, run)


def _pages(export: Export) -> bytes:
    """The document asked for; a draft as it is by then."""
    given = dict(parse_qsl(export.query))
    if export.kind == Kind.DRAFT:
        invoice = Invoice.objects.filter(pk=given["invoice"]).first()
        if invoice is None:
            raise BadQuery("invoice", "gone")
        return invoice_documents.preview(invoice)
    return statement_pdf.render(_statement(given), export.created_at)


def _sheet(export: Export) -> tuple[Sheet, int]:
    """The table asked for, as of the moment when it was, and how many rows it has."""
    given = dict(parse_qsl(export.query, keep_blank_values=True))
    if export.kind == Kind.USAGE:
        report, _days = usage_report.build(Query.parse(given), export.created_at)
        return usage_sheet.sheet(report, export.created_at), len(report.rows)
    if export.kind == Kind.RECORDS:
        query = RecordQuery.parse(given)
        return record_export.sheet(query, export.created_at), query.records(export.created_at).count()
    statement = _statement(given)
    return statements.sheet(statement, export.created_at), len(statement.used)


def _statement(given: Mapping[str, str]) -> statements.Statement:
    return statements.build(*statements.parse(given))


class _Counted:
    """Rows that tell how many of them went by."""

    def __init__(self, export: Export, rows: Iterable[Sequence[Cell]]) -> None:
        self._export, self._source = export, rows
        self.rows = 0

    def __iter__(self) -> Iterator[Sequence[Cell]]:
        for row in self._source:
            yield row
            self.rows += 1
            if self.rows % TELL_ROWS == 0:
                _tell(self._export, rows_done=self.rows)


def _tell(export: Export, **values: object) -> None:
    """Change an export that is under way; one that somebody else has finished stays as it is."""
    open_ones = Export.objects.filter(pk=export.pk).exclude(state=State.EXPIRED)
    if values.get("state") != State.EXPIRED:
        open_ones = open_ones.exclude(state=State.DONE)
    open_ones.update(progress_at=Now(), **values)


def _rows_done(export: Export) -> object:
    return Export.objects.values_list("rows_done", flat=True).get(pk=export.pk)


def _fail(export: Export, problem: str) -> None:
    _tell(export, state=State.FAILED, problem=problem[:300], finished_at=now())


def _put_in_place(export: Export, made: Path, rows: int | None) -> None:
    """The first run to get here gives its file; a later one's is thrown away."""
    sha256, size = _digest(made)
    with transaction.atomic():
        found = Export.objects.select_for_update().get(pk=export.pk)
        if found.state != State.RUNNING:
            return
        made.chmod(0o600)
        os.replace(made, path(export))
        done = now()
        found.state, found.sha256, found.size_bytes, found.finished_at = State.DONE, sha256, size, done
        found.expires_at, found.progress_at = done + KEPT, done
        if rows is not None:
            found.rows_done = found.rows_total = rows
        found.save()


def _digest(made: Path) -> tuple[str, int]:
    with made.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), made.stat().st_size


@contextmanager
def _own_folder() -> Iterator[Path]:
    """A folder that no other run has; what is written in it on the way goes with it."""
    own = folder() / f"part-{uuid.uuid4().hex}"
    own.mkdir(mode=0o700)
    try:
        yield own
    finally:
        shutil.rmtree(own)


def _sweep_folders(at: dt.datetime) -> None:
    """What killed runs left behind."""
    for own in folder().glob("part-*"):
        changed = dt.datetime.fromtimestamp(own.stat().st_mtime, dt.UTC)
        if changed < at - dt.timedelta(days=1):
            shutil.rmtree(own)


def _hint(export: Export) -> None:
    """Tell the broker at once or not at all: whoever asks is waiting for a page."""
    broker.hint(TASK, str(export.pk))
