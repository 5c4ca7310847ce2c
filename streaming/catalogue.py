"""Models, routes and providers in memory, beside the accounts, keys and prices of `billing.catalogue`.

A poll reads one integer, and then only what changed since. Readers take no lock: a change replaces the mapping.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from django.conf import settings
from django.db import connections

from billing.catalogue import BillingCatalogue
from billing.models import CatalogueRow, CatalogueVersion
from streaming.credentials import CredentialUnreadable, decrypt
from streaming.models import Model, Provider, Route

logger = logging.getLogger(__name__)
Row = TypeVar("Row", bound=CatalogueRow)

CREATED = 0
"""When a model was made, as /v1/models says: the SDKs want a number there, and nobody keeps the true one."""

STALE_S = 10.0
STOP_S = 1.0
"""After this long without a successful poll the catalogue is not healthy: a revoked key could still be let in."""


@dataclass(frozen=True, slots=True)
class ProviderEntry:
    """A company whose API we call, with its credential in the clear."""

    id: int
    name: str
    base_url: str
    credential: str = field(repr=False)
    auth: str
    wire_formats: frozenset[str]
    drain_s: int | None
    max_drains: int | None
    stored_objects: str
    ratelimit_headers: str
    reasoning_outside: frozenset[str]
    active: bool


def provider_entry(row: Provider, encryption_keys: Sequence[str]) -> ProviderEntry:
    """A provider as the gateway calls it; CredentialUnreadable where the keys do not open its credential."""
    return ProviderEntry(
        id=row.id,
        name=row.name,
        base_url=row.base_url,
        credential=decrypt(row.credential, encryption_keys, provider=row.name),
        auth=row.auth,
        wire_formats=frozenset(row.wire_formats),
        drain_s=row.drain_s,
        max_drains=row.max_drains,
        stored_objects=row.stored_objects,
        ratelimit_headers=row.ratelimit_headers,
        reasoning_outside=frozenset(row.reasoning_outside),
        active=row.active,
    )


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """A way to a provider's model. `out_reason`: why it is out until an operator acts, "" while it is in."""

    id: int
    provider: ProviderEntry
    upstream_model: str
    priority: int
    weight: int
    out_reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A public model and its ways, by priority and then id: only active routes of active, readable providers."""

    name: str
    stall_s: int
    total_timeout_s: int
    created: int
    routes: tuple[RouteEntry, ...]


class Catalogue:
    """All that the request path reads. `refresh` reads the database, synchronously, in any thread.

    `unreadable` names the providers whose credential does not decrypt; their routes are out.
    """

    def __init__(
        self,
        *,
        billing: BillingCatalogue | None = None,
        encryption_keys: Sequence[str] | None = None,
        stall_range_s: tuple[int, int] | None = None,
    ) -> None:
        self.billing = billing or BillingCatalogue()
        self.models: Mapping[str, ModelEntry] = MappingProxyType({})
        self.unreadable: frozenset[str] = frozenset()
        self.version = -1
        self._encryption_keys = settings.ENCRYPTION_KEYS if encryption_keys is None else encryption_keys
        self._stall_range_s = stall_range_s or settings.STALL_RANGE_S
        self._refreshing = threading.Lock()
        self._providers: dict[int, ProviderEntry | CredentialUnreadable] = {}
        self._models: dict[int, Model] = {}
        self._routes: dict[int, Route] = {}

    def refresh(self) -> bool:
        """Take in what was changed and committed since the last time; returns whether anything was."""
        with self._refreshing:
            version = CatalogueVersion.current()
            if version == self.version:
                return False
            # A lower version means another database, restored or emptied: everything is read again.
            since = self.version if version > self.version else -1
            self.billing.load(since)
            self._load(since)
            self.version = version
            return True

    def _load(self, since: int) -> None:
        # Routes first: what they point to is committed no later than they are, so it cannot be missing.
        self._routes = {**self._routes, **_changed(Route, since)}
        self._models = {**self._models, **_changed(Model, since)}
        for id, row in _changed(Provider, since).items():
            self._providers[id] = self._provider(row)
        self._forget_deleted()
        self.unreadable = frozenset(
            entry.provider for entry in self._providers.values() if isinstance(entry, CredentialUnreadable)
        )
        entries = (self._entry(row) for row in self._models.values() if row.active)
        self.models = MappingProxyType({entry.name: entry for entry in entries})

    def _forget_deleted(self) -> None:
        for model, kept in ((Route, self._routes), (Model, self._models), (Provider, self._providers)):
            there = set(model._default_manager.values_list("pk", flat=True))
            for id in kept.keys() - there:
                del kept[id]

    def _provider(self, row: Provider) -> ProviderEntry | CredentialUnreadable:
        try:
            return provider_entry(row, self._encryption_keys)
        except CredentialUnreadable as error:
            logger.error("%s; its routes are out", error)
            return error

    def _entry(self, row: Model) -> ModelEntry:
        least, most = self._stall_range_s
        routes = (self._route(route) for route in self._routes.values() if route.model_id == row.id)
        return ModelEntry(
            name=row.name,
            stall_s=min(max(row.stall_seconds, least), most),
            total_timeout_s=row.total_timeout_s,
            created=CREATED,
            routes=tuple(sorted(filter(None, routes), key=lambda route: (route.priority, route.id))),
        )

    def _route(self, row: Route) -> RouteEntry | None:
        """The route, or None where it leads nowhere now."""
        provider = self._providers.get(row.provider_id)
        if not row.active or not isinstance(provider, ProviderEntry) or not provider.active:
            return None
        return RouteEntry(row.id, provider, row.upstream_model, row.priority, row.weight, row.out_reason)


class CataloguePoller:
    """Refreshes a catalogue from a thread of its own, every `interval_s` and at once after `wake()`."""

    def __init__(
        self, catalogue: Catalogue, interval_s: float = 1.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._catalogue, self._interval_s, self._clock = catalogue, interval_s, clock
        self._thread = threading.Thread(target=self._run, name="catalogue", daemon=True)
        self._woken = threading.Event()
        self._stopping = False
        self.last_error: Exception | None = None
        self.succeeded_at: float | None = None
        """When a poll last succeeded, by the clock (monotonic seconds)."""

    @property
    def healthy(self) -> bool:
        """Whether the last poll succeeded, not long ago (one that hangs is none)."""
        if self.last_error is not None or self.succeeded_at is None:
            return False
        return self._clock() - self.succeeded_at < STALE_S + self._interval_s

    def start(self) -> None:
        """Start the thread; once. A catalogue that was loaded before counts as a poll that succeeded just now."""
        if self._catalogue.version >= 0:
            self.succeeded_at = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """End the thread; one that waits for a database that says nothing is left behind."""
        self._stopping = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def wake(self) -> None:
        """Poll now: something is known to have changed."""
        self._woken.set()

    def poll(self) -> None:
        """Refresh once. What goes wrong is kept in `last_error`; the catalogue stays as it was."""
        try:
            self._catalogue.refresh()
        except Exception as error:
            # Whatever it is, the thread must outlive it: without polls no revocation would ever be seen.
            if self.last_error is None:
                logger.exception("the catalogue cannot be refreshed")
            self.last_error = error
        else:
            self.last_error, self.succeeded_at = None, self._clock()

    def _run(self) -> None:
        while not self._stopping:
            self.poll()
            connections.close_all()
            self._woken.wait(self._interval_s)
            self._woken.clear()


def _changed(model: type[Row], since: int) -> dict[int, Row]:
    return {row.pk: row for row in model._default_manager.filter(changed_in__gt=since)}
