"""Death: the streams of processes that are gone get their record from the last checkpoint, and journals are replayed.

Nothing here has the last word. An owner that lives after all replaces such a record, or adjusts it once it is invoiced
(`ledger.corrections`); two sweepers at once write the same. All is written through a ledger of the sweep's own.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connections
from django.dispatch import Signal
from django.utils.timezone import now

from billing.catalogue import readable_price
from billing.ledger import AttemptRow, BroughtObjects, CheckpointRow, Ledger, LedgerUnavailable, OpenRow, Settlement
from billing.ledger.corrections import PROVISIONAL
from billing.ledger.encoding import reported_from_json
from billing.ledger.events import Kind, note
from billing.ledger.journal import Contents, read
from billing.models import Account, GatewayProcess, OpenStream, Price
from billing.phrases import gettext_noop
from billing.pricing import PriceOf, PriceVersion, rate, version_at
from billing.processes import Folder, known_processes, silent
from billing.request_ids import request_id
from billing.usage import OUTPUT_PLACEHOLDER, Metered, ReportedUsage, TokenUsage, metered

log = logging.getLogger(__name__)

LOST_STREAM = gettext_noop("the gateway process died")
LOST_ANSWER = gettext_noop("the gateway process died: the answer and what it cost at the provider are lost")
BATCH = 200
WRITE_S = 20.0
"""How long the database may take for a batch; what it did not take is for the next sweep."""
RETRY_S = 2.0

process_lost = Signal()
"""Sent with `process` (UUID) once what a dead process left is billed: it holds nothing any more."""

Written = Settlement | BroughtObjects | uuid.UUID
Silent = Callable[[Collection[uuid.UUID]], set[uuid.UUID]]


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did: records made of lost streams, entries replayed from journals, dead processes cleaned up."""

    streams: int = 0
    replayed: int = 0
    processes: int = 0

    def __add__(self, other: Swept) -> Swept:
        return Swept(self.streams + other.streams, self.replayed + other.replayed, self.processes + other.processes)


class NotSwept(Exception):
    """The database did not take all of a dead process's bills: they stay where they are, for the next sweep."""


def sweep(*, folder: Folder | None = None, are_silent: Silent = silent) -> Swept:
    """Settle what dead processes left. Processes of other hosts are watched first, for up to 20 s.

    Safe at any time, any number at once. The database's errors are raised.
    """
    folder = folder or Folder(settings.VAR_DIR)
    known = known_processes() | folder.processes()
    here = {id for id in known if folder.sees(id)}
    done = Swept()
    for process in sorted(here):
        with folder.adopted(process) as lock:
            if lock is not None:
                done += _settle(process, folder)
                lock.remove()
    for process in sorted(are_silent(known - here)):
        done += _settle(process, folder)
    return done


def sweep_at_start(stop: threading.Event, *, retry_s: float = RETRY_S, once: Callable[[], Swept] = sweep) -> None:
    """Sweep once, in a thread of a process that starts; again as long as the database does not answer."""
    while not stop.is_set():
        try:
            done = once()
        except (DatabaseError, NotSwept) as error:
            log.warning("the sweep will be tried again: %s", type(error).__name__)
        else:
            if done != Swept():
                log.warning("swept after dead processes: %s", done)
            return
        finally:
            connections.close_all()
        stop.wait(retry_s)


def _settle(process: uuid.UUID, folder: Folder) -> Swept:
    """Write all that a dead process left, then forget it."""
    path = folder.journal_path(process)
    journal = read(path)
    lost = _lost_rows(process, journal)
    accounts, price_of = Account.objects.in_bulk({row.open.account_id for row in lost}), prices_in_database()
    settlements = [lost_settlement(row, accounts[row.open.account_id], price_of) for row in lost]
    entries: list[Written] = [*journal.settlements.values(), *journal.discards, *journal.objects]
    names = {**journal.names, **_open_names(process)}
    for start in range(0, len(entries) + len(settlements), BATCH):
        _write([*entries, *settlements][start : start + BATCH], names, process)
    path.unlink(missing_ok=True)
    process_lost.send_robust(GatewayProcess, process=process)
    _note(process, len(settlements), late=len(journal.settlements))
    GatewayProcess.objects.filter(id=process).delete()
    return Swept(len(settlements), len(entries), 1)


def _note(process: uuid.UUID, swept: int, *, late: int) -> None:
    """Tell the operator that a process died, and what was left to settle."""
    label = GatewayProcess.objects.filter(id=process).values_list("label", flat=True).first() or ""
    note(Kind.SWEPT, process, swept, now(), detail=label)
    if late:
        note(Kind.LATE, process, late, now(), detail=label)


def _lost_rows(process: uuid.UUID, journal: Contents) -> list[CheckpointRow]:
    """How far the process's streams had come, by their open rows or by what the journal knows better."""
    found = {stream.id: as_checkpoint(stream) for stream in OpenStream.objects.filter(process=process)}
    for id, row in journal.checkpoints.items():
        if id not in found or row.at > found[id].at:
            found[id] = row
    ended = journal.settlements.keys() | journal.discards
    return [found[id] for id in sorted(found.keys() - ended)]


def _open_names(process: uuid.UUID) -> dict[uuid.UUID, str]:
    return dict(OpenStream.objects.filter(process=process).values_list("id", "request_name"))


def as_checkpoint(stream: OpenStream) -> CheckpointRow:
    """An open row as the checkpoint that it holds; one without any is as old as its request."""
    opened = OpenRow(
        id=stream.id, key_id=stream.api_key_id, account_id=stream.account_id, key_name=stream.key_name,
        account_name=stream.account_name, own_name=request_id(stream.id), wished_name=None, process=stream.process,
        model=stream.model, wire_format=stream.wire_format, stream=stream.stream, provider=stream.provider,
        upstream_model=stream.upstream_model, started_at=stream.started_at, tier_asked=stream.tier_asked,
        retry_count=stream.retry_count, silence_limit_s=stream.silence_limit_s,
        count_factor_ppm=stream.count_factor_ppm,
    )  # fmt: skip
    return CheckpointRow(
        open=opened, provider=stream.provider, upstream_model=stream.upstream_model, attempt=stream.attempt,
        counted_input=stream.counted_input, counted_output=stream.counted_output,
        reported=_readable(stream), last_output_at=stream.last_output_at,
        at=stream.checkpoint_at or stream.started_at, first_output_at=stream.first_output_at,
        attempt_started_at=stream.attempt_started_at, provider_request_id=stream.provider_request_id,
    )  # fmt: skip


def _readable(stream: OpenStream) -> ReportedUsage | None:
    try:
        return reported_from_json(stream.reported)
    except (ValueError, TypeError, KeyError, AttributeError):
        known = {"request_id": request_id(stream.id)}
        log.error("the reported usage of open row %s cannot be read: its counts are billed", stream.id, extra=known)
        return None


def lost_settlement(row: CheckpointRow, account: Account, price_of: PriceOf) -> Settlement:
    """The record of a lost request: what its last checkpoint proves was produced is billed, nothing else."""
    bill = metered_so_far(row)
    tier = row.reported.service_tier if row.reported and bill.metering != "none" else ""
    rating = rate(
        bill.usage, model=row.open.model, tier=tier, at=row.open.started_at, currency=account.currency,
        price_of=price_of,
        parts=row.reported.parts if row.reported and bill.metering != "none" else (),
    )  # fmt: skip
    counted = (row.counted_input, row.counted_output) if row.last_output_at is not None else (None, None)
    return Settlement(
        open=row.open, zone=account.timezone, currency=account.currency, ending=PROVISIONAL, metering=bill.metering,
        reason=_reason(row), usage=bill.usage, reported=row.reported,
        counted_input=counted[0], counted_output=counted[1], tier_asked=row.open.tier_asked, service_tier=tier,
        rating=rating, first_output_at=row.first_output_at, ended_at=max(row.at, row.open.started_at),
        retry_count=row.open.retry_count, attempts=[_lost_attempt(row)], flags=bill.flags, provider=row.provider,
        upstream_model=row.upstream_model,
    )  # fmt: skip


def _reason(row: CheckpointRow) -> str:
    return LOST_STREAM if row.open.stream else LOST_ANSWER


def _lost_attempt(row: CheckpointRow) -> AttemptRow:
    """The attempt that was under way, as far as the checkpoint tells; of those before it nothing is left."""
    began = row.attempt_started_at or row.open.started_at

    def after_ms(at: dt.datetime) -> int:
        return max(0, (at - began) // dt.timedelta(milliseconds=1))

    return AttemptRow(
        number=row.attempt, provider=row.provider, upstream_model=row.upstream_model, outcome=PROVISIONAL, status=None,
        reason=_reason(row), provider_request_id=row.provider_request_id, started_at=began, headers_ms=None,
        first_output_ms=None if row.first_output_at is None else after_ms(row.first_output_at),
        duration_ms=after_ms(row.at), usage=row.reported.raw if row.reported else None,
        tokens=row.reported.usage if row.reported else None,
    )  # fmt: skip


def metered_so_far(row: CheckpointRow) -> Metered:
    """What is billed of a checkpoint: nothing before any output, nor for an answer that came whole or not at all."""
    produced = row.last_output_at is not None
    reported = row.reported
    told = reported is not None and reported.usage.output > 0 and OUTPUT_PLACEHOLDER not in reported.flags
    if not row.open.stream or not (produced or told):
        return Metered(TokenUsage(), "none")
    bill = metered(reported, (row.counted_input, row.counted_output), produced=produced, finished=False)
    return replace(bill, metering="checkpoint")


def prices_in_database() -> PriceOf:
    """The price list as it stands in the database; each model's versions are read once."""

    @cache
    def versions(model: str) -> list[PriceVersion]:
        return [readable_price(row) for row in Price.objects.filter(model=model)]

    return lambda model, at: version_at(versions(model), at)


def _write(entries: Iterable[Written], names: dict[uuid.UUID, str], process: uuid.UUID) -> None:
    """Write through a ledger: in groups, a bad entry alone. NotSwept when the database does not take them in time.

    An entry that the database refuses for good is logged by the ledger, and stays as an open row.
    """
    ledger = Ledger(names=names, process=process)
    written = [_put(ledger, entry) for entry in entries]
    ledger.start()
    deadline = time.monotonic() + WRITE_S
    try:
        for done in written:
            with contextlib.suppress(DatabaseError, ValueError, TypeError):
                done.result(max(deadline - time.monotonic(), 0))
    except (LedgerUnavailable, FutureTimeoutError):
        raise NotSwept("the database does not answer") from None
    finally:
        ledger.stop(0.0)


def _put(ledger: Ledger, entry: Written) -> Future[Any]:
    if isinstance(entry, Settlement):
        return ledger.settle(entry)
    return ledger.remember(entry) if isinstance(entry, BroughtObjects) else ledger.discard(entry)
