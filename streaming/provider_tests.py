"""Testing a provider: one small real request per wire format, through the client and the meters that relay requests.

No account is billed and no route's health changes. The provider bills such a request all the same, so whoever runs one
keeps it (`billing.reconciliation.keep_test`). Nothing of it outlives the test: no thread, connection or stored object.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import time
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from billing.catalogue import AccountEntry, KeyEntry
from billing.usage import TokenUsage
from streaming.catalogue import ModelEntry, ProviderEntry, RouteEntry
from streaming.client import Client
from streaming.counting import StreamCount
from streaming.errors import Failure
from streaming.health import RouteHealth
from streaming.protocols import WIRE_FORMATS
from streaming.protocols.scrub import replacements, scrub_text
from streaming.relay import RelayOptions, relay
from streaming.routes import Plan
from streaming.runs import AttemptReport, Run
from streaming.ticker import Ticker, Timing
from streaming.upstream import Upstream

SILENCE_S = 12
"""How long a provider may say nothing."""
LIMIT_S = 18
"""How long the whole request of a wire format may take. They run side by side, while somebody waits for the page."""
MAX_ANSWER_BYTES = 256 * 1024
SHOWN_CHARACTERS = 4_000
NEVER_S = 3_600.0

QUESTION = "Reply with the one word OK."
ASKED = [{"role": "user", "content": QUESTION}]
BODIES: Mapping[str, Mapping[str, Any]] = {
    # No token limit: newer models refuse `max_tokens`, other providers `max_completion_tokens`. The time limits it.
    "chat_completions": {"messages": ASKED},
    "responses": {"input": QUESTION, "max_output_tokens": 64, "store": False},
    "messages": {"messages": ASKED, "max_tokens": 64},
}
HEADERS: Mapping[str, Sequence[tuple[bytes, bytes]]] = {"messages": [(b"anthropic-version", b"2023-06-01")]}
NOBODY = KeyEntry(
    id=0, name="", account=AccountEntry(0, "", "UTC", "USD", True), allowed_models=None, allowed_ips=(),
    expires_at=None, revoked=False, requests_per_minute=None, tokens_per_minute=None, concurrency=None,
    monthly_budget_nanos=None, previous_until=None,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one wire format fared. `text` is the answer or the error, scrubbed and cut; times are milliseconds.

    `reached`: the provider may have taken the request, and so may bill it. `usage` None: none was reported.
    """

    wire_format: str
    answered: bool
    ending: str
    reason: str
    reached: bool
    status: int | None
    headers_ms: int | None
    first_output_ms: int | None
    duration_ms: int
    usage: TokenUsage | None
    text: str
    started_at: dt.datetime
    ended_at: dt.datetime


class AnswerTooLarge(Exception):
    """The provider sends more than any answer to this question is."""


def run_tests(
    provider: ProviderEntry, upstream_model: str, wire_formats: Sequence[str], *, connect_timeout_s: float,
    limit_s: int = LIMIT_S, silence_s: int = SILENCE_S,
) -> list[Outcome]:  # fmt: skip
    """Ask a provider once per wire format, side by side; blocks for `limit_s` at most. Never raises for its faults."""
    return asyncio.run(_test_all(provider, upstream_model, wire_formats, connect_timeout_s, limit_s, silence_s))


async def _test_all(
    provider: ProviderEntry,
    upstream_model: str,
    wire_formats: Sequence[str],
    connect_timeout_s: float,
    limit_s: int,
    silence_s: int,
) -> list[Outcome]:
    clock = asyncio.get_running_loop().time
    upstream = Upstream(min(connect_timeout_s, limit_s))
    ticker = Ticker(Timing(NEVER_S, NEVER_S, NEVER_S, NEVER_S), lambda: None, clock)
    spawned: set[asyncio.Task[Any]] = set()

    def spawn(work: Coroutine[Any, Any, Any]) -> object:
        spawned.add(task := asyncio.ensure_future(work))
        return task

    async def untold(route_id: int, reason: str) -> bool:
        return True

    options = RelayOptions(
        upstream, ticker.streams, clock, spawn, MAX_ANSWER_BYTES, MAX_ANSWER_BYTES, set(),
        RouteHealth(Untold(), untold, spawn, time.time), lambda run, route, ids: None,
    )  # fmt: skip
    ticking = asyncio.ensure_future(ticker.run())
    try:
        tests = (_test(provider, upstream_model, name, options, limit_s, silence_s) for name in wire_formats)
        return list(await asyncio.gather(*tests))
    finally:
        ticking.cancel()
        await asyncio.gather(*spawned, return_exceptions=True)
        await upstream.aclose()


async def _test(
    provider: ProviderEntry, upstream_model: str, wire_format: str, options: RelayOptions, limit_s: int,
    silence_s: int,
) -> Outcome:  # fmt: skip
    heard = _Heard()
    route = RouteEntry(0, provider, upstream_model, 0, 1)
    run = _run(wire_format, route, heard, options, silence_s)
    began, cut = options.clock(), ""
    try:
        async with asyncio.timeout(limit_s):
            await relay(run, OneRequest([route], 2), options)
    except TimeoutError:
        cut = f"cut off by the test after {limit_s} s"
    except AnswerTooLarge as too_large:
        cut = str(too_large)
    return _result(run, heard, options.clock() - began, began, cut)


def _run(wire_format: str, route: RouteEntry, heard: _Heard, options: RelayOptions, silence_s: int) -> Run:
    """The request of a client that is ourselves. The model bears the provider's own name: nothing is renamed."""
    wire = WIRE_FORMATS[wire_format]
    raw = json.dumps({"model": route.upstream_model, "stream": True, **BODIES[wire_format]}).encode()
    model = ModelEntry(route.upstream_model, silence_s, LIMIT_S, 0, (route,))

    async def name() -> str:
        return "test"

    return Run(
        id=uuid.uuid4(), wire=wire, facts=wire.read_request(raw), raw=raw, key=NOBODY, model=model,
        client=Client(heard, name, options.clock), count=StreamCount(), headers=HEADERS.get(wire_format, ()), query="",
        started_at=dt.datetime.now(dt.UTC),
    )  # fmt: skip


def _result(run: Run, heard: _Heard, took_s: float, began: float, cut: str) -> Outcome:
    report = run.attempts[-1]
    answered = not cut and run.ending in ("complete", "incomplete")
    return Outcome(
        wire_format=run.wire.name,
        answered=answered,
        ending=run.ending,
        reason="" if answered else _said(cut or report.reason or run.reason, report),
        reached=report.status is not None or report.outcome in ("stalled", "client_left"),
        status=report.status,
        headers_ms=_ms(report.headers_at, began),
        first_output_ms=_ms(report.first_output_at, began),
        duration_ms=round(took_s * 1000),
        usage=report.tokens,
        text=_said(_words(run, heard), report),
        started_at=run.started_at,
        ended_at=dt.datetime.now(dt.UTC),
    )


def _words(run: Run, heard: _Heard) -> str:
    """What the provider said: its own error where it refused, which no client would get; else what a client got."""
    if run.ending not in ("complete", "incomplete") and run.failures:
        failure = run.failures[-1]
        if failure.original is not None:
            return failure.original[1].decode("utf-8", "replace")
        return failure.provider_error.message if failure.provider_error else ""
    return heard.body.decode("utf-8", "replace")


def _said(text: str, report: AttemptReport) -> str:
    """A text for the operator's page: without credential and address, cut."""
    provider, model = report.route.provider, report.route.upstream_model
    clean = scrub_text(text, replacements(provider.base_url, provider.credential, model, model))
    return clean if len(clean) <= SHOWN_CHARACTERS else f"{clean[:SHOWN_CHARACTERS]}…"


def _ms(moment: float | None, began: float) -> int | None:
    return None if moment is None else round((moment - began) * 1000)


class _Heard:
    """The client's side of a test: it keeps what it is sent, up to a limit."""

    def __init__(self) -> None:
        self.body = bytearray()

    async def __call__(self, message: Mapping[str, Any]) -> None:
        self.body += message.get("body", b"")
        if len(self.body) > MAX_ANSWER_BYTES:
            raise AnswerTooLarge(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")


class OneRequest(Plan):
    """One request and no retry; but where `stream_options` is refused, once more without it, as requests fare too."""

    def after(self, route: RouteEntry, failure: Failure) -> tuple[RouteEntry, float] | None:
        return super().after(route, failure) if failure.kind == "stream_options" else None


class Untold:
    """What processes share of routes, for a test: it takes nothing in and tells nobody."""

    async def put(self, route_id: int, state: object) -> bool:
        return True

    async def remove(self, route_id: int) -> bool:
        return True

    async def take_probe(self, route_id: int, for_s: float) -> bool:
        return True

    async def give_probe(self, route_id: int) -> None:
        return None
