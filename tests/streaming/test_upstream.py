"""The HTTP side facing providers, against a real server where sockets matter."""

import asyncio
import dataclasses
import gzip
import os
import zlib

import pytest

from streaming.errors import AttemptFailed
from streaming.upstream import (
    BROKEN,
    INFLATE_STEP,
    Resolver,
    Upstream,
    inflated,
    passed_headers,
    request_headers,
)
from tests.streaming.entries import provider


async def pieces(data, size):
    for at in range(0, len(data), size):
        yield data[at : at + size]


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_gzip_is_decoded_however_it_is_cut(size):
    data = b"data: {}\n\n" * 5000
    assert b"".join([chunk async for chunk in inflated(pieces(gzip.compress(data), size))]) == data


@pytest.mark.parametrize("size", [1, 7, 1_000_000])
async def test_gzip_may_be_of_many_members(size):
    packed = b"".join(gzip.compress(line) for line in (b"one ", b"", b"two ", b"three"))
    assert b"".join([chunk async for chunk in inflated(pieces(packed + b"\0\0", size))]) == b"one two three"


async def test_gzip_bomb_comes_in_steps():
    bomb = gzip.compress(b"\0" * 30_000_000)
    async for chunk in inflated(pieces(bomb, len(bomb))):
        assert len(chunk) <= INFLATE_STEP


async def test_what_is_no_gzip_is_broken():
    with pytest.raises(BROKEN):
        [chunk async for chunk in inflated(pieces(os.urandom(100), 10))]
    assert zlib.error in BROKEN


def test_flushed_gzip_is_not_held_back():
    packer = zlib.compressobj(wbits=31)
    first = packer.compress(b"data: 1\n\n") + packer.flush(zlib.Z_SYNC_FLUSH)

    async def one():
        async for chunk in inflated(pieces(first, len(first))):
            return chunk

    assert asyncio.run(one()) == b"data: 1\n\n"


def test_listed_headers_alone_go_on():
    sent = [(b"content-type", b"application/json; charset=utf-8"), (b"cookie", b"a=b"), (b"openai-organization", b"o"),
            (b"anthropic-beta", b"x"), (b"x-forwarded-for", b"192.0.2.1"), (b"authorization", b"Bearer k")]  # fmt: skip
    assert dict(request_headers(sent)) == {
        b"content-type": b"application/json; charset=utf-8", b"anthropic-beta": b"x", b"accept": b"*/*",
    }  # fmt: skip


def test_ratelimit_headers_can_be_hidden():
    headers = {"retry-after": "3", "x-ratelimit-remaining-requests": "4", "set-cookie": "a", "server": "vendor"}
    assert passed_headers(headers, provider()) == {"retry-after": "3", "x-ratelimit-remaining-requests": "4"}
    assert passed_headers(headers, provider(ratelimit_headers="hide")) == {"retry-after": "3"}


class Server:
    """Answers every request with the same bytes, a moment later with more, then closes or waits."""

    def __init__(self, answer: bytes, close: bool = True, then: bytes = b"") -> None:
        self.answer, self.close, self.closed, self.seen = answer, close, asyncio.Event(), b""
        self.then = then

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc):
        self.server.close()

    async def serve(self, reader, writer):
        self.seen = await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        await writer.drain()
        if self.then:
            await asyncio.sleep(0.05)
            writer.write(self.then)
        if not self.close:
            while await reader.read(1000):
                pass
        self.closed.set()
        writer.close()

    @property
    def provider(self):
        return provider(base_url=f"http://127.0.0.1:{self.port}/v1")


@pytest.fixture
async def upstream():
    made = Upstream(connect_timeout_s=2.0)
    yield made
    await made.aclose()


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"


async def test_credential_and_identity_go_out(upstream):
    async with Server(STREAM + b"0\r\n\r\n") as server:
        answer = await upstream.post(server.provider, "chat/completions", b"{}", request_headers([]))
        assert await answer.read(100) == b"abc"
        await answer.aclose()
    head = server.seen.lower()
    assert head.startswith(b"post /v1/chat/completions http/1.1")
    assert b"authorization: bearer secret-1" in head
    assert b"accept-encoding: identity" in head


async def test_new_credential_and_address_are_taken(upstream):
    """What was worked out of a provider is worked out anew when its entry changes."""
    once = STREAM.replace(b"content-type", b"connection: close\r\ncontent-type") + b"0\r\n\r\n"
    async with Server(once) as first, Server(once) as second:
        for server, credential in ((first, "secret-1"), (first, "secret-2"), (second, "secret-2")):
            asked = dataclasses.replace(server.provider, credential=credential)
            await (await upstream.post(asked, "x", b"{}", [])).aclose()
            assert f"authorization: bearer {credential}".encode() in server.seen.lower()


async def test_reader_that_paused_goes_on(upstream):
    """More than is held unread: the connection pauses, and every byte comes once it is read."""
    sent = os.urandom(3_000_000)
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (sent[:70_000], sent[70_000:]))
    async with Server(STREAM[:-8] + chunked + b"0\r\n\r\n", close=False) as server:
        answer = await upstream.post(server.provider, "x", b"{}", [])
        await asyncio.sleep(0.1)  # it fills what is held
        assert not answer.is_read
        assert await answer.read(len(sent)) == sent
        assert answer.is_read
        await answer.aclose()


async def test_cut_chunked_body_is_broken(upstream):
    async with Server(STREAM) as server:
        answer = await upstream.post(server.provider, "x", b"{}", [])
        with pytest.raises(BROKEN):
            [chunk async for chunk in answer.chunks()]
        await answer.aclose()


async def read_into(read, answer):
    async for chunk in answer.chunks():
        read += chunk


async def test_what_came_before_a_cut_is_read(upstream):
    sent = b"x" * 100_000
    async with Server(STREAM[:-8] + b"%x\r\n%b\r\n" % (len(sent), sent)) as server:
        answer = await upstream.post(server.provider, "x", b"{}", [])
        await server.closed.wait()
        await asyncio.sleep(0.05)  # all is there, and the end of the connection too
        read = bytearray()
        with pytest.raises(BROKEN):
            await read_into(read, answer)
        await answer.aclose()
    assert read == sent


@pytest.mark.parametrize("answer", [b"HTTP/1.1 abc\r\n\r\n", b"220 mail.test ESMTP\r\n", STREAM + b"zz\r\n"])
async def test_what_is_no_http_is_a_failure(upstream, answer):
    async with Server(answer, close=False) as server:
        with pytest.raises(AttemptFailed) as failed:
            await upstream.post(server.provider, "x", b"{}", [])
    assert failed.value.failure.kind == "failed"
    assert str(server.port) not in failed.value.failure.reason


async def test_broken_framing_ends_the_body(upstream):
    async with Server(STREAM, then=b"zz\r\n") as server:
        answer = await upstream.post(server.provider, "x", b"{}", [])
        read = bytearray()
        with pytest.raises(BROKEN):
            await read_into(read, answer)
        await answer.aclose()
    assert read == b"abc"


async def test_reset_before_headers_is_a_failure(upstream):
    async with Server(b"") as server:
        with pytest.raises(AttemptFailed) as failed:
            await upstream.post(server.provider, "x", b"{}", [])
    assert failed.value.failure.kind == "unreachable"


async def test_nobody_listens_is_a_failure(upstream):
    async with Server(b"") as server:
        gone = server.provider
    with pytest.raises(AttemptFailed) as failed:
        await upstream.post(gone, "x", b"{}", [])
    assert failed.value.failure.kind == "unreachable"


async def test_double_cancellation_closes_the_connection(upstream):
    async with Server(STREAM, close=False) as server:
        answer = await upstream.post(server.provider, "x", b"{}", [])

        async def read():
            try:
                async for _ in answer.chunks():
                    pass
            finally:
                await answer.aclose()

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(0.05)
        reading.cancel()
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait((reading,))
        await asyncio.wait_for(server.closed.wait(), 2)


async def test_answer_over_the_limit_is_refused(upstream):
    async with Server(STREAM + b"0\r\n\r\n") as server:
        answer = await upstream.post(server.provider, "x", b"{}", [])
        with pytest.raises(AttemptFailed, match="larger than 2 bytes"):
            await answer.read(2)
        await answer.aclose()


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]"])
async def test_literal_metadata_address_is_not_asked(upstream, host):
    with pytest.raises(AttemptFailed, match="metadata"):
        await upstream.post(provider(base_url=f"http://{host}:1/v1"), "x", b"{}", [])


async def test_name_of_a_metadata_address_does_not_resolve():
    with pytest.raises(OSError, match="metadata"):
        await Resolver().resolve("2852039166", 80)  # how inet_aton reads 169.254.169.254
