"""A run as spans, made all at once when it is billed: nothing is done for traces while it runs.

The customer's `traceparent` is the parent. None is sent to a provider, whose headers are those of its API alone.
"""

from __future__ import annotations

import datetime as dt

from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from billing.ledger import Settlement
from billing.request_ids import request_id
from billing.usage import TokenUsage
from streaming.metrics import OPERATION
from streaming.runs import AttemptReport, Run
from streaming.settlement import FINISHED

NOBODYS_FAULT = frozenset({"client_left", "refused"})
"""Endings and outcomes that are no success, and no error of the gateway's or a provider's."""
Attributes = dict[str, AttributeValue]


def trace_run(tracer: Tracer, run: Run, settled: Settlement, ended_at: dt.datetime, settle_s: float) -> None:
    """The request, each upstream call, and the writing of its bill, which took `settle_s` from `ended_at`."""
    parent = TraceContextTextMapPropagator().extract(_sent(run))
    route = f"/v1/{run.wire.upstream_path}"
    settled_at = ended_at + dt.timedelta(seconds=settle_s)
    request = tracer.start_span(
        f"POST {route}", parent, SpanKind.SERVER, _of_request(run, settled, route), start_time=_ns(run.started_at)
    )
    within = set_span_in_context(request, parent)
    for attempt in run.attempts:
        call = tracer.start_span(
            f"{OPERATION} {attempt.route.upstream_model}", within, SpanKind.CLIENT, _of_attempt(run, attempt),
            start_time=_ns(attempt.started_at),
        )  # fmt: skip
        _end(call, "" if attempt.outcome == "answered" else attempt.outcome, _at(attempt, attempt.ended) or ended_at)
    bill = tracer.start_span("settle", within, start_time=_ns(ended_at))
    bill.end(_ns(settled_at))
    _end(request, "" if settled.ending in FINISHED else settled.ending, settled_at)


def _sent(run: Run) -> dict[str, str]:
    """The customer's `traceparent`, as it came; what is none of the kind begins a trace of its own."""
    return {name.decode(): value.decode("latin-1") for name, value in run.headers if name == b"traceparent"}


def _of_request(run: Run, settled: Settlement, route: str) -> Attributes:
    return {
        "http.request.method": "POST", "http.route": route, "hopbase.request_id": request_id(run.id),
        "hopbase.ending": settled.ending, "hopbase.metering": settled.metering,
        **_gen_ai(settled.provider, run.model.name, run.facts.stream, settled.usage),
    }  # fmt: skip


def _of_attempt(run: Run, attempt: AttemptReport) -> Attributes:
    found = _gen_ai(attempt.route.provider.name, attempt.route.upstream_model, run.facts.stream, attempt.tokens)
    found["hopbase.attempt"] = attempt.number
    if attempt.status is not None:
        found["http.response.status_code"] = attempt.status
    if run.facts.stream and attempt.first_output_at is not None:
        found["gen_ai.response.time_to_first_chunk"] = attempt.first_output_at - attempt.began
    return found


def _gen_ai(provider: str, model: str, stream: bool, usage: TokenUsage | None) -> Attributes:
    """By the GenAI conventions; nothing of what was asked or answered."""
    named: Attributes = {
        "gen_ai.operation.name": OPERATION, "gen_ai.provider.name": provider, "gen_ai.request.model": model,
        "gen_ai.request.stream": stream,
    }  # fmt: skip
    return named | (_tokens(usage) if usage is not None else {})


def _tokens(usage: TokenUsage) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.total_input, "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
    }  # fmt: skip


def _end(span: Span, error_type: str, at: dt.datetime) -> None:
    if error_type:
        span.set_attribute("error.type", error_type)
        if error_type not in NOBODYS_FAULT:
            span.set_status(StatusCode.ERROR)
    span.end(_ns(at))


def _at(attempt: AttemptReport, moment: float | None) -> dt.datetime | None:
    """A moment of the loop's clock, by the attempt's own start."""
    return None if moment is None else attempt.started_at + dt.timedelta(seconds=moment - attempt.began)


def _ns(at: dt.datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1000
