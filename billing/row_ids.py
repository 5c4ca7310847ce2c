"""Ids of rows as a URL or a form has them: text that anybody can write."""

from __future__ import annotations

MOST_DIGITS = 18
"""Any number of so many fits in a column of ids. One that does not is an error of the database, and no absent row."""
NO_ROW = 0
"""Ids begin with 1."""


def row_id(text: str) -> int:
    """The id that a text is; NO_ROW where it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else NO_ROW
