"""Outcome -> ledger, exactly once, on every path. What decides about money is pure and lives in billing."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable
from uuid import UUID

from billing.catalogue import KeyEntry
from billing.ledger import AttemptRow, Ledger, OpenRow
from billing.ledger import Settlement as SettledRequest
from billing.pricing import PriceVersion, rate
from billing.usage import ReportedUsage, metered, to_be_counted
from streaming.catalogue import RouteEntry
from streaming.counting import Counting
from streaming.protocols.meter import RequestFacts
from streaming.runs import AttemptReport, Run

log = logging.getLogger(__name__)

COMPARE_S = 0.5
"""How long a bill that needs no count waits for one."""
FINISHED = frozenset({"complete", "incomplete"})
PriceOf = Callable[[str, dt.datetime], PriceVersion | None]


def open_row(
    id: UUID, own_name: str, wished_name: str | None, process: UUID, key: KeyEntry, facts: RequestFacts,
    wire_format: str, route: RouteEntry | None, started_at: dt.datetime, *, retry_count: int = 0,
    silence_limit_s: int | None = None, count_factor_ppm: int | None = None,
) -> OpenRow:  # fmt: skip
    """The open row of a request at its admission, with the route that it takes first."""
    return OpenRow(
        id=id, key_id=key.id, account_id=key.account.id, key_name=key.name, account_name=key.account.name,
        own_name=own_name, wished_name=wished_name, process=process, model=facts.model, wire_format=wire_format,
        stream=facts.stream, provider=route.provider.name if route else "",
        upstream_model=route.upstream_model if route else "", started_at=started_at, tier_asked=facts.service_tier,
        retry_count=retry_count, silence_limit_s=silence_limit_s, count_factor_ppm=count_factor_ppm,
    )  # fmt: skip


class Settlements:
    """Turns ended runs into records."""

    def __init__(self, ledger: Ledger, counting: Counting, price_of: PriceOf) -> None:
        self._ledger, self._counting, self._price_of = ledger, counting, price_of

    async def settle(self, run: Run, row: OpenRow) -> SettledRequest:
        """Bill a run that has ended, however it ended; returns what was written once it is committed."""
        reported = _reported(run)
        counted = await self._counted(run, reported)
        settled = settlement_of(run, row, reported, counted, self._price_of, dt.datetime.now(dt.UTC))
        await asyncio.wrap_future(self._ledger.settle(settled))
        return settled

    async def _counted(self, run: Run, reported: ReportedUsage | None) -> tuple[int, int] | None:
        """Counted input and output, where they decide about the bill; else kept where a checkpoint has begun them."""
        decides = to_be_counted(reported, produced=run.produced, finished=run.ending in FINISHED)
        if not decides and (run.counted is None or run.count.input is None):
            return None
        wire, body = run.wire, run.facts.body
        content = (lambda: wire.input_content(body)) if decides else None
        totals = asyncio.wrap_future(self._counting.totals(run.count, _texts(run), content, bill=bool(decides)))
        try:
            async with asyncio.timeout(None if decides else COMPARE_S):
                return await totals
        except TimeoutError:  # kept for comparison alone: a bill does not wait long for it
            return None
        except Exception:
            log.exception("no count of %s: its bill holds what the last checkpoint counted", run.id)
            return run.counted if decides else None


def _reported(run: Run) -> ReportedUsage | None:
    """What the provider told of the answer that the client got, or was getting when it left."""
    if run.answer is not None:
        return run.answer.usage
    if run.meter is not None:
        return run.meter.usage()
    return None


def _is_text_only(run: Run, reported: ReportedUsage | None) -> bool:
    """Whether the answer was streamed text and nothing else: no tool, and no reasoning, which is billed in full and
    shown in part."""
    if reported is None or run.meter is None or run.answer is not None:
        return False
    usage = reported.usage
    return run.meter.text_only and not (usage.reasoning or any(usage.server_tools.values()) or reported.parts)


def _texts(run: Run) -> dict[object, str]:
    if run.answer is not None:
        return dict(enumerate(run.answer.texts))
    return dict(run.meter.take_texts()) if run.meter is not None else {}


def settlement_of(
    run: Run, row: OpenRow, reported: ReportedUsage | None, counted: tuple[int, int] | None, price_of: PriceOf,
    ended_at: dt.datetime,
) -> SettledRequest:  # fmt: skip
    """The record of a run. Pure but for what the run holds."""
    account = run.key.account
    finished = run.ending in FINISHED
    bill = metered(reported, counted, produced=run.produced, finished=finished)
    tier = reported.service_tier if reported else ""
    rating = rate(
        bill.usage, model=run.model.name, tier=tier, at=run.started_at, currency=account.currency, price_of=price_of,
        parts=reported.parts if reported else (),
    )  # fmt: skip
    route = run.route
    return SettledRequest(
        open=row, zone=account.zone, currency=account.currency,
        ending="client_left" if run.client_left else run.ending, metering=bill.metering, reason=run.reason,
        usage=bill.usage, reported=reported,
        counted_input=counted[0] if counted else None, counted_output=counted[1] if counted else None,
        tier_asked=run.facts.service_tier, service_tier=tier, rating=rating,
        first_output_at=run.first_output_at, ended_at=ended_at, retry_count=run.retry_count,
        attempts=[_attempt_row(attempt) for attempt in run.attempts],
        object_ids=run.attempts[-1].object_ids if run.attempts and run.produced else (),
        flags=bill.flags, provider=route.provider.name if route else "",
        upstream_model=route.upstream_model if route else "", text_only=_is_text_only(run, reported),
    )  # fmt: skip


def _attempt_row(report: AttemptReport) -> AttemptRow:
    def since_began(at: float | None) -> int | None:
        return None if at is None else max(0, round((at - report.began) * 1000))

    return AttemptRow(
        number=report.number, provider=report.route.provider.name, upstream_model=report.route.upstream_model,
        outcome=report.outcome, status=report.status, reason=report.reason[:500],
        provider_request_id=report.provider_request_id, started_at=report.started_at,
        headers_ms=since_began(report.headers_at), first_output_ms=since_began(report.first_output_at),
        duration_ms=since_began(report.ended) or 0, usage=report.usage, object_ids=report.object_ids,
        tokens=report.tokens,
    )  # fmt: skip
