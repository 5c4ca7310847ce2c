"""Where the members of a JSON object stand in its bytes, so that one can be replaced and the rest stay as they came.

Nothing is parsed: nested values are skipped by compiled patterns, in linear time and without recursion.
The structure is checked only along the path that is read; what lies inside a skipped value is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Edit = tuple[int, int, bytes]
"""Start, end and what stands there afterwards."""

_SPACE = rb"[ \t\n\r]*+"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_ATOM = rb'[^ \t\n\r,:"\[\]{}]++'
_NESTING = 8
"""How deep a value is skipped by one match; what is deeper is entered step by step."""


def _contents(depth: int) -> bytes:
    """A pattern for all up to the next bracket that closes the level, or that opens more than `depth` levels."""
    pattern = rb'(?:[^"\[\]{}]++|' + _STRING + rb")*+"
    for _ in range(depth):
        pattern = rb'(?:[^"\[\]{}]++|' + _STRING + rb"|[\[{]" + pattern + rb"[\]}])*+"
    return pattern


_CONTENTS = re.compile(_contents(_NESTING), re.DOTALL)
_FLAT = re.compile(_contents(0), re.DOTALL)
_BRACKETS = re.compile(rb"[\[{]++|[\]}]++")
_BEGIN_OBJECT = re.compile(_SPACE + rb"\{" + _SPACE)
_BEGIN_ARRAY = re.compile(_SPACE + rb"\[" + _SPACE)
_KEY = re.compile(rb"(" + _STRING + rb")" + _SPACE + rb":" + _SPACE, re.DOTALL)
_SHALLOW = re.compile(
    rb"(?:" + _STRING + rb"|[\[{]" + _contents(_NESTING) + rb"[\]}]|" + _ATOM + rb")",
    re.DOTALL,
)
_NEXT = re.compile(_SPACE + rb"([,\]}])" + _SPACE)


class Member(NamedTuple):
    """A member of an object, from its key's opening quote to its value's end; an item of an array has the key ""."""

    key: str
    start: int
    value_start: int
    value_end: int


def members(raw: bytes, start: int = 0) -> list[Member]:
    """The members of the object that begins at the first byte from `start` that is no white space.

    Repeated keys are all listed. ValueError: there is no object, or it is broken.
    """
    begin = _BEGIN_OBJECT.match(raw, start)
    if begin is None:
        raise ValueError(f"no JSON object at byte {start}")
    found: list[Member] = []
    at = begin.end()
    if raw[at : at + 1] == b"}":
        return found
    while True:
        found.append(member_at(raw, at))
        at, closed = _step(raw, found[-1].value_end, b"}")
        if closed:
            return found


def items(raw: bytes, start: int = 0) -> list[Member]:
    """The items of the array that begins at the first byte from `start` that is no white space; errors as `members`."""
    begin = _BEGIN_ARRAY.match(raw, start)
    if begin is None:
        raise ValueError(f"no JSON array at byte {start}")
    found: list[Member] = []
    at = begin.end()
    if raw[at : at + 1] == b"]":
        return found
    while True:
        value_end = _value_end(raw, at)
        found.append(Member("", at, at, value_end))
        at, closed = _step(raw, value_end, b"]")
        if closed:
            return found


def member_at(raw: bytes, at: int) -> Member:
    """The member whose key's opening quote is at byte `at`. ValueError: there is none."""
    key = _KEY.match(raw, at)
    if key is None:
        raise ValueError(f"no member at byte {at}")
    return Member(_decoded(key[1]), at, key.end(), _value_end(raw, key.end()))


def find(raw: bytes, *path: str) -> list[Member]:
    """The members at `path`, "*" for every item of an array; none where something is missing or of another type."""
    found = [Member("", 0, 0, len(raw))]
    for step in path:
        found = [inner for outer in found for inner in _inside(raw, outer, step)]
    return found


def _inside(raw: bytes, outer: Member, step: str) -> list[Member]:
    if step == "*":
        return items(raw, outer.value_start) if _BEGIN_ARRAY.match(raw, outer.value_start) else []
    if not _BEGIN_OBJECT.match(raw, outer.value_start):
        return []
    return [member for member in members(raw, outer.value_start) if member.key == step]


def removal(raw: bytes, siblings: Sequence[Member], index: int) -> Edit:
    """Take one member out with the comma before it; the first one with the comma after it."""
    return removals(raw, siblings, [index])[0]


def removals(raw: bytes, siblings: Sequence[Member], indexes: Iterable[int]) -> list[Edit]:
    """Take several members of one object out, each with one comma, so that what stays is a whole object."""
    gone = sorted(set(indexes))
    leading = 0
    while leading < len(gone) and gone[leading] == leading:
        leading += 1
    edits: list[Edit] = []
    if leading:
        end = siblings[leading].start if leading < len(siblings) else siblings[-1].value_end
        edits.append((siblings[0].start, end, b""))
    edits += [(siblings[index - 1].value_end, siblings[index].value_end, b"") for index in gone[leading:]]
    return edits


def apply_edits(raw: bytes, edits: Iterable[Edit]) -> bytes:
    """`raw` with every edit done; their order is free. ValueError: two of them overlap."""
    pieces: list[bytes] = []
    at = 0
    for start, end, replacement in sorted(edits):
        if start < at:
            raise ValueError(f"edits overlap at byte {start}")
        pieces += (raw[at:start], replacement)
        at = end
    pieces.append(raw[at:])
    return b"".join(pieces)


def _decoded(quoted: bytes) -> str:
    if b"\\" in quoted:
        return str(json.loads(quoted))
    return quoted[1:-1].decode()


def _step(raw: bytes, value_end: int, closing: bytes) -> tuple[int, bool]:
    """Where the next member begins, and whether the container ended instead."""
    mark = _NEXT.match(raw, value_end)
    if mark is None or mark[1] not in (b",", closing):
        raise ValueError(f"neither a comma nor an end at byte {value_end}")
    return mark.end(), mark[1] == closing


def _value_end(raw: bytes, start: int) -> int:
    shallow = _SHALLOW.match(raw, start)
    if shallow is not None:
        return shallow.end()
    if raw[start : start + 1] not in (b"{", b"["):
        raise ValueError(f"no value at byte {start}")
    return _deep_end(raw, start)


def _deep_end(raw: bytes, start: int) -> int:
    """The end of a value that nests deeper than one match reaches, by counting the brackets on the way."""
    at, depth = start, 0
    while run := _BRACKETS.match(raw, at):
        if raw[at] in b"[{":
            depth, at = depth + run.end() - at, run.end()
            # Right behind an opening the deep pattern would fail again for the same reason, at its full cost.
            between = _FLAT.match(raw, at)
        else:
            closed = min(depth, run.end() - at)
            depth, at = depth - closed, at + closed
            if depth == 0:
                return at
            between = _CONTENTS.match(raw, at)
        at = between.end() if between else at
    raise ValueError(f"the value at byte {start} does not end")
