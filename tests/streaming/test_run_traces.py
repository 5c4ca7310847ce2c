"""A run as spans: its calls and its bill, under the customer's own trace, and nothing of what was said."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import uuid
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from streaming.errors import Failure
from streaming.run_traces import trace_run
from streaming.runs import Run
from streaming.settlement import open_row, settlement_of
from streaming.tracing import tracer_into
from streaming.upstream import request_headers
from tests.streaming.runs import ScriptedAnswer, relayed
from tests.streaming.test_relay import OUTPUT, PRELUDE, answer, two_routes

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = (b"traceparent", f"00-{TRACE}-{PARENT}-01".encode())


def spans_of(run: Run, *headers: tuple[bytes, bytes]) -> Sequence[ReadableSpan]:
    """In the order in which they ended: calls, bill, request."""
    exporter = InMemorySpanExporter()
    run.headers = headers
    row = open_row(run.id, "req_1", None, uuid.uuid4(), run.key, run.facts, run.wire.name, run.route, run.started_at)
    reported = run.meter.usage() if run.meter else None
    settled = settlement_of(run, row, reported, None, lambda model, at: None, run.started_at)
    trace_run(tracer_into(SimpleSpanProcessor(exporter)), run, settled, run.started_at + dt.timedelta(seconds=2), 0.5)
    return exporter.get_finished_spans()


async def test_request_calls_and_bill() -> None:
    failure = Failure("unreachable", "no answer: words of a provider")
    run = (await relayed("messages", failure, answer("messages"), routes=two_routes())).run
    failed, answered, bill, request = spans_of(run, TRACEPARENT, (b"authorization", b"Bearer sk-hb-key"))
    assert [span.kind for span in (failed, answered, request)] == [SpanKind.CLIENT, SpanKind.CLIENT, SpanKind.SERVER]
    assert (request.name, answered.name, bill.name) == ("POST /v1/messages", "chat m", "settle")
    assert request.parent is not None
    assert {f"{span.context.trace_id:032x}" for span in (failed, answered, bill, request)} == {TRACE}
    assert f"{request.parent.span_id:016x}" == PARENT
    assert {span.parent.span_id for span in (failed, answered, bill) if span.parent} == {request.context.span_id}
    assert [span.attributes["gen_ai.provider.name"] for span in (failed, answered)] == ["provider-1", "provider-2"]
    assert (failed.attributes["error.type"], failed.status.status_code) == ("failed", StatusCode.ERROR)
    assert answered.attributes["gen_ai.usage.output_tokens"] == 2
    assert answered.attributes["http.response.status_code"] == 200
    assert "error.type" not in request.attributes
    assert request.attributes["hopbase.request_id"] == f"req_{run.id.hex}"
    assert (request.end_time - request.start_time, bill.end_time - bill.start_time) == (2_500_000_000, 500_000_000)
    told = "".join(span.to_json() for span in (failed, answered, bill, request))
    hidden = ("Say hello", "hello", "sk-hb", "secret-", "provider-1.test", "words")
    assert [text for text in hidden if text in told] == []


async def test_cut_is_an_error() -> None:
    run = (await relayed("messages", ScriptedAnswer(PRELUDE["messages"], OUTPUT["messages"]))).run
    call, _, request = spans_of(run)
    assert (call.attributes["error.type"], request.attributes["error.type"]) == ("cut", "provider_cut")
    assert request.status.status_code == StatusCode.ERROR


@pytest.mark.parametrize("sent", [(), ((b"traceparent", b"\xff junk"),)], ids=["none", "junk"])
async def test_without_a_parent_a_trace_begins(sent: Sequence[tuple[bytes, bytes]]) -> None:
    run = (await relayed("messages", answer("messages"))).run
    assert spans_of(run, *sent)[-1].parent is None


def test_provider_gets_no_traceparent() -> None:
    assert TRACEPARENT not in request_headers([TRACEPARENT, (b"accept", b"*/*")])


def test_off_means_not_even_imported() -> None:
    """(redis imports what there is of OpenTelemetry's metrics, for its own.)"""
    read = "import sys, django; django.setup(); from streaming.gateway import _trace; print(_trace(), *sys.modules)"
    told = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True).stdout.split()
    assert told[0] == "None"
    never = ("opentelemetry.sdk.trace", "opentelemetry.exporter", "streaming.run_traces", "sentry_sdk")
    assert not [name for name in told if name.startswith(never)]
