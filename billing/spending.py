"""`BudgetMonth` as triggers on records and adjustments: whoever writes, re-rates or approves one moves its month's sum.

The sum changes in the transaction that writes the records, however often a group is repeated: a record that was there
already fires nothing. On PostgreSQL a statement moves each key's month once, in key order, so that two writers cannot
deadlock; a sum that a column cannot hold stays at the largest number, since a bill must not fail for it.

`billing.immutability` puts them on and takes them off with its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

RECORD, ADJUSTMENT, MONTH = "billing_usagerecord", "billing_adjustment", "billing_budgetmonth"
LARGEST = 2**63 - 1

COUNTED = {
    RECORD: "{row}cost_nanos",
    # What is carried over was counted when the credit was given.
    ADJUSTMENT: "(CASE WHEN {row}state = 'approved' AND {row}kind <> 'carried' THEN {row}amount_nanos ELSE 0 END)",
}
"""What a row of a table adds to the month of its `day`."""


class SumTrigger(NamedTuple):
    name: str
    table: str
    event: str


TRIGGERS = (
    SumTrigger("hb_record_spent", RECORD, "INSERT"),
    SumTrigger("hb_record_spent_anew", RECORD, "UPDATE"),
    SumTrigger("hb_adjustment_spent", ADJUSTMENT, "INSERT"),
    SumTrigger("hb_adjustment_spent_anew", ADJUSTMENT, "UPDATE"),
)


def statements(trigger: SumTrigger, vendor: str) -> Iterator[str]:
    """The SQL that puts a trigger on."""
    return {"postgresql": _postgresql, "sqlite": _sqlite}[vendor](trigger)


def _postgresql(trigger: SumTrigger) -> Iterator[str]:
    anew = trigger.event == "UPDATE"
    counted = COUNTED[trigger.table].format(row="")
    removed = f"UNION ALL SELECT api_key_id, day, -{counted} FROM removed" if anew else ""  # noqa: S608
    yield f"""
        CREATE FUNCTION {trigger.name}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO {MONTH} (api_key_id, month, spent_nanos, version)
            SELECT api_key_id, date_trunc('month', day::timestamp)::date, {_bounded("sum(nanos)")}, 1
            FROM (SELECT api_key_id, day, {counted} AS nanos FROM added {removed}) AS changes
            GROUP BY 1, 2 HAVING sum(nanos) <> 0 ORDER BY 1, 2
            ON CONFLICT (api_key_id, month) DO UPDATE SET
                spent_nanos = {_bounded(f"{MONTH}.spent_nanos::numeric + excluded.spent_nanos")},
                version = {MONTH}.version + 1;
            RETURN NULL;
        END $$
    """  # noqa: S608 - names of our own
    tables = "OLD TABLE AS removed NEW TABLE AS added" if anew else "NEW TABLE AS added"
    yield f"""
        CREATE TRIGGER {trigger.name} AFTER {trigger.event} ON {trigger.table}
        REFERENCING {tables} FOR EACH STATEMENT EXECUTE FUNCTION {trigger.name}()
    """


def _bounded(sum_nanos: str) -> str:
    return f"GREATEST(LEAST({sum_nanos}, {LARGEST}), -{LARGEST})::bigint"


def _sqlite(trigger: SumTrigger) -> Iterator[str]:
    """Two statements for each sum: a conflict clause here would be overruled by that of the statement that fires it."""
    old, new = (COUNTED[trigger.table].format(row=f"{row}.") for row in ("OLD", "NEW"))
    if trigger.event == "INSERT":
        guard, moves = f"{new} <> 0", _moved("NEW", new)
    else:
        guard = f"{old} <> {new} OR OLD.day <> NEW.day OR OLD.api_key_id <> NEW.api_key_id"
        moves = _moved("OLD", f"-{old}") + _moved("NEW", new)
    yield f"CREATE TRIGGER {trigger.name} AFTER {trigger.event} ON {trigger.table} WHEN {guard} BEGIN {moves} END"


def _moved(row: str, nanos: str) -> str:
    # SQLite would turn a sum past 64 bits into a float: it is compared before it is made.
    key, month = f"{row}.api_key_id", f"substr({row}.day, 1, 8) || '01'"
    return f"""
        INSERT INTO {MONTH} (api_key_id, month, spent_nanos, version) SELECT {key}, {month}, 0, 0
        WHERE {nanos} <> 0 AND NOT EXISTS (SELECT 1 FROM {MONTH} WHERE api_key_id = {key} AND month = {month});
        UPDATE {MONTH} SET version = version + 1, spent_nanos = CASE
            WHEN {nanos} > 0 AND spent_nanos > {LARGEST} - {nanos} THEN {LARGEST}
            WHEN {nanos} < 0 AND spent_nanos < -{LARGEST} - {nanos} THEN -{LARGEST}
            ELSE spent_nanos + {nanos} END
        WHERE {nanos} <> 0 AND api_key_id = {key} AND month = {month};
    """  # noqa: S608 - names of our own
