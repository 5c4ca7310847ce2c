"""Tables as files: CSV and XLSX with the same cells, written row by row, so that memory does not grow with the rows.

A sheet begins with lines on what it is (title, account, zone), then has one row of column names, its rows and its
totals. Nothing in it runs as a formula. No clock: the same sheet makes the same bytes.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import xlsxwriter

from billing import csv_files

Cell = str | int | Decimal | dt.date | None

XLSX_DIGITS = 15
"""What a spreadsheet keeps of a number; longer ones are text there, so that none of their digits is lost."""
XLSX_ROWS = 1_000_000
"""Of one worksheet (Excel's own limit is 1,048,576 in all); further rows are on further worksheets."""
XLSX_TEXT = 32_767
"""Characters in a cell, by Excel's limit."""
FIXED_DATE = dt.datetime(2000, 1, 1)  # noqa: DTZ001 - what XlsxWriter wants; the real moment would change the bytes


@dataclass(frozen=True, slots=True)
class Column:
    """`name` heads it; `width` is in characters; `places`: decimal places of its numbers (0: whole)."""

    name: str
    width: int = 12
    places: int = 0


@dataclass(frozen=True, slots=True)
class Sheet:
    """`rows` and `totals` have a cell per column, and are read once, one at a time, the totals after the last row."""

    title: str
    head: Sequence[tuple[str, str]]
    columns: Sequence[Column]
    rows: Iterable[Sequence[Cell]]
    totals: Iterable[Sequence[Cell]] = ()


def write_csv(sheet: Sheet, path: Path) -> None:
    """UTF-8 with a BOM, so that Excel reads it as such; amounts with all their places, no separators."""
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows(_csv_rows(sheet))


def as_csv(sheet: Sheet) -> bytes:
    """The same file in memory, for tables that are known to be short."""
    made = io.StringIO(newline="")
    csv.writer(made).writerows(_csv_rows(sheet))
    return made.getvalue().encode("utf-8-sig")


def _csv_rows(sheet: Sheet) -> Iterator[Sequence[object]]:
    names = [csv_files.cell(column.name) for column in sheet.columns]
    yield [csv_files.cell(sheet.title)]
    for words in sheet.head:
        yield [csv_files.cell(word) for word in words]
    yield []
    yield names
    for row in sheet.rows:
        yield [_csv_cell(cell) for cell in row]
    for row in sheet.totals:
        yield [_csv_cell(cell) for cell in row]


def _csv_cell(cell: Cell) -> object:
    return f"{cell:f}" if isinstance(cell, Decimal) else csv_files.cell(cell)


def write_xlsx(sheet: Sheet, path: Path, *, page_rows: int = XLSX_ROWS) -> None:
    """A workbook, its rows kept in a temporary file beside it until it is packed; a worksheet has `page_rows`."""
    options = {"constant_memory": True, "strings_to_urls": False, "tmpdir": str(path.parent)}
    book = xlsxwriter.Workbook(str(path), options)
    try:
        book.set_properties({"title": sheet.title, "created": FIXED_DATE})
        _Writer(book, sheet, page_rows).write()
    finally:
        book.close()


class _Writer:
    """One workbook under way."""

    def __init__(self, book: Any, sheet: Sheet, page_rows: int) -> None:
        self._book, self._sheet, self._page_rows = book, sheet, page_rows
        self._bold = book.add_format({"bold": True})
        self._formats = [self._number_formats(column) for column in sheet.columns]
        self._right = book.add_format({"align": "right"})
        self._page, self._row = self._new_page(), 0

    def write(self) -> None:
        self._begin()
        for row in self._sheet.rows:
            if self._row == self._page_rows:
                self._page, self._row = self._new_page(), 0
                self._names()
            self._line(row, 0)
        for row in self._sheet.totals:
            self._line(row, 1)

    def _number_formats(self, column: Column) -> tuple[Any, Any]:
        """Plain and, for totals, bold."""
        shown = "#,##0" + ("." + "0" * column.places if column.places else "")
        return self._book.add_format({"num_format": shown}), self._book.add_format({"num_format": shown, "bold": True})

    def _new_page(self) -> Any:
        page = self._book.add_worksheet()
        for at, column in enumerate(self._sheet.columns):
            page.set_column(at, at, column.width)
        return page

    def _begin(self) -> None:
        for words in ((self._sheet.title,), *self._sheet.head, ()):
            for at, word in enumerate(words):
                self._page.write_string(self._row, at, word[:XLSX_TEXT], self._bold if at == 0 else None)
            self._row += 1
        self._names()

    def _names(self) -> None:
        for at, column in enumerate(self._sheet.columns):
            self._page.write_string(self._row, at, column.name, self._bold)
        self._row += 1
        self._page.freeze_panes(self._row, 1)

    def _line(self, row: Sequence[Cell], total: int) -> None:
        for at, cell in enumerate(row):
            if cell is None:
                continue
            if isinstance(cell, int | Decimal) and _digits(cell) <= XLSX_DIGITS:
                self._page.write_number(self._row, at, cell, self._formats[at][total])
            elif isinstance(cell, int | Decimal):
                self._page.write_string(
                    self._row, at, f"{cell:f}" if isinstance(cell, Decimal) else str(cell), self._right
                )
            else:
                self._page.write_string(self._row, at, str(cell)[:XLSX_TEXT], self._bold if total else None)
        self._row += 1


def _digits(number: int | Decimal) -> int:
    """Digits that count: neither leading zeros nor those after the last place that is not zero."""
    return len(Decimal(number).normalize().as_tuple().digits)
