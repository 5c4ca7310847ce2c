"""Sentences for people, from modules that know no language: English, and translated by whoever shows them. Pure.

    from billing.phrases import phrase as _

    raise ValueError(_("%(value)s is negative; write 0 or more", value=value))

A phrase is its English text: commands print it, rows and logs keep it. It remembers of which template and values it was
made, so that a page can say it in its reader's language (`billing.words.in_words`); what was stored as text is
known again by its template. `makemessages` finds templates that are marked with `_` or `gettext_noop`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

PLACE = re.compile(r"%\((\w+)\)s")


class Phrase(str):
    """A text with the template and the values it was made of. Values may be phrases themselves."""

    __slots__ = ("template", "values")
    template: str
    values: Mapping[str, Any]

    def __new__(cls, template: str, values: Mapping[str, Any]) -> Phrase:
        made = super().__new__(cls, template % values)
        made.template, made.values = template, values
        return made

    def __getnewargs__(self) -> tuple[str, Mapping[str, Any]]:  # type: ignore[override]  # copies are made of these
        return self.template, self.values


def phrase(template: str, /, **values: object) -> Phrase:
    """A template with its values. A per cent sign in it is written twice."""
    return Phrase(template, values)


def gettext_noop(template: str) -> str:
    """Mark a template that is a constant, and filled elsewhere."""
    return template


WHERE = gettext_noop("%(where)s: %(what)s")


def at(where: str, what: str) -> Phrase:
    """Something that is said of a field or a place in a file."""
    return phrase(WHERE, where=where, what=what)


def parted(said: str) -> tuple[str, str]:
    """What `at` has put together, taken apart; without a place: "" and all of it."""
    if not isinstance(said, Phrase) or said.template != WHERE:
        return "", said
    return said.values["where"], said.values["what"]


def said_by(fault: Exception) -> str:
    """What an exception was raised with, still a phrase where it was one: `str()` would leave the text alone."""
    said = fault.args[0] if fault.args else ""
    return said if isinstance(said, str) else str(fault)


def known_again(text: str, templates: Iterable[str]) -> str:
    """A stored text as the phrase that it was, by the first template that fits, in its values too; else as it is."""
    for template in templates:
        if match := _pattern(template).fullmatch(text):
            return Phrase(template, {name: known_again(value, templates) for name, value in match.groupdict().items()})
    return text


@cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = PLACE.split(template)  # text and names, in turn
    texts = [re.escape(part % ()) for part in parts[::2]]
    names = [f"(?P<{name}>.*)" for name in parts[1::2]]
    return re.compile("".join(part for pair in zip(texts, [*names, ""], strict=True) for part in pair), re.DOTALL)
