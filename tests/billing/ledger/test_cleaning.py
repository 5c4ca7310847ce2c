"""What is made fit for a table."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.ledger.cleaning import RAW_LIMIT, clean_text, json_text, raw_usage_text
from tests.billing.ledger.entries import nested

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(ANY_TEXT)
def test_cleaned_text_can_be_stored(text: str) -> None:
    cleaned = clean_text(text)
    assert "\0" not in cleaned
    assert len(cleaned) == len(text)
    cleaned.encode()


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_storable_text_stays_itself(text: str) -> None:
    assert clean_text(text) == text


@given(ANY_JSON)
def test_any_json_becomes_storable(value: object) -> None:
    text = json_text(value)
    text.encode()
    assert "\0" not in str(json.loads(text))


@given(st.dictionaries(st.text(), st.text(), max_size=4))
def test_escaped_backslash_survives(value: dict[str, str]) -> None:
    cleaned = {clean_text(name): clean_text(text) for name, text in value.items()}
    assert json.loads(json_text({**value, "path": r"\u0000"})) == {**cleaned, "path": r"\u0000"}


def test_big_integers_stay_exact() -> None:
    assert json.loads(json_text({"count": 2**70, "name": "\ud800"})) == {"count": 2**70, "name": "\ufffd"}


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ValueError, match="too deep"):
        json_text(nested(300))


@given(st.text(min_size=1))
def test_long_usage_is_cut(text: str) -> None:
    kept = raw_usage_text({"text": text * RAW_LIMIT})
    assert len(kept.encode()) <= RAW_LIMIT
    assert json.loads(kept)["truncated"] is True
    assert json.loads(kept)["begin"].startswith('{"text":"')


def test_short_usage_stays_whole() -> None:
    assert json.loads(raw_usage_text({"text": "x" * (RAW_LIMIT - 20)})) == {"text": "x" * (RAW_LIMIT - 20)}
