"""Writes to the client: in order, never two at a time, the status with the first byte."""

import asyncio

import pytest

from streaming.client import KEEPALIVE, STREAM_HEADERS, Client
from streaming.errors import ApiError


class Wire:
    """An ASGI send that can be held."""

    def __init__(self):
        self.messages, self.gate = [], asyncio.Event()
        self.gate.set()

    async def send(self, message):
        await self.gate.wait()
        self.messages.append(message)

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.messages)


async def name():
    return "req_1"


def client_on(wire, clock=lambda: 0.0, name=name):
    return Client(wire.send, name, clock)


async def test_first_byte_commits_the_status():
    wire = Wire()
    client = client_on(wire)
    client.headers = {"x-ratelimit-remaining-requests": "4"}
    await client.write(b"data: 1\n\n")
    start, body = wire.messages
    assert start["status"] == 200
    assert set(STREAM_HEADERS) <= set(start["headers"])
    assert {(b"x-request-id", b"req_1"), (b"request-id", b"req_1"), (b"x-ratelimit-remaining-requests", b"4")} <= set(
        start["headers"]
    )
    assert body == {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}


async def test_keepalive_starts_the_stream():
    wire = Wire()
    client = client_on(wire)
    client.keepalive(one_line_end=False)
    await client.write(b"data: 1\n\n", more=False)
    assert wire.body == KEEPALIVE + b"\n" + b"data: 1\n\n"
    assert [message["type"] for message in wire.messages].count("http.response.start") == 1


async def test_keepalive_after_an_id_has_one_line_end():
    wire = Wire()
    client = client_on(wire)
    client.keepalive(one_line_end=True)
    await client.write(b"data: 1\n\n")
    assert wire.body.startswith(KEEPALIVE + b"data")


async def test_write_waits_for_a_keepalive_under_way():
    wire = Wire()
    client = client_on(wire)
    wire.gate.clear()
    client.keepalive(one_line_end=False)
    writing = asyncio.ensure_future(client.write(b"data: 1\n\n"))
    await asyncio.sleep(0.01)
    assert client.writing_since is not None
    client.keepalive(one_line_end=False)
    wire.gate.set()
    await writing
    assert wire.body == KEEPALIVE + b"\n" + b"data: 1\n\n"


async def test_error_waits_for_a_keepalive_under_way():
    """One that waits for the request's name has not committed the status yet, but is about to."""
    wire, named = Wire(), asyncio.Event()

    async def late_name():
        await named.wait()
        return "req_1"

    client = client_on(wire, name=late_name)
    client.keepalive(one_line_end=False)
    committed = asyncio.ensure_future(client.is_committed())
    await asyncio.sleep(0.01)
    assert not committed.done()
    named.set()
    assert await committed
    client.keepalive(one_line_end=False)
    await asyncio.sleep(0.01)
    assert wire.body == KEEPALIVE + b"\n"


async def test_no_keepalive_after_the_end():
    wire = Wire()
    client = client_on(wire)
    await client.write(b"data: [DONE]\n\n", more=False)
    client.keepalive(one_line_end=False)
    await asyncio.sleep(0)
    assert wire.body == b"data: [DONE]\n\n"


async def test_client_that_left_gets_nothing():
    wire = Wire()
    client = client_on(wire)
    client.left = True
    await client.write(b"data: 1\n\n")
    await client.answer(200, [], b"{}")
    assert wire.messages == []


async def test_missing_open_row_stops_the_first_byte():
    async def unavailable():
        raise ApiError("service_unavailable", "The database does not answer.")

    wire = Wire()
    client = client_on(wire, name=unavailable)
    with pytest.raises(ApiError):
        await client.write(b"data: 1\n\n")
    client.keepalive(one_line_end=False)
    await asyncio.sleep(0.01)
    assert wire.messages == []
    assert client.writing_since is None


async def test_answer_has_its_length():
    wire = Wire()
    await client_on(wire).answer(404, [(b"content-type", b"application/json")], b"{}")
    assert (b"content-length", b"2") in wire.messages[0]["headers"]
    assert wire.messages[1] == {"type": "http.response.body", "body": b"{}", "more_body": False}
