"""How Redis is talked to beside Celery: one try, and an answer within a second or none."""

from __future__ import annotations

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

ANSWER_S = 1.0
AWAY = (RedisError, OSError, TimeoutError)
"""What a call raises when Redis is away, still loading, or will not write."""


def connect(url: str, *, answer_s: float | None = ANSWER_S) -> redis.asyncio.Redis:
    """A client that never tries twice: the library's own would for seconds, and a request may wait for it.

    `answer_s` None: the caller watches the time, once for all that a call does; the library takes a task for each step.
    """
    no_retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
    return redis.asyncio.from_url(url, socket_timeout=answer_s, socket_connect_timeout=ANSWER_S, retry=no_retry)


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
