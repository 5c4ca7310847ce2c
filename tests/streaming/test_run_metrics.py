"""What /metrics is told of a run: once, by names of the catalogue and of our own."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import uuid

import pytest
from prometheus_client import REGISTRY

from streaming.errors import Failure
from streaming.protocols import WIRE_FORMATS
from streaming.run_metrics import count_run, mean_chunk_s
from streaming.runs import Run
from streaming.settlement import open_row, settlement_of
from tests.streaming.entries import route
from tests.streaming.runs import ScriptedAnswer, relayed
from tests.streaming.test_relay import ENDING, OUTPUT, PRELUDE, chunk, two_routes

NUMBERS = itertools.count(100)


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def new_route(provider: str):
    """A route of its own: its provider's metrics are counted nowhere else."""
    return route(next(NUMBERS), name=provider)


def count(run: Run) -> None:
    row = open_row(run.id, "req_1", None, uuid.uuid4(), run.key, run.facts, run.wire.name, run.route, run.started_at)
    reported = run.meter.usage() if run.meter else None
    settled = settlement_of(run, row, reported, None, lambda model, at: None, run.started_at)
    count_run(run, settled, run.started_at + dt.timedelta(seconds=3), 0.5)


def gen_ai(provider: str, **more: str) -> dict[str, str]:
    return {
        "gen_ai_operation_name": "chat", "gen_ai_provider_name": provider, "gen_ai_request_model": "m", **more,
    }  # fmt: skip


@pytest.mark.parametrize("wire", WIRE_FORMATS)
async def test_stream_is_counted_once(wire: str) -> None:
    provider = f"acme-{wire}"
    streamed = ScriptedAnswer(PRELUDE[wire], OUTPUT[wire], OUTPUT[wire], ENDING[wire])
    run = (await relayed(wire, streamed, routes=[new_route(provider)])).run
    count(run)
    for name in ("server_time_to_first_token_seconds", "client_operation_time_per_output_chunk_seconds"):
        assert sample(f"gen_ai_{name}_count", **gen_ai(provider)) == 1, name
    assert sample("gen_ai_server_request_duration_seconds_sum", **gen_ai(provider, error_type="")) == 3
    assert sample("hopbase_attempts_total", provider=provider, outcome="answered") == 1
    used = run.meter.usage().usage if run.meter.usage() else None
    for kind, tokens in (("input", used.total_input), ("output", used.output)) if used else ():
        assert sample("gen_ai_client_token_usage_sum", **gen_ai(provider, gen_ai_token_type=kind)) == tokens


async def test_failures_have_provider_and_kind() -> None:
    first, second = two_routes()
    before = sample("hopbase_upstream_failures_total", provider=first.provider.name, kind="unreachable")
    answered = ScriptedAnswer(*(part["messages"] for part in (PRELUDE, OUTPUT, ENDING)))
    run = (await relayed("messages", Failure("unreachable", "reset"), answered, routes=[first, second])).run
    count(run)
    assert sample("hopbase_upstream_failures_total", provider=first.provider.name, kind="unreachable") == before + 1
    assert sample("hopbase_upstream_failures_total", provider=second.provider.name, kind="unreachable") == 0


async def test_cut_is_an_error_with_its_times() -> None:
    cut = ScriptedAnswer(PRELUDE["messages"], OUTPUT["messages"])
    run = (await relayed("messages", cut, routes=[new_route("acme-cut")])).run
    count(run)
    labels = gen_ai("acme-cut", error_type="provider_cut")
    assert sample("gen_ai_server_request_duration_seconds_count", **labels) == 1
    assert sample("gen_ai_server_time_to_first_token_seconds_count", **gen_ai("acme-cut")) == 1
    assert sample("hopbase_attempts_total", provider="acme-cut", outcome="cut") == 1


async def test_whole_answer_has_no_first_token() -> None:
    body = b'{"id":"c","model":"m","choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}]}'
    whole = ScriptedAnswer(body, headers={"content-type": "application/json"})
    run = (await relayed("chat_completions", whole, routes=[new_route("acme-whole")], stream=False)).run
    count(run)
    labels = gen_ai("acme-whole")
    assert sample("gen_ai_server_request_duration_seconds_count", **labels, error_type="") == 1
    assert sample("gen_ai_server_time_to_first_token_seconds_count", **labels) == 0


async def test_mean_time_of_chunks() -> None:
    class Paced(ScriptedAnswer):
        async def _play(self):
            for part in self.chunks_to_send:
                await asyncio.sleep(0.02)
                yield part

    words = [chunk(delta={"content": word}) for word in ("a", "b", "c")]
    run = (await relayed("chat_completions", Paced(*words, ENDING["chat_completions"]))).run
    assert 0.02 <= (mean_chunk_s(run) or 0) < 0.1
    one = (await relayed("chat_completions", Paced(words[0], ENDING["chat_completions"]))).run
    assert mean_chunk_s(one) is None
