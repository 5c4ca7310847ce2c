"""Phrases: English by themselves, translated by their templates, and known again where a row has kept them."""

from __future__ import annotations

import copy
import pickle

import pytest
from django.utils import translation

from billing import pricing, words
from billing.phrases import Phrase, at, gettext_noop, known_again, parted, phrase, said_by

OPEN = gettext_noop("open")  # what the catalogue has
WRAPPED = "%(name)s: %(reason)s, 5 %%"


def test_phrase_is_its_english() -> None:
    said = phrase("%(count)s of %(name)s, 5 %%", count=3, name="sol")
    assert said == "3 of sol, 5 %"
    assert f"{said}!" == "3 of sol, 5 %!"
    assert str(ValueError(said)) == said
    for copied in (copy.deepcopy(said), pickle.loads(pickle.dumps(said))):
        assert (copied, copied.template, copied.values) == (said, said.template, said.values)


def test_exception_keeps_its_phrase() -> None:
    assert isinstance(said_by(ValueError(phrase("too %(what)s", what="much"))), Phrase)
    assert said_by(ValueError("plain")) == "plain"
    assert said_by(ValueError()) == ""
    assert said_by(OSError(2, "No such file")) == "[Errno 2] No such file"


def test_place_comes_apart_again() -> None:
    inner = phrase("unknown key %(key)s", key="'x'")
    where, what = parted(at("tiers.flex", inner))
    assert (where, what) == ("tiers.flex", inner)
    assert isinstance(what, Phrase)
    assert parted("tiers.flex: plain") == ("", "tiers.flex: plain")


@pytest.mark.parametrize(
    ("text", "template"),
    [
        ("no price for model gpt-5.6-sol", pricing.NO_MODEL),
        ("no price for bucket cache_write_1h of model of model", pricing.NO_BUCKET),
        ("no price for model a\nb", pricing.NO_MODEL),
        ("no price for mode", None),
        ("", None),
    ],
)
def test_stored_text_is_known_again(text: str, template: str | None) -> None:
    found = known_again(text, pricing.REASONS)
    assert found == text
    assert (found.template if isinstance(found, Phrase) else None) == template


def test_values_are_known_again_too() -> None:
    found = known_again("northwind/a: no price for model sol, 5 %", [*pricing.REASONS, WRAPPED])
    assert isinstance(found, Phrase)
    assert isinstance(found.values["reason"], Phrase)


def test_words_are_the_readers() -> None:
    inside = phrase("%(state)s", state=phrase(OPEN))
    with translation.override("zh-hant"):
        assert words.in_words(inside) == "待付"
        assert words.stored_words("open") == "待付"
        assert words.stored_words("") == ""
        assert words.in_words("open") == "open"  # a name of somebody's, and no phrase
    assert words.in_words(inside) == "open"
