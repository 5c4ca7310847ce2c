"""Celery's tasks as spans: whoever sends one passes its trace on in the message's headers."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Token
from typing import Any

from celery import Task
from celery.signals import before_task_publish, task_failure, task_postrun, task_prerun
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

PROPAGATOR = TraceContextTextMapPropagator()


class TaskTraces:
    """The spans of the tasks that this process runs. `tracer` is asked when the first one begins."""

    def __init__(self, tracer: Callable[[], Tracer | None]) -> None:
        self._tracer = tracer
        self._running: dict[str, tuple[Span, Token[Context]]] = {}

    def connect(self) -> None:
        """Hear of every task from now on."""
        before_task_publish.connect(self.sent, weak=False)
        task_prerun.connect(self.began, weak=False)
        task_failure.connect(self.failed, weak=False)
        task_postrun.connect(self.ended, weak=False)

    def disconnect(self) -> None:
        """Hear of none any more."""
        before_task_publish.disconnect(self.sent)
        task_prerun.disconnect(self.began)
        task_failure.disconnect(self.failed)
        task_postrun.disconnect(self.ended)

    def sent(self, headers: dict[str, Any], **kwargs: Any) -> None:
        """Pass the present trace on, if there is one."""
        PROPAGATOR.inject(headers)

    def began(self, task_id: str, task: Task, **kwargs: Any) -> None:
        """Begin the task's span, and let what the task sends belong to it. Its arguments are told nowhere."""
        if (tracer := self._tracer()) is None:
            return
        sent = getattr(task.request, "traceparent", None)
        parent = PROPAGATOR.extract({"traceparent": sent} if sent else {})
        attributes = {"celery.task_name": task.name, "messaging.message.id": task_id}
        span = tracer.start_span(f"run {task.name}", parent, SpanKind.CONSUMER, attributes)
        self._running[task_id] = span, context.attach(trace.set_span_in_context(span, parent))

    def failed(self, task_id: str, exception: BaseException, **kwargs: Any) -> None:
        """By the exception's type alone: its message may say anything."""
        if task_id in self._running:
            span = self._running[task_id][0]
            span.set_attribute("error.type", type(exception).__name__)
            span.set_status(StatusCode.ERROR)

    def ended(self, task_id: str, **kwargs: Any) -> None:
        """End the task's span."""
        if task_id in self._running:
            span, token = self._running.pop(task_id)
            context.detach(token)
            span.end()
