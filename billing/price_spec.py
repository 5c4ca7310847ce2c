"""A price as the configuration file writes it, and as the Price model keeps it. Pure; both ways exact.

    model: gpt-5.6-sol
    effective_from: 2026-01-01T00:00:00Z
    currency: USD
    per_million: {input: 5, cache_read: 0.5, cache_write: 6.25, cache_write_1h: 10, output: 30}
    tiers: {priority: 2.0, flex: {input: 2.5, output: 15}}    # a multiplier, or a whole block
    long_context: {above: 272000, input: 2.0, output: 1.5}
    server_tools: {web_search: 0.01}

Numbers are int, Decimal or text; a float has lost its last digits already and is refused.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from billing import money
from billing.phrases import at, gettext_noop, phrase, said_by
from billing.phrases import phrase as _
from billing.pricing import BASE_TIERS, MAX_TOOL
from billing.usage import BUCKETS

KEYS = ("model", "effective_from", "currency", "per_million", "tiers", "long_context", "server_tools")
NOT_AN_INSTANT = gettext_noop(
    "%(value)s is not an instant: write it with its zone and in whole seconds, for example 2026-01-01T00:00:00Z"
)
NOT_EXACT = gettext_noop(
    "%(value)s is not an exact instant: write it with its zone and in whole seconds, for example 2026-01-01T00:00:00Z"
)
EARLIEST, LATEST = (dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(2999, 12, 31, tzinfo=dt.UTC))
"""Between these a version begins: its label names the year in four digits."""

MAX_MODEL = 200
"""Characters of `Price.model`."""


class PriceFault(ValueError):
    """What is wrong with a model's price: `what` names the field in the file and the remedy."""

    def __init__(self, model: str, what: str) -> None:
        super().__init__(_("price of %(model)s: %(what)s", model=model, what=what))
        self.what = what


def parse_price(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Price model. ValueError names the field in the file and the remedy."""
    spec = _mapping(spec, "price", KEYS)
    model = _model(spec.get("model"))
    try:
        return {
            "model": model,
            "effective_from": _instant(spec.get("effective_from")),
            "currency": _currency(spec.get("currency")),
            **dict.fromkeys(BUCKETS),
            **_block(spec.get("per_million"), "per_million"),
            "tiers": _tiers(spec.get("tiers")),
            "long_context": _long_context(spec.get("long_context")),
            "server_tools": _server_tools(spec.get("server_tools")),
        }
    except ValueError as fault:
        raise PriceFault(model, said_by(fault)) from None


def describe_price(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse: a price entry of the configuration file. Numbers are ints where whole, else text."""
    spec: dict[str, Any] = {
        "model": fields["model"],
        "effective_from": f"{fields['effective_from'].astimezone(dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
        "currency": fields["currency"],
        "per_million": _shown_block({bucket: fields[bucket] for bucket in BUCKETS if fields[bucket] is not None}),
    }
    if fields["tiers"]:
        spec["tiers"] = {tier: _shown_tier(value) for tier, value in fields["tiers"].items()}
    if fields["long_context"]:
        spec["long_context"] = {name: _shown(Decimal(value)) for name, value in fields["long_context"].items()}
    if fields["server_tools"]:
        spec["server_tools"] = _shown_block(fields["server_tools"])
    return spec


def _mapping(value: Any, name: str, allowed: tuple[str, ...] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(
            _("%(name)s must be a mapping, for example %(name)s: {…}; it is %(value)s", name=name, value=repr(value))
        )
    for key in value:
        if not isinstance(key, str) or not key:
            raise ValueError(at(name, _("the key %(key)s must be text", key=repr(key))))
        if "\x00" in key:
            raise ValueError(at(name, _("the key %(key)s holds a NUL character; remove it", key=repr(key))))
        if allowed and key not in allowed:
            raise ValueError(
                at(name, _("unknown key %(key)s; it may have %(known)s", key=repr(key), known=", ".join(allowed)))
            )
    return value


def _model(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_MODEL:
        what = _("model must be a name of 1 to %(most)s characters; it is %(value)s", most=MAX_MODEL, value=repr(value))
        raise ValueError(at("price", what))
    if "\x00" in value or any(letter.isspace() for letter in value):
        raise ValueError(
            at("model", _("%(name)s has a space or a NUL character in it; a model's name has none", name=repr(value)))
        )
    return value


def _instant(value: Any) -> dt.datetime:
    """Whole seconds only, for a version's label shows no more."""
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(at("effective_from", phrase(NOT_AN_INSTANT, value=repr(value)))) from None
    if not isinstance(value, dt.datetime) or value.tzinfo is None or value.microsecond:
        raise ValueError(at("effective_from", phrase(NOT_EXACT, value=value)))
    # Aware moments compare without a detour by UTC, which the calendar's first and last day may not have.
    if not EARLIEST <= value <= LATEST:
        raise ValueError(
            at("effective_from", _("%(value)s is out of range; write a year from 1970 to 2999", value=value))
        )
    return value.astimezone(dt.UTC)


def _currency(value: Any) -> str:
    if not isinstance(value, str) or not money.is_currency(value):
        what = _("%(value)s is no ISO 4217 code; write it in capitals, for example USD", value=repr(value))
        raise ValueError(at("currency", what))
    return value


def _amount(value: Any, name: str) -> int:
    try:
        nanos = money.parse(value)
    except ValueError as fault:
        raise ValueError(at(name, said_by(fault))) from None
    if nanos < 0:
        raise ValueError(at(name, _("%(value)s is negative; write 0 or more", value=value)))
    if nanos > money.MAX_NANOS:
        what = _(
            "%(value)s is too large to be kept; the most is %(most)s", value=value, most=money.show(money.MAX_NANOS)
        )
        raise ValueError(at(name, what))
    return nanos


def _block(value: Any, name: str) -> dict[str, int]:
    """Bucket -> nanos per million tokens."""
    block = {bucket: _amount(price, f"{name}.{bucket}") for bucket, price in _mapping(value, name, BUCKETS).items()}
    if not block:
        raise ValueError(_("%(name)s names no bucket; it may have %(known)s", name=name, known=", ".join(BUCKETS)))
    return block


def _factor(value: Any, name: str) -> str:
    """A factor as the shortest text: `2`, `0.5`."""
    return _plain(money.to_decimal(_amount(value, name)))


def _tiers(value: Any) -> dict[str, str | dict[str, int]]:
    tiers: dict[str, str | dict[str, int]] = {}
    for tier, price in _mapping({} if value is None else value, "tiers").items():
        if tier in BASE_TIERS:
            if not isinstance(price, Mapping) and _factor(price, f"tiers.{tier}") == "1":
                continue  # which is what it means
            raise ValueError(at("tiers", _("%(tier)s is served at the base price; leave it out", tier=tier)))
        name = f"tiers.{tier}"
        tiers[tier] = _block(price, name) if isinstance(price, Mapping) else _factor(price, name)
    return tiers


def _long_context(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    spec = _mapping(value, "long_context", ("above", "input", "output"))
    for name in ("above", "input", "output"):
        if name not in spec:
            example = "{above: 272000, input: 2.0, output: 1.5}"
            raise ValueError(_("long_context needs %(name)s, for example %(example)s", name=name, example=example))
    above = _amount(spec["above"], "long_context.above")
    if above % money.NANOS:
        what = _("%(value)s is not a whole number of tokens", value=spec["above"])
        raise ValueError(at("long_context.above", what))
    return {
        "above": above // money.NANOS,
        "input": _factor(spec["input"], "long_context.input"),
        "output": _factor(spec["output"], "long_context.output"),
    }


def _server_tools(value: Any) -> dict[str, int]:
    """Tool -> nanos per request."""
    tools = _mapping({} if value is None else value, "server_tools")
    for tool in tools:
        if len(tool) > MAX_TOOL:
            what = _(
                "%(tool)s has %(count)s characters; write the first %(most)s, by which it is billed",
                tool=repr(tool), count=len(tool), most=MAX_TOOL,
            )  # fmt: skip
            raise ValueError(at("server_tools", what))
    return {tool: _amount(price, f"server_tools.{tool}") for tool, price in tools.items()}


def _plain(number: Decimal) -> str:
    return format(number, "f").rstrip("0").rstrip(".") if number % 1 else str(int(number))


def _shown(number: Decimal) -> int | str:
    return str(number) if number % 1 else int(number)


def _shown_block(block: Mapping[str, int]) -> dict[str, int | str]:
    return {name: _shown(Decimal(_plain(money.to_decimal(nanos)))) for name, nanos in block.items()}


def _shown_tier(value: str | Mapping[str, int]) -> Any:
    return _shown_block(value) if isinstance(value, Mapping) else _shown(Decimal(value))
