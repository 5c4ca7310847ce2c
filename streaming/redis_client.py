"""How Redis is talked to beside Celery: one try, and an answer within a second or none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import hiredis
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

ANSWER_S = 1.0
AWAY = (RedisError, OSError, TimeoutError)
"""What a call raises when Redis is away, still loading, or will not write."""
Command = tuple[Any, ...]
"""Name and arguments: texts, bytes and whole numbers."""


def connect(url: str, *, answer_s: float | None = ANSWER_S) -> redis.asyncio.Redis:
    """A client that never tries twice: the library's own would for seconds, and a request may wait for it.

    `answer_s` None: the caller watches the time, once for all that a call does; the library takes a task for each step.
    """
    no_retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
    return redis.asyncio.from_url(url, socket_timeout=answer_s, socket_connect_timeout=ANSWER_S, retry=no_retry)


class Line:
    """One connection for groups of commands, made when it is first asked for and again after it broke.

    The library's own client takes three to four times as long for a command, most of it beside the connection. Groups
    take turns; callers watch the time, and whatever ends a group before its last answer ends the connection too.
    """

    def __init__(self, url: str) -> None:
        self._pool = connect(url, answer_s=None).connection_pool
        self._connection: Any = None
        self._turn = asyncio.Lock()

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """The answers in order, what Redis refused as the exceptions that say so; one of `AWAY` without Redis."""
        async with self._turn:
            connection = await self._connected()
            try:
                packed = [hiredis.pack_command(command) for command in commands]
                await connection.send_packed_command(packed, check_health=False)
                return [await _answer(connection) for _ in commands]
            except BaseException:
                await self.aclose()
                raise

    async def _connected(self) -> Any:
        if self._connection is not None and self._connection._reader.at_eof():  # Redis was started anew meanwhile
            await self.aclose()
        if self._connection is not None:
            return self._connection
        self._connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            await self._connection.connect()
        except BaseException:
            await self.aclose()
            raise
        return self._connection

    async def aclose(self) -> None:
        """Close the connection; the next group makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


async def _answer(connection: redis.asyncio.Connection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:  # an answer like any other: the connection is in step
        return error


def connect_synchronously(url: str) -> redis.Redis:
    """The same for the admin and for sweeps, outside the event loop."""
    no_retry = Retry(NoBackoff(), 0)
    return redis.Redis.from_url(url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S, retry=no_retry)


def answers(url: str) -> bool:
    """Whether Redis is there, asked synchronously."""
    try:
        with connect_synchronously(url) as client:
            return bool(client.ping())
    except AWAY:
        return False
