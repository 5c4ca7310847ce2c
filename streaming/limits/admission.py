"""The limits of all keys, from admission to settlement: within this process first, then over all of them in Redis.

What a request was admitted with is its `Hold`. It ends twice: `ended`, when it no longer runs, and `settle`, when its
bill is written. Between the two its place is free again, but its part of the budget is not.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from billing.catalogue import KeyEntry
from billing.periods import local_day
from billing.pricing import PriceOf
from billing.reports import KeyMonth, Spending
from streaming import metrics
from streaming.limits.estimate import cost_nanos, estimate
from streaming.limits.holds import Hold, Left, Verdict, is_limited, limit_headers, refusal
from streaming.limits.local import LocalLimits
from streaming.limits.spendings import ReadSpendings, Spendings, month_name, tell_alarm
from streaming.limits.store import ADMIT, RENEW, SETTLE, TAKE, Store, member, place
from streaming.protocols.meter import RequestFacts
from streaming.redis_client import AWAY

REFRESH_S = 5.0
"""How often it is asked what others have settled: a sweep, another process, a replayed journal, a corrected price."""
COMPANY_S = 0.05
"""How long a settlement waits for others, where its hold is a small part of its budget: each reads the database."""
SMALL_PART = 100
RENEWED_AT_ONCE = 200
ENDED_AT_ONCE = 100
LIMITS = {"spent": "budget", "reserved": "budget_reserved"}
"""What /metrics calls the limit of an answer, where it is no word of the limit itself."""

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Limits:
    """`read_spendings` asks the database; `spawn` runs what nobody waits for; `clock` counts seconds.

    `lease_s`: how long what a process holds outlives it. `raise_s`: how often holds follow what was counted.
    `company_s`: how long a settlement waits for others.
    """

    def __init__(
        self,
        url: str,
        process: uuid.UUID,
        read_spendings: ReadSpendings,
        price_of: PriceOf,
        spawn: Spawn,
        *,
        lease_s: float,
        raise_s: float,
        company_s: float = COMPANY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process, self._price_of, self._spawn, self._clock = process, price_of, spawn, clock
        self._lease_s, self._raise_s, self._company_s = lease_s, raise_s, company_s
        self.store = Store(url, spawn)
        self.local = LocalLimits(self._now_ms)
        self._spendings = Spendings(read_spendings, clock)
        self._live: dict[str, Hold] = {}
        self._ended: defaultdict[int, dict[str, None]] = defaultdict(dict)
        self._to_settle: list[Hold] = []
        self._is_settling = False
        self._settle_soon: asyncio.TimerHandle | None = None
        self._renew_at = self._raise_at = self._refresh_at = 0.0

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    @property
    def available(self) -> bool:
        """Whether all processes count together; else each counts alone."""
        return self.store.available

    # --- admission ---

    async def admit_bare(self, id: uuid.UUID, key: KeyEntry, now: dt.datetime) -> dict[str, str]:
        """A request that uses no tokens, against requests per minute alone; returns the headers to answer with."""
        if key.requests_per_minute is None:
            return {}
        hold = self._hold(id, key, now, uses_tokens=False)
        await self._admit(hold)
        return dict(hold.headers)

    async def admit(
        self, id: uuid.UUID, key: KeyEntry, raw: bytes, facts: RequestFacts, now: dt.datetime
    ) -> Hold | None:
        """A request for tokens, against all limits of its key; None: it has none. ApiError is the refusal."""
        if not is_limited(key):
            return None
        hold = self._hold(id, key, now)
        if hold.tokens_limit is not None or hold.budget is not None:
            hold.estimate = estimate(raw, facts)
        if hold.budget is not None:
            hold.cost = self._cost_of(facts.model, facts.service_tier, key.account.currency, now)
            hold.nanos = hold.cost(*hold.estimate)
        await self._admit(hold)
        return hold

    def _hold(self, id: uuid.UUID, key: KeyEntry, now: dt.datetime, uses_tokens: bool = True) -> Hold:
        return Hold(member(self._process, str(id)), key, _month(key, now), uses_tokens=uses_tokens)

    def _cost_of(self, model: str, tier: str, currency: str, at: dt.datetime) -> Callable[[int, int], int]:
        def cost(input: int, output: int) -> int:
            return cost_nanos(
                input, output, model=model, tier=tier, at=at, currency=currency, price_of=self._price_of
            )  # fmt: skip

        return cost

    async def _admit(self, hold: Hold) -> None:
        verdict = self.local.admit(hold)
        if verdict.answer == "ok":
            try:
                verdict = await self._elsewhere(hold, verdict)
            except BaseException:  # also a cancellation, after which Redis may still count the request
                self.drop(hold)
                raise
            if verdict.answer != "ok":
                self.local.withdraw(hold)
        hold.headers = limit_headers(hold, verdict)
        if verdict.answer != "ok":
            metrics.LIMIT_REFUSALS.labels(LIMITS.get(verdict.answer, verdict.answer)).inc()
            raise refusal(hold, verdict)
        if hold.is_kept:
            self._live[hold.id] = hold

    async def _elsewhere(self, hold: Hold, verdict: Verdict) -> Verdict:
        """What all processes together say; when Redis is away, this process's own counts and the database's figure."""
        if (shared := await self._in_store(hold)) is not None:
            self.local.hold(hold)
            return shared
        if hold.budget is None:
            return verdict
        spending = await self._spendings.fresh((hold.key.id, hold.month), hold.budget)
        reserved = self.local.reserve(hold, spending)
        return Verdict(reserved.answer, reserved.wait_ms, verdict.requests, verdict.tokens)

    async def _in_store(self, hold: Hold) -> Verdict | None:
        if not self.store.available:
            return None
        wanted = (hold.key.id, hold.month)
        try:
            verdict = await self._ask_store(hold, None)
            if verdict.answer == "unknown":
                assert hold.budget is not None
                verdict = await self._ask_store(hold, await self._spendings.fresh(wanted, hold.budget))
        except AWAY:
            return None
        if verdict.answer == "unknown":  # it lost its memory just now
            return None
        if hold.budget is not None:
            self._spendings.asked(wanted, hold.budget)
        return verdict

    async def _ask_store(self, hold: Hold, spending: Spending | None) -> Verdict:
        names = ("requests", "tokens", "leases", "holds", "tokens_held", month_name(hold.month))
        free = self._ended.pop(hold.key.id, ()) if hold.concurrency is not None else ()
        told = await self.store.call(
            ADMIT,
            [place(hold.key.id, name) for name in names],
            [
                hold.id, self._lease_ms, _text(hold.requests_limit), _text(hold.tokens_limit), hold.tokens,
                _text(hold.concurrency), _text(hold.budget), hold.nanos, *_texts(spending),
                *islice(free, ENDED_AT_ONCE),
            ],
        )  # fmt: skip
        answer, wait_ms, *left = told
        requests, tokens = Left(*left[:2]), Left(*left[2:])
        return Verdict(
            answer.decode(),
            wait_ms,
            requests if requests.remaining >= 0 else None,
            tokens if tokens.remaining >= 0 else None,
        )

    # --- the end of a request ---

    def ended(self, hold: Hold | None) -> None:
        """The request does not run any more: its place is free, though its bill may not be written."""
        if hold is not None and hold.ended_ms is None:
            hold.ended_ms = self._now_ms()
            self.local.ended(hold)
            if hold.concurrency is not None:
                self._ended[hold.key.id][hold.id] = None

    def settle(self, hold: Hold | None, used: int | None, billed_at: dt.datetime | None) -> None:
        """The request used so many tokens (None: nobody knows) and was billed at an instant, or never (None)."""
        if hold is not None and hold.settled_ms is None:
            self.ended(hold)
            self.local.settle(hold, used)
            self._over(hold, used, billed_at)

    def drop(self, hold: Hold | None) -> None:
        """The request came to nothing before it began: whatever was counted of it is taken back."""
        if hold is not None and hold.settled_ms is None:
            self.ended(hold)
            self.local.withdraw(hold)
            self._over(hold, 0, None)

    def _over(self, hold: Hold, used: int | None, billed_at: dt.datetime | None) -> None:
        hold.used, hold.settled_ms = used, self._now_ms()
        if billed_at is not None and hold.budget is not None:
            hold.billed = (hold.key.id, _month(hold.key, billed_at))
        self._live.pop(hold.id, None)
        if hold.is_kept:
            self._to_settle.append(hold)
            if not self._company_s or (hold.budget is not None and hold.nanos * SMALL_PART > hold.budget):
                self._settle_queued()
            elif self._settle_soon is None:
                self._settle_soon = asyncio.get_running_loop().call_later(self._company_s, self._settle_queued)

    def _settle_queued(self) -> None:
        if self._settle_soon is not None:
            self._settle_soon.cancel()
            self._settle_soon = None
        if not self._is_settling and self._to_settle and self.store.available:
            self._is_settling = True
            self._spawn(self._settle_all())

    async def _settle_all(self) -> None:
        """Settle what is queued, and what comes meanwhile; what nobody takes waits for a beat."""
        refused: list[Hold] = []
        try:
            while self._to_settle:
                queued, self._to_settle = self._to_settle, []
                refused += await self._settle_group(queued)
        finally:
            self._to_settle += refused
            self._is_settling = False

    async def _settle_group(self, group: Sequence[Hold]) -> list[Hold]:
        """Settle, and return those that could not be. Who has no budget does not wait for the database."""
        plain = self._queue_settlements([hold for hold in group if hold.billed is None], {})
        budgets = {hold.billed: hold.budget for hold in group if hold.billed and hold.budget is not None}
        spendings = await self._spendings.read(budgets)
        billed = self._queue_settlements([hold for hold in group if hold.billed in spendings], spendings)
        unread = [hold for hold in group if hold.billed is not None and hold.billed not in spendings]
        refused = [hold for hold, call in plain if not await self._is_settled(hold, call, {})]
        refused += [hold for hold, call in billed if not await self._is_settled(hold, call, spendings)]
        return [*refused, *unread]

    def _queue_settlements(
        self, holds: Sequence[Hold], spendings: dict[KeyMonth, Spending]
    ) -> list[tuple[Hold, asyncio.Future[bytes]]]:
        """Queue the settlements at once, all in one round trip; each resolves to what `_is_settled` reads."""
        return [(hold, self._call_settle(hold, spendings)) for hold in holds]

    def _call_settle(self, hold: Hold, spendings: dict[KeyMonth, Spending]) -> asyncio.Future[bytes]:
        billed = hold.billed or (hold.key.id, hold.month)
        names = ("tokens", "leases", "holds", "tokens_held", month_name(hold.month), month_name(billed[1]))
        keys = [place(hold.key.id, name) for name in names]
        return self.store.call(SETTLE, keys, [hold.id, _text(hold.used), *_texts(spendings.get(billed))])

    async def _is_settled(self, hold: Hold, call: asyncio.Future[bytes], spendings: dict[KeyMonth, Spending]) -> bool:
        try:
            before = await call
        except AWAY:
            return False
        self._forget_ended(hold)
        if before != b"" and hold.billed is not None and hold.budget is not None:
            tell_alarm(hold.billed, hold.budget, int(before), spendings[hold.billed].spent_nanos)
        return True

    def _forget_ended(self, hold: Hold) -> None:
        ended = self._ended.get(hold.key.id)
        if ended is not None:
            ended.pop(hold.id, None)
            if not ended:
                del self._ended[hold.key.id]

    # --- once a second ---

    async def beat(self) -> None:
        """See whether Redis is there, and tell it what it does not know: holds that last, that grew, that are over."""
        if await self.store.beat():
            self._renew_at = 0.0
        if not self.store.available:
            return
        self._forget_expired()
        self._settle_queued()
        now = self._clock()
        if now >= self._renew_at:
            self._renew_at = now + self._lease_s / 3
            await self._renew(list(self._live.values()))
        elif now >= self._raise_at:
            self._raise_at = now + self._raise_s
            await self._renew([hold for hold in self._live.values() if _has_changed(hold)])
        if now >= self._refresh_at:
            self._refresh_at = now + REFRESH_S
            await self._refresh()

    def _forget_expired(self) -> None:
        """What has been over for longer than a lease expired by itself; what it cost is read from the database."""
        since = self._now_ms() - self._lease_ms
        for hold in self._to_settle:
            if hold.settled_ms is not None and hold.settled_ms <= since:
                self._forget_ended(hold)
        self._to_settle = [hold for hold in self._to_settle if hold.settled_ms is None or hold.settled_ms > since]

    async def _renew(self, holds: Iterable[Hold]) -> None:
        """Tell Redis of requests that are still there, in a call per key and month, all in one round trip."""
        by_place: defaultdict[KeyMonth, list[Hold]] = defaultdict(list)
        for hold in holds:
            hold.nanos = hold.raised_nanos()
            self.local.hold(hold)
            by_place[hold.key.id, hold.month].append(hold)
        calls = [
            self._call_renew(wanted, here[start : start + RENEWED_AT_ONCE])
            for wanted, here in by_place.items()
            for start in range(0, len(here), RENEWED_AT_ONCE)
        ]
        if any(isinstance(answer, BaseException) for answer in await asyncio.gather(*calls, return_exceptions=True)):
            self._renew_at = 0.0

    def _call_renew(self, wanted: KeyMonth, holds: Sequence[Hold]) -> asyncio.Future[int]:
        key_id, month = wanted
        keys = [place(key_id, name) for name in ("leases", "holds", month_name(month))]
        return self.store.call(RENEW, keys, [self._lease_ms, *(text for hold in holds for text in _renewal(hold))])

    async def _refresh(self) -> None:
        for wanted, spending in (await self._spendings.moved()).items():
            key_id, month = wanted
            try:
                before = await self.store.call(TAKE, [place(key_id, month_name(month))], _texts(spending))
            except AWAY:
                return
            if before != b"":
                tell_alarm(wanted, self._spendings.budget(wanted), int(before), spending.spent_nanos)

    @property
    def _lease_ms(self) -> int:
        return int(self._lease_s * 1000)

    async def aclose(self) -> None:
        """Close the connection; what was not told by now expires."""
        await self.store.aclose()


def _month(key: KeyEntry, now: dt.datetime) -> dt.date:
    return local_day(now, ZoneInfo(key.account.zone)).replace(day=1)


def _text(value: int | None) -> str:
    return "" if value is None else str(value)


def _texts(spending: Spending | None) -> list[str]:
    return ["", ""] if spending is None else [str(part) for part in spending]


def _has_changed(hold: Hold) -> bool:
    """Whether Redis should hear of it before its lease is due: it grew, or it ended and is not billed yet."""
    return hold.ended_ms is not None or (hold.budget is not None and hold.raised_nanos() > hold.nanos)


def _renewal(hold: Hold) -> tuple[str, str, str, str]:
    runs = hold.ended_ms is None and hold.concurrency is not None
    holds = hold.budget is not None or hold.tokens_limit is not None
    return hold.id, "1" if runs else "", "1" if holds else "", "" if hold.budget is None else str(hold.nanos)
