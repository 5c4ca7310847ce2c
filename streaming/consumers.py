"""The routes' consumers: they read a request, let the gateway run it, and notice when the client leaves. No rules.

`AsyncHttpConsumer` reads `http.disconnect` only after its handler returned; these override `__call__` and race the
relay against the next `receive()` instead.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import orjson
from channels.generic.http import AsyncHttpConsumer
from django.conf import settings
from django.db import InterfaceError, OperationalError
from prometheus_client import CONTENT_TYPE_LATEST
from uuid_utils.compat import uuid7

from billing import views as billing_views
from billing.catalogue import KeyEntry
from billing.request_ids import REQUEST_ID, request_id
from streaming import gateway as gateways
from streaming import metrics
from streaming.auth import Address, authenticate, client_address
from streaming.catalogue import ModelEntry
from streaming.client import Client, Send
from streaming.counting import StreamCount
from streaming.errors import ApiError
from streaming.exposition import exposition
from streaming.limits import Hold
from streaming.protocols import CHAT_COMPLETIONS, WireFormat
from streaming.protocols.meter import BadRequest, RequestFacts
from streaming.relay import answer_error
from streaming.routes import Plan, ordered
from streaming.runs import Run
from streaming.settlement import open_row

log = logging.getLogger(__name__)

SANE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+/=-]{0,127}\Z")
JSON = b"application/json"
READ_OFF_S = 2.0
Receive = Callable[[], Awaitable[Mapping[str, Any]]]


class ClientLeft(Exception):
    """The client closed its connection before its request was read."""


class ApiConsumer(AsyncHttpConsumer):  # type: ignore[misc]
    """What all our routes share: the gateway, the key, the request's name, and errors in the route's own shape."""

    methods: tuple[str, ...] = ("GET",)
    wire: WireFormat = CHAT_COMPLETIONS
    """Whose error shape the route has."""
    gateway_now = staticmethod(gateways.current)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        self.scope, self.receive = scope, receive
        self.headers = {name.lower(): value for name, value in scope["headers"]}
        self.gateway = self.gateway_now()
        await self.gateway.start()
        self.id = uuid7()
        self.own_name = request_id(self.id)
        REQUEST_ID.set(self.own_name)
        self.body_is_open = True
        self.wished_name = sane_name(self.headers.get(b"x-request-id", b""))
        self.client = Client(send, self._name, time.monotonic)
        try:
            if scope["method"] not in self.methods:
                allowed = ", ".join(self.methods)
                raise ApiError("method_not_allowed", f"Use {allowed} here.", headers={"allow": allowed})
            await self.respond()
        except ApiError as error:
            await self._refuse(error)
        except ClientLeft:
            return
        except (OperationalError, InterfaceError) as error:
            log.error("%s %s: the database is away (%s)", scope["method"], self.own_name, type(error).__name__)
            await self._refuse(ApiError("service_unavailable", "The gateway's database does not answer. Try again."))
        except Exception:
            if self.client.started:  # the server can only break it off
                raise
            log.exception("%s %s failed", scope["method"], self.own_name)
            await self._refuse(ApiError("internal_error", "The gateway failed to answer this request."))

    async def _refuse(self, error: ApiError) -> None:
        metrics.REFUSALS.labels(error.error.code).inc()
        linger = self._read_off if self.scope["method"] == "POST" else None
        await answer_error(self.client, self.wire, error, linger)

    async def _read_off(self) -> None:
        """Read and forget the rest of the body: closing the connection before that could lose the answer."""
        try:
            async with asyncio.timeout(READ_OFF_S):
                while self.body_is_open and (message := await self.receive())["type"] != "http.disconnect":
                    self.body_is_open = message.get("more_body", False)
        except TimeoutError:
            return  # the client had time enough to read its answer

    async def _name(self) -> str:
        return self.wished_name or self.own_name

    async def respond(self) -> None:
        """Answer the request; ApiError becomes an answer too."""
        raise ApiError("route_not_found", f"There is no route {self.scope['path'][:200]}. See the API's documentation.")

    async def key(self) -> KeyEntry:
        """The key of the request, checked from the headers alone."""
        return await authenticate(
            self.headers, self._address, time.time(), self.gateway.catalogue.billing.key_by_digest,
            self.gateway.key_in_database, settings.KEY_PEPPER, self.gateway.key_uses.note,
        )  # fmt: skip

    def _address(self) -> Address | None:
        peer = (self.scope.get("client") or [None])[0]
        return client_address(peer, self.headers, settings.TRUSTED_PROXIES)

    async def counted_key(self) -> KeyEntry:
        """The key of a request that uses no tokens, counted against its requests per minute."""
        key = await self.key()
        self.client.limits = await self.gateway.limits.admit_bare(self.id, key, dt.datetime.now(dt.UTC))
        return key

    async def answer_json(self, value: Any) -> None:
        """A whole answer."""
        await self.client.answer(200, [(b"content-type", JSON)], orjson.dumps(value))

    def query(self) -> dict[str, str]:
        """The query's values, the last of each name."""
        raw = self.scope.get("query_string", b"").decode("latin-1")
        if not raw:
            return {}
        return {name: values[-1] for name, values in parse_qs(raw, keep_blank_values=True).items()}


def sane_name(value: bytes) -> str | None:
    """The client's `x-request-id` where it is a token of at most 128 plain characters."""
    text = value.decode("latin-1")
    return text if SANE_NAME.match(text) else None


class NotFoundConsumer(ApiConsumer):
    """Every path under /v1/ that is no route."""

    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class RelayConsumer(ApiConsumer):
    """A wire format's route: `as_asgi(wire=…)`; `billed=False` for count_tokens."""

    methods = ("POST",)
    billed = True

    def __init__(self, wire: WireFormat, billed: bool = True) -> None:
        self.wire, self.billed = wire, billed

    async def respond(self) -> None:
        if self.gateway.draining:
            raise ApiError(
                "service_unavailable", "The gateway is shutting down. Try again.", headers={"connection": "close"}
            )
        await self._race(*await self._begun(await self.key()))

    async def _begun(self, key: KeyEntry) -> tuple[asyncio.Task[None], Run]:
        """Read the body and begin. Once this has returned only the run holds the body, and can let it go."""
        raw = await self._read_body()
        self.hold: Hold | None = None
        try:
            return await self._begin(key, raw)
        except BaseException:
            self.gateway.limits.drop(self.hold)
            self.gateway.bodies.release(len(raw))
            raise

    async def _read_body(self) -> bytes:
        """The body, refused as soon as it is known to be too large; its bytes count among the process's bodies."""
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ApiError("unsupported_content_encoding", "Send the body without Content-Encoding.")
        limit, bodies = settings.MAX_BODY_BYTES, self.gateway.bodies
        announced = self.headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        held, more = 0, True
        try:
            while more:
                part, more = await self._receive_part()
                bodies.hold(len(part))
                held += len(part)
                parts.append(part)
                if held > limit:
                    raise _too_large(limit)
        except BaseException:
            bodies.release(held)
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _receive_part(self) -> tuple[bytes, bool]:
        try:
            async with asyncio.timeout(settings.BODY_TIMEOUT_S):
                message = await self.receive()
        except TimeoutError:
            seconds = settings.BODY_TIMEOUT_S
            raise ApiError(
                "request_timeout", f"No byte of the body came for {seconds:g} s.",
                headers={"x-should-retry": "false", "connection": "close"},
            ) from None  # fmt: skip
        if message["type"] == "http.disconnect":
            raise ClientLeft
        self.body_is_open = message.get("more_body", False)
        return message.get("body", b""), message.get("more_body", False)

    async def _begin(self, key: KeyEntry, raw: bytes) -> tuple[asyncio.Task[None], Run]:
        facts = read_facts(self.wire, raw)
        model = allowed_model(self.gateway.catalogue.models, key, facts.model)
        routes = ordered(model, self.wire.name, lambda routes, weights: random.choices(routes, weights)[0])  # noqa: S311
        if facts.stored:
            routes = await self.gateway.stored.routes_for(key.account.id, facts.stored, routes)
        if not routes:
            raise ApiError(
                "no_available_route", f"No route to {model.name} is available for this API. Try another model.",
                headers={"x-should-retry": "false"},
            )  # fmt: skip
        routes = self.gateway.health.usable(routes)
        started_at = dt.datetime.now(dt.UTC)
        await self._admit(key, raw, facts, started_at)
        row, retry_count, factor_ppm = None, _retry_count(self.headers), self._count_factor_ppm(model)
        if self.billed:
            row = open_row(
                self.id,
                self.own_name,
                self.wished_name,
                self.gateway.process,
                key,
                facts,
                self.wire.name,
                routes[0],
                started_at,
                retry_count=retry_count,
                silence_limit_s=model.stall_s if facts.stream else model.total_timeout_s,
                count_factor_ppm=factor_ppm,
            )
            self.client.wait_for_name(self.gateway.open(row))
        run = Run(
            id=self.id, wire=self.wire, facts=facts, raw=raw, key=key, model=model, client=self.client,
            count=StreamCount(factor_ppm), headers=self.scope["headers"],
            query="?beta=true" if self.query().get("beta") == "true" else "", started_at=started_at,
            retry_count=retry_count, hold=self.hold,
        )  # fmt: skip
        return self.gateway.begin(run, Plan(routes, settings.MAX_ATTEMPTS), row), run

    def _count_factor_ppm(self, model: ModelEntry) -> int | None:
        """What our counts are scaled by: as fitted from the model's records, else as its wire format says."""
        assumed = self.wire.count_factor_ppm
        return assumed and (self.gateway.catalogue.billing.count_factor_ppm(model.name) or assumed)

    async def _admit(self, key: KeyEntry, raw: bytes, facts: RequestFacts, now: dt.datetime) -> None:
        """Count the request against its key's limits; ApiError is their refusal."""
        limits = self.gateway.limits
        if not self.billed:
            self.client.limits = await limits.admit_bare(self.id, key, now)
            return
        self.hold = await limits.admit(self.id, key, raw, facts, now)
        if (hold := self.hold) is not None:
            self.client.limits = hold.headers
            self.client.before_end = lambda: limits.ended(hold)

    async def _race(self, task: asyncio.Task[None], run: Run) -> None:
        """Wait for the relay's end or the client's, whichever comes first."""
        gone = asyncio.ensure_future(self._disconnected())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not task.done():
                self.gateway.client_left(run, task)

    async def _disconnected(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass


def _too_large(limit: int) -> ApiError:
    message = f"The body is larger than {limit} bytes."
    return ApiError("request_too_large", message, headers={"connection": "close"})


def _retry_count(headers: Mapping[bytes, bytes]) -> int:
    value = headers.get(b"x-stainless-retry-count", b"")
    return min(int(value), 1000) if value.isdigit() else 0


def read_facts(wire: WireFormat, raw: bytes) -> RequestFacts:
    """What a body says; ApiError names the field and the remedy."""
    try:
        return wire.read_request(raw)
    except BadRequest as error:
        raise ApiError(error.code, str(error), param=error.param) from None


def allowed_model(models: Mapping[str, ModelEntry], key: KeyEntry, name: str) -> ModelEntry:
    """The model that a key asks for, where it exists and the key may use it."""
    model = models.get(name)
    if model is None or not (key.allowed_models is None or name in key.allowed_models):
        message = f"The model {name[:200]!r} does not exist or this API key may not use it."
        raise ApiError("model_not_found", message, param="model")
    return model


class ModelsConsumer(ApiConsumer):
    """GET /v1/models and /v1/models/{id}: one body that both SDK families read."""

    async def respond(self) -> None:
        key = await self.counted_key()
        names = sorted(
            name for name in self.gateway.catalogue.models if key.allowed_models is None or name in key.allowed_models
        )
        wanted = self.scope["url_route"]["kwargs"].get("name")
        if wanted is not None:
            allowed_model(self.gateway.catalogue.models, key, wanted)
            await self.answer_json(described(wanted))
            return
        await self.answer_json(
            {
                "object": "list", "data": [described(name) for name in names], "has_more": False,
                "first_id": names[0] if names else None, "last_id": names[-1] if names else None,
            }
        )  # fmt: skip


def described(name: str) -> dict[str, Any]:
    """A model as OpenAI and Anthropic describe one; when it was made is not told."""
    return {
        "id": name, "object": "model", "created": 0, "owned_by": "hopbase",
        "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z",
    }  # fmt: skip


class UsageConsumer(ApiConsumer):
    """GET /v1/usage: the calling key's usage and budget for a period."""

    async def respond(self) -> None:
        key = await self.counted_key()
        try:
            page = await self.gateway.in_database(billing_views.usage, key.id, self.query(), dt.datetime.now(dt.UTC))
        except billing_views.BadQuery as error:
            raise ApiError("invalid_request_error", str(error), param=error.param) from None
        await self.answer_json(page)


class UsageRequestConsumer(ApiConsumer):
    """GET /v1/usage/requests/{request_id}: one request of this key, itemised."""

    async def respond(self) -> None:
        key = await self.key()
        name = self.scope["url_route"]["kwargs"]["name"]
        found = None
        if SANE_NAME.match(name):  # no request has any other; PostgreSQL would refuse a NUL
            found = await self.gateway.in_database(billing_views.usage_request, key.id, name)
        if found is None:
            message = f"No ended request {name[:128]!r} of this API key. A refused request leaves none."
            if since := await self.gateway.in_database(billing_views.itemised_from):
                message += f" Those that began before {since:%Y-%m-%d} (UTC) are summed in /v1/usage alone."
            raise ApiError("request_not_found", message)
        await self.answer_json(found)


class HealthConsumer(ApiConsumer):
    """GET /healthz: the process answers."""

    methods = ("GET", "HEAD")

    async def respond(self) -> None:
        await self.answer_json({"status": "ok"})


class ReadyConsumer(ApiConsumer):
    """GET /readyz: whether requests should be sent here."""

    methods = ("GET", "HEAD")

    async def respond(self) -> None:
        problems = self.gateway.problems()
        told = [*problems, *self.gateway.impairments()]
        body = orjson.dumps({"status": "unavailable" if problems else "ready", "problems": told})
        await self.client.answer(503 if problems else 200, [(b"content-type", JSON)], body)


class MetricsConsumer(ApiConsumer):
    """GET /metrics, for loopback and the networks of a setting; never through a proxy."""

    async def respond(self) -> None:
        peer = (self.scope.get("client") or ["0.0.0.0"])[0]  # noqa: S104 - stands for "unknown"
        if b"x-forwarded-for" in self.headers or not may_read_metrics(peer):
            raise ApiError("route_not_found", "There is no route /metrics for this address.")
        body = await asyncio.to_thread(exposition)
        await self.client.answer(200, [(b"content-type", CONTENT_TYPE_LATEST.encode())], body)


def may_read_metrics(peer: str) -> bool:
    """Loopback, a Unix socket's empty peer, or a network of HOPBASE_METRICS_NETWORKS."""
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer == ""
    return address.is_loopback or any(address in network for network in settings.METRICS_NETWORKS)
