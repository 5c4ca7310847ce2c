"""PDF documents: the same bytes for the same content, words that stay words, a font with Chinese, tables over pages."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pytest
import typst

from billing import pdf
from billing.pdf import Document, PdfColumn
from tests.billing.factories import utc
from tests.billing.pdf_text import pages_of, text_of

COLUMNS = (PdfColumn("Key", 2), PdfColumn("Cost", 1, right=True))
NOON = utc(2026, 11, 3)
MARKUP = (
    '#import "x": *', '#read("/etc/passwd")', "$x$ *b* _i_ `c`", "<a> @b // c /* d */ = e", "\\ \\n \\u{41}",
    """"q" 'r' -- --- ... ~""", "{page} {pages} %(page)s {nb}", "((1) ]TJ",
)  # fmt: skip
ODD = (
    "\0\x01\x1b\x7f",
    "😀👩‍👩‍👧\U0010ffff\ue000",
    "שלום عربي",
    "\u202eRTL",
    "a\tb\r\nc\u2028d",
    "\ufeff\u200b\u00ad",
    "i\u0301ﬁ",
)


def document(rows: int = 3, *, made_at: dt.datetime = NOON, language: str = "zh-hant") -> bytes:
    page = Document(title="帳戶對帳單", language=language, made_at=made_at, footer_words="northwind · 2026-11")
    page.heading("帳戶對帳單", "northwind")
    page.facts([("帳戶", "北風有限公司\n臺北市")])
    page.section("用量")
    page.table(COLUMNS, ([f"key-{at}", "1,234.57"] for at in range(rows)), [["合計", "0.01"]])
    page.note(pdf.NOT_A_UNIFORM_INVOICE)
    return page.to_bytes()


def everywhere(words: str) -> Document:
    """These words in every place that a document has."""
    page = Document(title=words, language="en", made_at=NOON, footer_words=words, mark=words)
    page.heading(words, words)
    page.parties((words, words), (words, words))
    page.facts([(words, words)])
    page.section(words)
    page.table([PdfColumn(words, soft=True), PdfColumn(words, right=True)], [[words, words]], [[words, words]])
    page.note(words)
    return page


@pytest.fixture(scope="module")
def usual() -> bytes:
    return document()


def test_same_content_makes_same_bytes(usual: bytes) -> None:
    """The clock's zone is no content."""
    assert document(made_at=NOON.astimezone(dt.timezone(dt.timedelta(hours=8)))) == usual
    assert document(made_at=utc(2026, 11, 4)) != usual


def test_threads_make_same_bytes() -> None:
    alone = [document(rows) for rows in range(8)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(document, range(8))) == alone


def test_chinese_is_written_with_glyphs(usual: bytes) -> None:
    assert {pdf.NOT_A_UNIFORM_INVOICE, "北風有限公司", "臺北市"} <= set(text_of(usual).splitlines())


@pytest.mark.parametrize("words", MARKUP)
def test_words_are_no_markup(words: str) -> None:
    printed = text_of(everywhere(words).to_bytes())
    assert "".join(printed.split()).count("".join(words.split())) == 18


@pytest.mark.parametrize("words", ODD)
def test_unknown_characters_do_no_harm(words: str) -> None:
    assert everywhere(words).to_bytes().startswith(b"%PDF-")


def test_no_file_is_read() -> None:
    with pytest.raises(typst.TypstError):
        pdf._compiler.__wrapped__().compile(b'#read("../pdf.py")', format="pdf")


def test_long_word_goes_on_in_next_line() -> None:
    """With no character more or less."""
    name = "key_" + "m" * 90
    page = Document(title="x", language="en", made_at=NOON)
    page.table([PdfColumn("Key", 1), PdfColumn("Cost", 5, right=True)], [[name, "1"]])
    assert name in text_of(page.to_bytes()).replace("\n", "")


def test_table_goes_on_over_pages() -> None:
    """Its names stand on each page anew, and every page has its number."""
    pages = [page.splitlines() for page in pages_of(document(rows=120))]
    assert [page.count("Key") for page in pages] == [1, 1, 1]
    assert [page[-1] for page in pages] == [f"Page {at} of 3" for at in (1, 2, 3)]
    assert [word for page in pages for word in page if word.startswith("key-")] == [f"key-{at}" for at in range(120)]


def test_section_is_never_alone() -> None:
    """Wherever on a page it comes, the first row of its table is below it."""
    found = set()
    for above in range(80, 90):
        page = Document(title="x", language="en", made_at=NOON)
        for _at in range(above):
            page.space()
        page.section("Use")
        page.table(COLUMNS, [["first", "1"]])
        (at,) = [number for number, words in enumerate(pages_of(page.to_bytes())) if "Use\nKey\nCost\nfirst" in words]
        found.add(at)
    assert found == {0, 1}


FOREIGN = (
    "Spółka Łódź",
    "Příliš žluťoučký",
    "İğneada Şirketi",
    "Győr",
    "Iași",
    "Ελληνική",
    "Україна ґ",
    "שלום",
    "شركة",
)
OURS = ("北風有限公司", "Việt Nam", "Þór", "株式会社", "한국", "l’été — 1,234.57 €")


@pytest.mark.parametrize("words", FOREIGN)
def test_letters_that_the_font_lacks_are_shown(words: str) -> None:
    page = everywhere(words)
    assert page.not_shown() == ""
    assert b"DejaVuSansMono" in (raw := page.to_bytes()) or b"LibertinusSerif" in raw


@pytest.mark.parametrize("words", OURS)
def test_other_letters_are_of_one_font(words: str) -> None:
    raw = everywhere(words).to_bytes()
    assert {b"NotoSansCJK" in raw, b"DejaVu" not in raw, b"Libertinus" not in raw} == {True}


def test_what_no_font_has_is_told() -> None:
    """But for what is never drawn."""
    assert set(everywhere("บริษัท 🎉 Łódź 北風\u200b\u00ad").not_shown()) == set("บริษัท🎉")


def test_font_is_a_subset(usual: bytes) -> None:
    """A document has the glyphs that it needs, not all 65,535 of the font."""
    assert len(usual) < 60_000
    assert pdf.font_path().stat().st_size > 10_000_000


def test_another_font_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "FONT_SHA256", "0" * 64)
    with pytest.raises(pdf.FontFault):
        pdf.font_path.__wrapped__()


def test_simplified_has_its_own_forms(usual: bytes) -> None:
    assert document(language="zh-hans") != usual
