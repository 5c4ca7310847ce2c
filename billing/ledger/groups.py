"""A group of entries, written inside one transaction of the caller's. Writing the same group twice changes nothing.

**Names.** A key's request name belongs to one request for ever: first its open row holds it, then its record. Another
process may open and settle a request of the same name between two of our statements, so a wish is first inserted (the
unique constraint sees every open row, and waits for whoever is about to commit one), and only then looked for among the
records: a record that is not there by now can only come from the open row that holds the name, which is ours.
"""

from __future__ import annotations

import uuid
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from django.db import IntegrityError
from django.utils.timezone import now

from billing.ledger import checkpoints, corrections, late, terms
from billing.ledger.cleaning import clean_text
from billing.ledger.entries import BroughtObjects, Checkpoint, OpenRow, Settlement, Told
from billing.ledger.rows import attempt_rows, object_rows, open_row, record_row
from billing.ledger.tables import Table
from billing.models import Attempt, GatewayProcess, OpenStream, RollupDue, StoredObject, UsageRecord

OPEN_STREAMS, RECORDS, ATTEMPTS, OBJECTS = Table(OpenStream), Table(UsageRecord), Table(Attempt), Table(StoredObject)
DUE = Table(RollupDue)

NAME_LIMIT = 128

NamesById = dict[uuid.UUID, str]


@dataclass(slots=True)
class Group:
    """What is written together. `bare`: records go in without their raw usage. `told`: what checkpoints bring back.

    `locked`: the terms of accounts that are known to have a record; `settled`: of those that have one by this group.
    """

    openings: list[OpenRow] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    brought: list[BroughtObjects] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    discards: list[uuid.UUID] = field(default_factory=list)
    leaving: list[uuid.UUID] = field(default_factory=list)
    bare: bool = False
    told: Told = field(default_factory=Told)
    locked: Mapping[int, terms.Terms] = field(default_factory=dict)
    settled: dict[int, terms.Terms] = field(default_factory=dict)


def write(group: Group, known: NamesById, using: str) -> dict[uuid.UUID, str]:
    """Write a group; returns the names of the requests that it opened. `known`: names given by earlier groups."""
    standing = late.standing(group.settlements, using)
    given = _open(group.openings, using)
    if group.checkpoints:
        group.told = checkpoints.write(group.checkpoints, ChainMap(given, known), using)
    _remember(group.brought, using)
    group.settled = terms.of_accounts(standing, group.locked, using)
    held = [terms.held(one, group.settled[one.open.account_id]) for one in standing]
    _settle(held, ChainMap(given, known), using, bare=group.bare)
    gone = [*(settlement.open.id for settlement in group.settlements), *group.discards]
    OPEN_STREAMS.remove(gone, using)
    if group.leaving:
        GatewayProcess.objects.using(using).filter(id__in=group.leaving).delete()
    return given


def _open(rows: Sequence[OpenRow], using: str) -> dict[uuid.UUID, str]:
    names = {row.id: _wish(row) or row.own_name for row in rows}
    # In one order in every process, so that two groups with the same wishes cannot deadlock.
    ordered = sorted(rows, key=lambda row: (row.key_id, names[row.id]))
    if OPEN_STREAMS.insert([open_row(row, names[row.id]) for row in ordered], using) < len(rows):
        names = _name_losers(rows, using)
    wished = {(row.key_id, names[row.id]): row for row in rows if names[row.id] != row.own_name}
    for row in _recorded(wished, using) if wished else ():
        OpenStream.objects.using(using).filter(id=row.id).update(request_name=row.own_name)
        names[row.id] = row.own_name
    return names


def _wish(row: OpenRow) -> str | None:
    """The wished name where a column can hold it as it is."""
    name = row.wished_name
    return name if name and len(name) <= NAME_LIMIT and clean_text(name) == name else None


def _name_losers(rows: Sequence[OpenRow], using: str) -> dict[uuid.UUID, str]:
    """Insert the rows whose wish was taken under their own names; returns the names of all."""
    names = open_names([row.id for row in rows], using)
    losers = [row for row in rows if row.id not in names]
    if OPEN_STREAMS.insert([open_row(row, row.own_name) for row in losers], using) < len(losers):
        raise IntegrityError("a request's own name is taken")
    return {**names, **{row.id: row.own_name for row in losers}}


def _recorded(wished: Mapping[tuple[int, str], OpenRow], using: str) -> list[OpenRow]:
    """Those of the rows, by key and wished name, whose name an earlier request's record bears."""
    keys, names = zip(*wished, strict=True)
    records = UsageRecord.objects.using(using).filter(api_key__in=set(keys), request_name__in=set(names))
    taken = {(key, name): id for id, key, name in records.values_list("id", "api_key_id", "request_name")}
    return [row for wish, row in wished.items() if taken.get(wish, row.id) != row.id]


def open_names(ids: Sequence[uuid.UUID], using: str) -> dict[uuid.UUID, str]:
    """The names of those of the requests that have an open row."""
    rows = OpenStream.objects.using(using).filter(id__in=ids)
    return dict(rows.values_list("id", "request_name"))


def _remember(brought: Sequence[BroughtObjects], using: str) -> None:
    """Keep whose the objects are, and note them on the open rows that are still there."""
    rows = {(row["account_id"], row["object_id"]): row for answer in brought for row in object_rows(answer)}
    # In one order in every process, as above.
    OBJECTS.insert([rows[key] for key in sorted(rows)], using)
    OPEN_STREAMS.set_json("object_ids", {answer.id: list(answer.object_ids) for answer in brought}, using)


def _settle(settlements: Sequence[Settlement], known: Mapping[uuid.UUID, str], using: str, *, bare: bool) -> None:
    if not settlements:
        return
    names = _settled_names(settlements, known, using)
    rows = [record_row(settlement, names[settlement.open.id], bare=bare) for settlement in settlements]
    before: Mapping[uuid.UUID, UsageRecord] = {}
    if RECORDS.insert(rows, using) < len(rows):
        before = _record_losers(settlements, using, bare=bare)
    telling = corrections.last_word_first(settlements, before)
    ATTEMPTS.insert([row for entry in telling for row in attempt_rows(entry, bare=bare)], using)
    due = sorted({(row["api_key_id"], row["day"]) for row in rows})
    DUE.insert([{"api_key_id": key, "day": day, "created_at": now()} for key, day in due], using)


def _settled_names(
    settlements: Sequence[Settlement], known: Mapping[uuid.UUID, str], using: str
) -> dict[uuid.UUID, str]:
    """The name under which each request was opened; its own name where neither we nor the open row know."""
    unknown = [settlement.open.id for settlement in settlements if settlement.open.id not in known]
    found = open_names(unknown, using) if unknown else {}
    names = {}
    for opened in (settlement.open for settlement in settlements):
        names[opened.id] = known.get(opened.id) or found.get(opened.id) or opened.own_name
    return names


def _record_losers(settlements: Sequence[Settlement], using: str, *, bare: bool) -> Mapping[uuid.UUID, UsageRecord]:
    """See to the settlements whose records were not inserted; returns the records that were there, as they were.

    Most of these are there from before, and a sweep's gives way to them. But where the open row had vanished, another
    request may have taken the name since, and a bill must not be lost to that: it is kept under its own name.
    """
    ids = [settlement.open.id for settlement in settlements]
    there = {record.id: record for record in UsageRecord.objects.using(using).select_for_update().filter(id__in=ids)}
    lost = {settlement.open.id: settlement for settlement in settlements if settlement.open.id not in there}
    rows = [record_row(settlement, settlement.open.own_name, bare=bare) for settlement in lost.values()]
    if RECORDS.insert(rows, using) < len(rows):
        raise IntegrityError("a record's own name is taken")
    known = [settlement for settlement in settlements if settlement.open.id in there]
    corrections.correct(known, there, using, bare=bare)
    return there
