"""Documents as PDF: letterhead, facts, tables that go on over pages, page numbers. The base of every document of ours.

    page = Document(title="Statement", language="zh-hant", made_at=as_of)
    page.heading("Statement", "northwind · 2026-11")
    page.facts([("Account", "northwind"), …])
    page.table(columns, rows, totals)
    raw = page.to_bytes()

What a document says is collected here; what it looks like is in `documents/document.typ`, which Typst sets. It gets the
words as JSON, and nothing in them is markup.

The same content makes the same bytes, whoever makes it and when: `made_at` stands for the clock, and the font is one
file with a known hash. Noto Sans CJK (OFL 1.1, from the `noto-cjk-sans-otc` wheel) has Latin and Chinese in one. The
letters that it lacks (of Polish, Turkish, Arabic …) are of the fonts within Typst; what none has is a box: `not_shown`.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import json
import re
import threading
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import noto_cjk_sans_otc
import typst
from django.utils.translation import gettext as _

from billing import glyphs

NOT_A_UNIFORM_INVOICE = "本帳單非統一發票"
"""What an invoice says in every language: it is not Taiwan's uniform invoice."""

FONT_SHA256 = "b76b0433203017ca80401b2ee0dd69350349871c4b19d504c34dbdd80541690a"
FACES: dict[str, dict[str, str | None]] = {
    "en": {"font": "Noto Sans CJK TC", "lang": "en", "region": None},
    "zh-hant": {"font": "Noto Sans CJK TC", "lang": "zh", "region": "TW"},
    "zh-hans": {"font": "Noto Sans CJK SC", "lang": "zh", "region": "CN"},
}
"""Language -> the face of the font with its forms of the characters, and how Typst names the language."""
TEMPLATE = Path(__file__).parent / "documents" / "document.typ"
GLYPH = TEMPLATE.with_name("glyph.typ")
UNASSIGNED = "\u0378"
UNDRAWN = {"Cc", "Cf", "Zs", "Zl", "Zp"}
"""Categories of characters without a look of their own: controls, formats, spaces."""


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


class Document:
    """One document, from its first word to its bytes.

    `footer_words` are on every page beside its number, `mark` (of something that does not count) is across each page.
    """

    def __init__(
        self, *, title: str, language: str, made_at: dt.datetime, footer_words: str = "", mark: str = ""
    ) -> None:
        self._made_at = made_at
        self._parts: list[dict[str, Any]] = []
        self._given = {
            **FACES.get(language.lower(), FACES["zh-hant"]),
            "title": title,
            "footer": footer_words,
            "mark": mark,
            "numbers": _("Page %(page)s of %(pages)s") % {"page": "{page}", "pages": "{pages}"},
            "parts": self._parts,
        }

    def heading(self, title: str, below: str = "") -> None:
        """The document's name, and what it is about."""
        self._add("heading", title=title, below=below)

    def section(self, title: str) -> None:
        """A heading within the document, never alone at a page's end."""
        self._add("section", title=title)

    def facts(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Names on the left, values beside them; a value may have several lines."""
        self._add("facts", pairs=list(pairs))

    def parties(self, *parties: tuple[str, str]) -> None:
        """Who it is from and to, side by side: what each is, and its name and address in several lines."""
        self._add("parties", parties=parties)

    def space(self) -> None:
        """A gap before what follows."""
        self._add("space")

    def note(self, words: str) -> None:
        """A sentence in small print."""
        self._add("note", words=words)

    def table(
        self, columns: Sequence[PdfColumn], rows: Iterable[Sequence[str]], totals: Iterable[Sequence[str]] = ()
    ) -> None:
        """Rows of texts below the columns' names, which stand on each page anew; totals in bold."""
        self._add("table", columns=list(map(asdict, columns)), rows=list(rows), totals=list(totals))

    def to_bytes(self) -> bytes:
        """The whole file."""
        given = {**self._given, "foreign": _character_class(filter(_is_foreign, self._characters()))}
        return _typeset(json.dumps(given), int(self._made_at.timestamp()))

    def not_shown(self) -> str:
        """The characters in it that no font has, each once."""
        return "".join(one for one in self._characters() if _is_foreign(one) and not _has_glyph(one))

    def _characters(self) -> list[str]:
        return sorted(set(json.dumps(self._given, ensure_ascii=False)))

    def _add(self, kind: str, **what: Any) -> None:
        self._parts.append({"kind": kind, **what})


_one_at_a_time = threading.Lock()


def _typeset(document: str, made_at: int) -> bytes:
    """Typst forgets what it keeps of a document ten documents later. A compiler serves one caller at a time."""
    with _one_at_a_time:
        raw = _compiler().compile(format="pdf", sys_inputs={"document": document}, timestamp=made_at, pdf_tags=False)
    assert isinstance(raw, bytes)
    return raw


def _is_foreign(character: str) -> bool:
    """Whether the document's own font lacks it; what is never drawn is not."""
    return unicodedata.category(character) not in UNDRAWN and character not in _glyphs()


@functools.cache
def _glyphs() -> glyphs.Glyphs:
    return glyphs.read(font_path())


def _character_class(characters: Iterable[str]) -> str:
    """For a regular expression; empty for none."""
    codes = "".join(f"\\x{{{ord(one):x}}}" for one in characters)
    return f"[{codes}]" if codes else ""


@functools.lru_cache(10_000)
def _has_glyph(character: str) -> bool:
    """Whether a font within Typst has it: else there is the box in its place that an unassigned one has."""
    return not _symbols(character) & _symbols(UNASSIGNED)


def _symbols(character: str) -> set[bytes]:
    """The names of the glyphs that it is drawn with: they go by what is drawn."""
    with _one_at_a_time:
        drawn = _compiler(GLYPH).compile(format="svg", sys_inputs={"character": character})
    assert isinstance(drawn, bytes)
    return set(re.findall(rb'<symbol id="([^"]+)"', drawn))


@functools.cache
def _compiler(template: Path = TEMPLATE) -> typst.Compiler:
    """One for a process and template, made when first needed: after Celery's fork, which its threads would not survive.

    It has our font and those within Typst, and reads no file outside the template's folder.
    """
    fonts = typst.Fonts(include_system_fonts=False, include_embedded_fonts=True, font_paths=[str(font_path().parent)])
    return typst.Compiler(str(template), root=str(template.parent), font_paths=fonts, ignore_system_fonts=True)
