"""What a provider or a client sent, made fit for a table: text, JSON and counts that both databases take."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import orjson

from billing.usage import MAX_COUNT

RAW_LIMIT = 16 * 1024
"""Bytes of JSON that are kept of a provider's raw usage."""

MAX_DEPTH = 64
"""Usage that nests deeper is no usage; PostgreSQL, SQLite and Python each have a limit of their own further up."""

# PostgreSQL stores neither; a lone surrogate is not even UTF-8.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

OBJECT_ID_LIMIT = 500


def clean_text(text: str, limit: int | None = None) -> str:
    """The text with NUL and lone surrogates as U+FFFD, cut after `limit` characters."""
    if not text.isascii() or "\0" in text:
        text = _UNSTORABLE.sub("\ufffd", text)
    return text[:limit]


def is_object_id(id: str) -> bool:
    """Whether an id can be kept as it is: one that is cut or cleaned could be taken for another."""
    return 0 < len(id) <= OBJECT_ID_LIMIT and clean_text(id) == id


def clean_json(value: Any, depth: int = 0) -> Any:
    """The same for every string and key inside a JSON value; ValueError where it nests deeper than MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise ValueError("the JSON nests too deep")
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): clean_json(entry, depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(entry, depth + 1) for entry in value]
    return value


def json_text(value: Any) -> str:
    """A JSON value as text that both databases take; ValueError or TypeError when there is none."""
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # a lone surrogate, an integer of more than 64 bits, or deep nesting
        return json.dumps(clean_json(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text if r"\u0000" not in text else orjson.dumps(clean_json(value)).decode()


def raw_usage_text(raw: Mapping[str, Any]) -> str:
    """A provider's usage as JSON text of at most RAW_LIMIT bytes; a longer one is kept as its beginning."""
    text = json_text(raw)
    encoded = text.encode()
    if len(encoded) <= RAW_LIMIT:
        return text
    # Quoting can double the text; 64 bytes are left for what is around it.
    begin = encoded[: RAW_LIMIT // 2 - 64].decode(errors="ignore")
    return json_text({"truncated": True, "begin": begin})


def clamped(count: int | None, most: int = MAX_COUNT) -> int | None:
    """A count within 0..most."""
    return None if count is None else min(max(count, 0), most)
