"""The ASGI application: the API's consumers, Django for the admin, the customers' pages, the gateway's start and end.

`HOPBASE_ROLE` (set by `manage.py serve --role`) says what this process serves: all, gateway or admin.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hopbase_site.settings")

from django.core.asgi import get_asgi_application
from django.urls import get_resolver
from uuid_utils.compat import uuid7

django_application = get_asgi_application()

from billing.request_ids import REQUEST_ID, request_id  # noqa: E402
from hopbase_site import api_docs  # noqa: E402 - the models need Django set up first
from streaming import gateway, tracing  # noqa: E402
from streaming.routing import gateway_router, health_router  # noqa: E402

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

ROLE = os.environ.get("HOPBASE_ROLE", "all")
if ROLE != "gateway":
    get_resolver().url_patterns  # noqa: B018 - now: the first request would load the pages in the event loop
HEALTH_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})


async def application(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Dispatch by path: the API never reaches Django's middleware."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["type"] != "http":
        await send({"type": "websocket.close"})
    elif ROLE != "admin" and (scope["path"].startswith("/v1/") or scope["path"] == "/v1"):
        await gateway_router(scope, receive, send)
    elif scope["path"] in HEALTH_PATHS:
        await health_router(scope, receive, send)
    elif api_docs.is_docs(scope["path"]):
        await api_docs.application(scope, send)
    elif ROLE == "gateway":
        await gateway_router({**scope, "path": "/v1/"}, receive, send)
    else:
        await _page(scope, receive, send)


async def _page(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """A page of Django's, with a name for its log lines, and a span where there are traces."""
    REQUEST_ID.set(named := request_id(uuid7()))
    if (tracer := tracing.tracer()) is None:
        await django_application(scope, receive, send)
        return
    from opentelemetry.trace import SpanKind

    about = {"http.request.method": scope["method"], "url.path": scope["path"], "hopbase.request_id": named}
    with tracer.start_as_current_span(
        f"{scope['method']} page", kind=SpanKind.SERVER, attributes=about, record_exception=False
    ):
        await django_application(scope, receive, send)


async def _lifespan(receive: Receive, send: Send) -> None:
    while (await receive())["type"] == "lifespan.startup":
        await gateway.current().start()
        await send({"type": "lifespan.startup.complete"})
    await gateway.current().aclose()
    await send({"type": "lifespan.shutdown.complete"})


def begin_drain() -> None:
    """Take no new API request: called at SIGTERM, before the server stops."""
    gateway.current().begin_drain()


def end_runs() -> None:
    """End and bill at once what still runs: its time is over. Called from the event loop."""
    gateway.current().end_runs()


async def aclose() -> None:
    """Write what is left and stop, for a server that knows no lifespan."""
    await gateway.current().aclose()


def drained() -> bool:
    """Whether every request that was under way has ended and is settled."""
    return gateway.current().drained
