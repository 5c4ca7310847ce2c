"""Sends an alarm's JSON to the operator's own address: one try, with a deadline, signed, to vetted addresses only.

The address and the secret are the operator's, and the address often holds a secret itself: neither is in a log, an
exception or a repr. A proxy of the environment is not asked, and a redirection is not followed.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import socket
import ssl
import threading
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from django.conf import settings

from streaming.addresses import is_refused

ANSWER_S = 5.0
"""How long connecting, and each wait for the answer, may take."""
DEADLINE_S = 10.0
"""How long all of it may take: a receiver that answers a byte at a time holds up a worker."""
MOST_ADDRESSES = 3
"""Of a name that is asked: each may take ANSWER_S to connect."""
SIGNATURE_HEADER = "x-hopbase-signature"
DELIVERY_HEADER = "x-hopbase-delivery"


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where alarms go; `secret` is empty where they are not signed."""

    url: str = field(repr=False)
    secret: str = field(default="", repr=False)


def signature(secret: str, body: bytes) -> str:
    """What the receiver computes over the body's bytes to know that they are ours."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def post(
    webhook: Webhook, body: bytes, delivery: str, *, answer_s: float = ANSWER_S, deadline_s: float = DEADLINE_S
) -> str:
    """Send a body once; returns why it did not arrive, in words that name no address, or "" when it did (2xx)."""
    url = urlsplit(webhook.url)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    headers = {"content-type": "application/json", "user-agent": settings.USER_AGENT, DELIVERY_HEADER: delivery}
    if webhook.secret:
        headers[SIGNATURE_HEADER] = signature(webhook.secret, body)
    kind = VettedHTTPS if url.scheme == "https" else VettedHTTP
    host = url.hostname or ""
    connection = kind(f"[{host}]" if ":" in host else host, url.port, timeout=answer_s)
    deadline = threading.Timer(deadline_s, _break_off, [connection])
    deadline.daemon = True
    deadline.start()
    try:
        connection.request("POST", path, body, headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__  # their texts name hosts and addresses
    finally:
        deadline.cancel()
        connection.close()
    return "" if 200 <= status < 300 else f"status {status}"


class RefusedAddress(OSError):
    """The name leads to link-local or metadata addresses alone."""


class VettedHTTP(http.client.HTTPConnection):
    """Connects to the addresses that it has looked at, and to no other: a name may point elsewhere a moment later."""

    def connect(self) -> None:
        self.sock = connected(self.host, self.port, self.timeout or ANSWER_S)


class VettedHTTPS(http.client.HTTPSConnection, VettedHTTP):
    """The same with TLS, which `HTTPSConnection` puts around what `VettedHTTP` connects."""

    def __init__(self, host: str, port: int | None, timeout: float) -> None:
        super().__init__(host, port, timeout=timeout, context=ssl.create_default_context())


def connected(host: str, port: int, timeout_s: float) -> socket.socket:
    """A connection to the first address of a host that takes one; OSError where none does."""
    failure: OSError = RefusedAddress("the address is link-local or a metadata service")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[:MOST_ADDRESSES]:
        if is_refused(str(address[0])):
            continue
        sock = socket.socket(family, kind, protocol)
        sock.settimeout(timeout_s)
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure


def _break_off(connection: http.client.HTTPConnection) -> None:
    """End a wait from another thread."""
    if (sock := connection.sock) is not None:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended by itself
            return
