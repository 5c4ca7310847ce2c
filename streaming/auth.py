"""Who asks: the key in the headers, and whether it may."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence

from billing import keys
from billing.catalogue import KeyEntry
from streaming.errors import ApiError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Networks = Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]
LookUp = Callable[[str], Awaitable[KeyEntry | None]]


def read_secret(headers: Mapping[bytes, bytes]) -> str:
    """The key that a request bears: `Authorization: Bearer` first, then `x-api-key`; both SDK families send either."""
    scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and bearer.strip():
        return bearer.strip().decode("latin-1")
    secret = headers.get(b"x-api-key", b"").strip().decode("latin-1")
    if not secret:
        raise ApiError(
            "missing_api_key", "No API key. Send it as `Authorization: Bearer <key>` or as `x-api-key: <key>`."
        )
    return secret


def client_address(peer: str | None, headers: Mapping[bytes, bytes], trusted: Networks) -> Address | None:
    """The peer's address; where the peer is a trusted proxy, the last address that no trusted proxy named."""
    address = _parsed(peer or "")
    hops = headers.get(b"x-forwarded-for", b"").decode("latin-1").split(",")
    while address is not None and hops and any(address in network for network in trusted):
        address = _parsed(hops.pop()) or address
    return address


def _parsed(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


async def authenticate(
    headers: Mapping[bytes, bytes],
    address: Callable[[], Address | None],
    now: float,
    known: Callable[[str, float], KeyEntry | None],
    look_up: LookUp,
    pepper: str,
    used: Callable[[str, float], None],
) -> KeyEntry:
    """The key of a request, checked: known, not revoked or expired, its account active, its address allowed.

    `known` reads the snapshot in memory; a well-formed key that is not there is looked up once in the database. `used`
    is told the digest of a secret that lets its bearer in. `address` is asked only for a key that is bound to some.
    """
    secret = read_secret(headers)
    entry, digest = None, ""
    if keys.is_well_formed(secret):
        digest = keys.digest(secret, pepper)
        entry = known(digest, now) or await look_up(digest)
    if entry is None or entry.revoked:
        raise ApiError("invalid_api_key", "The API key is unknown or revoked. Check it, or ask for a new one.")
    if entry.expires_at is not None and entry.expires_at <= now:
        raise ApiError("api_key_expired", "The API key has expired. Ask for a new one.")
    if not entry.account.active:
        raise ApiError("account_disabled", "The account of this API key is disabled. Ask its operator.")
    if entry.allowed_ips and not is_allowed(address(), entry.allowed_ips):
        raise ApiError("ip_not_allowed", "This API key may not be used from this network address.")
    used(digest, now)
    return entry


def is_allowed(address: Address | None, networks: Networks) -> bool:
    """Whether an address is known and lies in one of the networks."""
    return address is not None and any(address in network for network in networks)
