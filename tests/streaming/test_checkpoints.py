"""What a process tells of its requests, and what it does with what comes back."""

import asyncio
import datetime as dt
import uuid
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from billing.ledger import ProcessRow, Told
from streaming.checkpoints import Checkpoints
from streaming.counting import Counting, StreamCount
from streaming.protocols.meter import InputContent
from streaming.protocols.tokens import count
from streaming.runs import Live
from streaming.settlement import open_row
from tests.streaming.entries import route
from tests.streaming.runs import Outcome, ScriptedAnswer, make_run, relayed
from tests.streaming.test_relay import ENDING, OUTPUT, PRELUDE

START = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
PROCESS = ProcessRow(uuid.UUID(int=7), "gw:1", START)


class Ledger:
    """Takes checkpoints; tells what it was told to."""

    def __init__(self):
        self.taken = []
        self.told = Told()
        self.error = None

    def checkpoint(self, checkpoint):
        self.taken.append(checkpoint)
        done = Future()
        if self.error:
            done.set_exception(self.error)
        else:
            done.set_result(self.told)
        return done


def upstream_call(number, provider_request_id=""):
    began = START + dt.timedelta(seconds=number)
    return SimpleNamespace(
        number=number, route=route(number), started_at=began, provider_request_id=provider_request_id
    )


@pytest.fixture
def counting():
    counting = Counting()
    yield counting
    counting.stop()


class Scene:
    """One stream under way, that has just said something."""

    def __init__(self, counting):
        self.ledger, self.released, self.runs = Ledger(), [], set()
        self.counting = counting
        self.now = 100.0
        self.checkpoints = Checkpoints(
            PROCESS, self.runs, counting, self.ledger.checkpoint, self.released.append, lambda: self.now
        )

    def stream(self, wire="messages", **meter):
        async def send(message):
            raise AssertionError("nothing is sent")

        run = make_run(wire, send)
        run.opened = open_row(run.id, "req_1", None, PROCESS.id, run.key, run.facts, wire, route(1), START)
        run.attempts = [upstream_call(1)]
        said = SimpleNamespace(**{"produced": True, "texts": {0: "Hello there, "}, "reported": None, **meter})
        said.usage = lambda: said.reported
        said.take_texts = lambda: said.__dict__.pop("texts", {})
        run.live = Live(run, None, 60, 99.0, 99.0, SimpleNamespace(meter=said))
        run.produced = said.produced
        self.runs.add(run)
        return run, said

    async def round(self):
        """A round, counted and written, and what it told come to the loop."""
        self.checkpoints.round()
        await asyncio.wrap_future(self.counting.submit(int))
        await asyncio.sleep(0)
        return self.ledger.taken[-1]


@pytest.fixture
async def scene(counting):
    return Scene(counting)


async def test_new_text_is_counted(scene):
    run, said = scene.stream()
    [row] = (await scene.round()).rows
    assert (row.open, row.attempt, row.provider) == (run.opened, 1, "provider-1")
    assert (row.counted_input, row.counted_output) == run.counted
    assert row.counted_output == count("Hello there, ")
    assert (row.at - row.last_output_at).total_seconds() == 1.0
    said.texts = {0: "and more."}
    [row] = (await scene.round()).rows
    assert row.counted_output == count("Hello there, and more.")


async def test_claude_counts_are_scaled(scene):
    run, said = scene.stream()
    run.count = StreamCount(1_250_000)
    said.texts = {0: "word " * 100}
    [row] = (await scene.round()).rows
    assert row.counted_output == 126  # 101 of o200k
    assert row.counted_input == 4  # 3 of o200k


async def test_input_is_counted_once(scene):
    run, said = scene.stream()
    before = (await scene.round()).rows[0].counted_input
    assert before > 0
    assert scene.released == [run]
    run.facts = None  # the body is gone
    said.texts = {0: "more"}
    assert (await scene.round()).rows[0].counted_input == before
    assert scene.released == [run]


async def test_images_are_not_scaled():
    """A picture's tokens are by the provider's own rule."""
    stream = StreamCount(2_000_000)
    stream.hand_over({}, lambda: InputContent(["hello world"], image_tokens=1_334))
    stream.count_input()
    assert stream.so_far() == (4 + 1_334, 0)


async def test_long_input_delays_no_checkpoint(scene):
    """It comes with a later one; the body stays until then."""
    run, said = scene.stream()
    gate = Future()
    read, run.wire = run.wire.input_content, SimpleNamespace(input_content=lambda body: gate.result() or read(body))
    [row] = (await scene.round()).rows
    assert (row.counted_input, row.counted_output) == (0, count("Hello there, "))
    assert scene.released == []
    said.texts = {0: "and more."}
    [row] = (await scene.round()).rows
    assert (row.counted_input, row.counted_output) == (0, count("Hello there, and more."))
    gate.set_result(None)
    async with asyncio.timeout(5):
        while not scene.released:
            await asyncio.sleep(0.01)
    [row] = (await scene.round()).rows
    assert row.counted_input > 0
    assert (await scene.round()).rows == ()


async def test_uncountable_input_spares_the_output(scene, caplog):
    run, _ = scene.stream()
    run.wire = SimpleNamespace(input_content=lambda body: 1 / 0)
    [row] = (await scene.round()).rows
    assert (row.counted_input, row.counted_output) == (0, count("Hello there, "))
    assert f"the input of {run.id} cannot be counted: ZeroDivisionError" in caplog.text
    assert scene.released == []


async def test_body_stays_before_output(scene):
    scene.stream(produced=False, texts={})
    await scene.round()
    assert scene.released == []


async def test_silence_is_a_heartbeat_alone(scene):
    scene.stream()
    first, second, third = [await scene.round() for _ in range(3)]
    assert (len(first.rows), second.rows, third.rows) == (1, (), ())
    assert (first.heartbeat, second.heartbeat, third.heartbeat) == (1, 2, 3)


@pytest.mark.parametrize("change", ["attempt", "usage", "output", "provider's id"])
async def test_any_change_is_told(scene, change):
    run, said = scene.stream()
    await scene.round()
    if change == "attempt":
        run.attempts.append(upstream_call(2))
    elif change == "usage":
        said.reported = object()
    elif change == "provider's id":
        run.attempts[-1].provider_request_id = "prov-1"
    else:
        run.live.last_output = 99.5
    [row] = (await scene.round()).rows
    assert (row.attempt == 2, row.provider == "provider-2") == (change == "attempt", change == "attempt")


async def test_attempt_under_way_is_told(scene):
    """What a sweep needs for the attempt of a stream that is lost."""
    run, _ = scene.stream()
    run.attempts = [upstream_call(1, "prov-1"), upstream_call(2, "prov-2")]
    run.first_output_at = START + dt.timedelta(seconds=3)
    [row] = (await scene.round()).rows
    assert (row.attempt, row.attempt_started_at) == (2, START + dt.timedelta(seconds=2))
    assert (row.provider_request_id, row.first_output_at) == ("prov-2", run.first_output_at)


async def test_nothing_produced_has_no_first_output(scene):
    _, said = scene.stream(produced=False, texts={})
    said.reported = object()
    [row] = (await scene.round()).rows
    assert (row.first_output_at, row.last_output_at) == (None, None)


async def test_admission_is_not_told_again(scene):
    scene.stream(produced=False, texts={})
    assert (await scene.round()).rows == ()


async def test_ended_and_unbilled_runs_are_left_out(scene):
    ended, _ = scene.stream()
    ended.ending = "complete"
    unbilled, _ = scene.stream()
    unbilled.opened = None
    assert (await scene.round()).rows == ()


async def test_operator_stops_a_stream(scene):
    async def streams(run):
        async with asyncio.timeout(None) as run.live.deadline:
            await asyncio.sleep(10)

    run, _ = scene.stream()
    other, _ = scene.stream()
    scene.ledger.told = Told(stops=frozenset({run.id}))
    task = asyncio.ensure_future(streams(run))
    await asyncio.sleep(0)
    await scene.round()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(task, 5)
    assert (run.live.interruption, other.live.interruption) == ("stopped", None)


async def test_vanished_row_is_told_anew(scene):
    run, _ = scene.stream()
    await scene.round()
    scene.ledger.told = Told(vanished=frozenset({run.id}))
    assert (await scene.round()).rows == ()
    scene.ledger.told = Told()
    [row] = (await scene.round()).rows
    assert (row.open, row.counted_output) == (run.opened, count("Hello there, "))


async def test_failed_checkpoint_harms_nothing(scene, caplog):
    scene.stream()
    scene.ledger.error = RuntimeError("secret words")
    await scene.round()
    assert "a checkpoint was not written: RuntimeError" in caplog.text
    scene.ledger.error = None
    await scene.round()


async def test_odd_stream_spares_the_others(scene, caplog):
    odd, said = scene.stream()
    said.texts = {0: None}
    broken, _ = scene.stream()
    broken.live.passage.meter.usage = None
    good, _ = scene.stream()
    assert [row.open.id for row in (await scene.round()).rows] == [good.id]
    assert f"no checkpoint of {odd.id}" in caplog.text
    assert f"no checkpoint of {broken.id}" in caplog.text


async def test_busy_tokenizer_holds_texts_back(scene):
    """Not the heartbeat; and no work piles up."""
    _, said = scene.stream()
    gate = Future()
    scene.counting.submit(gate.result)
    scene.checkpoints.round()
    said.texts = {0: "more"}
    scene.checkpoints.round()
    assert [(one.heartbeat, one.rows) for one in scene.ledger.taken] == [(2, ())]
    assert said.texts == {0: "more"}
    gate.set_result(None)
    await scene.round()
    await scene.round()
    assert [len(one.rows) for one in scene.ledger.taken if one.rows] == [1, 1]


async def test_real_stream_counts_to_its_end(counting):
    """Checkpoints and the count at the end make the whole text, once."""
    outcome: Outcome = await relayed(
        "messages", ScriptedAnswer(PRELUDE["messages"], OUTPUT["messages"], OUTPUT["messages"], ENDING["messages"])
    )
    texts = outcome.run.meter.take_texts()
    whole = sum(count(text) for text in texts.values())
    halves = [{key: text[: len(text) // 2] for key, text in texts.items()}]
    halves.append({key: text[len(text) // 2 :] for key, text in texts.items()})
    outcome.run.count.hand_over(halves[0])
    await asyncio.wrap_future(counting.submit(outcome.run.count.count_output))
    assert (await asyncio.wrap_future(counting.totals(outcome.run.count, halves[1])))[1] == whole
