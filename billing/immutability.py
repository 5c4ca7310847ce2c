"""What never changes, as triggers of the database: no code, admin page or SQL shell gets around them.

- An issued invoice changes only by being paid or made void; it is never deleted, and its lines stay as they are.
- A record on an open or paid invoice keeps its money and stays on it. No record, key or account is ever deleted.
- An account's time zone and currency stay once it has records.

Migration 0002 installs them, with those that `billing.spending` keeps sums by. On SQLite a migration that changes one
of these tables makes it anew, which loses its triggers and fails on those of other tables that name it; so there they
are taken off before migrations that have something to do, and put back afterwards (`take_off_for_migrations`,
`put_back`, connected in `billing.apps`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.recorder import MigrationRecorder

from billing import spending

MIGRATION = ("billing", "0002_immutable_invoices")

INVOICE, LINE, RECORD = "billing_invoice", "billing_invoiceline", "billing_usagerecord"
ACCOUNT, KEY = "billing_account", "billing_apikey"
TABLES = (INVOICE, LINE, RECORD, ACCOUNT, KEY)

AFTER_ISSUE = {"status", "paid_on", "payment_reference", "voided_at", "void_reason"}
"""The columns of an issued invoice that being paid or made void may set."""

BILLED = (
    "id", "account_id", "api_key_id", "currency", "model", "metering", "service_tier", "long_context", "price_version",
    "input", "cache_read", "cache_write", "cache_write_1h", "output", "server_tools", "unit_prices", "items",
    "input_nanos", "cache_read_nanos", "cache_write_nanos", "cache_write_1h_nanos", "output_nanos", "cost_nanos",
    "unpriced", "ended_at", "day", "hour_start", "invoice_id",
)  # fmt: skip
"""The columns of a record that its invoice's lines are made of."""


class Trigger(NamedTuple):
    name: str
    table: str
    event: str


TRIGGERS = (
    Trigger("hb_invoice_update", INVOICE, "UPDATE"),
    Trigger("hb_invoice_delete", INVOICE, "DELETE"),
    Trigger("hb_line_insert", LINE, "INSERT"),
    Trigger("hb_line_update", LINE, "UPDATE"),
    Trigger("hb_line_delete", LINE, "DELETE"),
    Trigger("hb_record_insert", RECORD, "INSERT"),
    Trigger("hb_record_update", RECORD, "UPDATE"),
    Trigger("hb_record_delete", RECORD, "DELETE"),
    Trigger("hb_account_update", ACCOUNT, "UPDATE"),
    Trigger("hb_account_delete", ACCOUNT, "DELETE"),
    Trigger("hb_key_delete", KEY, "DELETE"),
)

MESSAGES = {
    INVOICE: "an issued invoice never changes: it can only be paid or made void",
    LINE: "the lines of an issued invoice never change",
    RECORD: "a usage record is never deleted, and what an issued invoice bills never changes",
    ACCOUNT: "an account is never deleted, and its time zone and currency stay once it has usage",
    KEY: "a key is never deleted: revoke it",
}


def install(connection: BaseDatabaseWrapper) -> None:
    """Put the triggers on, as they are in this version, in one transaction. Repeatable."""
    write = {"postgresql": _postgresql, "sqlite": _sqlite}[connection.vendor]
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        remove(connection)
        columns = _columns(connection)
        for trigger in TRIGGERS:
            for statement in write(trigger, *_forbidden(trigger.name, columns[trigger.table], connection.vendor)):
                cursor.execute(statement)
        for sums in spending.TRIGGERS:
            for statement in spending.statements(sums, connection.vendor):
                cursor.execute(statement)


def remove(connection: BaseDatabaseWrapper) -> None:
    """Take the triggers off. Repeatable; also where the tables are not there."""
    present = set(connection.introspection.table_names())
    with connection.cursor() as cursor:
        for name, table, _ in (*TRIGGERS, *spending.TRIGGERS):
            if connection.vendor == "sqlite":
                cursor.execute(f"DROP TRIGGER IF EXISTS {name}")
            elif table in present:
                cursor.execute(f"DROP TRIGGER IF EXISTS {name} ON {table}")
            if connection.vendor == "postgresql":
                cursor.execute(f"DROP FUNCTION IF EXISTS {name}()")


def take_off_for_migrations(using: str, plan: Iterable[object] = (), **kwargs: Any) -> None:
    """Before migrations that have something to do: SQLite cannot make a table anew while a trigger names it."""
    if plan and connections[using].vendor == "sqlite":
        remove(connections[using])


def put_back(using: str, plan: Iterable[object] = (), **kwargs: Any) -> None:
    """After migrations, if the one that brought the triggers is applied: they are there, for the columns of today."""
    connection = connections[using]
    if MIGRATION in MigrationRecorder(connection).applied_migrations() and (plan or _some_missing(connection)):
        install(connection)


def _some_missing(connection: BaseDatabaseWrapper) -> bool:
    present = {
        "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(present)
        ours = {trigger.name for trigger in (*TRIGGERS, *spending.TRIGGERS)}
        return not ours <= {name for (name,) in cursor.fetchall()}


def _columns(connection: BaseDatabaseWrapper) -> dict[str, list[str]]:
    with connection.cursor() as cursor:
        return {
            table: [column.name for column in connection.introspection.get_table_description(cursor, table)]
            for table in TABLES
        }


def _forbidden(name: str, columns: list[str], vendor: str) -> tuple[str, str]:
    """Under which condition over OLD and NEW a trigger refuses: a guard that spares most rows the rest, and the rest.

    PostgreSQL refuses to change the type of a column that a guard names; so only `invoice_id` is in one.
    """
    differs = "IS NOT" if vendor == "sqlite" else "IS DISTINCT FROM"

    def changed(names: Iterable[str]) -> str:
        return "(" + " OR ".join(f"OLD.{column} {differs} NEW.{column}" for column in names) + ")"

    frozen = changed(column for column in columns if column not in AFTER_ISSUE)
    settled = changed(column for column in columns if column in AFTER_ISSUE)
    on_issued = _invoice_is("IN ('open', 'paid')", "OLD.invoice_id", "NEW.invoice_id")
    billed = changed(column for column in columns if column in BILLED)
    return {
        "hb_invoice_update": (
            "TRUE",
            "(OLD.status = 'draft' AND NEW.status NOT IN ('draft', 'open'))"
            " OR (NEW.status <> 'draft' AND NEW.number IS NULL)"
            f" OR (OLD.status <> 'draft' AND {frozen})"
            f" OR (OLD.status = 'open' AND NEW.status NOT IN ('paid', 'void') AND {settled})"
            f" OR (OLD.status IN ('paid', 'void') AND {settled})",
        ),
        "hb_invoice_delete": ("TRUE", "OLD.status <> 'draft'"),
        "hb_line_insert": ("TRUE", _invoice_is("<> 'draft'", "NEW.invoice_id")),
        "hb_line_update": ("TRUE", _invoice_is("<> 'draft'", "OLD.invoice_id", "NEW.invoice_id")),
        "hb_line_delete": ("TRUE", _invoice_is("<> 'draft'", "OLD.invoice_id")),
        "hb_record_insert": ("NEW.invoice_id IS NOT NULL", _invoice_is("<> 'draft'", "NEW.invoice_id")),
        "hb_record_update": (
            "(OLD.invoice_id IS NOT NULL OR NEW.invoice_id IS NOT NULL)",
            f"{on_issued} AND {billed}",
        ),
        "hb_record_delete": ("TRUE", "TRUE"),
        "hb_account_update": (
            "TRUE",
            f"{changed(['timezone', 'currency'])} AND EXISTS (SELECT 1 FROM {RECORD} WHERE account_id = OLD.id)",  # noqa: S608
        ),
        "hb_account_delete": ("TRUE", "TRUE"),
        "hb_key_delete": ("TRUE", "TRUE"),
    }[name]


def _invoice_is(status: str, *ids: str) -> str:
    """One look-up per id: SQLite would build a table for every `id IN (…)` of every row."""
    looked_up = (f"EXISTS (SELECT 1 FROM {INVOICE} WHERE id = {invoice_id} AND status {status})" for invoice_id in ids)  # noqa: S608
    return f"({' OR '.join(looked_up)})"


def _sqlite(trigger: Trigger, guard: str, condition: str) -> Iterator[str]:
    yield f"""
        CREATE TRIGGER {trigger.name} BEFORE {trigger.event} ON {trigger.table} WHEN ({guard}) AND ({condition})
        BEGIN SELECT RAISE(ABORT, '{MESSAGES[trigger.table]}'); END
    """


def _postgresql(trigger: Trigger, guard: str, condition: str) -> Iterator[str]:
    yield f"""
        CREATE FUNCTION {trigger.name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF {condition} THEN
                RAISE EXCEPTION '{MESSAGES[trigger.table]}' USING ERRCODE = 'integrity_constraint_violation';
            END IF;
            RETURN {"OLD" if trigger.event == "DELETE" else "NEW"};
        END $$
    """
    yield f"""
        CREATE TRIGGER {trigger.name} BEFORE {trigger.event} ON {trigger.table}
        FOR EACH ROW WHEN ({guard}) EXECUTE FUNCTION {trigger.name}()
    """
