"""PDF documents: the same bytes for the same content, a font with Chinese, tables over pages."""

from __future__ import annotations

import datetime as dt
import re
import zlib

import pytest

from billing import pdf
from billing.pdf import Document, PdfColumn
from tests.billing.factories import utc

COLUMNS = (PdfColumn("Key", 2), PdfColumn("Cost", 1, right=True))


NOON = utc(2026, 11, 3)


def document(rows: int = 3, *, made_at: dt.datetime = NOON, language: str = "zh-hant") -> bytes:
    page = Document(title="帳戶對帳單", language=language, made_at=made_at, footer_words="northwind · 2026-11")
    page.heading("帳戶對帳單", "northwind")
    page.facts([("帳戶", "北風有限公司\n臺北市")])
    page.section("用量")
    page.table(COLUMNS, ([f"key-{at}", "1,234.57"] for at in range(rows)), [["合計", "0.01"]])
    page.note(pdf.NOT_A_UNIFORM_INVOICE)
    return page.to_bytes()


def streams(raw: bytes) -> list[bytes]:
    """The file's compressed streams, opened."""
    found = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", raw, re.DOTALL)
    opened = []
    for one in found:
        try:
            opened.append(zlib.decompress(one))
        except zlib.error:
            opened.append(one)
    return opened


def characters(raw: bytes) -> set[str]:
    """All that the file's own tables say its glyphs stand for."""
    maps = b"".join(one for one in streams(raw) if b"beginbfchar" in one or b"beginbfrange" in one)
    return {chr(int(code, 16)) for code in re.findall(rb"<[0-9A-Fa-f]+> <([0-9A-Fa-f]{4})>", maps)}


@pytest.fixture(scope="module")
def usual() -> bytes:
    return document()


def test_same_content_makes_same_bytes(usual: bytes) -> None:
    """The clock's zone is no content."""
    assert document(made_at=NOON.astimezone(dt.timezone(dt.timedelta(hours=8)))) == usual
    assert document(made_at=utc(2026, 11, 4)) != usual


def test_chinese_is_written_with_glyphs(usual: bytes) -> None:
    assert set("本帳單非統一發票北風有限公司臺市") <= characters(usual)


def test_table_goes_on_over_pages() -> None:
    """Its names stand on each page anew, and every page has its number."""
    raw = document(rows=120)
    pages = [one for one in streams(raw) if b" Tj" in one]
    assert len(pages) == raw.count(b"/Type /Page\n") == 3
    assert set("123") <= characters(raw)


def test_font_is_a_subset(usual: bytes) -> None:
    """A document has the glyphs that it needs, not all 65,535 of the font."""
    assert len(usual) < 60_000
    assert pdf.font_path().stat().st_size > 10_000_000


def test_simplified_has_its_own_forms(usual: bytes) -> None:
    assert document(language="zh-hans") != usual
