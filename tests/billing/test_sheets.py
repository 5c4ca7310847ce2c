"""Tables as files: the same cells in both kinds, exact, harmless, and the same bytes each time."""

from __future__ import annotations

import csv
import datetime as dt
import functools
import io
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from billing.sheets import Cell, Column, Sheet, write_csv, write_xlsx
from tests.billing import xlsx

COLUMNS = (Column("key"), Column("requests"), Column("cost", 20, 9))
ROWS: list[list[Cell]] = [
    ["=1+1", 12, Decimal("0.001630000")],
    ["+886", 10**15, Decimal("123456.123456789")],
    ["@SUM(A1)", 10**16 + 1, Decimal("1234567.123456789")],
    ["-2", None, None],
    ["https://example.test/", 0, Decimal("-0.000000001")],
]
TOTAL: list[Cell] = ["Total", 1, Decimal("1.000000000")]


def sheet(rows: list[list[Cell]] | Iterator[list[Cell]] = ROWS) -> Sheet:
    return Sheet("Usage", [("Time zone", "Asia/Taipei")], COLUMNS, rows, [TOTAL])


def written(write: Callable[[Sheet, Path], None], folder: Path, of: Sheet) -> bytes:
    path = folder / "made"
    write(of, path)
    return path.read_bytes()


def test_csv_has_zone_rows_and_totals(tmp_path: Path) -> None:
    raw = written(write_csv, tmp_path, sheet())
    assert raw.startswith(b"\xef\xbb\xbf")
    assert list(csv.reader(io.StringIO(raw.decode("utf-8-sig")))) == [
        ["Usage"],
        ["Time zone", "Asia/Taipei"],
        [],
        ["key", "requests", "cost"],
        ["'=1+1", "12", "0.001630000"],
        ["'+886", "1000000000000000", "123456.123456789"],
        ["'@SUM(A1)", "10000000000000001", "1234567.123456789"],
        ["'-2", "", ""],
        ["https://example.test/", "0", "-0.000000001"],
        ["Total", "1", "1.000000000"],
    ]


def test_xlsx_keeps_every_digit(tmp_path: Path) -> None:
    """Past 15 digits a spreadsheet rounds: such numbers are texts. Texts are texts whatever they begin with."""
    (page,) = xlsx.read(written(write_xlsx, tmp_path, sheet()))
    assert page[1] == ["Time zone", "Asia/Taipei"]
    assert page[4:] == [
        ["=1+1", Decimal(12), Decimal("0.00163")],
        ["+886", Decimal(10**15), Decimal("123456.123456789")],
        ["@SUM(A1)", "10000000000000001", "1234567.123456789"],
        ["-2"],
        ["https://example.test/", Decimal(0), Decimal("-0.000000001")],
        ["Total", Decimal(1), Decimal(1)],
    ]


@pytest.mark.parametrize("write", [write_csv, write_xlsx])
def test_same_sheet_makes_same_bytes(tmp_path: Path, write: Callable[[Sheet, Path], None]) -> None:
    assert written(write, tmp_path, sheet()) == written(write, tmp_path, sheet())


def test_longer_than_a_worksheet(tmp_path: Path) -> None:
    rows = [[f"key-{at}", at, None] for at in range(20)]
    pages = xlsx.read(written(functools.partial(write_xlsx, page_rows=10), tmp_path, sheet(iter(rows))))
    assert len(pages) == 3
    assert all("key" in [row[0] for row in page if row] for page in pages)
    found = [row[0] for page in pages for row in page if row and str(row[0]).startswith("key-")]
    assert found == [row[0] for row in rows]
    assert pages[-1][-1][0] == "Total"


def test_rows_are_read_once_and_late(tmp_path: Path) -> None:
    """Totals may be known only after the last row."""
    seen: list[int] = []

    def rows() -> Iterator[list[Cell]]:
        for at in range(3):
            seen.append(at)
            yield [str(at), at, None]

    class Total:
        def __iter__(self) -> Iterator[list[Cell]]:
            yield ["Total", len(seen), None]

    raw = written(write_csv, tmp_path, Sheet("x", [], COLUMNS, rows(), Total()))
    assert raw.decode().splitlines()[-1] == "Total,3,"


def test_days_are_iso(tmp_path: Path) -> None:
    raw = written(write_csv, tmp_path, sheet([[dt.date(2026, 11, 3), 1, None]]))
    assert b"2026-11-03,1," in raw
