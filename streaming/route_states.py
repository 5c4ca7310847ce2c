"""The cooling routes of all processes, in one Redis hash: route id -> state as JSON. Only routes that cool are in it.

Redis that is away is no failure here: every call says so by its answer, and the process goes on with what it knows.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

import orjson
from django.conf import settings

from streaming.health import RouteState
from streaming.redis_client import AWAY, connect, connect_synchronously

log = logging.getLogger(__name__)

KEY = "hopbase:routes"
PROBE_KEY = "hopbase:probe:{}"


def _state(value: bytes | str) -> RouteState | None:
    """A state out of the hash; None for what another version wrote."""
    try:
        return RouteState(**orjson.loads(value))
    except (TypeError, orjson.JSONDecodeError):
        return None


def _states(found: Mapping[bytes | str, bytes | str]) -> dict[int, RouteState]:
    read = {int(route_id): _state(value) for route_id, value in found.items()}
    return {route_id: state for route_id, state in read.items() if state is not None}


class RouteStates:
    """The hash as the gateway's event loop sees it. `available`: whether Redis answered the last time."""

    def __init__(self, url: str) -> None:
        self._redis = connect(url)
        self.available = True

    async def read(self) -> dict[int, RouteState] | None:
        """All states; None when Redis is away."""
        try:
            found = await self._redis.hgetall(KEY)
        except AWAY as error:
            self._is_away(error)
            return None
        if not self.available:
            log.info("Redis answers again")
        self.available = True
        return _states(found)

    async def put(self, route_id: int, state: RouteState) -> bool:
        """Tell the others that a route cools; whether that worked."""
        try:
            await self._redis.hset(KEY, str(route_id), orjson.dumps(dataclasses.asdict(state)))
        except AWAY as error:
            return self._is_away(error)
        return True

    async def remove(self, route_id: int) -> bool:
        """Tell the others that a route is open again; whether that worked."""
        try:
            await self._redis.hdel(KEY, str(route_id))
        except AWAY as error:
            return self._is_away(error)
        return True

    async def take_probe(self, route_id: int, for_s: float) -> bool:
        """Whether this process may probe the route; without Redis each process may."""
        try:
            return bool(await self._redis.set(PROBE_KEY.format(route_id), b"1", nx=True, px=int(for_s * 1000)))
        except AWAY as error:
            self._is_away(error)
            return True

    async def give_probe(self, route_id: int) -> None:
        """The probe is over."""
        try:
            await self._redis.delete(PROBE_KEY.format(route_id))
        except AWAY as error:
            self._is_away(error)

    async def aclose(self) -> None:
        await self._redis.aclose()

    def _is_away(self, error: Exception) -> bool:
        if self.available:
            log.error("Redis is away (%s): route states are kept per process", type(error).__name__)
        self.available = False
        return False


# --- for the admin, synchronously ---


def read_all() -> dict[int, RouteState] | None:
    """The states that the processes share; None when Redis is away."""
    try:
        with connect_synchronously(settings.VALKEY_URL) as client:
            return _states(client.hgetall(KEY))
    except AWAY:
        return None


def reset(route_id: int) -> bool:
    """End a route's cool-down in every process, within a second; False when Redis is away."""
    try:
        with connect_synchronously(settings.VALKEY_URL) as client:
            client.hdel(KEY, str(route_id))
            client.delete(PROBE_KEY.format(route_id))
    except AWAY:
        return False
    return True
