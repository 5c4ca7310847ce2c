"""A reader of XLSX files for tests, independent of what writes them: a workbook is a zip of XML."""

from __future__ import annotations

import re
import zipfile
from decimal import Decimal
from io import BytesIO
from xml.etree import ElementTree

NAMES = {"m": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}

Value = str | Decimal | None


def read(raw: bytes) -> list[list[list[Value]]]:
    """The worksheets, each as rows of cells: texts, numbers as Decimal (of the very digits in the file), or None."""
    with zipfile.ZipFile(BytesIO(raw)) as book:
        assert "xl/calcChain.xml" not in book.namelist()
        names = sorted(
            (name for name in book.namelist() if re.fullmatch(r"xl/worksheets/sheet\d+\.xml", name)),
            key=lambda name: int("".join(filter(str.isdigit, name))),
        )
        return [_rows(ElementTree.fromstring(book.read(name))) for name in names]


def _rows(page: ElementTree.Element) -> list[list[Value]]:
    rows: list[list[Value]] = []
    for row in page.iterfind(".//m:row", NAMES):
        rows += [[] for _ in range(int(row.attrib["r"]) - len(rows))]
        for cell in row.iterfind("m:c", NAMES):
            at = _column(cell.attrib["r"])
            rows[-1] += [None] * (at + 1 - len(rows[-1]))
            rows[-1][at] = _value(cell)
    return rows


def _value(cell: ElementTree.Element) -> Value:
    assert cell.find("m:f", NAMES) is None, "a formula"
    if cell.attrib.get("t") == "inlineStr":
        return "".join(text.text or "" for text in cell.iterfind(".//m:t", NAMES))
    number = cell.find("m:v", NAMES)
    return None if number is None else Decimal(number.text or "")


def _column(reference: str) -> int:
    letters = re.match(r"[A-Z]+", reference)
    assert letters is not None
    at = 0
    for letter in letters[0]:
        at = at * 26 + ord(letter) - 64
    return at - 1
