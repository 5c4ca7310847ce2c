"""Upstream -> client, feeding the meter: no database, no money, no rules of a wire format.

`relay` tries routes until one answers, and leaves on the run how it ended. Before the first real output every failure
is an `AttemptFailed` that goes to the next route; after it, nothing is retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from streaming.catalogue import RouteEntry
from streaming.client import Client, Clock
from streaming.errors import (
    ApiError,
    AttemptFailed,
    Failure,
    FailureKind,
    OriginalAnswer,
    answer_for,
    failure_of_status,
    kind_of_status,
)
from streaming.health import RouteHealth
from streaming.passage import Passage
from streaming.protocols import WireFormat
from streaming.protocols.meter import INTERRUPTED, Ended, GatewayError, MeterOptions, ProviderError, StreamMeter
from streaming.protocols.provider_errors import is_markup
from streaming.protocols.retry_after import retry_after_s
from streaming.protocols.scrub import Replacement, replacements, scrub, scrub_error, scrub_text
from streaming.protocols.sse import EventTooLarge
from streaming.routes import Plan
from streaming.runs import AttemptReport, Interruption, Live, Run
from streaming.upstream import BROKEN, Upstream, UpstreamAnswer, request_headers

LINGER_S = 1.0
"""How long the rest of a provider's body is read after the terminal event, so that the connection can be used again."""
LAST_WORD_S = 1.0
"""How long a client may take for the error event at a shutdown."""
MAX_ERROR_BYTES = 1024 * 1024
ERROR_BODY_S = 5.0
CUT = GatewayError(502, "upstream_error", "api_error", INTERRUPTED)
INTERRUPTIONS: dict[Interruption, tuple[str, GatewayError]] = {
    "stalled": ("stalled", CUT),
    "stopped": ("stopped", GatewayError(503, "stopped", "api_error", "The stream was stopped by an operator.")),
    "shutdown": ("shutdown", GatewayError(503, "service_unavailable", "api_error", INTERRUPTED)),
}
"""What an interruption after the first output is called on the record, and what the client is told."""
ENDINGS: dict[Ended, str] = {
    "complete": "complete", "incomplete": "incomplete", "error": "provider_error", "cut": "provider_cut",
}  # fmt: skip
OUTCOMES = {
    "provider_cut": "cut", "provider_error": "failed", "stalled": "stalled", "stopped": "stopped",
    "shutdown": "stopped", "client_left": "client_left",
}  # fmt: skip
"""What the attempt that the client got is called, by the request's ending; after all other endings it answered."""


class Watch(Protocol):
    """Where live streams are seen: the ticker's set."""

    def add(self, live: Live) -> None: ...
    def discard(self, live: Live) -> None: ...


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """What a process relays with.

    `spawn` runs a coroutine that outlives the request; `no_usage_asked` remembers the routes whose provider refuses
    stream_options; `remember` is told which stored objects the client is about to learn of.
    """

    upstream: Upstream
    watch: Watch
    clock: Clock
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    max_event_bytes: int
    max_answer_bytes: int
    no_usage_asked: set[int]
    health: RouteHealth
    remember: Callable[[Run, RouteEntry, Sequence[str]], None]


async def relay(run: Run, plan: Plan, options: RelayOptions) -> None:
    """Try routes until one answers; leaves ending, meter or answer, attempts and failures on the run."""
    route = plan.first()
    skipped: list[RouteEntry] = []
    while route is not None:
        if not await options.health.admits(route):
            skipped.append(route)
            route = plan.skip()
            continue
        report = AttemptReport(len(run.attempts) + 1, route, dt.datetime.now(dt.UTC), options.clock())
        run.attempts.append(report)
        try:
            await _attempt(run, report, options)
            _judge(run, route.id, options.health)
            return
        except AttemptFailed as failed:
            failure = failed.failure
            options.health.failed(route.id, failure.kind, failure.reason, failure.retry_after_s)
        except BaseException:
            options.health.abandoned(route.id)
            raise
        run.failures.append(failure)
        last, run.live = (
            run.live,
            None,
        )  # nothing of an attempt that failed is the client's, whatever ends the request now
        following = plan.after(route, failure)
        if following is None:
            break
        route, wait_s = following
        await _wait(run, last, wait_s, options)
        if run.client.left:  # what is read on for the bill's sake is not asked for again
            break
    if skipped and not run.failures:
        run.reason = "all routes cool down"
        raise options.health.all_cooling(skipped)
    await _give_up(run)


async def _wait(run: Run, last: Live | None, wait_s: float, options: RelayOptions) -> None:
    """Until a rate limit is over; a stream's client gets its keepalives meanwhile."""
    if not wait_s:
        return
    if last is None or not run.facts.stream:
        await asyncio.sleep(wait_s)
        return
    now = options.clock()
    with contextlib.suppress(TimeoutError):  # the client reads nothing: the next write says so
        async with asyncio.timeout(None) as deadline:
            live = Live(run, deadline, run.model.stall_s, now, now, has_headers=last.has_headers)
            options.watch.add(live)
            try:
                await asyncio.sleep(wait_s)
            finally:
                options.watch.discard(live)


def _judge(run: Run, route_id: int, health: RouteHealth) -> None:
    """What an answer that the client got says of its route, from its ending alone."""
    error = run.meter.error if run.meter is not None else None
    reason = f"{run.ending} {error.code or error.kind}".strip() if error else run.ending  # no words of the provider's
    if run.ending in ("complete", "incomplete"):
        health.succeeded(route_id)
    elif error is not None and error.account_trouble:
        health.failed(route_id, "account", reason)
    elif run.ending in ("provider_cut", "stalled") or (run.ending == "provider_error" and not _is_about_request(error)):
        health.failed(route_id, "failed", reason)
    else:
        health.abandoned(route_id)


def _is_about_request(error: ProviderError | None) -> bool:
    return error is not None and error.about_request


async def _attempt(run: Run, report: AttemptReport, options: RelayOptions) -> None:
    """One upstream call; what went wrong is on its report, whoever ends it."""
    report.outcome = "client_left"  # until something else is known: cancellation leaves it so
    try:
        await (_stream if run.facts.stream else _whole)(run, report, options)
        report.outcome = OUTCOMES.get(run.ending, "answered")
        if report.outcome != "answered":
            report.reason = report.reason or run.reason
    except AttemptFailed as failed:
        report.outcome, report.reason = failed.failure.outcome, failed.failure.reason
        report.status = report.status or failed.failure.status
        raise
    finally:
        report.ended = options.clock()


async def _post(run: Run, report: AttemptReport, options: RelayOptions) -> UpstreamAnswer:
    """Send the request on this attempt's route; only a 2xx in an encoding that we read comes back."""
    route = report.route
    renamed = route.upstream_model if route.upstream_model != run.model.name else None
    ask_usage = route.id not in options.no_usage_asked and not _was_refused_usage(run)
    body = run.wire.prepare_request(run.raw, run.facts, upstream_model=renamed, ask_usage=ask_usage)
    headers = request_headers(run.headers)
    answer = await options.upstream.post(route.provider, run.wire.upstream_path, body, headers, run.query)
    report.status, report.headers_at, report.provider_request_id = answer.status, options.clock(), answer.request_id
    if 200 <= answer.status < 300 and answer.encoding in ("", "gzip"):
        if _was_refused_usage(run):  # and without it, it is taken: that proves what was wrong
            options.no_usage_asked.add(route.id)
        return answer
    try:
        await _raise_for_answer(run, report, answer, asked_usage=ask_usage and run.facts.usage_is_ours_to_ask)
    finally:
        await answer.aclose()
    raise AssertionError("unreachable")


def _was_refused_usage(run: Run) -> bool:
    """Whether this attempt sends the request once more, without the usage that the last one asked for."""
    return bool(run.failures) and run.failures[-1].kind == "stream_options"


async def _raise_for_answer(run: Run, report: AttemptReport, answer: UpstreamAnswer, *, asked_usage: bool) -> None:
    if 200 <= answer.status < 300:
        raise AttemptFailed(Failure("failed", f"the answer's content encoding is {answer.encoding[:20]!r}"))
    raw, hidden = await _error_body(answer), _hidden(run, report)
    error = scrub_error(run.wire.read_error(answer.status, raw or b""), hidden)
    error = replace(error, refused_stream_options=error.refused_stream_options and asked_usage)
    original = None
    if raw is not None and not is_markup(raw):  # a proxy's page says nothing to an SDK
        kind = scrub_text(answer.content_type, hidden) or "application/json"
        original = (answer.status, scrub(raw, hidden), kind)
    headers = {name: scrub_text(value, hidden) for name, value in answer.passed_headers.items()}
    raise AttemptFailed(
        failure_of_status(
            answer.status,
            error,
            original=original,
            headers=headers,
            retry_after_s=retry_after_s(answer.headers, dt.datetime.now(dt.UTC)),
        )
    )


async def _error_body(answer: UpstreamAnswer) -> bytes | None:
    """The body of an error; None when it breaks off, does not end, is huge or unreadable: the status says most."""
    if answer.encoding not in ("", "gzip"):
        return None
    body = bytearray()
    try:
        async with asyncio.timeout(ERROR_BODY_S):
            async for chunk in answer.chunks():
                body += chunk
                if len(body) > MAX_ERROR_BYTES:
                    return None
    except (TimeoutError, *BROKEN):
        return None
    return bytes(body)


def _hidden(run: Run, report: AttemptReport) -> Sequence[Replacement]:
    provider = report.route.provider
    return replacements(provider.base_url, provider.credential, report.route.upstream_model, run.model.name)


def _meter_options(run: Run, report: AttemptReport) -> MeterOptions:
    route = report.route
    return MeterOptions(
        model=run.model.name,
        rename_from=route.upstream_model if route.upstream_model != run.model.name else None,
        include_usage=run.facts.include_usage,
        reasoning_outside=run.wire.name in route.provider.reasoning_outside,
        fallback_id=f"resp_{run.id.hex}",
    )


def new_meter(run: Run) -> StreamMeter:
    """A meter that has read nothing, for an error event where no attempt's events were shown."""
    return run.wire.Meter(MeterOptions(run.model.name, fallback_id=f"resp_{run.id.hex}"))


# --- streams ---


async def _stream(run: Run, report: AttemptReport, options: RelayOptions) -> None:
    meter = run.wire.Meter(_meter_options(run, report))
    passage = Passage(meter, options.max_event_bytes, partial(_hidden, run, report))
    now = options.clock()
    live = None
    try:
        async with asyncio.timeout(None) as deadline:
            live = run.live = Live(run, deadline, run.model.stall_s, now, now, passage)
            options.watch.add(live)
            await _pass_on(run, report, live, passage, options)
    except TimeoutError:
        assert live is not None
        await _interrupted(run, report, live, passage, options)
    finally:
        _note_usage(report, passage)
        if live is not None:
            options.watch.discard(live)


async def _pass_on(run: Run, report: AttemptReport, live: Live, passage: Passage, options: RelayOptions) -> None:
    """Read, frame, meter, send, until the stream ends by itself."""
    answer = await _post(run, report, options)
    lingering = False
    try:
        await _check_is_stream(run, report, answer)
        live.has_headers = True
        client = run.client
        if not client.started:
            client.headers = answer.passed_headers
        data = b""
        try:
            async for chunk in answer.chunks():
                seen = passage.events
                data = passage.feed(chunk)
                if passage.events != seen or passage.in_event:  # a large event that comes slowly is no silence
                    live.last_event = options.clock()
                if passage.new_output:
                    live.last_output = live.last_event
                    _note_output(run, report, live, passage, options.health)
                if passage.meter.produced:
                    _note_objects(run, report, passage.meter.object_ids, options)
                if passage.ended is not None:
                    break
                if data:
                    await client.write(data)
                    data = b""
        except BROKEN as error:
            run.reason = f"the provider broke off: {type(error).__name__}"
        except EventTooLarge as error:
            run.reason = str(error)
            passage.ended = "cut"
        lingering = passage.ended in ("complete", "incomplete", "error")
        await _end(run, report, passage, data, options)
    finally:
        if lingering and not answer.is_read:
            options.spawn(_linger(answer))
        else:
            await answer.aclose()


async def _check_is_stream(run: Run, report: AttemptReport, answer: UpstreamAnswer) -> None:
    """AttemptFailed where the answer is no stream; what an error in its place means is read."""
    kind = answer.content_type.lower()
    if "json" in kind:
        read = run.wire.read_answer(await _error_body(answer) or b"", _meter_options(run, report))
        if read.ended == "error" and read.error is not None and (read.error.code or read.error.kind):
            raise AttemptFailed(_failure_of_hollow(scrub_error(read.error, _hidden(run, report))))
    if "json" in kind or "html" in kind:
        raise AttemptFailed(Failure("failed", f"no event stream but {kind[:60]}", "hollow"))


def _note_output(run: Run, report: AttemptReport, live: Live, passage: Passage, health: RouteHealth) -> None:
    if report.first_output_at is None:
        report.first_output_at = live.last_output
        run.meter = passage.meter
        run.produced = True
        run.first_output_at = run.first_output_at or dt.datetime.now(dt.UTC)
        health.has_output(report.route.id)


def _note_objects(run: Run, report: AttemptReport, ids: Sequence[str], options: RelayOptions) -> None:
    """Tell whose these objects are, before the client can name them to us."""
    if len(ids) > len(report.object_ids):
        report.object_ids = tuple(ids)
        options.remember(run, report.route, report.object_ids)


def _note_usage(report: AttemptReport, passage: Passage) -> None:
    report.object_ids = passage.meter.object_ids
    if (reported := passage.meter.usage()) is not None:
        report.usage, report.tokens = reported.raw, reported.usage


async def _end(run: Run, report: AttemptReport, passage: Passage, data: bytes, options: RelayOptions) -> None:
    """The provider's stream is over: what is left for the client, and what to call it."""
    if passage.ended is None:
        try:
            data += passage.close()
        except EventTooLarge as error:
            run.reason, passage.ended = str(error), "cut"
    ended, meter = passage.ended or "cut", passage.meter
    if not meter.produced:
        _raise_unless_paid(ended, passage, run)
        data = passage.release()
    _note_objects(run, report, meter.object_ids, options)
    run.meter = meter
    run.ending = ENDINGS[ended]
    if meter.error is not None or passage.field_error:
        run.reason = (meter.error.message if meter.error else passage.field_error)[:500]
    if ended == "cut" or passage.field_error:
        data += meter.error_event(CUT)
    await run.client.write(data, more=False)


def _raise_unless_paid(ended: Ended, passage: Passage, run: Run) -> None:
    """Without any output a stream is an answer only when it ended properly and reports usage (reasoning only)."""
    meter = passage.meter
    if ended == "error":
        error = meter.error or ProviderError(502, passage.field_error)
        raise AttemptFailed(_failure_of_event(error, meter_message=True))
    if ended == "cut":
        raise AttemptFailed(Failure("failed", run.reason or "cut before any output", "cut"))
    reported = meter.usage()
    if reported is None or reported.is_empty:
        raise AttemptFailed(Failure("failed", "a complete answer with neither output nor usage", "hollow"))


def _failure_of_event(error: ProviderError, meter_message: bool) -> Failure:
    """What an error event, or an error object in a 200, means for the request."""
    kind: FailureKind = "refused" if error.about_request else kind_of_status(error.status)
    if error.account_trouble:
        kind = "account"
    shown = error.message if meter_message and kind != "account" else ""
    reason = f"error event: {error.code or error.kind or error.status}"
    return Failure(
        kind, reason, "failed", error.status, message=shown, provider_error=error, final=error.final,
        stays=error.status in (500, 529),
    )  # fmt: skip


async def _interrupted(run: Run, report: AttemptReport, live: Live, passage: Passage, options: RelayOptions) -> None:
    """The deadline passed: by the ticker (silence, a slow reader, the end of a drain), an operator or a shutdown."""
    why = live.interruption
    if why == "patience":
        await _end(run, report, passage, passage.close(), options)
        return
    run.meter = passage.meter
    if why in ("slow_reader", "drained"):
        run.client.left = True
        run.ending, run.reason = "client_left", "the client did not read" if why == "slow_reader" else ""
        return
    if why == "stalled" and not passage.meter.produced:
        reason = f"no output for {live.stall_s:g} s"
        raise AttemptFailed(Failure("timed_out", reason, "stalled"))
    assert why is not None
    run.ending, error = INTERRUPTIONS[why]
    report.reason = why
    with contextlib.suppress(TimeoutError):  # a client that reads nothing gets no last word
        async with asyncio.timeout(LAST_WORD_S if why == "shutdown" else None):
            if await run.client.is_committed():
                await run.client.write(passage.meter.error_event(error), more=False)
            else:
                await answer_error(run.client, run.wire, _unanswered(why, error))


def _unanswered(why: Interruption, error: GatewayError) -> ApiError:
    """The answer where nothing is committed. What an operator stopped is not to come back by an SDK's own retry."""
    headers = {"x-should-retry": "false"} if why == "stopped" else None
    return ApiError("service_unavailable", error.message, headers=headers)


async def _linger(answer: UpstreamAnswer) -> None:
    """Read what follows the terminal event, for a moment, so that the connection can be used again."""
    try:
        async with asyncio.timeout(LINGER_S):
            async for _ in answer.chunks():
                pass
    except (TimeoutError, *BROKEN):
        return  # the answer is complete; closing the connection is all that is left
    finally:
        await answer.aclose()


# --- whole answers ---


async def _whole(run: Run, report: AttemptReport, options: RelayOptions) -> None:
    now = options.clock()
    live = None
    try:
        async with asyncio.timeout(run.model.total_timeout_s) as deadline:
            live = run.live = Live(run, deadline, run.model.total_timeout_s, now, now)
            answer = await _post(run, report, options)
            try:
                raw = await answer.read(options.max_answer_bytes)
            finally:
                await answer.aclose()
    except TimeoutError:
        if live is not None and live.interruption in ("stopped", "shutdown"):
            await _interrupted_whole(run, report, live.interruption)
            return
        reason = f"no whole answer within {run.model.total_timeout_s:g} s"
        raise AttemptFailed(Failure("timed_out", reason, "timed_out")) from None
    await _answer(run, report, answer, raw, options)


async def _answer(run: Run, report: AttemptReport, answer: UpstreamAnswer, raw: bytes, options: RelayOptions) -> None:
    read = run.wire.read_answer(raw, _meter_options(run, report))
    if read.usage is not None:
        report.usage, report.tokens = read.usage.raw, read.usage.usage
    if read.ended == "error":
        error = read.error and scrub_error(read.error, _hidden(run, report))
        raise AttemptFailed(_failure_of_hollow(error))
    report.first_output_at = options.clock()
    run.answer, run.produced = read, True
    _note_objects(run, report, read.object_ids, options)
    run.ending = ENDINGS[read.ended]
    run.first_output_at = dt.datetime.now(dt.UTC)
    run.client.headers = answer.passed_headers
    kind = answer.content_type or "application/json"
    await run.client.answer(200, [(b"content-type", kind.encode("latin-1"))], read.raw)


def _failure_of_hollow(error: ProviderError | None) -> Failure:
    """A 200 that holds no answer: an error object, or nothing of use. Another route may do better."""
    if error is None:
        return Failure("failed", "a 200 without an answer in it", "hollow")
    failure = _failure_of_event(error, meter_message=error.about_request)
    kind: FailureKind = failure.kind if failure.kind in ("account", "refused") else "failed"
    status = error.status if kind == "refused" else 200
    return Failure(kind, failure.reason, "hollow", status, failure.message, provider_error=error, final=failure.final)


async def _interrupted_whole(run: Run, report: AttemptReport, why: Interruption) -> None:
    run.ending, error = INTERRUPTIONS[why]
    report.reason = why
    await answer_error(run.client, run.wire, _unanswered(why, error))


# --- errors ---


async def _give_up(run: Run) -> None:
    error = answer_for(run.failures)
    last = run.failures[-1] if run.failures else None
    run.reason = (last.reason if last else "no route")[:500]
    run.ending = _ending_of(error, last)
    run.meter = run.answer = None
    cut = last is not None and last.outcome in ("cut", "stalled") and not isinstance(error, OriginalAnswer)
    await tell_error(run, error, CUT if cut else None)


def _ending_of(error: ApiError, last: Failure | None) -> str:
    if isinstance(error, OriginalAnswer) or (last is not None and last.kind == "refused"):
        return "refused"
    return "timed_out" if last is not None and last.kind == "timed_out" else "provider_error"


async def tell_error(run: Run, error: ApiError, late: GatewayError | None = None) -> None:
    """An error to the client of a run: as an answer, or as the last event (`late`) once the status is out."""
    run.client.headers = {}
    if await run.client.is_committed():
        meter = run.meter or new_meter(run)
        await run.client.write(meter.error_event(late or error.error), more=False)
    else:
        await answer_error(run.client, run.wire, error)


async def answer_error(
    client: Client, wire: WireFormat, error: ApiError, linger: Callable[[], Awaitable[None]] | None = None
) -> None:
    """An error before the first byte: in the wire format's shape, or in the provider's own words."""
    client.headers = error.headers
    if isinstance(error, OriginalAnswer):
        kind = error.content_type.encode("latin-1", "replace")
        await client.answer(error.error.status, [(b"content-type", kind)], error.body)
        return
    body = wire.error_body(error.error, await client.request_name())
    await client.answer(error.error.status, [(b"content-type", b"application/json")], body, linger)
