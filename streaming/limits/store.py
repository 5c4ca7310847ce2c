"""The limits as all processes count them, in Redis: the scripts, and one connection that takes them in groups.

What is queued goes out at once, in one round trip, and what comes meanwhile is the next group. So calls keep their
order, and a thousand admissions cost far less than a thousand round trips.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from redis.exceptions import NoScriptError, RedisError

from streaming import metrics
from streaming.redis_client import ANSWER_S, AWAY, Line

log = logging.getLogger(__name__)

MARK = "hopbase:limits:mark"
"""Holds a random value as long as the store has its memory: another value, or none, and all holds must be told anew."""
MAX_GROUP = 500
_COMMON = (Path(__file__).parent / "common.lua").read_text()


class Script:
    """One of the Lua files beside this one."""

    def __init__(self, name: str) -> None:
        self.text = f"{_COMMON}\n{(Path(__file__).parent / f'{name}.lua').read_text()}"
        self.sha = hashlib.sha1(self.text.encode()).hexdigest()  # noqa: S324 - Redis names scripts so


ADMIT, SETTLE, RENEW, TAKE = Script("admit"), Script("settle"), Script("renew"), Script("take")
SCRIPTS = (ADMIT, SETTLE, RENEW, TAKE)

Call = tuple[Script, Sequence[str], Sequence[str | int]]


def place(key_id: int, name: str) -> str:
    """Where something of a key is kept; in a cluster all of it lies in one slot."""
    return f"hopbase:limits:{{{key_id}}}:{name}"


def member(process: uuid.UUID, request: str) -> str:
    """A request in Redis: by its process too, so that what a dead one held can be found."""
    return f"{process.hex}/{request}"


def request_of(member: str) -> uuid.UUID:
    """The billing identity of a request in Redis."""
    return uuid.UUID(member.partition("/")[2])


class Store:
    """`available`: whether Redis answered the last time. Calls fail at once while it does not."""

    def __init__(self, url: str, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._line = Line(url)
        self._spawn = spawn
        self._queue: list[tuple[Call, asyncio.Future[Any]]] = []
        self._is_sending = False
        self._mark: bytes | None = None
        self.available = True

    def call(self, script: Script, keys: Sequence[str], arguments: Sequence[str | int]) -> asyncio.Future[Any]:
        """Queue a script; what it resolves to is its answer, or one of `AWAY`."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.append(((script, keys, arguments), done))
        if not self._is_sending:
            self._is_sending = True
            self._spawn(self._send())
        return done

    async def _send(self) -> None:
        group: list[tuple[Call, asyncio.Future[Any]]] = []
        try:
            while self._queue:
                group, self._queue = self._queue[:MAX_GROUP], self._queue[MAX_GROUP:]
                await self._send_group(group)
        finally:
            self._is_sending = False
            for _, done in group:  # nobody may wait for ever, whatever ended this
                if not done.done():
                    done.cancel()

    async def _send_group(self, group: Sequence[tuple[Call, asyncio.Future[Any]]]) -> None:
        try:
            if not self.available:
                raise ConnectionError("Redis was away a moment ago")
            async with asyncio.timeout(ANSWER_S):
                answers = await self._answers([call for call, _ in group])
        except AWAY as error:
            self._is_away(error)
            answers = [error] * len(group)
        for (_, done), answer in zip(group, answers, strict=True):
            if done.done():
                continue
            if isinstance(answer, Exception):
                self._is_away(answer)
                done.set_exception(answer)
                done.exception()  # whoever waits is told; that nobody does is no news
            else:
                done.set_result(answer)

    async def _answers(self, calls: Sequence[Call]) -> list[Any]:
        """The scripts' answers, or their errors. One that Redis does not know has done nothing, and is sent again."""
        answers = await self._run(calls)
        unknown = [at for at, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            await self._line.run([("SCRIPT", "LOAD", script.text) for script in SCRIPTS])
            again = await self._run([calls[at] for at in unknown])
            for at, answer in zip(unknown, again, strict=True):
                answers[at] = answer
        return answers

    async def _run(self, calls: Sequence[Call]) -> list[Any]:
        return await self._line.run(
            [("EVALSHA", script.sha, len(keys), *keys, *arguments) for script, keys, arguments in calls]
        )

    async def beat(self) -> bool:
        """See whether Redis is there; returns whether it has forgotten us since the last time, or never knew us."""
        try:
            async with asyncio.timeout(ANSWER_S):
                written, mark = await self._line.run([("SET", MARK, uuid.uuid4().hex, "NX"), ("GET", MARK)])
            for answer in (written, mark):
                if isinstance(answer, RedisError):
                    raise answer
        except AWAY as error:
            self._is_away(error)
            return False
        if not self.available:
            log.warning("Redis answers again: limits are counted over all processes")
        self.available, was_away = True, not self.available
        metrics.LIMITS_PER_PROCESS.set(0)
        known, self._mark = self._mark, mark
        return was_away or known != mark

    def _is_away(self, error: Exception) -> None:
        if self.available:
            log.error("Redis is away (%s): limits are counted per process", type(error).__name__)
        self.available = False
        metrics.LIMITS_PER_PROCESS.set(1)

    async def aclose(self) -> None:
        await self._line.aclose()
