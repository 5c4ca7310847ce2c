"""Usage records in ClickHouse as well, for reports over more of them than PostgreSQL likes to read. Optional.

    begin(store)          its table, a trigger that notes each new or changed record, and all that there are
    ship(store)           what is noted goes there, in batches; returns how many records went
    sums(store, cut, by)  what `usage_sums.sums` gives, from there
    fresh()               whether it has everything but what is seconds old

PostgreSQL stays the truth: invoices, statements and what customers read never come from here. A batch that is sent
twice changes nothing: ClickHouse knows its token, and of a record's rows the one with the highest `version` counts.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import http.client
import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

import orjson
from django.conf import settings
from django.db import connection, transaction
from django.utils.timezone import now

from billing.models import RecordToShip, UsageRecord
from billing.rollups import ESTIMATED, INTERRUPTED
from billing.usage import BUCKETS
from billing.usage_sums import COLUMNS, NAMES, Cut, Figures

log = logging.getLogger(__name__)

TABLE = "hopbase_usage_records"
TYPES = {
    "id": "UUID", "account_id": "UInt64", "api_key_id": "UInt64", "started_at": "DateTime64(6, 'UTC')",
    "ended_at": "DateTime64(6, 'UTC')", "day": "Date", "request_name": "String", "model": "LowCardinality(String)",
    "provider": "LowCardinality(String)", "upstream_model": "LowCardinality(String)",
    "wire_format": "LowCardinality(String)", "ending": "LowCardinality(String)", "metering": "LowCardinality(String)",
    "service_tier": "LowCardinality(String)", "currency": "LowCardinality(String)", "unpriced": "Bool",
    **dict.fromkeys(BUCKETS, "Int64"), "reasoning": "Nullable(Int64)", "cost_nanos": "Int64",
}  # fmt: skip
"""Column of a record -> its type there. The first four never change: rows are sorted and divided by them."""
CHANGING = tuple(TYPES)[4:]

BATCH = 5_000
"""Records of one insert."""
ANSWER_S = 30.0
FRESH = dt.timedelta(minutes=2)
"""What waits for longer makes reports read PostgreSQL again."""
RECORDS, NOTED = UsageRecord._meta.db_table, RecordToShip._meta.db_table
TRIGGER = "hb_record_shipped"
COMPLETE = "all records were noted"
WORDS = {
    "requests": "count()",
    "interrupted": f"countIf(ending IN {INTERRUPTED})",
    "estimated": f"countIf(metering IN {ESTIMATED})",
    "unpriced": "countIf(unpriced)",
    **{name: f"sum({name})" for name in (*BUCKETS, "cost_nanos")},
    "reasoning": "sum(ifNull(reasoning, 0))",
}
"""Figure -> its sum."""


class Unavailable(Exception):
    """ClickHouse did not take or answer it; says no address."""


@dataclass(frozen=True, slots=True)
class Store:
    """A ClickHouse server, by its HTTP interface."""

    url: str = field(repr=False)
    user: str = ""
    password: str = field(default="", repr=False)

    def ask(self, query: str, body: bytes = b"", parameters: Mapping[str, str] | None = None) -> bytes:
        """Send a query, with the rows of an insert; returns the answer's body."""
        url = urlsplit(self.url)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        host = url.hostname or ""
        connected = kind(f"[{host}]" if ":" in host else host, url.port, timeout=ANSWER_S)
        headers = {"x-clickhouse-user": self.user, "x-clickhouse-key": self.password} if self.user else {}
        asked = urlencode({"query": query, "wait_end_of_query": "1", **(parameters or {})})
        try:
            connected.request("POST", f"{url.path or '/'}?{asked}", body, headers)
            answer = connected.getresponse()
            said: bytes = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(type(error).__name__) from None
        finally:
            connected.close()
        if answer.status != 200:
            raise Unavailable(f"status {answer.status}: {said[:200].decode(errors='replace')}")
        return said


def store() -> Store | None:
    """The one that is set, or None."""
    if not settings.CLICKHOUSE_URL:
        return None
    return Store(settings.CLICKHOUSE_URL, settings.CLICKHOUSE_USER, settings.CLICKHOUSE_PASSWORD)


# --- what goes there ---


def begin(to: Store) -> int:
    """Make the table there; note every change from now on, then all records; returns how many there are.

    Not in one transaction: writers would wait for the second step. Until it is done, and sent, nothing is `fresh`.
    """
    columns = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
    to.ask(
        f"CREATE TABLE IF NOT EXISTS {TABLE} ({columns}, version UInt64, INDEX by_day day TYPE minmax)"
        " ENGINE = ReplacingMergeTree(version) PARTITION BY toYYYYMM(started_at) ORDER BY (account_id, api_key_id, id)"
        " SETTINGS non_replicated_deduplication_window = 1000"
    )
    end()
    changed = ", ".join(f"{{row}}.{name}" for name in CHANGING)
    differs = f"({changed.format(row='added')}) IS DISTINCT FROM ({changed.format(row='removed')})"
    joined = f"SELECT added.id FROM added JOIN removed ON removed.id = added.id WHERE {differs}"  # noqa: S608 - ours
    with transaction.atomic():
        _note_each("insert", "NEW TABLE AS added", "SELECT id FROM added")
        _note_each("update", "OLD TABLE AS removed NEW TABLE AS added", joined)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {NOTED} (record_id, created_at) SELECT id, 'epoch' FROM {RECORDS}")  # noqa: S608
        cursor.execute(f"COMMENT ON TRIGGER {TRIGGER}_insert ON {RECORDS} IS '{COMPLETE}'")
        cursor.execute(f"SELECT count(*) FROM {NOTED}")  # noqa: S608 - names of our own models
        return int(cursor.fetchone()[0])


def _note_each(event: str, tables: str, select: str) -> None:
    name = f"{TRIGGER}_{event}"
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" INSERT INTO {NOTED} (record_id) {select}; RETURN NULL; END $$"
        )
        cursor.execute(
            f"CREATE TRIGGER {name} AFTER {event} ON {RECORDS} REFERENCING {tables}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {name}()"
        )


def end() -> None:
    """Note no more, and forget what was noted. The table there stays."""
    with transaction.atomic(), connection.cursor() as cursor:
        for event in ("insert", "update"):
            cursor.execute(f"DROP TRIGGER IF EXISTS {TRIGGER}_{event} ON {RECORDS}")
            cursor.execute(f"DROP FUNCTION IF EXISTS {TRIGGER}_{event}()")
        RecordToShip.objects.all().delete()


def ship(to: Store, most: int = 200, tell: Callable[[int], None] = lambda sent: None) -> int:
    """Send what is noted, at most so many batches. After Unavailable the rest is still noted, or sent again.

    `tell` is told after each batch how many records are sent.
    """
    sent = 0
    for _ in range(most):
        noted = list(RecordToShip.objects.order_by("pk").values_list("pk", "record_id")[:BATCH])
        if not noted:
            break
        sent += _send(to, {record: version for version, record in noted})
        RecordToShip.objects.filter(pk__in=[version for version, _ in noted]).delete()
        tell(sent)
    return sent


def _send(to: Store, versions: Mapping[uuid.UUID, int]) -> int:
    records = UsageRecord.objects.filter(pk__in=versions).order_by("pk").values(*TYPES)
    body = b"\n".join(orjson.dumps({**record, "version": versions[record["id"]]}) for record in records)
    to.ask(
        f"INSERT INTO {TABLE} FORMAT JSONEachRow",
        body,
        {
            "insert_deduplication_token": hashlib.sha256(body).hexdigest(),
            "date_time_input_format": "best_effort",
        },
    )
    return len(versions)


# --- what comes back ---


def fresh() -> bool:
    """Whether changes are noted, and none has waited for long."""
    if connection.vendor != "postgresql":
        return False
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT 1 FROM pg_trigger WHERE tgname = %s AND tgrelid = %s::regclass"
            " AND obj_description(oid, 'pg_trigger') = %s)",
            [f"{TRIGGER}_insert", RECORDS, COMPLETE],
        )
        noted = bool(cursor.fetchone()[0])
    return noted and not RecordToShip.objects.filter(created_at__lt=now() - FRESH).exists()


def sums(
    of: Store,
    cut: Cut,
    by: Sequence[str],
    *,
    only: Mapping[str, Collection[Any]] | None = None,
    figures: Sequence[str] = NAMES,
) -> dict[tuple[Any, ...], Figures]:
    """The figures of a cut by one dimension or more, as `usage_sums.sums` gives them, as of what has come there."""
    conditions, given = ["day >= {first:Date}", "day <= {last:Date}"], {"first": str(cut.first), "last": str(cut.last)}
    for name in COLUMNS:
        if (value := getattr(cut, name, None)) is not None:
            conditions.append(f"toString({COLUMNS[name]}) = {{{name}:String}}")
            given[name] = _escaped(str(value))
    for name, values in (only or {}).items():
        conditions.append(f"has({{only_{name}:Array(String)}}, toString({COLUMNS[name]}))")
        given[f"only_{name}"] = "[" + ", ".join(f"'{_quoted(str(value))}'" for value in values) + "]"
    columns = [COLUMNS[name] for name in by]
    answer = of.ask(
        f"SELECT {', '.join([*columns, *(WORDS[name] for name in figures)])} FROM {TABLE} FINAL"  # noqa: S608 - our own
        f" WHERE {' AND '.join(conditions)} GROUP BY {', '.join(columns)} FORMAT JSONCompactEachRow",
        parameters={
            "output_format_json_quote_64bit_integers": "0",
            **{f"param_{name}": value for name, value in given.items()},
        },
    )
    found = {}
    for values in map(orjson.loads, answer.splitlines()):
        place = (dt.date.fromisoformat(v) if name == "day" else v for name, v in zip(by, values, strict=False))
        found[tuple(place)] = Figures(**dict(zip(figures, values[len(by) :], strict=True)))
    return found


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _escaped(text: str) -> str:
    """A text as a query's parameter, which ClickHouse reads as a field of TSV."""
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")
