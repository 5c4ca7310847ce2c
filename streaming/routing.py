"""Which consumer answers which path. The wire format follows from the path, never from the body."""

from __future__ import annotations

from channels.routing import URLRouter
from django.urls import path, re_path

from streaming.consumers import (
    HealthConsumer,
    MetricsConsumer,
    ModelsConsumer,
    NotFoundConsumer,
    ReadyConsumer,
    RelayConsumer,
    UsageConsumer,
    UsageRequestConsumer,
)
from streaming.protocols import CHAT_COMPLETIONS, COUNT_TOKENS, MESSAGES, RESPONSES


class MessagesNotFound(NotFoundConsumer):
    """A path below /v1/messages that is no route: the error has the Messages shape."""

    wire = MESSAGES


health_routes = [
    path("healthz", HealthConsumer.as_asgi()),
    path("readyz", ReadyConsumer.as_asgi()),
    path("metrics", MetricsConsumer.as_asgi()),
]
api_routes = [
    path("v1/chat/completions", RelayConsumer.as_asgi(wire=CHAT_COMPLETIONS)),
    path("v1/responses", RelayConsumer.as_asgi(wire=RESPONSES)),
    path("v1/messages", RelayConsumer.as_asgi(wire=MESSAGES)),
    path("v1/messages/count_tokens", RelayConsumer.as_asgi(wire=COUNT_TOKENS, billed=False)),
    path("v1/models", ModelsConsumer.as_asgi()),
    path("v1/models/<path:name>", ModelsConsumer.as_asgi()),
    path("v1/usage", UsageConsumer.as_asgi()),
    path("v1/usage/requests/<path:name>", UsageRequestConsumer.as_asgi()),
    re_path(r"^v1/messages(/[\s\S]*)?\Z", MessagesNotFound.as_asgi()),
    re_path(r"^v1(/[\s\S]*)?\Z", NotFoundConsumer.as_asgi()),
]

gateway_router = URLRouter([*health_routes, *api_routes])
health_router = URLRouter(health_routes)
