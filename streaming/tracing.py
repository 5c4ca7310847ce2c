"""The tracer of this process, where OTEL_EXPORTER_OTLP_ENDPOINT names a collector; else nothing is even imported."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

from django.conf import settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Tracer


@cache
def tracer() -> Tracer | None:
    """Sends spans in the background, as OpenTelemetry's own OTEL_* variables say; None: no traces."""
    if not settings.TRACES_ENDPOINT:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return tracer_into(BatchSpanProcessor(OTLPSpanExporter()))


def tracer_into(processor: SpanProcessor) -> Tracer:
    """A tracer whose spans a processor gets."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    name = os.environ.get("OTEL_SERVICE_NAME") or "hopbase"
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(processor)
    return provider.get_tracer("hopbase")
