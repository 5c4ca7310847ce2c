"""`manage.py`: Django's commands and ours; what the operator can mend is one line on stderr and exit status 1."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import django
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, ManagementUtility, get_commands
from django.core.management.base import SystemCheckError
from django.db.utils import DatabaseError, InterfaceError, OperationalError, ProgrammingError

from hopbase_site import release

TRANSLATING = ("makemessages", "compilemessages")
FREE = frozenset({"check", "collectstatic", "demo", "help", "make_secrets", "makemigrations", "test", *TRANSLATING})
"""Commands that touch neither keys nor bills: they run with default secrets and without a database."""

OWN_APPS = frozenset({"billing", "streaming", "hopbase_site"})
"""Their commands start often: Django's checks of the code read the whole admin each time; `make check` runs them."""

NO_TABLES = ("no such table", "no such column", "does not exist")


def run(argv: Sequence[str]) -> int:
    """Run a command; returns the exit status."""
    wants_traceback = "--traceback" in argv
    try:
        _run(list(argv), wants_traceback)
    except SystemCheckError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    except CommandError as error:
        if wants_traceback:
            raise
        return _fail(str(error), error.returncode)
    except (ImproperlyConfigured, DatabaseError, InterfaceError) as error:
        said = describe(error)
        if wants_traceback or said is None:
            raise
        return _fail(said, 1)
    except KeyboardInterrupt:
        return 130
    return 0


def _run(argv: list[str], wants_traceback: bool) -> None:
    command = argv[1] if len(argv) > 1 else "help"
    if command in ("version", "--version"):
        print(release.described())  # noqa: T201
        return
    django.setup()
    if command not in FREE and command in get_commands():
        _prepare()
    # Django prints a CommandError itself unless --traceback is given; it is ours to print.
    known = len(argv) > 1 and not command.startswith("-") and command != "help"
    options = [] if wants_traceback or not known else ["--traceback"]
    if get_commands().get(command) in OWN_APPS and command not in FREE:
        options.append("--skip-checks")
    arguments = [*argv[:2], *options, *argv[2:]]
    from billing.audit import acting

    with acting(command):
        ManagementUtility(arguments).execute()


def _prepare() -> None:
    from hopbase_site.checks import make_var_dir, refuse_default_secrets

    refuse_default_secrets()
    make_var_dir()
    reach_database(settings.DATABASES["default"])


def reach_database(database: dict[str, Any]) -> None:
    """Raise OperationalError at once where PostgreSQL does not answer; its pool would log and wait first."""
    if not database["ENGINE"].endswith("postgresql"):
        return
    import psycopg

    options = {name: value for name, value in database.get("OPTIONS", {}).items() if name != "pool"}
    named = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    given = {name: database[key] for name, key in named.items() if database.get(key)}
    try:
        psycopg.connect(**given, **options).close()
    except psycopg.OperationalError as error:
        raise OperationalError(str(error)) from error
    except psycopg.ProgrammingError as error:  # an option that it does not know
        raise ImproperlyConfigured(f"DATABASE_URL cannot be used: {error}") from None


def describe(error: Exception) -> str | None:
    """One line for an error that the operator can mend; None for a fault of ours."""
    reason = " ".join(str(error).split())
    if isinstance(error, ImproperlyConfigured):
        return reason
    if isinstance(error, OperationalError | ProgrammingError) and any(words in reason for words in NO_TABLES):
        return f"the database lacks tables ({reason}): run `python manage.py migrate`"
    if isinstance(error, OperationalError | InterfaceError) or type(error) is DatabaseError:
        return f"the database cannot be used ({reason}): check DATABASE_URL, and that the server runs"
    return None


def _fail(message: str, status: int) -> int:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    return status
