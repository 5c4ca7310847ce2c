"""Celery's tasks as spans: one for each, under the trace of whoever sent it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import shared_task
from celery.app.trace import trace_task
from celery.signals import before_task_publish
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, Tracer

from hopbase_site.celery import app
from hopbase_site.task_traces import TaskTraces
from streaming.tracing import tracer_into

SENT: list[dict[str, Any]] = []


@shared_task(name="tests.inner")
def inner(secret: str) -> None:
    raise ValueError(secret)


@shared_task(name="tests.outer")
def outer() -> None:
    headers: dict[str, Any] = {}
    before_task_publish.send("tests.inner", headers=headers)  # as `delay` does with a broker
    SENT.append(headers)


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Where the spans of this test's tasks go."""
    kept = InMemorySpanExporter()
    traces = TaskTraces(lambda: made)
    made: Tracer = tracer_into(SimpleSpanProcessor(kept))
    traces.connect()
    yield kept
    traces.disconnect()
    SENT.clear()


def test_task_belongs_to_who_sent_it(exporter: InMemorySpanExporter) -> None:
    app.tasks["tests.outer"].apply()
    message = {**SENT[0], "id": "2", "task": "tests.inner"}  # its headers are what a worker makes the request of
    trace_task(app.tasks["tests.inner"], "2", ["sk-secret"], {}, request=message, app=app)
    first, second = exporter.get_finished_spans()
    assert (first.name, second.name) == ("run tests.outer", "run tests.inner")
    assert second.parent is not None
    assert (second.parent.span_id, second.context.trace_id) == (first.context.span_id, first.context.trace_id)
    assert not trace.get_current_span().is_recording()


def test_failure_is_told_by_its_type(exporter: InMemorySpanExporter) -> None:
    app.tasks["tests.inner"].apply(args=["sk-secret"], throw=False)
    (span,) = exporter.get_finished_spans()
    assert (span.attributes["error.type"], span.status.status_code) == ("ValueError", StatusCode.ERROR)
    assert "sk-secret" not in span.to_json()


def test_nobody_traces_by_default() -> None:
    headers: dict[str, Any] = {}
    before_task_publish.send("tests.inner", headers=headers)
    assert headers == {}
