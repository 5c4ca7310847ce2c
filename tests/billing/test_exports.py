"""Exports: one file per asking, whatever is delivered twice, killed half-way, or left lying."""

from __future__ import annotations

import datetime as dt
import hashlib
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils.timezone import now
from pytest_django import DjangoCaptureOnCommitCallbacks

from billing import exports
from billing.exports import Format, Kind, State, ask, path, run, tend
from billing.jobs import MAX_TRIES, OVERLOOKED, SILENT
from billing.models import ApiKey, Export
from billing.sheets import Cell
from tests.billing import xlsx
from tests.billing.factories import make_account, make_key, make_record
from tests.billing.test_crashes import dies

pytestmark = pytest.mark.django_db


@pytest.fixture
def user() -> User:
    return User.objects.create_user("finance")


@pytest.fixture
def key() -> ApiKey:
    key = make_key(make_account(timezone="Asia/Taipei"))
    for at in range(5):
        make_record(key, now() - dt.timedelta(minutes=at + 1))
    return key


def asked(user: User, kind: str = Kind.RECORDS, format_: str = Format.CSV, query: str = "", **fields: Any) -> Export:
    export = ask(user, kind, format_, query, language="en")
    Export.objects.filter(pk=export.pk).update(**fields)
    return export


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_file_is_as_told(user: User, key: ApiKey) -> None:
    export = asked(user)
    run(export.pk)
    export.refresh_from_db()
    file = path(export)
    assert (export.state, export.rows_done, export.rows_total) == (State.DONE, 5, 5)
    assert (export.sha256, export.size_bytes) == (digest(file), file.stat().st_size)
    assert export.expires_at is not None
    assert export.finished_at is not None
    assert export.expires_at - export.finished_at == dt.timedelta(days=7)
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    assert file.read_text("utf-8-sig").count("req-") == 5


@pytest.mark.parametrize("kind", [Kind.USAGE, Kind.RECORDS])
@pytest.mark.parametrize("format_", [Format.CSV, Format.XLSX])
def test_redelivery_gives_same_file(user: User, key: ApiKey, kind: str, format_: str) -> None:
    """After its end a task leaves the file as it is; and begun anew it makes the same one, whatever came meanwhile."""
    export = asked(user, kind, format_, created_at=now())
    run(export.pk)
    first, written = digest(path(export)), path(export).stat().st_mtime_ns
    run(export.pk)
    assert path(export).stat().st_mtime_ns == written
    if kind == Kind.RECORDS:
        make_record(key, now())
    Export.objects.filter(pk=export.pk).update(state=State.RUNNING)
    run(export.pk)
    assert path(export).stat().st_mtime_ns > written
    assert digest(path(export)) == first


@pytest.mark.django_db(transaction=True)
def test_two_runs_leave_one_file(user: User) -> None:
    """Two workers at the same time: the file is the one that the row tells of, and nothing else is left."""
    key = make_key()
    for at in range(5):
        make_record(key, now() - dt.timedelta(minutes=at + 1))
    export = asked(user)
    start = threading.Barrier(2)

    def deliver() -> None:
        start.wait()
        run(export.pk)
        connection.close()

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(deliver) for _ in range(2)]:
            future.result()
    export.refresh_from_db()
    assert (export.state, export.rows_done) == (State.DONE, 5)
    assert digest(path(export)) == export.sha256
    assert list(exports.folder().glob("part-*")) == []


def test_hint_waits_for_commit(user: User, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks) -> None:
    """A broker that is away is no failure: the row is there, and a later round finds it."""
    with django_capture_on_commit_callbacks(execute=True) as callbacks:
        export = ask(user, Kind.RECORDS, Format.CSV, "", language="en")
    assert len(callbacks) == 1
    assert Export.objects.get(pk=export.pk).state == State.WAITING
    assert tend(now()) == 0
    assert tend(now() + OVERLOOKED + dt.timedelta(seconds=1)) == 1
    assert Export.objects.get(pk=export.pk).state == State.DONE


def test_silent_run_is_begun_anew(user: User, key: ApiKey) -> None:
    export = asked(user, state=State.RUNNING, progress_at=now(), tries=1)
    assert tend(now()) == 0
    assert tend(now() + SILENT + dt.timedelta(seconds=1)) == 1
    export.refresh_from_db()
    assert (export.state, export.tries) == (State.DONE, 2)


def test_poison_ends(user: User, key: ApiKey) -> None:
    """What always breaks off is not tried for ever."""
    export = asked(user)
    path(export).mkdir()
    for _ in range(MAX_TRIES):
        with pytest.raises(OSError, match="directory"):
            run(export.pk)
    run(export.pk)
    export.refresh_from_db()
    assert (export.state, export.tries) == (State.FAILED, MAX_TRIES)
    assert "several times" in export.problem
    path(export).rmdir()
    run(export.pk)
    assert not path(export).exists()


def test_broken_run_waits_for_the_next(user: User, key: ApiKey) -> None:
    export = asked(user)
    path(export).mkdir()
    with pytest.raises(OSError, match="directory"):
        run(export.pk)
    export.refresh_from_db()
    assert (export.state, export.tries) == (State.WAITING, 1)
    path(export).rmdir()
    run(export.pk)
    export.refresh_from_db()
    assert export.state == State.DONE


def test_what_is_gone_fails_with_a_reason(user: User) -> None:
    export = asked(user, Kind.USAGE, query="account=999")
    run(export.pk)
    export.refresh_from_db()
    assert export.state == State.FAILED
    assert "account" in export.problem


def test_old_file_is_removed_the_row_stays(user: User, key: ApiKey) -> None:
    export = asked(user)
    run(export.pk)
    tend(now() + dt.timedelta(days=6))
    assert path(export).exists()
    tend(now() + dt.timedelta(days=8))
    export.refresh_from_db()
    assert not path(export).exists()
    assert (export.state, export.rows_done) == (State.EXPIRED, 5)
    run(export.pk)
    assert not path(export).exists()


def test_files_of_killed_runs_are_swept(user: User) -> None:
    left = exports.folder() / "part-left"
    left.mkdir()
    (left / "made").write_text("half")
    tend(now())
    assert left.exists()
    tend(now() + dt.timedelta(days=2))
    assert not left.exists()


def test_usage_export_is_of_its_asking(user: User, key: ApiKey) -> None:
    """ "This month" is that of the asking, though the worker comes to it in the next one."""
    moment = dt.datetime(2026, 11, 14, 12, tzinfo=dt.UTC)
    make_record(key, dt.datetime(2026, 11, 3, tzinfo=dt.UTC))
    make_record(key, dt.datetime(2026, 10, 3, tzinfo=dt.UTC))
    export = asked(user, Kind.USAGE, Format.XLSX, "by=day", created_at=moment)
    run(export.pk)
    (page,) = xlsx.read(path(export).read_bytes())
    assert ["Period", "2026-11-01 to 2026-11-14"] in page
    assert ["Compared with", "2026-10-01 to 2026-10-14"] in page


def test_progress_is_told_by_pages(user: User, key: ApiKey) -> None:
    export = asked(user, state=State.RUNNING)
    seen: list[int] = []

    def rows() -> Iterator[list[Cell]]:
        for at in range(5_001):
            if at % 1_000 == 0:
                seen.append(Export.objects.get(pk=export.pk).rows_done)
            yield [at]

    assert len(list(exports._Counted(export, rows()))) == 5_001
    assert seen == [0, 0, 2_000, 2_000, 4_000, 4_000]


@pytest.mark.django_db(transaction=True)
def test_killed_anywhere_starts_anew(user: User) -> None:
    """kill -9 before each statement and commit: a file in place is whole, and the next delivery makes what is not."""
    key = make_key()
    for at in range(5):
        make_record(key, now() - dt.timedelta(minutes=at + 1))
    export = asked(user)
    deaths = 0
    while dies(lambda: run(export.pk), deaths + 1):
        deaths += 1
        assert Export.objects.get(pk=export.pk).state in (State.WAITING, State.RUNNING)
        assert not path(export).exists() or path(export).read_text("utf-8-sig").count("req-") == 5
        Export.objects.filter(pk=export.pk).update(state=State.RUNNING, tries=1)
        path(export).unlink(missing_ok=True)
    assert deaths > 5
    assert list(exports.folder().glob("part-*"))
    export.refresh_from_db()
    assert (export.state, export.rows_done) == (State.DONE, 5)
    assert path(export).read_text("utf-8-sig").count("req-") == 5
    tend(now() + dt.timedelta(days=2))


def test_unknown_export_is_nothing(db: None) -> None:
    run(uuid.uuid4())
