"""Takes what a client must not see out of a provider's words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from streaming.protocols.meter import ProviderError

Replacement = tuple[re.Pattern[bytes], bytes]

_NO_WORD_BEFORE, _NO_WORD_AFTER = rb"(?<![\w-])", rb"(?![\w]|-[A-Za-z])"
"""A model called `max` is not in `max_tokens`, nor `o3` in `o3-mini`; in `o3-2026-01-01` it is."""


def replacements(base_url: str, credential: str, upstream_model: str, public_model: str) -> Sequence[Replacement]:
    """What stands for what: longer texts first, so that a URL goes before the host in it.

    A base path of one part (`/v1`) tells nothing and stays, and so does a host's name of one part without its port; the
    model's name is replaced only where it differs.
    """
    url = urlsplit(base_url)
    hidden = {base_url.rstrip("/"): "[provider]", url.netloc: "[provider]", credential: "[credential]"}
    if url.path.strip("/").count("/"):
        hidden[url.path.rstrip("/")] = "[provider]"
    if re.search(r"[.:]", host := url.hostname or ""):
        hidden[host] = "[provider]"
    pairs = [(_pattern(text), shown.encode()) for text, shown in sorted(hidden.items(), key=_length) if text]
    if upstream_model != public_model:
        name = _NO_WORD_BEFORE + re.escape(upstream_model.encode()) + _NO_WORD_AFTER
        pairs.append((re.compile(name), public_model.encode()))
    return pairs


def _length(pair: tuple[str, str]) -> int:
    return -len(pair[0])


def _pattern(text: str) -> re.Pattern[bytes]:
    """The text, also where JSON writes its slashes as `\\/`."""
    return re.compile(re.escape(text.encode()).replace(b"/", rb"\\?/"))


def scrub(data: bytes, hidden: Sequence[Replacement]) -> bytes:
    """The data with every hidden text replaced."""
    for pattern, shown in hidden:
        data = pattern.sub(lambda _, shown=shown: shown, data)  # type: ignore[misc]
    return data


def scrub_text(text: str, hidden: Sequence[Replacement]) -> str:
    """The same of a text."""
    return scrub(text.encode("utf-8", "surrogatepass"), hidden).decode("utf-8", "replace")


def scrub_error(error: ProviderError, hidden: Sequence[Replacement]) -> ProviderError:
    """An error with nothing in its words that a client or a record must not hold."""
    message, code, kind, param = (
        scrub_text(text, hidden) for text in (error.message, error.code, error.kind, error.param)
    )
    return replace(error, message=message, code=code, kind=kind, param=param)
