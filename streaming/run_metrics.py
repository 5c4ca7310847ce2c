"""What /metrics is told of a run, once, when it is billed."""

from __future__ import annotations

import datetime as dt

from billing.ledger import Settlement
from streaming import metrics
from streaming.metrics import labelled
from streaming.runs import Run
from streaming.settlement import FINISHED


def count_run(run: Run, settled: Settlement, ended_at: dt.datetime, settle_s: float) -> None:
    """Count a run that ended at an instant, and whose bill took `settle_s` from there."""
    labelled(metrics.REQUESTS, run.wire.name, settled.ending, settled.metering).inc()
    metrics.SETTLE.observe(settle_s)
    for bucket, tokens in settled.usage.buckets().items():
        if tokens:
            labelled(metrics.TOKENS, bucket).inc(tokens)
    for attempt in run.attempts:
        labelled(metrics.ATTEMPTS, attempt.route.provider.name, attempt.outcome).inc()
    for attempt, failure in zip(run.attempts, run.failures, strict=False):  # the last one may have succeeded
        labelled(metrics.UPSTREAM_FAILURES, attempt.route.provider.name, failure.kind).inc()
    metrics.count_flags(settled.provider, settled.flags)
    _count_gen_ai(run, settled, (ended_at - run.started_at).total_seconds())


def _count_gen_ai(run: Run, settled: Settlement, duration_s: float) -> None:
    which = (metrics.OPERATION, settled.provider, run.model.name)
    error_type = "" if settled.ending in FINISHED else settled.ending
    labelled(metrics.DURATION, *which, error_type).observe(duration_s)
    if (input_tokens := settled.usage.total_input) or settled.usage.output:
        labelled(metrics.TOKEN_USAGE, *which, "input").observe(input_tokens)
        labelled(metrics.TOKEN_USAGE, *which, "output").observe(settled.usage.output)
    if not run.facts.stream or run.first_output_at is None:
        return
    labelled(metrics.FIRST_TOKEN, *which).observe((run.first_output_at - run.started_at).total_seconds())
    if (chunk_s := mean_chunk_s(run)) is not None:
        labelled(metrics.CHUNK, *which).observe(chunk_s)


def mean_chunk_s(run: Run) -> float | None:
    """Seconds from one output event of a stream to the next, on average; None where there were not two."""
    live, first = run.live, run.attempts[-1].first_output_at
    if live is None or live.passage is None or live.passage.outputs < 2 or first is None:
        return None
    return (live.last_output - first) / (live.passage.outputs - 1)
