"""Which characters a font has a glyph for: its `cmap` table of format 12 (OpenType 1.9, "cmap"), read from its file."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

SEGMENTED = 12
"""The format that has all of Unicode, as ranges."""


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters of a font, as ranges of code points in their order."""

    starts: list[int]
    ends: list[int]

    def __contains__(self, character: str) -> bool:
        at = bisect_right(self.starts, ord(character)) - 1
        return at >= 0 and ord(character) <= self.ends[at]


def read(path: Path) -> Glyphs:
    """Those of a font, or of the first of a collection: its faces have the same characters. ValueError: none told."""
    with path.open("rb") as file:
        table = _table(file, b"cmap")
        (subtables,) = _unpacked(file, table + 2, ">H")
        for at in range(subtables):
            (offset,) = _unpacked(file, table + 8 + 8 * at, ">I")
            if _unpacked(file, table + offset, ">H") == (SEGMENTED,):
                ranges = list(_ranges(file, table + offset))
                return Glyphs([start for start, _end in ranges], [end for _start, end in ranges])
    raise ValueError(f"{path} does not tell its characters by ranges")


def _ranges(file: BinaryIO, subtable: int) -> Iterator[tuple[int, int]]:
    (count,) = _unpacked(file, subtable + 12, ">I")
    for start, end, _glyph in struct.iter_unpack(">III", file.read(12 * count)):
        yield start, end


def _table(file: BinaryIO, tag: bytes) -> int:
    """Where a table begins."""
    (kind,) = _unpacked(file, 0, ">4s")
    font = _unpacked(file, 12, ">I")[0] if kind == b"ttcf" else 0
    (tables,) = _unpacked(file, font + 4, ">H")
    for at in range(tables):
        name, _checksum, offset = _unpacked(file, font + 12 + 16 * at, ">4sII")
        if name == tag:
            return int(offset)
    raise ValueError("the font has no characters")


def _unpacked(file: BinaryIO, at: int, form: str) -> tuple[Any, ...]:
    file.seek(at)
    return struct.unpack(form, file.read(struct.calcsize(form)))
