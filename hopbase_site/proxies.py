"""What a request to the admin says of its way here, believed only as far as trusted proxies said it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from streaming.auth import Address, client_address

FORWARDED_FOR, FORWARDED_PROTO = "HTTP_X_FORWARDED_FOR", "HTTP_X_FORWARDED_PROTO"


def address_of(request: HttpRequest) -> Address | None:
    """The client's address, by the same rule as the API's; None where the server knows no peer (a Unix socket)."""
    forwarded = request.META.get(FORWARDED_FOR, "").encode("latin-1", "replace")
    return client_address(request.META.get("REMOTE_ADDR"), {b"x-forwarded-for": forwarded}, settings.TRUSTED_PROXIES)


def source_of(request: HttpRequest) -> str | None:
    """What counts as one place to log in from: an IPv4 address or an IPv6 /64, which a single host can roam in."""
    address = address_of(request)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False).network_address)
    return str(address) if address else None


def believed_scheme(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """A middleware, before all that ask whether a request is secure: only trusted proxies may say X-Forwarded-Proto.

    Django's SECURE_PROXY_SSL_HEADER takes it from anyone.
    """

    def respond(request: HttpRequest) -> HttpResponse:
        peer = client_address(request.META.get("REMOTE_ADDR"), {}, ())
        if peer is None or not any(peer in network for network in settings.TRUSTED_PROXIES):
            request.META.pop(FORWARDED_PROTO, None)
        return get_response(request)

    return respond
