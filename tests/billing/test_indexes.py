"""Tables that every request or roll-up writes to have no index that another one makes superfluous."""

from __future__ import annotations

import pytest
from django.db import connection, models

from billing.models import (
    Attempt,
    AttemptQuarter,
    FlagRollup,
    OpenStream,
    RollupDue,
    StoredObject,
    UsageDay,
    UsageRecord,
    UsageRollup,
)

BUSY = (
    Attempt, AttemptQuarter, FlagRollup, OpenStream, RollupDue, StoredObject, UsageDay, UsageRecord, UsageRollup,
)  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("model", BUSY)
def test_no_index_begins_another(model: type[models.Model]) -> None:
    partial = {index.name for index in model._meta.indexes if index.condition is not None}
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, model._meta.db_table)
    whole = {name: one for name, one in found.items() if one["index"] or one["unique"] or one["primary_key"]}
    indexes = [(name, tuple(one["columns"])) for name, one in whole.items() if one["columns"] and name not in partial]
    superfluous = {
        name
        for name, columns in indexes
        for other, longer in indexes
        if name != other and not whole[name]["unique"] and longer[: len(columns)] == columns
    }
    assert not superfluous
