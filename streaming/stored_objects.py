"""Objects that a provider keeps for us (responses, containers): whose they are, and which route made them.

All customers share our account with a provider, so the provider would give anyone's object to anyone. An object belongs
to the account whose answer brought it, is known from that answer's first bytes on, and is asked for where it was made.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import Error as DatabaseError

from billing.ledger import BroughtObjects, is_object_id
from billing.models import StoredObject
from streaming.catalogue import RouteEntry
from streaming.errors import ApiError

NOT_FOUND_CODES = {
    "previous_response_id": "previous_response_not_found",
    "container": "container_not_found",
    "audio.id": "invalid_request_error",
}
"""The fields whose ids may be named by the account that they belong to; all others are for shared providers alone."""

KEPT = 50_000
"""Objects in memory: some 15 MB. The others are in the database."""

MOST_ASKED = 100
"""No conversation names more objects than these; the rest counts as unknown."""

ANSWER_S = 2.0
"""A database that says nothing for this long counts as down."""

WAITS_S = (0.1, 0.4)
"""An answer that another process is just passing on may not be committed yet: an unknown id is looked up again."""


@dataclass(frozen=True, slots=True)
class Maker:
    """The route that made an object, as it was then."""

    route_id: int | None
    provider: str
    upstream_model: str


Makers = Mapping[str, Maker]
Stored = Mapping[str, Sequence[str]]
"""What a request names: field -> ids."""


class StoredObjects:
    """Whose the objects are: the newest in memory, all in the database. One per event loop.

    `remember` hands them to the ledger; `in_database` runs a synchronous read in a thread; `sleep` is a seam for tests.
    """

    def __init__(
        self,
        remember: Callable[[BroughtObjects], Future[None]],
        in_database: Callable[..., Awaitable[Any]],
        *,
        kept: int = KEPT,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._remember, self._in_database, self._kept, self._sleep = remember, in_database, kept, sleep
        self._makers: OrderedDict[tuple[int, str], Maker] = OrderedDict()

    def brought(self, account_id: int, request: UUID, route: RouteEntry, ids: Sequence[str]) -> None:
        """An answer to this account brings these objects (all so far): they are known before the client sees them."""
        if not (ids := [id for id in ids if is_object_id(id)]):
            return
        provider, upstream_model = route.provider.name, route.upstream_model
        self._keep(account_id, dict.fromkeys(ids, Maker(route.id, provider, upstream_model)))
        now = dt.datetime.now(dt.UTC)
        self._remember(BroughtObjects(request, account_id, provider, upstream_model, route.id, tuple(ids), now))

    def _keep(self, account_id: int, makers: Makers) -> None:
        for id, maker in makers.items():
            self._makers[account_id, id] = maker
            self._makers.move_to_end((account_id, id))
        while len(self._makers) > self._kept:
            self._makers.popitem(last=False)

    async def routes_for(self, account_id: int, stored: Stored, routes: Sequence[RouteEntry]) -> list[RouteEntry]:
        """Those of the routes that may take a request which names these objects; ApiError where none may."""
        ids = [id for name in NOT_FOUND_CODES for id in stored.get(name, ())]
        waits_s = () if any(map(is_shared, routes)) else WAITS_S
        return able_routes(stored, await self.makers(account_id, ids[:MOST_ASKED], waits_s), routes)

    async def makers(self, account_id: int, ids: Iterable[str], waits_s: Sequence[float] = WAITS_S) -> dict[str, Maker]:
        """Who made those of the objects that belong to the account; ApiError when the database does not answer."""
        wanted = {id for id in ids if is_object_id(id)}
        found = self._in_memory(account_id, wanted)
        for wait_s in (0.0, *waits_s):
            if not (missing := wanted - found.keys()):
                break
            if wait_s:
                await self._sleep(wait_s)
            found |= self._in_memory(account_id, missing)
            found |= await self._looked_up(account_id, missing - found.keys())
        return found

    def _in_memory(self, account_id: int, ids: Collection[str]) -> dict[str, Maker]:
        known = {id: maker for id in ids if (maker := self._makers.get((account_id, id))) is not None}
        for id in known:
            self._makers.move_to_end((account_id, id))
        return known

    async def _looked_up(self, account_id: int, ids: Collection[str]) -> dict[str, Maker]:
        if not ids:
            return {}
        try:
            async with asyncio.timeout(ANSWER_S):
                found: dict[str, Maker] = await self._in_database(look_up, account_id, ids)
        except (DatabaseError, TimeoutError):
            raise ApiError("service_unavailable", "The gateway's database does not answer. Try again.") from None
        self._keep(account_id, found)
        return found


def look_up(account_id: int, ids: Collection[str]) -> dict[str, Maker]:
    """The makers of an account's objects, from the database."""
    rows = StoredObject.objects.filter(account=account_id, object_id__in=ids)
    return {
        id: Maker(route_id, provider, upstream_model)
        for id, route_id, provider, upstream_model in rows.values_list(
            "object_id", "route_id", "provider", "upstream_model"
        )
    }


# --- which routes may take a request; pure ---


def is_shared(route: RouteEntry) -> bool:
    """Whether all customers may name what is stored with the route's provider."""
    return route.provider.stored_objects == "shared"


def able_routes(stored: Stored, makers: Makers, routes: Sequence[RouteEntry]) -> list[RouteEntry]:
    """The routes that may take a request: those that made its own objects, and shared ones for all other objects."""
    own = [name for name in NOT_FOUND_CODES if any(id in makers for id in stored.get(name, ()))]
    able = list(routes)
    if own:
        able = _where_made(own, {makers[id] for name in own for id in stored[name] if id in makers}, routes)
    foreign = [(name, id) for name, ids in stored.items() for id in ids if name not in own or id not in makers]
    if not foreign or not able:
        return able
    shared = [route for route in able if is_shared(route)]
    if not shared:
        raise _refusal(*foreign[0])
    return shared


def _where_made(own: Sequence[str], makers: Collection[Maker], routes: Sequence[RouteEntry]) -> list[RouteEntry]:
    """The very routes that made the objects; where the model has them no more, the others of the same provider."""
    names = " and ".join(f"`{name}`" for name in own)
    providers = {maker.provider for maker in makers}
    if len(providers) > 1:
        raise ApiError("invalid_request_error", f"What {names} name cannot be used together.", param=own[-1])
    same = [route for route in routes if route.provider.name in providers]
    exact = [route for route in same if route.id in {maker.route_id for maker in makers}]
    able = [route for route in exact or same if not route.out_reason]
    if not able:
        message = f"The route that made what {names} names is not available now, and no other one knows it."
        raise ApiError("no_available_route", message, headers={"x-should-retry": "false"})
    return able


def _refusal(name: str, id: str) -> ApiError:
    if (code := NOT_FOUND_CODES.get(name)) is not None:
        return ApiError(
            code, f"`{name}` {id[:100]!r} is not the id of anything that an answer to you made.", param=name
        )
    return ApiError("unsupported_parameter", f"`{name}` is not supported here: send the content itself.", param=name)
