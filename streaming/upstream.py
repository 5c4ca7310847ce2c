"""The HTTP side facing the provider; the only module that knows httpx and aiohttp.

httpx's aiohttp transport and its errors (docs/adr/0003): raw bytes, one client per event loop, explicit limits. A
provider's body is read in aiohttp's own chunks; gzip that comes unasked is decoded in bounded steps.
"""

from __future__ import annotations

import asyncio
import socket
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from functools import partial

import aiohttp
import httpx
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import _EXC_SENTINEL
from aiohttp.http_exceptions import HttpProcessingError
from django.conf import settings
from httpx_aiohttp import AiohttpTransport
from httpx_aiohttp.transport import map_aiohttp_exceptions
from yarl import URL

from streaming.addresses import is_literal_and_refused, is_refused
from streaming.catalogue import ProviderEntry
from streaming.errors import AttemptFailed, Failure

PASSED_REQUEST_HEADERS = (b"content-type", b"accept", b"anthropic-version", b"anthropic-beta", b"openai-beta")
PASSED_ANSWER_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry")
RATELIMIT_PREFIXES = ("x-ratelimit-", "anthropic-ratelimit-")
REQUEST_ID_HEADERS = ("x-request-id", "request-id", "apim-request-id", "x-amzn-requestid", "cf-ray")
MAX_CONNECTIONS = 20_000
IDLE_CONNECTION_S = 30.0
READ_BYTES = 16 * 1024
"""What is read of a body at a time; aiohttp holds twice as much unread, so that a slow reader costs little memory."""
INFLATE_STEP = 64 * 1024
REFUSED_ADDRESS = "the provider's address is link-local or a metadata service"


class Upstream:
    """The client of one event loop."""

    def __init__(self, connect_timeout_s: float) -> None:
        self._transport = Transport(connect_timeout_s)
        self._places: dict[int, Place] = {}

    async def post(
        self, provider: ProviderEntry, path: str, body: bytes, headers: Sequence[tuple[bytes, bytes]], query: str = ""
    ) -> UpstreamAnswer:
        """Send a request and return the answer as soon as its headers are there; AttemptFailed when it never comes."""
        place = self._place(provider)
        if place.is_refused:
            raise AttemptFailed(Failure("failed", REFUSED_ADDRESS))
        try:
            response = await self._transport.post(place.url(path + query), [*_texts(headers), *place.headers], body)
        except httpx.TransportError as error:
            raise AttemptFailed(_unreachable(error)) from None
        except aiohttp.ClientError as error:  # the transport knows no name for it: an answer that is no HTTP
            raise AttemptFailed(Failure("failed", f"no HTTP answer: {type(error).__name__}")) from None
        return UpstreamAnswer(response, provider)

    def _place(self, provider: ProviderEntry) -> Place:
        found = self._places.get(provider.id)
        if found is None or found.provider is not provider:
            found = self._places[provider.id] = Place(provider)
        return found

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()


class Place:
    """Where a provider is asked, worked out once for each version of its entry."""

    def __init__(self, provider: ProviderEntry) -> None:
        self.provider = provider
        self.headers = _own_headers(provider)
        self._base = provider.base_url.rstrip("/")
        self._urls: dict[str, URL] = {}
        self.is_refused = is_literal_and_refused(httpx.URL(self._base).host)

    def url(self, path: str) -> URL:
        """The address of a path, its query included: there are a handful of them."""
        if (found := self._urls.get(path)) is None:
            # As httpx escapes it; aiohttp would do so by rules of its own.
            found = self._urls[path] = URL(str(httpx.URL(f"{self._base}/{path}")), encoded=True)
        return found


class Resolver(aiohttp.ThreadedResolver):
    """Resolves names, less the addresses that are refused: a name may point there at any time."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[aiohttp.abc.ResolveResult]:
        found = await super().resolve(host, port, family)
        allowed = [entry for entry in found if not is_refused(entry["host"])]
        if not allowed:
            raise OSError(REFUSED_ADDRESS)
        return allowed


class Transport(AiohttpTransport):
    """httpx's transport, asked for aiohttp's own answer: its reader holds what came before a provider broke off, and a
    Request and a Response that nobody reads would cost as much as the call itself."""

    def __init__(self, connect_timeout_s: float) -> None:
        super().__init__(client=_session)
        self._timeout = aiohttp.ClientTimeout(connect=connect_timeout_s, sock_connect=connect_timeout_s)

    async def post(self, url: URL, headers: Sequence[tuple[str, str]], body: bytes) -> aiohttp.ClientResponse:
        """Send a request; the answer's headers are there. Errors are httpx's."""
        if not isinstance(self.client, aiohttp.ClientSession):
            self.client = self.get_client()
        with map_aiohttp_exceptions():
            return await self.client.post(
                url, headers=headers, data=body, allow_redirects=False, auto_decompress=False, timeout=self._timeout
            )


class Connection(ResponseHandler):
    """Tells the reader of a body that its framing broke: aiohttp 3.14 drops such a body, and lets its reader wait.

    And it resumes nothing that is not paused: aiohttp does so after each read, which parses nothing and costs as much.
    """

    def resume_reading(self, resume_parser: bool = True) -> None:
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def set_exception(self, exc: BaseException, exc_cause: BaseException = _EXC_SENTINEL) -> None:
        body = self._payload
        super().set_exception(exc, exc_cause)
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("the body's framing is broken"))


def _session() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=MAX_CONNECTIONS, keepalive_timeout=IDLE_CONNECTION_S, ttl_dns_cache=30, resolver=Resolver()
    )
    connector._factory = partial(Connection, loop=asyncio.get_running_loop())  # type: ignore[assignment]  # a subclass
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),  # a provider's cookie would tie customers together
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=READ_BYTES,
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


def _own_headers(provider: ProviderEntry) -> list[tuple[str, str]]:
    credential = provider.credential
    key = ("authorization", f"Bearer {credential}") if provider.auth == "bearer" else ("x-api-key", credential)
    return [("user-agent", settings.USER_AGENT), ("accept-encoding", "identity"), key]


def _texts(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Headers as aiohttp takes them: texts, which it writes as UTF-8."""
    return [(str(name, "latin-1"), _text(value)) for name, value in headers]


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _joined(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their names in lower case, those of one name joined by commas."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in raw:
        name, value = str(raw_name, "latin-1").lower(), str(raw_value, "latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


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

    def __init__(self, response: aiohttp.ClientResponse, provider: ProviderEntry) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = _joined(response.raw_headers)
        self.passed_headers = passed_headers(self.headers, provider)
        self._response = response
        self._reader = response.content
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

    @property
    def is_read(self) -> bool:
        """Whether the body has ended and all of it was read."""
        return self._reader.at_eof()

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body's bytes, decoded; `BROKEN` when the provider breaks off. A second call continues the first."""
        if self._chunks is None:
            self._chunks = inflated(self._raw()) if self.encoding == "gzip" else self._raw()
        return self._chunks

    async def _raw(self) -> AsyncGenerator[bytes, None]:
        """The body's bytes as they come. aiohttp tells of a break at once, and would forget what it holds unread."""
        reader = self._reader
        try:
            while chunk := await reader.read(READ_BYTES):
                yield chunk
        except BROKEN:
            if unread := reader._read_nowait(-1):
                yield unread
            raise

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
        self._response.release()
        await self._response.wait_for_close()


BROKEN = (httpx.TransportError, aiohttp.ClientError, HttpProcessingError, zlib.error)
"""What reading a body raises when the provider breaks off or sends what is no gzip."""


async def inflated(stream: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The bytes of a gzip stream, at most `INFLATE_STEP` at a time; a cut stream ends where it is cut.

    A stream may be of several members, one after the other; what follows the last and is no gzip is passed over.
    """
    unpacker = zlib.decompressobj(wbits=31)
    async for chunk in stream:
        while chunk or unpacker.unconsumed_tail:
            if unpacker.eof:
                if not chunk.startswith(_GZIP):
                    return
                unpacker = zlib.decompressobj(wbits=31)
            data = unpacker.decompress(chunk, INFLATE_STEP)
            if data:
                yield data
            chunk = unpacker.unconsumed_tail or unpacker.unused_data


_GZIP = b"\x1f"
