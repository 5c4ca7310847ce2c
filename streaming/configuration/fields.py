"""Readers of single values of the configuration file: a value in, the same as the database keeps it out.

A ValueError says what to write instead. Pure.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Callable, Collection
from decimal import Decimal
from typing import Any, TypeVar
from urllib.parse import urlsplit

from billing import money
from billing.periods import zones
from billing.phrases import phrase as _
from billing.readers import shown, text

Value = TypeVar("Value")
PPM = 10**6


def choice(options: Collection[str]) -> Callable[[Any], str]:
    """One of several words."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in options:
            raise ValueError(
                _("must be one of %(options)s, not %(value)s", options=", ".join(options), value=shown(value))
            )
        return value

    return read


def choices(options: Collection[str], *, empty: bool) -> Callable[[Any], list[str]]:
    """A list of such words, each once."""
    read_one = choice(options)

    def read(value: Any) -> list[str]:
        found = [read_one(one) for one in listed(value)]
        if len(set(found)) < len(found):
            raise ValueError(_("names one of them twice"))
        if not (found or empty):
            raise ValueError(_("must name at least one of %(options)s", options=", ".join(options)))
        return found

    return read


def boolean(value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise ValueError(_("must be true or false, not %(value)s", value=shown(value)))
    return value


def optional(read: Callable[[Any], Value]) -> Callable[[Any], Value | None]:
    """The same, or null."""
    return lambda value: None if value is None else read(value)


def listed(value: Any) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError(_("must be a list, not %(value)s", value=shown(value)))
    return value


def networks(value: Any) -> list[str]:
    """Networks or addresses, in their usual spelling."""
    return [_network(one) for one in listed(value)]


def _network(value: Any) -> str:
    try:
        return str(ipaddress.ip_network(value if isinstance(value, str) else ""))
    except ValueError:
        raise ValueError(
            _("%(value)s is not a network; write it as 10.0.0.0/8 or 2001:db8::/32", value=shown(value))
        ) from None


def instant(value: Any) -> dt.datetime:
    """A moment with its zone, in UTC."""
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(
                _(
                    "%(value)s is not a moment; write it with its zone, for example 2027-01-01T00:00:00Z",
                    value=repr(value),
                )
            ) from None
    if not isinstance(value, dt.datetime) or value.tzinfo is None:
        raise ValueError(
            _(
                "%(value)s is not an exact moment; write it with its zone, for example 2027-01-01T00:00:00Z",
                value=value,
            )
        )
    try:
        return value.astimezone(dt.UTC)
    except OverflowError:
        raise ValueError(
            _("%(value)s is out of range; write a moment such as 2027-01-01T00:00:00Z", value=value)
        ) from None


def zone(value: Any) -> str:
    """A time zone of the IANA database."""
    if not isinstance(value, str) or value not in zones():
        raise ValueError(_("%(value)s is not a time zone; write one such as Asia/Taipei or UTC", value=shown(value)))
    return value


def currency(value: Any) -> str:
    """A currency of ISO 4217."""
    if not isinstance(value, str) or not money.is_currency(value):
        raise ValueError(
            _("%(value)s is no currency of ISO 4217; write it in capitals, for example USD", value=shown(value))
        )
    return value


def amount(value: Any) -> int:
    """An amount of money as nanos."""
    nanos = money.parse(value)
    if not 0 <= nanos <= money.MAX_NANOS:
        most = money.show(money.MAX_NANOS)
        raise ValueError(_("%(value)s is not an amount from 0 to %(most)s", value=value, most=most))
    return nanos


def tax_rate(value: Any) -> int:
    """A share such as 0.05 as millionths."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError(_("must be a number such as 0.05 for 5 %%, not %(value)s", value=shown(value)))
    if not 0 <= value <= 1:
        raise ValueError(_("must be between 0 and 1, not %(value)s; write 5 %% as 0.05", value=value))
    ppm = Decimal(value) * PPM
    if ppm != int(ppm):
        raise ValueError(_("%(value)s has more than six decimal places; round it", value=value))
    return int(ppm)


def base_url(value: Any) -> str:
    """A provider's address: http or https, a host, a path; without a slash at its end."""
    address = text(300)(value)
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError as error:
        raise ValueError(_("is not a URL (%(error)s); write it as https://api.example.com/v1", error=error)) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or any(letter.isspace() for letter in address):
        raise ValueError(_("must be an address such as https://api.example.com/v1"))
    if "@" in parts.netloc:
        raise ValueError(_("must not hold a user or password; put the credential in api_key"))
    if "?" in address or "#" in address:
        raise ValueError(_("must not hold a query or fragment; leave out what follows the path"))
    return address.rstrip("/")
