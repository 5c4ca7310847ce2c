"""What an ended run becomes: plain values, no database."""

import asyncio
import datetime as dt
import threading
import uuid
from concurrent.futures import Future
from decimal import Decimal
from fractions import Fraction

import pytest

from billing.pricing import PriceVersion
from streaming.counting import Counting
from streaming.runs import AttemptReport
from streaming.settlement import Settlements, open_row, settlement_of
from tests.streaming.entries import key, route
from tests.streaming.runs import ScriptedAnswer, relayed
from tests.streaming.test_relay import ENDING, JSON, OUTPUT, PRELUDE, answer, typed

START = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)
NANOS = 10**9
PER_MILLION = {"input": 5, "cache_read": 1, "cache_write": 6, "cache_write_1h": 10, "output": 30}
PRICE = PriceVersion(
    "m", "m@2026-01-01T00:00:00Z", dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "USD",
    {bucket: units * NANOS for bucket, units in PER_MILLION.items()}, {"priority": Fraction(2)},
)  # fmt: skip


def price_of(model, at):
    return PRICE if model == "m" else None


def settled(run, counted=None):
    run.started_at = START
    row = open_row(run.id, "req_own", None, uuid.uuid4(), run.key, run.facts, run.wire.name, route(1), START)
    reported = run.answer.usage if run.answer else run.meter.usage() if run.meter else None
    return settlement_of(run, row, reported, counted, price_of, START + dt.timedelta(seconds=3))


async def test_reported_stream_is_rated():
    outcome = await relayed("messages", ScriptedAnswer(PRELUDE["messages"], OUTPUT["messages"], ENDING["messages"]))
    record = settled(outcome.run)
    assert (record.ending, record.metering, record.usage.input, record.usage.output) == ("complete", "reported", 9, 2)
    assert Decimal(record.rating.cost_nanos) / NANOS == Decimal("0.000105")
    assert record.first_output_at is not None


async def test_cut_stream_is_counted():
    outcome = await relayed("messages", ScriptedAnswer(PRELUDE["messages"], OUTPUT["messages"]))
    record = settled(outcome.run, counted=(7, 3))
    assert (record.ending, record.metering) == ("provider_cut", "estimated")
    assert (record.usage.input, record.usage.output) == (9, 3)
    assert (record.counted_input, record.counted_output) == (7, 3)


async def test_failed_request_costs_nothing():
    outcome = await relayed("messages", ScriptedAnswer(PRELUDE["messages"]))
    record = settled(outcome.run)
    assert (record.ending, record.metering, record.rating.cost_nanos) == ("provider_error", "none", 0)
    assert record.reason == "cut before any output"
    assert record.attempts[0].usage is not None
    assert record.attempts[0].tokens is not None
    assert record.attempts[0].tokens.input == 9


async def test_plain_text_is_told():
    outcome = await relayed("messages", ScriptedAnswer(PRELUDE["messages"], OUTPUT["messages"], ENDING["messages"]))
    assert settled(outcome.run, counted=(7, 3)).text_only


@pytest.mark.parametrize(
    "usage",
    [
        {"output_tokens": 2, "output_tokens_details": {"thinking_tokens": 1}},
        {"output_tokens": 2, "server_tool_use": {"web_search_requests": 1}},
        {"output_tokens": 2, "iterations": [{"type": "advisor_message", "model": "other", "output_tokens": 1}]},
    ],
)
async def test_reported_reasoning_and_tools_tell(usage):
    """Also where the stream shows nothing of them."""
    end = typed("message_delta", delta={"stop_reason": "end_turn"}, usage=usage) + typed("message_stop")
    outcome = await relayed("messages", ScriptedAnswer(PRELUDE["messages"], OUTPUT["messages"], end))
    assert outcome.run.meter.text_only
    assert not settled(outcome.run, counted=(7, 3)).text_only


async def test_seen_thinking_tells():
    thinking = typed("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""})
    outcome = await relayed(
        "messages", ScriptedAnswer(PRELUDE["messages"], thinking, OUTPUT["messages"], ENDING["messages"])
    )
    assert not settled(outcome.run, counted=(7, 3)).text_only


async def test_whole_answer_is_no_text_stream():
    body = b'{"type":"message","content":[{"type":"text","text":"hi"}],"usage":{"input_tokens":9,"output_tokens":2}}'
    outcome = await relayed("messages", ScriptedAnswer(body, headers=JSON), stream=False)
    record = settled(outcome.run, counted=(7, 3))
    assert (record.metering, record.text_only) == ("reported", False)


async def test_unreported_text_tells_nothing():
    outcome = await relayed("chat_completions", answer("chat_completions"))
    record = settled(outcome.run, counted=(7, 3))
    assert (record.metering, record.text_only) == ("estimated", False)


async def test_client_that_left_is_named_so():
    outcome = await relayed("messages", ScriptedAnswer(PRELUDE["messages"], OUTPUT["messages"], ENDING["messages"]))
    outcome.run.client_left = True
    assert settled(outcome.run).ending == "client_left"


async def test_served_tier_is_rated_not_the_asked():
    body = (
        b'{"id":"c1","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":'
        b'"stop"}],"service_tier":"priority","usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
    )
    outcome = await relayed(
        "chat_completions", ScriptedAnswer(body, headers=JSON), stream=False, request={"service_tier": "flex"}
    )
    record = settled(outcome.run)
    assert (record.tier_asked, record.service_tier) == ("flex", "priority")
    assert record.rating.cost_nanos == 70_000


async def test_attempt_times_are_milliseconds():
    outcome = await relayed("messages", ScriptedAnswer(PRELUDE["messages"], OUTPUT["messages"], ENDING["messages"]))
    outcome.run.attempts = [
        AttemptReport(
            1,
            route(4),
            START,
            began=10.0,
            outcome="answered",
            status=200,
            headers_at=10.25,
            first_output_at=11.0,
            ended=12.5,
        )
    ]
    [attempt] = settled(outcome.run).attempts
    assert (attempt.headers_ms, attempt.first_output_ms, attempt.duration_ms) == (250, 1000, 2500)
    assert attempt.provider == "provider-4"


def test_open_row_copies_names():
    facts = type("Facts", (), {"model": "m", "stream": True, "service_tier": "flex"})
    row = open_row(
        uuid.uuid4(), "req_own", "mine", uuid.uuid4(), key(), facts, "messages", None, START, retry_count=2,
        silence_limit_s=120,
    )  # fmt: skip
    assert (row.key_name, row.account_name, row.provider, row.wished_name) == ("production", "northwind", "", "mine")
    assert (row.tier_asked, row.retry_count, row.silence_limit_s) == ("flex", 2, 120)


class Committed:
    """A ledger that commits at once."""

    def settle(self, settlement):
        done = Future()
        done.set_result(None)
        return done


async def settled_while_tokenizer_is_busy(*chunks):
    run = (await relayed("messages", ScriptedAnswer(*chunks))).run
    run.counted, run.count.input = (7, 3), 7  # a checkpoint has begun to count
    counting, released = Counting(), threading.Event()
    counting.submit(released.wait)
    row = open_row(run.id, "req_own", None, uuid.uuid4(), run.key, run.facts, run.wire.name, route(1), START)
    async with asyncio.timeout(3):
        record = await Settlements(Committed(), counting, price_of).settle(run, row)
    released.set()
    counting.stop()
    return record


async def test_bill_does_not_stand_behind_checkpoints():
    record = await settled_while_tokenizer_is_busy(PRELUDE["messages"], OUTPUT["messages"])
    assert (record.metering, record.usage.output) == ("estimated", 1)


async def test_reported_bill_waits_for_no_count():
    record = await settled_while_tokenizer_is_busy(PRELUDE["messages"], OUTPUT["messages"], ENDING["messages"])
    assert (record.metering, record.usage.output, record.counted_output) == ("reported", 2, None)


async def test_comparison_needs_the_whole_count():
    """A reported bill keeps no count whose input is not counted, nor one that failed."""
    run = (await relayed("messages", ScriptedAnswer(PRELUDE["messages"], OUTPUT["messages"], ENDING["messages"]))).run
    run.counted = (0, 0)  # a checkpoint came before any output
    row = open_row(run.id, "req_own", None, uuid.uuid4(), run.key, run.facts, run.wire.name, route(1), START)
    counting = Counting()
    settlements = Settlements(Committed(), counting, price_of)
    assert (await settlements.settle(run, row)).counted_output is None
    run.count.input, run.meter.take_texts = 7, lambda: {0: None}
    assert (await settlements.settle(run, row)).counted_output is None
    run.meter.take_texts = lambda: {0: "hello"}
    assert (await settlements.settle(run, row)).counted_output == 1
    counting.stop()


async def test_failing_count_costs_no_bill():
    run = (await relayed("messages", ScriptedAnswer(PRELUDE["messages"], OUTPUT["messages"]))).run
    run.counted = (7, 3)
    run.meter.take_texts = lambda: {0: None}  # no text: the tokenizer refuses it
    counting = Counting()
    row = open_row(run.id, "req_own", None, uuid.uuid4(), run.key, run.facts, run.wire.name, route(1), START)
    record = await Settlements(Committed(), counting, price_of).settle(run, row)
    counting.stop()
    assert (record.metering, record.usage.output) == ("estimated", 3)
