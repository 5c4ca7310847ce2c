"""JSON as providers and customers really send it: read fast, and by the standard library where that refuses."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

import orjson


def loads(raw: bytes, *, constants: bool = False) -> Any:
    """The value of a JSON text in UTF-8. ValueError: it is none, or it nests too deep to be read.

    orjson refuses a lone surrogate (`"\\ud83d"`), which is valid JSON and reaches us when an SDK cuts a text in the
    middle of an emoji; `json` reads it. `constants`: NaN and Infinity too, which providers written in Python send, and
    SDKs read.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:
            return json.loads(raw.decode(), parse_constant=None if constants else _refuse)
        except RecursionError:
            raise ValueError("the JSON nests too deep") from None


def repeated_key(raw: bytes) -> str | None:
    """A key that stands twice in one object of a valid JSON text. ValueError: it nests too deep to be read."""
    repeated: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            repeated.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)

    try:
        json.loads(raw.decode(), object_pairs_hook=note)
    except RecursionError:
        raise ValueError("the JSON nests too deep") from None
    return repeated[0] if repeated else None


def dumps(value: Any) -> bytes:
    """Compact JSON in UTF-8; text that UTF-8 cannot hold is escaped."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
