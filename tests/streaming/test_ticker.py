"""The ticker's rules, with an injected clock."""

import asyncio
from types import SimpleNamespace

import pytest

from streaming.runs import Live
from streaming.ticker import Ticker, Timing, look_at

TIMING = Timing(keepalive_s=10, before_headers_s=20, slow_reader_s=60, checkpoint_s=2)


class Deadline:
    def __init__(self):
        self.moved = False

    def expired(self):
        return self.moved

    def reschedule(self, when):
        self.moved = True


def live_stream(**client):
    seen = {"writing_since": None, "last_write": 0.0, "started": False, "keepalives": []}
    fake = SimpleNamespace(**{**seen, **client})
    fake.keepalive = lambda one_line_end: fake.keepalives.append(one_line_end)
    meter = SimpleNamespace(patience_s=None, produced=False)
    passage = SimpleNamespace(meter=meter, saw_id_or_retry=False)
    return Live(SimpleNamespace(client=fake), Deadline(), stall_s=120, last_output=0.0, last_event=0.0, passage=passage)


async def look(live, now):
    look_at(live, now, TIMING)
    return live.interruption, live.run.client.keepalives


@pytest.mark.parametrize(
    ("now", "started", "has_headers", "count"),
    [
        (9.9, True, True, 0),
        (10.1, True, True, 1),
        (10.1, False, False, 0),
        (20.1, False, False, 1),
        (10.1, False, True, 1),
    ],
)
async def test_keepalive_after_silence(now, started, has_headers, count):
    live = live_stream(started=started)
    live.has_headers = has_headers
    assert await look(live, now) == (None, [False] * count)


async def test_keepalive_knows_of_ids():
    live = live_stream(started=True)
    live.passage.saw_id_or_retry = True
    assert (await look(live, 11))[1] == [True]


async def test_no_keepalive_while_a_write_waits():
    live = live_stream(started=True, writing_since=0.0)
    assert await look(live, 30) == (None, [])


@pytest.mark.parametrize(("now", "why"), [(59, None), (61, "slow_reader")])
async def test_slow_reader_is_cut(now, why):
    assert (await look(live_stream(writing_since=0.0), now))[0] == why


@pytest.mark.parametrize(("now", "why"), [(119, None), (121, "stalled")])
async def test_stall_counts_real_output_alone(now, why):
    live = live_stream(last_write=now)
    live.last_event = now  # pings and comments keep coming
    assert (await look(live, now))[0] == why


async def test_slow_reader_is_no_stall():
    live = live_stream(writing_since=100.0)
    assert (await look(live, 130))[0] is None


async def test_patience_ends_a_finished_stream():
    live = live_stream(last_write=5.0)
    live.passage.meter.patience_s = 5.0
    assert (await look(live, 5.1))[0] == "patience"


async def test_drain_has_an_end():
    live = live_stream(last_write=30.0)
    live.drain_until = 30.0
    assert (await look(live, 30.1))[0] == "drained"


@pytest.mark.parametrize(
    ("last_write", "last_output", "now", "again"),
    [
        (0.0, 0.0, 5.0, 6.0),  # nothing is near
        (0.0, 0.0, 9.5, 10.0),  # a keepalive
        (119.0, 0.0, 119.5, 120.0),  # the stall limit
    ],
)
async def test_quiet_stream_is_passed_by(last_write, last_output, now, again):
    live = live_stream(last_write=last_write, started=True)
    live.last_output = last_output
    assert await look(live, now) == (None, [])
    assert live.next_look == again


async def test_what_is_near_its_end_is_looked_at_each_time():
    drained, patient = live_stream(last_write=5.0), live_stream(last_write=5.0)
    drained.drain_until = 30.0
    patient.passage.meter.patience_s = 5.0
    patient.last_event = 5.0
    for live in (drained, patient):
        await look(live, 6.0)
        assert live.next_look == 0


async def test_tick_looks_at_those_whose_time_it_is():
    ticker = Ticker(TIMING, lambda: None, lambda: 0.0)
    soon, later = live_stream(started=True), live_stream(started=True)
    soon.next_look, later.next_look = 11.0, 12.0
    ticker.streams |= {soon, later}
    ticker.tick(11.0)
    assert (soon.run.client.keepalives, later.run.client.keepalives) == ([False], [])


async def test_first_interruption_stays():
    live = live_stream()
    live.interrupt("stopped")
    live.interrupt("stalled")
    assert live.interruption == "stopped"


async def interrupted_wait():
    async with asyncio.timeout(None) as deadline:
        live = live_stream()
        live.deadline = deadline
        live.interrupt("stalled")
        await asyncio.sleep(5)


async def test_ended_attempt_stays_as_it_is():
    async with asyncio.timeout(None) as deadline:
        live = live_stream()
        live.deadline = deadline
    live.interrupt("shutdown")
    assert live.interruption is None


async def test_real_timeout_is_moved():
    with pytest.raises(TimeoutError):
        await interrupted_wait()
