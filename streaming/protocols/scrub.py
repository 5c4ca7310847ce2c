"""Takes what a client must not see out of a provider's words."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

Replacement = tuple[bytes, bytes]


def replacements(base_url: str, credential: str, upstream_model: str, public_model: str) -> Sequence[Replacement]:
    """What stands for what: longer texts first, so that a URL goes before the host in it.

    A base path of one part (`/v1`) tells nothing and stays; the model's name is replaced only where it differs.
    """
    url = urlsplit(base_url)
    hidden = {base_url.rstrip("/"): "[provider]", url.netloc: "[provider]", credential: "[credential]"}
    if url.path.strip("/").count("/"):
        hidden[url.path.rstrip("/")] = "[provider]"
    if upstream_model != public_model:
        hidden[upstream_model] = public_model
    pairs = [(text.encode(), shown.encode()) for text, shown in hidden.items() if text]
    return sorted(pairs, key=lambda pair: -len(pair[0]))


def scrub(data: bytes, hidden: Sequence[Replacement]) -> bytes:
    """The data with every hidden text replaced, also where JSON writes its slashes as `\\/`."""
    for text, shown in hidden:
        data = data.replace(text, shown)
        if b"/" in text:
            data = data.replace(text.replace(b"/", b"\\/"), shown)
    return data
