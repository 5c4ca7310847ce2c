"""What the configuration file and the admin's forms take alike: texts, names of models, bounds of whole numbers.

A reader takes a value and returns it; its ValueError says what to write instead. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from billing.phrases import phrase as _

Reader = Callable[[Any], Any]


def shown(value: Any) -> str:
    """A value in a message, cut: a file may hold anything."""
    said = (
        "null" if value is None else {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    )
    return said if len(said) <= 60 else f"{said[:60]}…"


def nearest(word: object, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for a misspelling, else what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(str(word), names, n=1)
    if close:
        return _("did you mean %(name)s?", name=repr(close[0]))
    if not names:
        return _("there is none yet")
    return _("known: %(names)s", names=", ".join(names[:20]) + (" …" if len(names) > 20 else ""))


def text(longest: int, *, empty: bool = False) -> Callable[[Any], str]:
    """A text of so many characters at most."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(_("must be text, not %(value)s; put it in quotes", value=shown(value)))
        if not (empty or value.strip()):
            raise ValueError(_("must not be empty"))
        if len(value) > longest:
            raise ValueError(_("has %(count)s characters; at most %(most)s are kept", count=len(value), most=longest))
        if "\x00" in value:
            raise ValueError(_("holds a NUL character; remove it"))
        return value

    return read


def word(longest: int) -> Callable[[Any], str]:
    """A name without spaces, as customers send it in a request."""
    read_text = text(longest)

    def read(value: Any) -> str:
        name = read_text(value)
        if any(letter.isspace() for letter in name):
            raise ValueError(_("%(name)s has a space in it; a model's name has none", name=repr(name)))
        return name

    return read


def known_model(known: Collection[str]) -> Callable[[str], str]:
    """The name of a model that there is."""

    def read(name: str) -> str:
        if name not in known:
            raise ValueError(_("unknown model %(name)s; %(known)s", name=repr(name), known=nearest(name, known)))
        return name

    return read


@dataclass(frozen=True)
class Whole:
    """A whole number within bounds."""

    low: int
    high: int

    def __call__(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(_("must be a whole number, not %(value)s", value=shown(value)))
        if not self.low <= value <= self.high:
            raise ValueError(
                _("must be between %(low)s and %(high)s, not %(value)s", low=self.low, high=self.high, value=value)
            )
        return value


MODEL_NAME = word(200)
TOTAL_TIMEOUT_S = Whole(1, 86_400)
PRIORITY, WEIGHT = Whole(0, 32_767), Whole(1, 32_767)
DRAIN = Whole(1, 2**31 - 1)
"""Either cap of a drain: seconds, and how many at a time."""
DUE_DAYS = Whole(0, 32_767)
KEY_LIMITS = {
    "requests_per_minute": Whole(1, 2**31 - 1),
    "tokens_per_minute": Whole(1, 2**63 - 1),
    "concurrency": Whole(1, 2**31 - 1),
}
"""By column; a key's budget is an amount of money."""
