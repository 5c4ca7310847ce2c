"""Finding members in the bytes of JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streaming.protocols.spans import Member, apply_edits, find, items, member_at, members, removal, removals

# In a fresh clone the first text drawn builds hypothesis's Unicode tables, which takes seconds on a busy machine.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=6)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n\t", " :\r\n")])
DEEP = b"[" * 3000 + b'{"a":"]"}' + b"]" * 3000


def spelled(value: Any, separators: tuple[str, str], ascii_only: bool) -> bytes:
    text = json.dumps(value, ensure_ascii=ascii_only, separators=separators)
    return text.encode("utf-8", "surrogatepass")


def value_of(raw: bytes, member: Member) -> Any:
    return json.loads(raw[member.value_start : member.value_end])


@UNTIMED
@given(OBJECTS, SEPARATORS)
def test_members_agree_with_json(body: dict[str, Any], separators: tuple[str, str]) -> None:
    raw = spelled(body, separators, ascii_only=True)
    found = members(raw)
    assert [member.key for member in found] == list(body)
    assert [value_of(raw, member) for member in found] == list(body.values())


@UNTIMED
@given(OBJECTS, SEPARATORS, st.data())
def test_removed_members_alone_are_gone(body: dict[str, Any], separators: tuple[str, str], data: st.DataObject) -> None:
    raw = spelled(body, separators, ascii_only=True)
    gone = data.draw(st.sets(st.sampled_from(range(len(body))))) if body else set()
    left = apply_edits(raw, removals(raw, members(raw), gone))
    kept = {key: value for at, (key, value) in enumerate(body.items()) if at not in gone}
    assert json.loads(left) == kept


@UNTIMED
@given(st.lists(VALUES, max_size=5), SEPARATORS)
def test_items_agree_with_json(values: list[Any], separators: tuple[str, str]) -> None:
    raw = spelled(values, separators, ascii_only=True)
    assert [value_of(raw, item) for item in items(raw)] == values


@pytest.mark.parametrize(
    ("raw", "keys"),
    [
        (b"{}", []),
        (b' \r\n\t{ "a" : 1 } trailing', ["a"]),
        (rb'{"mod\u0065l":1,"\u006dodel":2}', ["model", "model"]),
        (rb'{"a\"}":"\\","b":"{[","c":[{"d":"]"}]}', ['a"}', "b", "c"]),
        (b'{"a":' + DEEP + b',"b":1}', ["a", "b"]),
        (b'{"a":' + DEEP + b"}", ["a"]),
        (b'{"a":' + b'{"x":' * 900 + b"1" + b"}" * 901, ["a"]),
        (b'{"a":' + b'{"x":' * 900 + b"1" + b"}" * 900 + b',"b":[[],[{}]]}', ["a", "b"]),
        ('{"鍵":"值"}'.encode(), ["鍵"]),
    ],
)
def test_keys_of_odd_objects(raw: bytes, keys: list[str]) -> None:
    assert [member.key for member in members(raw)] == keys


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"1", b'{"a"', b'{"a":', b'{"a":}', b'{"a":1', b'{"a":1,}', b'{"a":1]', b'{"a" 1}', b'{"a":[1}',
     b'{"a":"x', b"{1:2}", b'{"a":' + DEEP[:-1] + b"}", b'{"a":1 "b":2}'],
)  # fmt: skip
def test_broken_objects_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="byte"):
        members(raw)


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (("response", "model"), [b'"m"']),
        (("usage", "iterations", "*", "model"), [b'"a"', b'"b"']),
        (("usage", "iterations", "*"), [b'{"model":"a"}', b"5", b'{"model" : "b"}']),
        (("response", "missing"), []),
        (("response", "model", "deeper"), []),
        (("usage", "iterations", "model"), []),
        (("response", "*"), []),
        (("twice",), [b"1", b"2"]),
    ],
)
def test_find_follows_a_path(path: tuple[str, ...], values: list[bytes]) -> None:
    raw = b'{"response":{"model":"m"},"usage":{"iterations":[{"model":"a"},5,{"model" : "b"}]},"twice":1,"twice":2}'
    assert [raw[member.value_start : member.value_end] for member in find(raw, *path)] == values


@pytest.mark.parametrize(
    ("raw", "key", "left"),
    [
        (b'{"a":1,"u":2,"b":3}', "u", b'{"a":1,"b":3}'),
        (b'{"a": 1, "u": 2, "b": 3}', "u", b'{"a": 1, "b": 3}'),
        (b'{"u":2,"a":1}', "u", b'{"a":1}'),
        (b'{ "u" : 2 , "a" : 1 }', "u", b'{ "a" : 1 }'),
        (b'{"a":1 , "u":2 }', "u", b'{"a":1 }'),
        (b'{"u":{"x":[1,2]}}', "u", b"{}"),
    ],
)
def test_removal_takes_one_comma(raw: bytes, key: str, left: bytes) -> None:
    found = members(raw)
    index = [member.key for member in found].index(key)
    assert apply_edits(raw, [removal(raw, found, index)]) == left


def test_member_at_a_place() -> None:
    raw = b'{"a":1,"model" : "x"}'
    assert member_at(raw, raw.index(b'"model"')) == Member("model", 7, 17, 20)
    with pytest.raises(ValueError, match="byte 0"):
        member_at(raw, 0)


def test_overlapping_edits_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        apply_edits(b"abcdef", [(0, 3, b""), (2, 4, b"")])
    assert apply_edits(b"abcdef", [(3, 6, b"Z"), (0, 3, b"Y")]) == b"YZ"
