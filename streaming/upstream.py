"""The HTTP side facing the provider; the only module that knows httpx and aiohttp.

httpx's API over the aiohttp transport (docs/adr/0003): raw bytes, one client per event loop, explicit limits. A
provider's body is read in the transport's own chunks; gzip that comes unasked is decoded in bounded steps.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import cast

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from streaming.catalogue import ProviderEntry
from streaming.errors import AttemptFailed, Failure

USER_AGENT = "HopBase/0.1"
PASSED_REQUEST_HEADERS = (b"content-type", b"accept", b"anthropic-version", b"anthropic-beta", b"openai-beta")
PASSED_ANSWER_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry")
RATELIMIT_PREFIXES = ("x-ratelimit-", "anthropic-ratelimit-")
REQUEST_ID_HEADERS = ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid", "cf-ray")
MAX_CONNECTIONS = 20_000
IDLE_CONNECTION_S = 30.0
INFLATE_STEP = 64 * 1024


class Upstream:
    """The client of one event loop."""

    def __init__(self, connect_timeout_s: float) -> None:
        self._timeout = {"connect": connect_timeout_s, "read": None, "write": None, "pool": connect_timeout_s}
        self._client = httpx.AsyncClient(transport=AiohttpTransport(client=_session), follow_redirects=False)

    async def post(
        self, provider: ProviderEntry, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]], query: str = ""
    ) -> UpstreamAnswer:
        """Send a request and return the answer as soon as its headers are there; AttemptFailed when it never comes."""
        url = f"{provider.base_url.rstrip('/')}/{path}{query}"
        request = httpx.Request(
            "POST",
            url,
            headers=[*headers, *_own_headers(provider)],
            content=body,
            extensions={"timeout": self._timeout},
        )
        try:
            response = await self._client.send(request, stream=True)
        except httpx.TransportError as error:
            raise AttemptFailed(_unreachable(error)) from None
        return UpstreamAnswer(response, passed_headers(response.headers, provider))

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()


def _session() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=IDLE_CONNECTION_S, ttl_dns_cache=30)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),  # a provider's cookie would tie customers together
        timeout=aiohttp.ClientTimeout(total=None),
        max_line_size=64 * 1024,
        max_field_size=64 * 1024,
    )


def request_headers(sent: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers of a client that go on to the provider: those of the list, and no other."""
    passed = [(name, value) for name, value in sent if name in PASSED_REQUEST_HEADERS]
    names = {name for name, _ in passed}
    if b"content-type" not in names:
        passed.append((b"content-type", b"application/json"))
    if b"accept" not in names:
        passed.append((b"accept", b"*/*"))
    return passed


def _own_headers(provider: ProviderEntry) -> list[tuple[bytes, bytes]]:
    credential = provider.credential.encode()
    key = (b"authorization", b"Bearer " + credential) if provider.auth == "bearer" else (b"x-api-key", credential)
    return [(b"user-agent", USER_AGENT.encode()), (b"accept-encoding", b"identity"), key]


def passed_headers(headers: Mapping[str, str], provider: ProviderEntry) -> dict[str, str]:
    """The headers of a provider's answer that a client may see."""
    passed = {name: headers[name] for name in PASSED_ANSWER_HEADERS if name in headers}
    if provider.ratelimit_headers == "pass":
        passed |= {name: value for name, value in headers.items() if name.startswith(RATELIMIT_PREFIXES)}
    return passed


def _unreachable(error: httpx.TransportError) -> Failure:
    """A failure before headers. The transport's classes blur reset and connect timeout; the cause tells them apart."""
    cause = error.__cause__
    name = type(cause or error).__name__
    if isinstance(cause, asyncio.TimeoutError | TimeoutError):
        return Failure("timed_out", f"no connection: {name}", "timed_out")
    return Failure("unreachable", f"no answer: {name}", "failed", stays=True)


class UpstreamAnswer:
    """A provider's answer: status and headers at once, the body as it comes."""

    def __init__(self, response: httpx.Response, passed: dict[str, str]) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.passed_headers = passed
        self._response = response
        self._chunks: AsyncGenerator[bytes, None] | None = None

    @property
    def content_type(self) -> str:
        return str(self.headers.get("content-type", ""))

    @property
    def request_id(self) -> str:
        """The provider's own id of the request, for the operator."""
        return next((self.headers[name][:200] for name in REQUEST_ID_HEADERS if name in self.headers), "")

    @property
    def encoding(self) -> str:
        """The content encoding, "" for none."""
        encoding = self.headers.get("content-encoding", "").strip().lower()
        return "" if encoding == "identity" else encoding

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body's bytes, decoded; `BROKEN` when the provider breaks off. A second call continues the first."""
        if self._chunks is None:
            stream = aiter(cast(httpx.AsyncByteStream, self._response.stream))
            generator = inflated(stream) if self.encoding == "gzip" else stream
            self._chunks = cast("AsyncGenerator[bytes, None]", generator)
        return self._chunks

    async def read(self, limit: int) -> bytes:
        """The whole body; AttemptFailed past the limit or when it breaks off."""
        body = bytearray()
        try:
            async for chunk in self.chunks():
                body += chunk
                if len(body) > limit:
                    raise AttemptFailed(Failure("failed", f"the answer is larger than {limit} bytes"))
        except BROKEN as error:
            raise AttemptFailed(Failure("failed", f"the answer broke off: {type(error).__name__}")) from None
        return bytes(body)

    async def aclose(self) -> None:
        """Give the connection back, or close it when the body was not read to its end."""
        if self._chunks is not None:
            await self._chunks.aclose()
        await self._response.aclose()


BROKEN = (httpx.TransportError, zlib.error)
"""What reading a body raises when the provider breaks off or sends what is no gzip."""


async def inflated(stream: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The bytes of a gzip stream, at most `INFLATE_STEP` at a time; a cut stream ends where it is cut."""
    unpacker = zlib.decompressobj(wbits=31)
    async for chunk in stream:
        while chunk or unpacker.unconsumed_tail:
            data = unpacker.decompress(chunk, INFLATE_STEP)
            if data:
                yield data
            elif not unpacker.unconsumed_tail:
                break
            chunk = unpacker.unconsumed_tail
