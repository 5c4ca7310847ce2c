"""Accounts, keys and prices in memory, for the request path.

Readers take no lock: everything hangs on one snapshot, which a change replaces as a whole.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from django.db.models import Q

from billing.models import Account, ApiKey, CountFactor, Price
from billing.pricing import MAX_TOOL, LongContext, PriceVersion, version_at
from billing.usage import BUCKETS

logger = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

NOBODY = ipaddress.ip_network("0.0.0.0/32")
"""Stands where no configured network can be read: an empty list would let everybody in."""

LOOK_UPS_PER_SECOND = 20
MISS_S = 5.0


@dataclass(frozen=True, slots=True)
class AccountEntry:
    """A customer, as the request path needs it."""

    id: int
    name: str
    zone: str
    currency: str
    active: bool


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key, as the request path needs it. `allowed_models` None: all; `allowed_ips` empty: any. Times are unix."""

    id: int
    name: str
    account: AccountEntry
    allowed_models: frozenset[str] | None
    allowed_ips: tuple[Network, ...]
    expires_at: float | None
    revoked: bool
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency: int | None
    monthly_budget_nanos: int | None
    previous_until: float | None


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """All that readers see. Its dicts are never changed once they hang here."""

    accounts: Mapping[int, AccountEntry] = field(default_factory=dict)
    keys: Mapping[int, KeyEntry] = field(default_factory=dict)
    digests: Mapping[int, tuple[str, str | None]] = field(default_factory=dict)
    current: Mapping[str, int] = field(default_factory=dict)
    previous: Mapping[str, int] = field(default_factory=dict)
    prices: Mapping[int, PriceVersion] = field(default_factory=dict)
    versions: Mapping[str, tuple[PriceVersion, ...]] = field(default_factory=dict)
    count_factors: Mapping[str, int] = field(default_factory=dict)


class LookUpLimit:
    """How often an unknown key is looked up in the database: so many per second, and not again right after a miss."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        per_second: int = LOOK_UPS_PER_SECOND,
        miss_s: float = MISS_S,
    ) -> None:
        self._clock, self._miss_s = clock, miss_s
        self._times: deque[float] = deque(maxlen=per_second)
        self._misses: dict[str, float] = {}

    def allows(self, digest: str) -> bool:
        """Whether the digest may be looked up now; if so, that counts."""
        now = self._clock()
        self._misses = {missed: until for missed, until in self._misses.items() if until > now}
        if digest in self._misses or (len(self._times) == self._times.maxlen and now - self._times[0] < 1):
            return False
        self._times.append(now)
        return True

    def missed(self, digest: str) -> None:
        """The database does not know the digest."""
        self._misses[digest] = self._clock() + self._miss_s


class BillingCatalogue:
    """The snapshot. `load` and `look_up` read the database (synchronously, in any thread); the rest only memory."""

    def __init__(
        self,
        *,
        using: str = "default",
        limit: LookUpLimit | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._using, self._wall_clock = using, wall_clock
        self._limit = limit or LookUpLimit()
        self._writing = threading.Lock()
        self._snapshot = _Snapshot()

    def key_by_digest(self, digest: str, now: float) -> KeyEntry | None:
        """The key with this secret; a rotated key's old one counts until its grace time ends (`now`: unix seconds)."""
        snapshot = self._snapshot
        if (id := snapshot.current.get(digest)) is not None:
            return snapshot.keys[id]
        if (id := snapshot.previous.get(digest)) is None:
            return None
        key = snapshot.keys[id]
        return key if key.previous_until is not None and now < key.previous_until else None

    def price_at(self, model: str, instant: dt.datetime) -> PriceVersion | None:
        """The price version of a model that is in force at an instant."""
        return version_at(self._snapshot.versions.get(model, ()), instant)

    def count_factor_ppm(self, model: str) -> int | None:
        """A model's own tokens per million that we count, as its records showed it; None as long as they do not."""
        return self._snapshot.count_factors.get(model)

    def load(self, since: int) -> None:
        """Take in the rows that changed after catalogue version `since` (-1: all)."""
        with self._writing:
            # Keys before accounts: a key's account is committed no later than the key, so it cannot be missing.
            keys = list(ApiKey.objects.using(self._using).filter(changed_in__gt=since))
            accounts = list(Account.objects.using(self._using).filter(changed_in__gt=since))
            snapshot = _with_keys(_with_accounts(self._snapshot, accounts), keys)
            self._snapshot = self._with_count_factors(self._with_prices(snapshot, since), since)

    def look_up(self, digest: str) -> KeyEntry | None:
        """Ask the database for a key that the snapshot does not have yet; None too where that was asked too often.

        The database's own errors are raised: a key that cannot be looked up is not an unknown key.
        """
        with self._writing:
            if not self._limit.allows(digest):
                return None
            rows = ApiKey.objects.using(self._using).select_related("account")
            if (key := rows.filter(Q(digest=digest) | Q(previous_digest=digest)).first()) is not None:
                self._snapshot = _with_keys(_with_accounts(self._snapshot, [key.account]), [key])
            entry = self.key_by_digest(digest, self._wall_clock())
            if entry is None:  # unknown, or an old secret whose grace time is over
                self._limit.missed(digest)
            return entry

    def _with_prices(self, snapshot: _Snapshot, since: int) -> _Snapshot:
        rows = Price.objects.using(self._using)
        changed = {row.id: readable_price(row) for row in rows.filter(changed_in__gt=since)}
        there = set(rows.values_list("id", flat=True))
        prices = {id: price for id, price in {**snapshot.prices, **changed}.items() if id in there}
        versions: dict[str, list[PriceVersion]] = {}
        for price in prices.values():
            versions.setdefault(price.model, []).append(price)
        return replace(snapshot, prices=prices, versions={model: tuple(each) for model, each in versions.items()})

    def _with_count_factors(self, snapshot: _Snapshot, since: int) -> _Snapshot:
        changed = CountFactor.in_force(self._using, since)
        return replace(snapshot, count_factors={**(snapshot.count_factors if since >= 0 else {}), **changed})


def _with_accounts(snapshot: _Snapshot, rows: Iterable[Account]) -> _Snapshot:
    """The snapshot with these accounts, under their keys too."""
    changed = {row.id: account_entry(row) for row in rows}
    if not changed:
        return snapshot
    keys = {
        id: replace(key, account=changed[key.account.id]) if key.account.id in changed else key
        for id, key in snapshot.keys.items()
    }
    return replace(snapshot, accounts={**snapshot.accounts, **changed}, keys=keys)


def _with_keys(snapshot: _Snapshot, rows: Iterable[ApiKey]) -> _Snapshot:
    keys, digests = dict(snapshot.keys), dict(snapshot.digests)
    current, previous = dict(snapshot.current), dict(snapshot.previous)
    for row in rows:
        old_digest, old_previous = digests.get(row.id, ("", None))
        current.pop(old_digest, None)
        previous.pop(old_previous or "", None)
        keys[row.id] = key_entry(row, snapshot.accounts[row.account_id])
        digests[row.id] = (row.digest, row.previous_digest)
        current[row.digest] = row.id
        if row.previous_digest:
            previous[row.previous_digest] = row.id
    return replace(snapshot, keys=keys, digests=digests, current=current, previous=previous)


def account_entry(row: Account) -> AccountEntry:
    """An account's row as an entry."""
    return AccountEntry(row.id, row.name, row.timezone, row.currency, row.active)


def key_entry(row: ApiKey, account: AccountEntry) -> KeyEntry:
    """A key's row as an entry."""
    return KeyEntry(
        id=row.id,
        name=row.name,
        account=account,
        allowed_models=None if row.allowed_models is None else frozenset(row.allowed_models),
        allowed_ips=_networks(row),
        expires_at=_unix(row.expires_at),
        revoked=row.revoked_at is not None,
        requests_per_minute=row.requests_per_minute,
        tokens_per_minute=row.tokens_per_minute,
        concurrency=row.concurrency,
        monthly_budget_nanos=row.monthly_budget_nanos,
        previous_until=_unix(row.previous_until),
    )


def _networks(row: ApiKey) -> tuple[Network, ...]:
    networks: list[Network] = []
    for text in row.allowed_ips or ():
        try:
            networks.append(ipaddress.ip_network(text, strict=False))
        except ValueError:
            logger.error("key %d: an allowed network cannot be read and lets nobody in", row.id)
            networks.append(NOBODY)
    return tuple(networks)


def _unix(instant: dt.datetime | None) -> float | None:
    return None if instant is None else instant.timestamp()


def readable_price(row: Price) -> PriceVersion:
    """The row as a price version; one that cannot be read has no prices, so that what it is used for is unpriced.

    To leave it out would let the version before it count.
    """
    try:
        return price_version(row)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        logger.error("price %s cannot be read and leaves its requests unpriced: %s", row.label, type(error).__name__)
        return PriceVersion(row.model, row.label, row.effective_from, row.currency, per_million={})


def price_version(row: Price) -> PriceVersion:
    """A price's row as the version that requests are rated by; ValueError and its like where it is not well made."""
    return PriceVersion(
        model=row.model,
        label=row.label,
        effective_from=row.effective_from,
        currency=row.currency,
        per_million={bucket: nanos for bucket in BUCKETS if (nanos := getattr(row, bucket)) is not None},
        tiers={tier: _tier(value) for tier, value in row.tiers.items()},
        long_context=_long_context(row.long_context),
        server_tools={tool[:MAX_TOOL]: int(nanos) for tool, nanos in row.server_tools.items()},
    )


def _tier(value: Any) -> Fraction | Mapping[str, int]:
    if isinstance(value, Mapping):
        return {bucket: int(nanos) for bucket, nanos in value.items()}
    return Fraction(str(value))


def _long_context(value: Mapping[str, Any] | None) -> LongContext | None:
    if value is None:
        return None
    return LongContext(int(value["above"]), Fraction(str(value["input"])), Fraction(str(value["output"])))
