"""What never changes, as triggers of the database: no code, admin page or SQL shell gets around them.

- An issued invoice changes only by being paid or made void; it is never deleted, and its lines stay as they are.
- A record on an open or paid invoice keeps its money and stays on it. No record, key or account is ever deleted.
  An invoice with records that were dropped is never made void; what tells of them (`models.dropped`) never changes.
- An adjustment is approved or rejected once, and changes in nothing else; on an open or paid invoice it stays there.
- A credit note never changes, and all those of an invoice never exceed its total. An invoice with one is not made void.
- An account's time zone and currency stay once it has records, open streams, adjustments or issued invoices.
- The PDF of an invoice is of an issued one, and never changes.
- An entry of the audit log never changes and is never deleted.

Migration 0002 installs them, with those that `billing.spending` keeps sums by, as far as their tables are there.
On SQLite a migration that changes one of these tables makes it anew, which loses its triggers and fails on those of
other tables that name it; so there they are taken off before migrations that have something to do, and put back
afterwards (`take_off_for_migrations`, `put_back`, connected in `billing.apps`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.recorder import MigrationRecorder

from billing import spending

MIGRATION = ("billing", "0002_immutable_invoices")

INVOICE, LINE, RECORD = "billing_invoice", "billing_invoiceline", "billing_usagerecord"
ADJUSTMENT, NOTE, NOTE_LINE = "billing_adjustment", "billing_creditnote", "billing_creditnoteline"
ACCOUNT, KEY, OPEN_STREAM = "billing_account", "billing_apikey", "billing_openstream"
AUDIT = "billing_auditentry"
DOCUMENT = "billing_invoicedocument"
DROPPED_MONTH, DROPPED_INVOICE = "billing_droppedmonth", "billing_droppedinvoice"
TABLES = (
    INVOICE, LINE, RECORD, ADJUSTMENT, NOTE, NOTE_LINE, ACCOUNT, KEY, AUDIT, DOCUMENT, DROPPED_MONTH, DROPPED_INVOICE,
)  # fmt: skip

AFTER_ISSUE = {"status", "paid_on", "payment_reference", "voided_at", "void_reason"}
"""The columns of an issued invoice that being paid or made void may set."""

BILLED = (
    "id", "account_id", "api_key_id", "currency", "model", "metering", "service_tier", "long_context", "price_version",
    "input", "cache_read", "cache_write", "cache_write_1h", "output", "server_tools", "unit_prices", "items",
    "input_nanos", "cache_read_nanos", "cache_write_nanos", "cache_write_1h_nanos", "output_nanos", "cost_nanos",
    "unpriced", "ended_at", "day", "hour_start", "invoice_id",
)  # fmt: skip
"""The columns of a record that its invoice's lines are made of."""

DECISION = {"state", "decided_by_id", "decided_at", "decision_reason", "effective_at", "day"}
"""The columns of a proposed adjustment that approving or rejecting it sets; besides, only its invoice ever changes."""


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
    Trigger("hb_record_claimed", RECORD, "UPDATE"),
    Trigger("hb_record_delete", RECORD, "DELETE"),
    Trigger("hb_adjustment_insert", ADJUSTMENT, "INSERT"),
    Trigger("hb_adjustment_update", ADJUSTMENT, "UPDATE"),
    Trigger("hb_adjustment_delete", ADJUSTMENT, "DELETE"),
    Trigger("hb_note_insert", NOTE, "INSERT"),
    Trigger("hb_note_update", NOTE, "UPDATE"),
    Trigger("hb_note_delete", NOTE, "DELETE"),
    Trigger("hb_note_line_insert", NOTE_LINE, "INSERT"),
    Trigger("hb_note_line_update", NOTE_LINE, "UPDATE"),
    Trigger("hb_note_line_delete", NOTE_LINE, "DELETE"),
    Trigger("hb_account_update", ACCOUNT, "UPDATE"),
    Trigger("hb_account_delete", ACCOUNT, "DELETE"),
    Trigger("hb_key_delete", KEY, "DELETE"),
    Trigger("hb_audit_update", AUDIT, "UPDATE"),
    Trigger("hb_audit_delete", AUDIT, "DELETE"),
    Trigger("hb_document_insert", DOCUMENT, "INSERT"),
    Trigger("hb_document_update", DOCUMENT, "UPDATE"),
    Trigger("hb_document_delete", DOCUMENT, "DELETE"),
    Trigger("hb_dropped_month_update", DROPPED_MONTH, "UPDATE"),
    Trigger("hb_dropped_month_delete", DROPPED_MONTH, "DELETE"),
    Trigger("hb_dropped_invoice_update", DROPPED_INVOICE, "UPDATE"),
    Trigger("hb_dropped_invoice_delete", DROPPED_INVOICE, "DELETE"),
)

MESSAGES = {
    INVOICE: "an issued invoice never changes: it can only be paid, or made void as long as it has no credit note"
    " and all of its records",
    LINE: "the lines of an issued invoice never change",
    RECORD: "a usage record is never deleted, and what an issued invoice bills never changes",
    ADJUSTMENT: "an adjustment is never deleted, is decided once, and stays on the issued invoice that bills it",
    NOTE: "a credit note never changes, and never exceeds what its open or paid invoice has left",
    NOTE_LINE: "the lines of a credit note never change",
    ACCOUNT: "an account is never deleted, and its time zone and currency stay once it has usage",
    KEY: "a key is never deleted: revoke it",
    AUDIT: "the audit log never changes",
    DOCUMENT: "the document of an invoice is made once, after its issue, and never changes",
    DROPPED_MONTH: "what was dropped never changes",
    DROPPED_INVOICE: "what was dropped never changes",
}

FIRST = {"hb_note_insert": f"PERFORM 1 FROM {INVOICE} WHERE id = NEW.invoice_id FOR UPDATE;"}
"""What PostgreSQL does before it looks: notes of one invoice wait for each other. On SQLite writers wait anyway."""

ALL_AT_ONCE = {
    "hb_record_claimed": f"""EXISTS (
        SELECT 1 FROM {INVOICE} WHERE status IN ('open', 'paid') AND id IN (SELECT invoice_id FROM added)
        AND (SELECT count(*) FROM added WHERE invoice_id = {INVOICE}.id)
            > (SELECT count(*) FROM removed WHERE invoice_id = {INVOICE}.id)
    )"""  # noqa: S608 - names of our own
}
"""What PostgreSQL asks once for all rows of a statement, since one that issues an invoice claims thousands: whether an
issued one has more of them afterwards. Those that were on one before are looked at row by row (`hb_record_update`)."""

_migrating: set[str] = set()
"""SQLite databases with migrations under way: their triggers come when all are done, not with migration 0002."""


def install(connection: BaseDatabaseWrapper) -> None:
    """Put the triggers on, as they are in this version, in one transaction. Repeatable."""
    if connection.alias in _migrating:
        return
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        remove(connection)
        columns = _columns(connection)
        for trigger in TRIGGERS:
            if trigger.table in columns:
                for statement in _statements(trigger, columns, connection.vendor):
                    cursor.execute(statement)
        for sums in spending.TRIGGERS:
            if sums.table in columns:
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
        _migrating.add(using)


def put_back(using: str, plan: Iterable[object] = (), **kwargs: Any) -> None:
    """After migrations, if the one that brought the triggers is applied: they are there, for the columns of today."""
    connection = connections[using]
    _migrating.discard(using)
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
    """Of the guarded tables that are there: in the middle of the migrations some are not, or not yet guarded."""
    present = set(connection.introspection.table_names())
    with connection.cursor() as cursor:
        found = {
            table: [column.name for column in connection.introspection.get_table_description(cursor, table)]
            for table in TABLES
            if table in present
        }
    if not set(found.get(ADJUSTMENT, ())) >= DECISION:
        found.pop(ADJUSTMENT, None)
    return found


def _statements(trigger: Trigger, columns: Mapping[str, list[str]], vendor: str) -> Iterator[str]:
    if vendor == "postgresql" and trigger.name in ALL_AT_ONCE:
        return _postgresql_all_at_once(trigger, ALL_AT_ONCE[trigger.name])
    write = {"postgresql": _postgresql, "sqlite": _sqlite}[vendor]
    return write(trigger, *_forbidden(trigger.name, columns, vendor))


def _forbidden(name: str, tables: Mapping[str, list[str]], vendor: str) -> tuple[str, str]:
    """Under which condition over OLD and NEW a trigger refuses: a guard that spares most rows the rest, and the rest.

    PostgreSQL refuses to change the type of a column that a guard names; so only `invoice_id` is in one.
    """
    differs = "IS NOT" if vendor == "sqlite" else "IS DISTINCT FROM"

    def changed(names: Iterable[str]) -> str:
        return "(" + " OR ".join(f"OLD.{column} {differs} NEW.{column}" for column in names) + ")"

    frozen = changed(column for column in tables[INVOICE] if column not in AFTER_ISSUE)
    settled = changed(column for column in tables[INVOICE] if column in AFTER_ISSUE)
    on_issued = _invoice_is("IN ('open', 'paid')", "OLD.invoice_id", "NEW.invoice_id")
    billed = changed(column for column in tables[RECORD] if column in BILLED)
    facts = changed(column for column in tables.get(ADJUSTMENT, ["id"]) if column not in {*DECISION, "invoice_id"})
    used = " OR ".join(
        f"EXISTS (SELECT 1 FROM {table} WHERE account_id = OLD.id)"  # noqa: S608
        for table in (RECORD, ADJUSTMENT)
        if table in tables
    )
    used += f" OR EXISTS (SELECT 1 FROM {INVOICE} WHERE account_id = OLD.id AND status <> 'draft')"  # noqa: S608
    used += f" OR EXISTS (SELECT 1 FROM {OPEN_STREAM} WHERE account_id = OLD.id)"  # noqa: S608
    credited = f"EXISTS (SELECT 1 FROM {NOTE} WHERE invoice_id = OLD.id)" if NOTE in tables else "FALSE"  # noqa: S608
    if DROPPED_INVOICE in tables:
        credited += f" OR EXISTS (SELECT 1 FROM {DROPPED_INVOICE} WHERE invoice_id = OLD.id)"  # noqa: S608
    return {
        "hb_invoice_update": (
            "TRUE",
            "(OLD.status = 'draft' AND NEW.status NOT IN ('draft', 'open'))"
            " OR (NEW.status <> 'draft' AND NEW.number IS NULL)"
            f" OR (OLD.status <> 'draft' AND {frozen})"
            f" OR (OLD.status = 'open' AND NEW.status NOT IN ('paid', 'void') AND {settled})"
            f" OR (OLD.status IN ('paid', 'void') AND {settled})"
            f" OR (OLD.status = 'open' AND NEW.status = 'void' AND ({credited}))",
        ),
        "hb_invoice_delete": ("TRUE", "OLD.status <> 'draft'"),
        "hb_line_insert": ("TRUE", _invoice_is("<> 'draft'", "NEW.invoice_id")),
        "hb_line_update": ("TRUE", _invoice_is("<> 'draft'", "OLD.invoice_id", "NEW.invoice_id")),
        "hb_line_delete": ("TRUE", _invoice_is("<> 'draft'", "OLD.invoice_id")),
        "hb_record_insert": ("NEW.invoice_id IS NOT NULL", _invoice_is("<> 'draft'", "NEW.invoice_id")),
        "hb_record_update": ("OLD.invoice_id IS NOT NULL", f"{on_issued} AND {billed}"),
        "hb_record_claimed": (
            "OLD.invoice_id IS NULL AND NEW.invoice_id IS NOT NULL",
            _invoice_is("IN ('open', 'paid')", "NEW.invoice_id"),
        ),
        "hb_record_delete": ("TRUE", "TRUE"),
        "hb_adjustment_insert": ("NEW.invoice_id IS NOT NULL", _invoice_is("<> 'draft'", "NEW.invoice_id")),
        "hb_adjustment_update": (
            "TRUE",
            f"{facts} OR (OLD.state <> 'proposed' AND {changed(sorted(DECISION))})"
            f" OR ({changed(['invoice_id'])} AND {on_issued})",
        ),
        "hb_adjustment_delete": ("TRUE", "TRUE"),
        "hb_note_insert": ("TRUE", f"NOT {_has_left('NEW.invoice_id', 'NEW.total_nanos')}"),
        "hb_note_update": ("TRUE", "TRUE"),
        "hb_note_delete": ("TRUE", "TRUE"),
        "hb_note_line_insert": (
            "TRUE",
            f"NOT EXISTS (SELECT 1 FROM {NOTE} WHERE id = NEW.credit_note_id"  # noqa: S608
            " AND NEW.position BETWEEN 1 AND line_count)",
        ),
        "hb_note_line_update": ("TRUE", "TRUE"),
        "hb_note_line_delete": ("TRUE", "TRUE"),
        "hb_account_update": ("TRUE", f"{changed(['timezone', 'currency'])} AND ({used})"),
        "hb_account_delete": ("TRUE", "TRUE"),
        "hb_key_delete": ("TRUE", "TRUE"),
        "hb_audit_update": ("TRUE", "TRUE"),
        "hb_audit_delete": ("TRUE", "TRUE"),
        "hb_document_insert": ("TRUE", _invoice_is("= 'draft'", "NEW.invoice_id")),
        "hb_document_update": ("TRUE", "TRUE"),
        "hb_document_delete": ("TRUE", "TRUE"),
        "hb_dropped_month_update": ("TRUE", "TRUE"),
        "hb_dropped_month_delete": ("TRUE", "TRUE"),
        "hb_dropped_invoice_update": ("TRUE", "TRUE"),
        "hb_dropped_invoice_delete": ("TRUE", "TRUE"),
    }[name]


def _invoice_is(status: str, *ids: str) -> str:
    """One look-up per id: SQLite would build a table for every `id IN (…)` of every row."""
    looked_up = (f"EXISTS (SELECT 1 FROM {INVOICE} WHERE id = {invoice_id} AND status {status})" for invoice_id in ids)  # noqa: S608
    return f"({' OR '.join(looked_up)})"


def _has_left(invoice_id: str, nanos: str) -> str:
    """Whether an invoice is issued and its notes leave so much of its total."""
    noted = f"(SELECT COALESCE(SUM(total_nanos), 0) FROM {NOTE} WHERE invoice_id = {invoice_id})"  # noqa: S608
    return (
        f"EXISTS (SELECT 1 FROM {INVOICE} WHERE id = {invoice_id} AND status IN ('open', 'paid')"  # noqa: S608
        f" AND {noted} <= total_nanos - {nanos})"
    )


def _sqlite(trigger: Trigger, guard: str, condition: str) -> Iterator[str]:
    yield f"""
        CREATE TRIGGER {trigger.name} BEFORE {trigger.event} ON {trigger.table} WHEN ({guard}) AND ({condition})
        BEGIN SELECT RAISE(ABORT, '{MESSAGES[trigger.table]}'); END
    """


def _postgresql(trigger: Trigger, guard: str, condition: str) -> Iterator[str]:
    yield f"""
        CREATE FUNCTION {trigger.name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            {FIRST.get(trigger.name, "")}
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


def _postgresql_all_at_once(trigger: Trigger, condition: str) -> Iterator[str]:
    yield f"""
        CREATE FUNCTION {trigger.name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF {condition} THEN
                RAISE EXCEPTION '{MESSAGES[trigger.table]}' USING ERRCODE = 'integrity_constraint_violation';
            END IF;
            RETURN NULL;
        END $$
    """
    yield f"""
        CREATE TRIGGER {trigger.name} AFTER {trigger.event} ON {trigger.table}
        REFERENCING OLD TABLE AS removed NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION {trigger.name}()
    """
