"""YAML with exact numbers, mistakes with their lines, and variables."""

from __future__ import annotations

import contextlib
import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming.configuration.text import NotReadable, dump, expand, load


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", Decimal("0.1")),
        ("12345678901234567890.123456789", Decimal("12345678901234567890.123456789")),
        ("1_000.5", Decimal("1000.5")),
        ("2.5e+3", Decimal("2500")),
        ("-7", -7),
        ("1_000", 1000),
        ("true", True),
        ("null", None),
        ("2026-01-01T00:00:00Z", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ("2026-01-01T08:00:00+08:00", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        ("2026-13-41", "2026-13-41"),
        ("2026-02-30T00:00:00Z", "2026-02-30T00:00:00Z"),
        ('{"a": [1.50]}', {"a": [Decimal("1.50")]}),
    ],
)
def test_values_are_exact(text: str, value: object) -> None:
    assert load(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\nb: 2", "line 2"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: the key 'a' is given twice"),
        ("a: 010", "line 1, column 4: 010 is not a plain decimal number"),
        ("a: 1:30", "1:30 is not a plain decimal number"),
        ("a: .inf", ".inf is not a plain decimal number"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("? [1]\n: 2", "line 1"),
        ("\t- a", "line 1"),
    ],
)
def test_mistakes_are_one_line(text: str, said: str) -> None:
    with pytest.raises(NotReadable) as refused:
        load(text.encode())
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_other_encodings_are_refused() -> None:
    with pytest.raises(NotReadable, match="line 2: not UTF-8"):
        load("a: b\nc: 名\n".encode("big5"))


def test_variables_are_expanded() -> None:
    assert expand("x-${A}-${B}", {"A": "1", "B": "2"}) == "x-1-2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${NOPE}", "the environment variable NOPE is not set"),
        ("${EMPTY}", "the environment variable EMPTY is not set"),
        ("${SECRET_KEY}", "is a setting of HopBase itself"),
        ("${DATABASE_URL}", "is a setting of HopBase itself"),
        ("${HOPBASE_ANYTHING}", "is a setting of HopBase itself"),
    ],
)
def test_variables_are_refused(text: str, said: str) -> None:
    own = {"EMPTY": "", "SECRET_KEY": "s", "DATABASE_URL": "d", "HOPBASE_ANYTHING": "h"}
    with pytest.raises(ValueError, match=said):
        expand(text, own)


def test_uploads_expand_nothing() -> None:
    with pytest.raises(ValueError, match=r"by `manage\.py apply` only"):
        expand("${PATH}", None)


@given(st.text() | st.text(alphabet="[]{}:,-?!&*|>'\"#%@` \n\tab01."))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(NotReadable):
        load(text.encode())


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(NotReadable, match="nest"):
        load(b"[" * 20_000 + b"]" * 20_000)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.decimals(allow_nan=False, allow_infinity=False, places=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_dump_reads_back(value: object) -> None:
    assert load(dump(value).encode()) == value
