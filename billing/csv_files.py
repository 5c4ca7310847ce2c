"""CSV files as people and providers make them: read from bytes, whatever their encoding and separator; and written.

    read(raw)          bytes -> CsvFile: a header and lines that remember where in the file they stand
    text(rows)         rows -> CSV text that a spreadsheet opens without running any of it

Pure: no I/O. Files from Excel in many countries use semicolons, files from Windows begin with a BOM or are UTF-16, and
some begin with a title above the header; all of that is seen to here, so that nobody has to save a file anew.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

SEPARATORS = (",", ";", "\t", "|")
LONGEST_CELL = 32_767
"""What Excel allows in a cell; more is mostly a quotation mark that nobody closed."""

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula (OWASP, CSV injection)."""

_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class NotCsv(ValueError):
    """A file that holds no table. `code`: empty, binary, no_header, broken (near `line`), too_many_lines (`line`)."""

    def __init__(self, code: str, line: int = 0) -> None:
        super().__init__(f"{code}, line {line}" if line else code)
        self.code, self.line = code, line


@dataclass(frozen=True, slots=True)
class CsvLine:
    """A line's cells, trimmed, and the number of the file's line in which it begins (from 1)."""

    number: int
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CsvFile:
    """A table: the names of its columns, each once, and the lines below that hold anything at all."""

    header: tuple[str, ...]
    lines: tuple[CsvLine, ...]
    separator: str


def read(raw: bytes, *, max_lines: int = 100_000) -> CsvFile:
    """The table in a file; NotCsv where there is none, or a longer one than `max_lines`."""
    decoded = _decoded(raw)
    separator, decoded, skipped = _separator(decoded)
    lines = _lines(decoded, separator, skipped)
    header = next((line for line in lines if sum(map(bool, line.cells)) >= 2), None)
    if header is None:
        raise NotCsv("no_header")
    names = _unique(header.cells)
    kept: list[CsvLine] = []
    for line in lines:
        if len(kept) == max_lines:
            raise NotCsv("too_many_lines", max_lines)
        kept.append(line)
    return CsvFile(names, tuple(kept), separator)


def _decoded(raw: bytes) -> str:
    if not raw.strip(b"\0 \r\n\t"):
        raise NotCsv("empty")
    encoding = next((name for bom, name in _BOMS.items() if raw.startswith(bom)), None) or _unmarked(raw)
    try:
        decoded = raw.decode(encoding)
    except UnicodeDecodeError:
        # What is no UTF-8 has one byte per character in most places; digits and model names are ASCII in all of them.
        decoded = raw.decode("cp1252", errors="replace")
    if "\0" in decoded:
        raise NotCsv("binary")
    return decoded


def _unmarked(raw: bytes) -> str:
    """UTF-16 without a BOM shows by the zero byte beside each ASCII character."""
    begin = raw[:2000]
    if begin[1::2].count(0) > len(begin) // 4:
        return "utf-16-le"
    return "utf-16-be" if begin[::2].count(0) > len(begin) // 4 else "utf-8"


def _separator(decoded: str) -> tuple[str, str, int]:
    """The separator, the text without Excel's `sep=;` line, and how many lines that took away."""
    first, _, rest = decoded.partition("\n")
    if first.strip().lower().startswith("sep=") and len(first.strip()) == 5:
        return first.strip()[-1], rest, 1
    return max(SEPARATORS, key=lambda separator: _agreement(decoded, separator)), decoded, 0


def _agreement(decoded: str, separator: str) -> tuple[bool, int, int]:
    """Whether the first rows are a table with this separator, how many are equally wide, and that width.

    A comma within amounts is no separator, for the header has none of it; nor is a semicolon within quoted texts.
    """
    rows = csv.reader(io.StringIO(decoded, newline=""), delimiter=separator, strict=True)
    widths: list[int] = []
    try:
        for cells in itertools.islice(rows, 20):
            widths += [len(cells)] if len(cells) > 1 else []
    except csv.Error:
        fits = False
    else:
        fits = bool(widths)
    return fits, *max(((widths.count(width), width) for width in set(widths)), default=(0, 0))


def _lines(decoded: str, separator: str, skipped: int) -> Iterator[CsvLine]:
    rows = csv.reader(io.StringIO(decoded, newline=""), delimiter=separator, strict=True)
    begin = 1
    try:
        for cells in rows:
            trimmed = tuple(cell.strip() for cell in cells)
            if any(len(cell) > LONGEST_CELL for cell in trimmed):
                raise NotCsv("broken", begin + skipped)
            if any(trimmed):
                yield CsvLine(begin + skipped, trimmed)
            begin = rows.line_num + 1
    except csv.Error:
        raise NotCsv("broken", begin + skipped) from None


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    """Column names, each once: `cost`, `cost (2)`; a column without a name is called by its place."""
    found: dict[str, None] = {}
    for place, name in enumerate(names, start=1):
        wanted, times = name or f"#{place}", 1
        name = wanted
        while name in found:
            times += 1
            name = f"{wanted} ({times})"
        found[name] = None
    return tuple(found)


def text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV with a BOM, so that Excel reads it as UTF-8. Texts cannot run as formulas; numbers stay numbers."""
    out = io.StringIO(newline="")
    out.write("\ufeff")
    csv.writer(out).writerows([cell(value) for value in row] for row in rows)
    return out.getvalue()


def cell(value: object) -> object:
    """A value as a cell: text that a spreadsheet would run gets an apostrophe before it; None is empty.

    A Decimal has all its places and no exponent.
    """
    if value is None:
        return ""
    if isinstance(value, Decimal):
        return f"{value:f}"
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
