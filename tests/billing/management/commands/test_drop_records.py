"""`drop_records` where there is nothing to drop by; tests/billing/test_dropping.py has the rest."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command

from billing import dropping
from billing.tasks import drop_records
from tests import settings as ground
from tests.billing.factories import utc

pytestmark = pytest.mark.django_db


def test_plain_table_is_said(settings: Any) -> None:
    settings.RECORDS_KEEP_MONTHS = 1
    told = "one plain table" if ground.POSTGRESQL else "which SQLite does not have"
    with pytest.raises(CommandError, match=told):
        call_command("drop_records")


def test_task_does_nothing_there(settings: Any) -> None:
    settings.RECORDS_KEEP_MONTHS = 1
    assert dropping.old(utc(2026, 11, 30)) == []
    assert drop_records() == 0
