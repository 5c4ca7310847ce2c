"""CSV files as they come from Excel, from consoles and from other countries; and what we write."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from billing.csv_files import CsvFile, CsvLine, NotCsv, read, text

PLAIN = 'day,model,cost\r\n2026-10-03,gpt-5.6-sol,"1,234.50"\r\n'
LINES = (CsvLine(2, ("2026-10-03", "gpt-5.6-sol", "1,234.50")),)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"])
def test_encodings_are_told_apart(encoding: str) -> None:
    assert read(PLAIN.encode(encoding)) == CsvFile(("day", "model", "cost"), LINES, ",")


def test_big_endian_with_bom() -> None:
    assert read("\ufeff".encode("utf-16-be") + PLAIN.encode("utf-16-be")).lines == LINES


def test_chinese_survives_unicode() -> None:
    raw = "日期,模型,金額\n2026-10-03,太陽,5\n"
    for encoding in ("utf-8", "utf-16"):
        assert read(raw.encode(encoding)).header == ("日期", "模型", "金額")


def test_other_encodings_still_read() -> None:
    """Big5 is no UTF-8; its names come out wrong, its figures right."""
    assert read("日期,cost\n2026-10-03,5\n".encode("big5")).lines == (CsvLine(2, ("2026-10-03", "5")),)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_are_told_apart(separator: str) -> None:
    rows = [["day", "model", "cost"], ["2026-10-03", "sol", "1"], ["2026-10-04", "sol", "2"]]
    found = read("\n".join(separator.join(row) for row in rows).encode())
    assert (found.separator, found.header) == (separator, ("day", "model", "cost"))
    assert [line.cells for line in found.lines] == [tuple(row) for row in rows[1:]]


def test_commas_in_amounts_do_not_separate() -> None:
    raw = "Tag;Modell;Eingabe;Kosten\n03.10.2026;sol;1,234,567;1,50\n04.10.2026;sol;2,345,678;2,50\n"
    assert read(raw.encode()).header == ("Tag", "Modell", "Eingabe", "Kosten")


def test_excel_names_its_separator() -> None:
    found = read(b"sep=;\r\nday;cost\r\n2026-10-03;1,5\r\n")
    assert (found.separator, found.lines) == (";", (CsvLine(3, ("2026-10-03", "1,5")),))


def test_lines_keep_their_numbers() -> None:
    """A title above, empty lines, a cell over two lines: each line is named by where it begins."""
    raw = 'Usage of October\n\nday,model\n,\n1,"a\nb"\n\n2,c\n'
    assert read(raw.encode()).lines == (CsvLine(5, ("1", "a\nb")), CsvLine(8, ("2", "c")))


def test_columns_have_one_name_each() -> None:
    assert read(b"cost,,cost,cost\n1,2,3,4\n").header == ("cost", "#2", "cost (2)", "cost (3)")


@pytest.mark.parametrize(
    ("raw", "code", "line"),
    [
        (b"", "empty", 0),
        (b"\xef\xbb\xbf", "no_header", 0),
        (b" \r\n\r\n", "empty", 0),
        (b"just a title\n", "no_header", 0),
        (b"PK\x03\x04\x14\x00\x06\x00" + bytes(range(256)) * 4, "binary", 0),
        (b'day,cost\n1,2\n3,"4\n5,6\n', "broken", 3),
        (b"day,cost\n1,2\n3," + b"4" * 40_000 + b"\n", "broken", 3),
        (b"day,cost\n" + b"1,2\n" * 11, "too_many_lines", 10),
    ],
)
def test_what_is_no_table_is_refused(raw: bytes, code: str, line: int) -> None:
    with pytest.raises(NotCsv) as refused:
        read(raw, max_lines=10)
    assert (refused.value.code, refused.value.line) == (code, line)


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0\x1a"), max_size=20).map(str.strip)
TABLES = st.integers(2, 5).flatmap(
    lambda width: st.lists(
        st.lists(CELLS, min_size=width, max_size=width).filter(lambda row: sum(map(bool, row)) >= 2),
        min_size=1,
        max_size=8,
    )
)


@given(TABLES, st.sampled_from(["utf-8-sig", "utf-16"]))
@example([["", "0\t\x850", "0\t\x850", "0\t0"]], "utf-8-sig")  # to Python a line ends at \x85, to CSV it does not
@example([["", ";", "0\n0", ";0"], ["", ";", "0\n0", ";"]], "utf-8-sig")  # as many rows by semicolon as by comma
def test_quoted_tables_come_back_whole(rows: list[list[str]], encoding: str) -> None:
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([["day", "model"] + ["x"] * (len(rows[0]) - 2), *rows])
    found = read(out.getvalue().encode(encoding))
    assert [line.cells for line in found.lines] == [tuple(row) for row in rows]


def test_written_text_cannot_run() -> None:
    cells = ["=1+1", "+1", "-1", "@a", "\tb", "\rc", "fine", None, -5, Decimal("-1E-9")]
    [row] = csv.reader(io.StringIO(text([cells]).removeprefix("\ufeff"), newline=""))
    assert row == ["'=1+1", "'+1", "'-1", "'@a", "'\tb", "'\rc", "fine", "", "-5", "-0.000000001"]
