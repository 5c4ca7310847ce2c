"""Which characters a font has."""

from __future__ import annotations

from pathlib import Path

import pytest

from billing import glyphs, pdf


def test_font_tells_its_characters() -> None:
    found = glyphs.read(pdf.font_path())
    assert all(one in found for one in "Aé北한€𠮷")
    assert not any(one in found for one in "ł\u0e01🎉\U0010ffff")


def test_what_is_no_font_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(bytes(64))
    with pytest.raises(ValueError, match="no characters"):
        glyphs.read(tmp_path / "empty")
