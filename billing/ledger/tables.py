"""Rows into tables by the hundred, past the ORM.

A record takes 35 us of this process on PostgreSQL and 90 on SQLite, where `bulk_create` takes 215 and 265; and while it
runs, the process's streams wait.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from django.db import connections, models

from billing.ledger.cleaning import clean_text, json_text
from billing.ledger.rows import Row


class Table:
    """A model's table, and how rows get into it: what is already there stays, so that a group can be written twice."""

    def __init__(self, model: type[models.Model]) -> None:
        fields = [field for field in model._meta.concrete_fields if not isinstance(field, models.AutoField)]
        self.columns = tuple(field.attname for field in fields)
        self._json = frozenset(field.attname for field in fields if isinstance(field, models.JSONField))
        self._limits = {field.attname: field.max_length for field in fields if isinstance(field, models.CharField)}
        self._name = model._meta.db_table

    def insert(self, rows: Sequence[Row], using: str) -> int:
        """Insert the rows that conflict with none there, and return how many those are."""
        if not rows:
            return 0
        stored = [self._storable(row) for row in rows]
        with connections[using].cursor() as cursor:
            if connections[using].vendor == "postgresql":
                cursor.execute(self._from_json(), [self._as_json(stored)])
            else:
                cursor.executemany(self._from_values(), [_for_sqlite(row) for row in stored])
            return int(cursor.rowcount)

    def set_json(self, column: str, values: Mapping[uuid.UUID, Any], using: str) -> None:
        """Set a JSON column of the rows with these ids, as far as they are there."""
        if not values:
            return
        statement = f'UPDATE "{self._name}" SET "{column}" = %(value)s WHERE "id" = %(id)s'  # noqa: S608 - names of our own models
        rows: list[Row] = [{"value": json_text(value), "id": id} for id, value in values.items()]
        if connections[using].vendor != "postgresql":
            rows = [_for_sqlite(row) for row in rows]
        with connections[using].cursor() as cursor:
            cursor.executemany(statement, rows)

    def update(self, rows: Sequence[Row], columns: Sequence[str], using: str) -> int:
        """Set these columns of the rows that are there, by their id; returns how many those are. Rows are whole."""
        if not rows:
            return 0
        stored = [self._storable(row) for row in rows]
        with connections[using].cursor() as cursor:
            if connections[using].vendor == "postgresql":
                cursor.execute(self._update_from_json(columns), [self._as_json(stored)])
            else:
                cursor.executemany(self._update_from_values(columns), [_for_sqlite(row) for row in stored])
            return int(cursor.rowcount)

    def remove(self, ids: Sequence[uuid.UUID], using: str) -> None:
        """Remove the rows with these ids, as far as they are there; nothing may refer to them."""
        if not ids:
            return
        statement = f'DELETE FROM "{self._name}" WHERE "id" '  # noqa: S608 - names of our own models
        with connections[using].cursor() as cursor:
            if connections[using].vendor == "postgresql":
                cursor.execute(statement + "= ANY(%s)", [list(ids)])
            else:
                cursor.executemany(statement + "= %s", [[id.hex] for id in ids])

    def _storable(self, row: Row) -> Row:
        """Texts cleaned and cut to their columns, JSON as text (a str in a JSON column is JSON text already)."""
        stored = dict(row)
        for column, limit in self._limits.items():
            if text := row[column]:
                stored[column] = clean_text(text, limit)
        for column in self._json:
            if (value := row[column]) is not None and not isinstance(value, str):
                stored[column] = json_text(value)
        return stored

    def _from_json(self) -> str:
        """One statement and one parameter for any number of rows."""
        columns = ", ".join(f'"{column}"' for column in self.columns)
        return (
            f'INSERT INTO "{self._name}" ({columns})'  # noqa: S608 - names of our own models
            f' SELECT {columns} FROM json_populate_recordset(NULL::"{self._name}", %s::json) ON CONFLICT DO NOTHING'
        )

    def _update_from_json(self, columns: Sequence[str]) -> str:
        """The same for rows that are there."""
        values = ", ".join(f'"{column}" = new."{column}"' for column in columns)
        return (
            f'UPDATE "{self._name}" AS old SET {values}'  # noqa: S608 - names of our own models
            f' FROM json_populate_recordset(NULL::"{self._name}", %s::json) AS new WHERE old."id" = new."id"'
        )

    def _update_from_values(self, columns: Sequence[str]) -> str:
        values = ", ".join(f'"{column}" = %({column})s' for column in columns)
        return f'UPDATE "{self._name}" SET {values} WHERE "id" = %(id)s'  # noqa: S608 - the same

    def _as_json(self, rows: Sequence[Row]) -> str:
        for row in rows:
            row.update({column: orjson.Fragment(row[column]) for column in self._json if row[column] is not None})
        return orjson.dumps(rows).decode()

    def _from_values(self) -> str:
        columns = ", ".join(f'"{column}"' for column in self.columns)
        values = ", ".join(f"%({column})s" for column in self.columns)
        return f'INSERT INTO "{self._name}" ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING'  # noqa: S608 - the same


def _instant(value: dt.datetime) -> str:
    return str(value.astimezone(dt.UTC).replace(tzinfo=None))


_SQLITE: dict[type, Callable[[Any], Any]] = {
    uuid.UUID: lambda value: value.hex,
    dt.datetime: _instant,
    dt.date: dt.date.isoformat,
}
"""Types as Django writes them into SQLite."""


def _for_sqlite(row: Row) -> Row:
    return {column: adapt(value) if (adapt := _SQLITE.get(type(value))) else value for column, value in row.items()}
