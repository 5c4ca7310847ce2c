"""`manage.py`: one line for what the operator can mend, a traceback for a fault of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError
from django.db.utils import DatabaseError, DataError, IntegrityError, OperationalError, ProgrammingError

from hopbase_site import command_line, release


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImproperlyConfigured("mend it"), "mend it"),
        (OperationalError("no such table: billing_account"), "run `python manage.py migrate`"),
        (ProgrammingError('relation "billing_account" does not exist\nLINE 1'), "run `python manage.py migrate`"),
        (
            OperationalError("connection refused\n\tIs it running?"),
            "(connection refused Is it running?): check DATABASE_URL",
        ),
        (DatabaseError("file is not a database"), "check DATABASE_URL"),
        (IntegrityError("UNIQUE constraint failed"), None),
        (DataError("out of range"), None),
    ],
)
def test_errors_are_told_apart(error: Exception, said: str | None) -> None:
    line = command_line.describe(error)
    assert line is None if said is None else (line is not None and said in line and "\n" not in line)


def test_unreachable_database_fails_at_once() -> None:
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": "127.0.0.1",
        "PORT": 1,
        "NAME": "x",
        "PASSWORD": "hunter2",
    }
    began = time.monotonic()
    with pytest.raises(OperationalError) as refused:
        command_line.reach_database(database)
    assert time.monotonic() - began < 5
    assert "hunter2" not in str(refused.value)


@pytest.mark.django_db
def test_command_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.run(["manage.py", "apply", "/nowhere.yaml"]) == 1
    assert capsys.readouterr().err.startswith("error: /nowhere.yaml cannot be read (No such file")


@pytest.mark.django_db
def test_traceback_is_to_be_had() -> None:
    with pytest.raises(CommandError):
        command_line.run(["manage.py", "apply", "/nowhere.yaml", "--traceback"])


def test_free_commands_need_no_secrets(settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings.SECRET_KEY = "short"
    assert command_line.run(["manage.py", "make_secrets"]) == 0
    assert capsys.readouterr().out.count("\n") == 3


@pytest.mark.parametrize("command", ["serve", "apply", "migrate", "create_api_key", "close_month", "runserver"])
def test_other_commands_need_secrets(settings: Any, capsys: pytest.CaptureFixture[str], command: str) -> None:
    settings.SECRET_KEY = "short"
    if command not in command_line.get_commands():
        pytest.fail(f"{command} is gone")
    assert command_line.run(["manage.py", command]) == 1
    assert capsys.readouterr().err.startswith("error: SECRET_KEY is shorter than 32 characters: ")


LOADS = """
import json, os, sys
os.environ["HOPBASE_ROLE"] = {role!r}
from hopbase_site.command_line import run
assert run(["manage.py", "apply", "/nowhere.yaml"]) == 1
import hopbase_site.asgi
print(json.dumps(["billing.admin.keys" in sys.modules, "twisted" in sys.modules]))
"""


@pytest.mark.parametrize(("role", "pages"), [("gateway", False), ("admin", True), ("all", True)])
def test_processes_load_what_they_serve(role: str, pages: bool, tmp_path: Path) -> None:
    """Neither commands nor gateways load the admin; who serves it does before the first request; nobody Twisted."""
    environment = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "hopbase_site.settings", "DEBUG": "true", "DATABASE_URL": "",
        "HOPBASE_VAR_DIR": str(tmp_path), "HOPBASE_ENV_FILE": os.devnull,
    }  # fmt: skip
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", LOADS.format(role=role)], cwd=root, env=environment, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(ended.stdout) == [pages, False]


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_version_is_ours(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.run(["manage.py", asked]) == 0
    assert capsys.readouterr().out == f"HopBase {release.VERSION} (a checkout)\n"


def test_released_commit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "COMMIT", "4b4d9cc")
    assert release.described().endswith(" (commit 4b4d9cc)")
