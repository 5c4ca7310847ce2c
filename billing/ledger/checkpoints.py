"""Checkpoints as rows: a process's heartbeat, how far its requests have come, and what an operator asked for.

One statement each for the heartbeat and for the changed rows, and one that brings back the process's open rows: which
are to be stopped, and which are gone though their owner lives.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from billing.ledger.cleaning import clamped
from billing.ledger.encoding import reported_as_json
from billing.ledger.entries import Checkpoint, CheckpointRow, ProcessRow, Told
from billing.ledger.rows import SMALLINT, Row, open_row
from billing.ledger.tables import Table
from billing.models import GatewayProcess, OpenStream

OPEN_STREAMS, PROCESSES = Table(OpenStream), Table(GatewayProcess)

COLUMNS = (
    "provider", "upstream_model", "attempt", "attempt_started_at", "provider_request_id", "counted_input",
    "counted_output", "reported", "first_output_at", "last_output_at", "checkpoint_at",
)  # fmt: skip
"""What a checkpoint changes of an open row."""


def write(checkpoints: Sequence[Checkpoint], names: Mapping[uuid.UUID, str], using: str) -> Told:
    """Write a process's checkpoints. `names`: its requests with an open row, by their ids; others are left out.

    So a checkpoint that comes after its request's end brings no open row back.
    """
    newest = max(checkpoints, key=lambda checkpoint: checkpoint.heartbeat)
    _beat(newest.process, newest.heartbeat, using)
    latest = {row.open.id: row for checkpoint in checkpoints for row in checkpoint.rows if row.open.id in names}
    rows = {id: _whole_row(latest[id], names[id]) for id in sorted(latest)}
    OPEN_STREAMS.update(list(rows.values()), COLUMNS, using)
    there = dict(OpenStream.objects.using(using).filter(process=newest.process.id).values_list("id", "stop_requested"))
    gone = set(names) - there.keys()
    _put_back([latest[id] for id in sorted(gone & latest.keys())], names, using)
    stops = frozenset(id for id, stop in there.items() if stop)
    return Told(stops, frozenset(gone - latest.keys()))


def _beat(process: ProcessRow, heartbeat: int, using: str) -> None:
    if not GatewayProcess.objects.using(using).filter(id=process.id).update(heartbeat=heartbeat):
        row: Row = {
            "id": process.id, "label": process.label, "heartbeat": heartbeat, "started_at": process.started_at,
        }  # fmt: skip
        PROCESSES.insert([row], using)


def _put_back(lost: Sequence[CheckpointRow], names: Mapping[uuid.UUID, str], using: str) -> None:
    """Open rows that vanished while their owner lives; under their own names where another took the given one."""
    if OPEN_STREAMS.insert([_whole_row(row, names[row.open.id]) for row in lost], using) == len(lost):
        return
    ids = [row.open.id for row in lost]
    there = set(OpenStream.objects.using(using).filter(id__in=ids).values_list("id", flat=True))
    OPEN_STREAMS.insert([_whole_row(row, row.open.own_name) for row in lost if row.open.id not in there], using)


def _whole_row(row: CheckpointRow, name: str) -> Row:
    return {
        **open_row(row.open, name),
        "provider": row.provider,
        "upstream_model": row.upstream_model,
        "attempt": clamped(row.attempt, SMALLINT),
        "attempt_started_at": row.attempt_started_at,
        "provider_request_id": row.provider_request_id,
        "counted_input": clamped(row.counted_input),
        "counted_output": clamped(row.counted_output),
        "reported": reported_as_json(row.reported),
        "first_output_at": row.first_output_at,
        "last_output_at": row.last_output_at,
        "checkpoint_at": row.at,
    }
