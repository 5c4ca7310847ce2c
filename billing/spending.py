"""`BudgetMonth` as triggers on the usage records: whoever writes or re-rates a record moves its month's sum.

The sum changes in the transaction that writes the records, however often a group is repeated: a record that was there
already fires nothing. On PostgreSQL a statement moves each key's month once, in key order, so that two writers cannot
deadlock; a sum that a column cannot hold stays at the largest number, since a bill must not fail for it.

`billing.immutability` puts them on and takes them off with its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

RECORD, MONTH = "billing_usagerecord", "billing_budgetmonth"
LARGEST = 2**63 - 1


class SumTrigger(NamedTuple):
    name: str
    table: str
    event: str


TRIGGERS = (
    SumTrigger("hb_record_spent", RECORD, "INSERT"),
    SumTrigger("hb_record_spent_anew", RECORD, "UPDATE"),
)


def statements(trigger: SumTrigger, vendor: str) -> Iterator[str]:
    """The SQL that puts a trigger on."""
    return {"postgresql": _postgresql, "sqlite": _sqlite}[vendor](trigger)


def _postgresql(trigger: SumTrigger) -> Iterator[str]:
    anew = trigger.event == "UPDATE"
    removed = "UNION ALL SELECT api_key_id, day, -cost_nanos FROM removed" if anew else ""
    yield f"""
        CREATE FUNCTION {trigger.name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO {MONTH} (api_key_id, month, spent_nanos, version)
            SELECT api_key_id, date_trunc('month', day::timestamp)::date, LEAST(sum(nanos), {LARGEST})::bigint, 1
            FROM (SELECT api_key_id, day, cost_nanos AS nanos FROM added {removed}) AS changes
            GROUP BY 1, 2 HAVING sum(nanos) <> 0 ORDER BY 1, 2
            ON CONFLICT (api_key_id, month) DO UPDATE SET
                spent_nanos = LEAST({MONTH}.spent_nanos::numeric + excluded.spent_nanos, {LARGEST})::bigint,
                version = {MONTH}.version + 1;
            RETURN NULL;
        END $$
    """  # noqa: S608 - names of our own
    tables = "OLD TABLE AS removed NEW TABLE AS added" if anew else "NEW TABLE AS added"
    yield f"""
        CREATE TRIGGER {trigger.name} AFTER {trigger.event} ON {trigger.table}
        REFERENCING {tables} FOR EACH STATEMENT EXECUTE FUNCTION {trigger.name}()
    """


def _sqlite(trigger: SumTrigger) -> Iterator[str]:
    """Two statements for each sum: a conflict clause here would be overruled by that of the statement that fires it."""
    if trigger.event == "INSERT":
        guard, moves = "NEW.cost_nanos <> 0", _moved("NEW", "NEW.cost_nanos")
    else:
        guard = "OLD.cost_nanos <> NEW.cost_nanos OR OLD.day <> NEW.day OR OLD.api_key_id <> NEW.api_key_id"
        moves = _moved("OLD", "-OLD.cost_nanos") + _moved("NEW", "NEW.cost_nanos")
    yield f"CREATE TRIGGER {trigger.name} AFTER {trigger.event} ON {trigger.table} WHEN {guard} BEGIN {moves} END"


def _moved(row: str, nanos: str) -> str:
    # SQLite would turn a sum past 64 bits into a float: it is compared before it is made.
    key, month = f"{row}.api_key_id", f"substr({row}.day, 1, 8) || '01'"
    return f"""
        INSERT INTO {MONTH} (api_key_id, month, spent_nanos, version) SELECT {key}, {month}, 0, 0
        WHERE NOT EXISTS (SELECT 1 FROM {MONTH} WHERE api_key_id = {key} AND month = {month});
        UPDATE {MONTH} SET version = version + 1, spent_nanos =
            CASE WHEN {nanos} > 0 AND spent_nanos > {LARGEST} - {nanos} THEN {LARGEST} ELSE spent_nanos + {nanos} END
        WHERE api_key_id = {key} AND month = {month};
    """  # noqa: S608 - names of our own
