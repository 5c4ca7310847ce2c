"""Where the gateway never connects to: link-local addresses, and those where clouds tell a machine its secrets."""

from __future__ import annotations

import ipaddress

METADATA_ADDRESSES = frozenset(
    ipaddress.ip_address(address)
    # AWS over IPv6, Alibaba Cloud, Oracle Cloud; the others are link-local.
    for address in ("fd00:ec2::254", "100.100.100.200", "192.0.0.192")
)


def is_refused(address: str) -> bool:
    """Whether nobody of ours may be there; ValueError where it is no address."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return parsed.is_link_local or parsed in METADATA_ADDRESSES


def is_literal_and_refused(host: str) -> bool:
    """The same for a host that is an address; a name is looked at when it is resolved."""
    try:
        return is_refused(host)
    except ValueError:
        return False
