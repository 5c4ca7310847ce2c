"""Documents as PDF: letterhead, facts, tables that go on over pages, page numbers. The base of every document of ours.

    page = Document(title="Statement", language="zh-hant", made_at=as_of)
    page.heading("Statement", "northwind · 2026-11")
    page.facts([("Account", "northwind"), …])
    page.table(columns, rows, totals)
    raw = page.to_bytes()

The same content makes the same bytes, whoever makes it and when: `made_at` stands for the clock, and the font is one
file with a known hash. Noto Sans CJK (OFL 1.1, from the `noto-cjk-sans-otc` wheel) has Latin and Chinese in one.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import noto_cjk_sans_otc
from django.utils.translation import gettext as _
from fpdf import FPDF
from fpdf.enums import Align, MethodReturnValue, TextMode, XPos, YPos

NOT_A_UNIFORM_INVOICE = "本帳單非統一發票"
"""What an invoice says in every language: it is not Taiwan's uniform invoice."""

FONT_SHA256 = "b76b0433203017ca80401b2ee0dd69350349871c4b19d504c34dbdd80541690a"
FACES = {"en": 3, "zh-hant": 3, "zh-hans": 2}
"""Language -> the face of the collection with its forms of the characters (2: Simplified, 3: Traditional)."""

INK, SOFT, LINE, MARK = (17, 24, 39), (107, 114, 128), (209, 213, 219), (236, 239, 243)
MARGIN, PAGE_HEIGHT, ROW = 15, 297, 5.5
"""Millimetres, on A4."""
CLEAR = 0.5
"""Millimetres by which a text is narrower than its cell, so that it is surely one line: breaking it takes longer."""
BOLD_STROKE = 0.18
"""The font has one weight: bold is drawn with an outline so wide."""

# It tells each table of a font that it cuts down, on the level of our own messages.
logging.getLogger("fontTools").setLevel(logging.WARNING)


class FontFault(RuntimeError):
    """The font is not the one that documents are made with: `noto-cjk-sans-otc` is not the version that is pinned."""


@dataclass(frozen=True, slots=True)
class PdfColumn:
    """`share`: of the table's width, relative to the other columns. Figures are to the `right`; `soft` is muted."""

    name: str
    share: float = 1
    right: bool = False
    soft: bool = False


@functools.cache
def font_path() -> Path:
    """The font's file, once its hash was found right."""
    path = Path(str(noto_cjk_sans_otc.FONT_PATH))
    if hashlib.sha256(path.read_bytes()).hexdigest() != FONT_SHA256:
        raise FontFault(f"{path} is not the font that documents are made with: install noto-cjk-sans-otc anew")
    return path


class _Pages(FPDF):
    """FPDF with our look and our footer."""

    words = ""
    """What stands on every page beside its number."""
    mark = ""
    """What stands across every page, below all else."""

    def header(self) -> None:
        """FPDF asks for it at each page's beginning."""
        if not self.mark:
            return
        self.look(90, MARK, bold=True)
        middle = self.w / 2, self.h / 2
        with self.rotation(50, *middle):
            self.set_xy(0, middle[1] - 20)
            self.cell(self.w, 40, self.mark, align=Align.C)
        self.set_xy(self.l_margin, self.t_margin)

    def footer(self) -> None:
        """FPDF asks for it at each page's end."""
        self.set_y(-MARGIN)
        self.look(8, SOFT)
        width = self.epw / 2
        self.cell(width, ROW, self.words)
        numbers = _("Page %(page)s of %(pages)s") % {"page": self.page_no(), "pages": "{nb}"}
        self.cell(width, ROW, numbers, align=Align.R)

    def look(self, size: float, colour: tuple[int, int, int], *, bold: bool = False) -> None:
        """How the next words look."""
        self.set_font("Noto", size=size)
        self.set_text_color(*colour)
        self.text_mode = TextMode.FILL_STROKE if bold else TextMode.FILL
        self.set_draw_color(*(colour if bold else LINE))
        self.set_line_width(BOLD_STROKE if bold else 0.1)

    def text_lines(self, width: float, word: str) -> int:
        """How many lines a text takes in a cell so wide."""
        if not word or ("\n" not in word and self.get_string_width(word) < width - 2 * self.c_margin - CLEAR):
            return 1
        lines = self.multi_cell(width, ROW, word, dry_run=True, output=MethodReturnValue.LINES)
        return len(cast(list[str], lines))


class Document:
    """One document, from its first word to its bytes.

    `footer_words` are on every page beside its number, `mark` (of something that does not count) is across each page.
    """

    def __init__(
        self, *, title: str, language: str, made_at: dt.datetime, footer_words: str = "", mark: str = ""
    ) -> None:
        self._pages = pages = _Pages(format="A4")
        pages.words, pages.mark = footer_words, mark
        pages.set_margin(MARGIN)
        pages.set_auto_page_break(True, margin=MARGIN + 8)
        pages.set_title(title)
        pages.set_lang(language)
        pages.set_producer("HopBase")
        pages.set_creation_date(made_at.astimezone(dt.UTC).replace(microsecond=0))
        pages.add_font("Noto", fname=font_path(), collection_font_number=FACES.get(language.lower(), 3))
        pages.add_page()

    def heading(self, title: str, below: str = "") -> None:
        """The document's name, and what it is about."""
        self._pages.look(18, INK, bold=True)
        self._paragraph(title, 10)
        self._pages.look(10, SOFT)
        if below:
            self._paragraph(below, ROW)
        self._pages.ln(3)

    def section(self, title: str) -> None:
        """A heading within the document, never alone at a page's end."""
        if self._pages.will_page_break(10 + 3 * ROW):
            self._pages.add_page()
        self._pages.ln(4)
        self._pages.look(11, INK, bold=True)
        self._paragraph(title, 7)

    def facts(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Names on the left, values beside them; a value may have several lines."""
        for name, value in pairs:
            self._pages.look(9, SOFT)
            self._pages.cell(self._pages.epw * 0.25, ROW, name)
            self._pages.look(9, INK)
            self._paragraph(value, ROW)

    def parties(self, *parties: tuple[str, str]) -> None:
        """Who it is from and to, side by side: what each is, and its name and address in several lines."""
        top, width = self._pages.get_y(), self._pages.epw / len(parties)
        bottom = top
        for at, (role, words) in enumerate(parties):
            left = self._pages.l_margin + at * width
            self._pages.look(9, SOFT)
            self._pages.set_xy(left, top)
            self._pages.cell(width, ROW, role)
            self._pages.look(10, INK)
            self._pages.set_xy(left, top + ROW)
            self._pages.multi_cell(width - 5, ROW, words, align=Align.L, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
            bottom = max(bottom, self._pages.get_y())
        self._pages.set_xy(self._pages.l_margin, bottom + 3)

    def space(self) -> None:
        """A gap before what follows."""
        self._pages.ln(3)

    def note(self, words: str) -> None:
        """A sentence in small print."""
        self._pages.look(8, SOFT)
        self._paragraph(words, 4.5)

    def table(
        self, columns: Sequence[PdfColumn], rows: Iterable[Sequence[str]], totals: Iterable[Sequence[str]] = ()
    ) -> None:
        """Rows of texts below the columns' names, which stand on each page anew; totals in bold."""
        shares = sum(column.share for column in columns)
        widths = [self._pages.epw * column.share / shares for column in columns]
        self._names(columns, widths)
        for row in rows:
            self._line(columns, widths, row, bold=False)
        for row in totals:
            self._line(columns, widths, row, bold=True)

    def to_bytes(self) -> bytes:
        """The whole file."""
        return bytes(self._pages.output())

    def _paragraph(self, words: str, height: float) -> None:
        self._pages.multi_cell(0, height, words, align=Align.L, new_x=XPos.LMARGIN, new_y=YPos.NEXT)

    def _names(self, columns: Sequence[PdfColumn], widths: Sequence[float]) -> None:
        self._pages.look(8, SOFT)
        names = [column.name for column in columns]
        self._cells(columns, widths, names, self._height(widths, names))

    def _line(self, columns: Sequence[PdfColumn], widths: Sequence[float], row: Sequence[str], *, bold: bool) -> None:
        self._pages.look(8, INK, bold=bold)
        height = self._height(widths, row)
        if self._pages.will_page_break(height):
            self._pages.add_page()
            self._names(columns, widths)
            self._pages.look(8, INK, bold=bold)
        self._cells(columns, widths, row, height, bold=bold, ink=INK)

    def _height(self, widths: Sequence[float], row: Sequence[str]) -> float:
        lines = (self._pages.text_lines(width, word) for width, word in zip(widths, row, strict=True))
        return ROW * max(lines, default=1)

    def _cells(
        self,
        columns: Sequence[PdfColumn],
        widths: Sequence[float],
        row: Sequence[str],
        height: float,
        *,
        bold: bool = False,
        ink: tuple[int, int, int] = SOFT,
    ) -> None:
        """One row, so high as its highest cell (`height`), with a line below."""
        pages = self._pages
        top, left = pages.get_y(), pages.l_margin
        for column, width, word in zip(columns, widths, row, strict=True):
            pages.set_xy(left, top)
            pages.look(8, SOFT if column.soft else ink, bold=bold)
            pages.multi_cell(width, ROW, word, align=Align.R if column.right else Align.L)
            left += width
        pages.set_draw_color(*LINE)
        pages.set_line_width(0.1)
        pages.line(pages.l_margin, top + height, pages.l_margin + pages.epw, top + height)
        pages.set_xy(pages.l_margin, top + height)
