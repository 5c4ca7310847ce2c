"""Which request the present task works for: what every log line and error report of it bears."""

from __future__ import annotations

from contextvars import ContextVar
from uuid import UUID

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID", default="")
"""Inherited by the tasks that a request starts, and by the threads that answer a page."""


def request_id(id: UUID) -> str:
    """Our own name of a request. What a client calls it (`x-request-id`) is on its record."""
    return f"req_{id.hex}"
