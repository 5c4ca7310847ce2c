"""The ground that other tests stand on: a database that threads share, a real Valkey, settings of this run alone."""

from __future__ import annotations

import threading

import psycopg
import pytest
import redis
from django.conf import settings
from django.db import connection

from billing.models import Account
from tests.settings import FOLDER, POSTGRESQL


@pytest.mark.django_db(transaction=True)
def test_threads_see_committed_rows() -> None:
    Account.objects.create(name="northwind")
    seen: list[str] = []

    def look() -> None:
        seen.extend(Account.objects.values_list("name", flat=True))
        connection.close()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == ["northwind"]


@pytest.mark.django_db
def test_database_is_the_asked_one() -> None:
    assert connection.vendor == ("postgresql" if POSTGRESQL else "sqlite")


def test_own_database_is_reachable(database_url: str) -> None:
    if POSTGRESQL:
        with psycopg.connect(database_url) as server:
            assert server.execute("SELECT 1").fetchone() == (1,)
    else:
        assert database_url.startswith("sqlite:////")


def test_valkey_is_real_and_empty(valkey: str) -> None:
    with redis.Redis.from_url(valkey) as client:
        assert client.dbsize() == 0
        assert client.eval("return redis.call('TIME')[1]", 0)


def test_settings_belong_to_this_run() -> None:
    assert settings.VAR_DIR == FOLDER
    assert settings.SECRET_KEY.startswith("tests-")
