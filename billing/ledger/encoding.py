"""The ledger's entries as JSON and back, for the journal and for the usage that an open row holds.

Only what a bill needs is in them: counts, names and a provider's usage, never a prompt or an answer.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import types
import typing
import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import orjson

from billing.ledger.cleaning import clean_json, raw_usage_text
from billing.usage import ReportedUsage

Value = TypeVar("Value")


def encoded(entry: Any) -> bytes:
    """An entry (a dataclass) as one line of JSON. Raw usage that no table would take is left out."""
    plain = _plain(entry)
    try:
        return orjson.dumps(plain)
    except orjson.JSONEncodeError:  # a lone surrogate, or an integer of more than 64 bits
        text = json.dumps(clean_json(plain), ensure_ascii=False, default=str, separators=(",", ":"))
        return text.encode()


def _plain(value: Any) -> Any:
    if isinstance(value, ReportedUsage):
        value = dataclasses.replace(value, raw=_fitting(value.raw))
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _fitting(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Raw usage as a record keeps it: cleaned, at most 16 KB, nothing where it nests too deep."""
    try:
        fitting: dict[str, Any] = json.loads(raw_usage_text(raw))
    except (ValueError, TypeError, RecursionError):
        return {}
    return fitting


def decoded(kind: type[Value], value: Any) -> Value:
    """An entry of that kind again, from its parsed JSON; ValueError, TypeError or KeyError where that is none.

    Another version may have written it: a field that is missing has its default, one that is unknown is left out.
    """
    restored: Value = _restored(kind, value)
    return restored


def reported_as_json(reported: ReportedUsage | None) -> dict[str, Any] | None:
    """Reported usage as an open row's column holds it."""
    return None if reported is None else typing.cast(dict[str, Any], _plain(reported))


def reported_from_json(value: Any) -> ReportedUsage | None:
    """The same again."""
    return None if value is None else typing.cast(ReportedUsage, _restored(ReportedUsage, value))


@cache
def _types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _restored(kind: Any, value: Any) -> Any:
    """A value of a dataclass's field: what JSON has no type for is made again by the field's own."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        [kind] = [one for one in arguments if one is not type(None)]
        return None if value is None else _restored(kind, value)
    if dataclasses.is_dataclass(kind):
        hints = _types(typing.cast(type, kind))
        return kind(**{name: _restored(hints[name], one) for name, one in value.items() if name in hints})  # type: ignore[operator]
    if origin in (tuple, Sequence):
        return tuple(_restored(arguments[0], one) for one in value)
    if kind is uuid.UUID:
        return uuid.UUID(value)
    if kind in (dt.datetime, dt.date):
        return kind.fromisoformat(value)
    return value
