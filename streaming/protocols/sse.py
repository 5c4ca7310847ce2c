"""Server-sent events on bytes, as WHATWG frames them; events keep their raw bytes.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from streaming.protocols import lenient_json
from streaming.protocols.spans import Edit, apply_edits

_BOM = b"\xef\xbb\xbf"
_CR, _LF = 0x0D, 0x0A
_LINE_END = re.compile(rb"\r\n|\n|\r")
# Two line ends, neither of them half a CRLF. An event is whole at the CR of its last CRLF.
_BOUNDARY = re.compile(rb"\n\n|\n\r\n?|\r\n\n|\r\n\r\n?|\r\r\n?")
_BLANK = (b"\n", b"\r\n", b"\r")
_USUAL_ENDS = (b"\r\n\r\n", b"\r\n\r", b"\r\r")
_REACH = 3  # a boundary that ends in new bytes begins at most this many bytes before them

_new = tuple.__new__  # a NamedTuple's own constructor takes twice as long, and there is one per event


class EventTooLarge(ValueError):
    """The provider's fault: an event is larger than the limit."""


class SSEEvent(NamedTuple):
    """One event. `raw`: what came, less comments and BOM, its blank line included; `data`: its data lines joined by LF.

    `data` None: nothing to dispatch (no data, or empty). A lone LF that belongs to the CR that ended the event before
    has `raw` b"\\n" and `tail` True: it goes where that event went.
    """

    raw: bytes
    name: str
    data: bytes | None
    tail: bool = False


_TAIL = SSEEvent(b"\n", "", None, tail=True)


class SSEDecoder:
    """Cuts a byte stream into events, each as soon as its last byte is there; the work per byte is constant."""

    saw_id_or_retry: bool
    """Whether an `id` or `retry` field came (openai-python fails on a blank line of its own after one)."""

    def __init__(self, max_event_bytes: int) -> None:
        self.saw_id_or_retry = False
        self._limit = max_event_bytes
        self._too_large = False
        self._pending = bytearray()
        self._started = False  # past a possible BOM
        self._has_cr = False
        self._line_end = b""  # of the first event
        self._ended_at_cr = False
        self._last_was_event = False
        self._carries_over = True  # any of the above matters to the next bytes

    @property
    def in_event(self) -> bool:
        """Whether a part of an event has come, other than a comment."""
        return self._carries_over and bool(self._pending) and not self._pending.startswith(b":")

    def feed(self, data: bytes) -> list[SSEEvent]:
        """The events that these bytes complete. EventTooLarge comes only after all events before it were returned."""
        events: list[SSEEvent] = []
        if self._too_large:
            raise self._excess()
        try:
            self._decode(data, events)
        except EventTooLarge:
            self._too_large = True
            if not events:
                raise
        return events

    def close(self) -> SSEEvent | None:
        """The last event, with its line ends, if it lacks only these; None when nothing is left or it was cut off.

        An event without data is given back only for its `error` field.
        """
        if self._too_large:
            raise self._excess()
        rest = bytes(self._pending)
        self._pending.clear()
        event = self._parse(_completed(rest, self._own_line_end(rest)))
        if event is None or (event.data is None and not error_field(event)):
            return None
        return event if event.data is None or _is_whole(event.data) else None

    def _excess(self) -> EventTooLarge:
        return EventTooLarge(f"an event of more than {self._limit} bytes")

    def _decode(self, data: bytes, events: list[SSEEvent]) -> None:
        at = 0
        if self._carries_over:
            data, at = self._resume(data, events)
        elif not self._has_cr:
            self._has_cr = b"\r" in data
        begin = self._split_any(data, at, events) if self._has_cr else self._split_at_lf(data, at, events)
        if begin < len(data):
            self._pending += data[begin:]
            self._carries_over = True
        if len(self._pending) > self._limit:
            raise self._excess()

    def _resume(self, data: bytes, events: list[SSEEvent]) -> tuple[bytes, int]:
        """What to split with what was left before, and where a boundary may begin; b"" while none is there."""
        if self._ended_at_cr and data:
            self._ended_at_cr = False
            if data[0] == _LF:
                data = data[1:]
                events += [_TAIL] if self._last_was_event else []
        at = max(0, len(self._pending) - _REACH)
        self._pending += data
        self._has_cr = self._has_cr or b"\r" in data
        if not self._started and not self._skip_bom():
            return b"", 0
        if not self._has_boundary(at):
            return b"", 0
        whole = bytes(self._pending)
        self._pending.clear()
        self._carries_over = False
        return whole, at

    def _skip_bom(self) -> bool:
        """False while the first bytes may still become a BOM."""
        if len(self._pending) < len(_BOM) and _BOM.startswith(self._pending):
            return False
        self._started = True
        if self._pending.startswith(_BOM):
            del self._pending[: len(_BOM)]
        return True

    def _has_boundary(self, at: int) -> bool:
        if self._has_cr:
            return _BOUNDARY.search(self._pending, at) is not None
        return self._pending.find(b"\n\n", at) >= 0

    def _split_at_lf(self, data: bytes, at: int, events: list[SSEEvent]) -> int:
        """Append the events of `data`; where the rest begins."""
        begin = 0
        while (at := data.find(b"\n\n", at)) >= 0:
            at += 2
            event = self._event(data[begin:at])
            begin = at
            if event is not None:
                events.append(event)
        return begin

    def _split_any(self, data: bytes, at: int, events: list[SSEEvent]) -> int:
        """The same for a stream that has other line ends than LF."""
        begin = 0
        for found in _BOUNDARY.finditer(data, at):
            raw, begin = data[begin : found.end()], found.end()
            event = self._event(raw)
            if event is not None:
                events.append(event)
            self._last_was_event = event is not None
            self._line_end = self._line_end or _first_line_end(raw)
        if begin and begin == len(data) and data[-1] == _CR:
            self._ended_at_cr = self._carries_over = True
        return begin

    def _event(self, raw: bytes) -> SSEEvent | None:
        """The usual forms at once (a data line; an event line and a data line, with LF); others line by line."""
        if len(raw) > self._limit:
            raise self._excess()
        if self._has_cr:
            end = raw.find(b"\r", 6)
            if raw.startswith(b"data: ") and raw[end:] in _USUAL_ENDS and raw.find(b"\n", 6, end) < 0:
                return _new(SSEEvent, (raw, "", raw[6:end] or None, False))
            return self._parse(raw)
        end = len(raw) - 2
        if raw.startswith(b"data: ") and raw.find(b"\n", 6, end) < 0:
            return _new(SSEEvent, (raw, "", raw[6:end] or None, False))
        if raw.startswith(b"event: "):
            at = raw.find(b"\n") + 1
            if raw.startswith(b"data: ", at) and raw.find(b"\n", at, end) < 0:
                return _new(SSEEvent, (raw, str(raw[7 : at - 1], "utf-8", "replace"), raw[at + 6 : end] or None, False))
        return self._parse(raw)

    def _parse(self, raw: bytes) -> SSEEvent | None:
        """A block without its comments and the blank lines before it; None when no field is left."""
        kept: list[bytes] = []
        name, data = b"", []
        for line in raw.splitlines(keepends=True):
            field, value = _field(line)
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
            elif field in (b"id", b"retry"):
                self.saw_id_or_retry = True
            if field or (kept and line in _BLANK):
                kept.append(line)
        if not kept:
            return None
        return SSEEvent(b"".join(kept), str(name, "utf-8", "replace"), b"\n".join(data) or None)

    def _own_line_end(self, rest: bytes) -> bytes:
        """The line end to complete a last event with: its own, or else the stream's."""
        found = _LINE_END.search(rest)
        if found is None:
            return self._line_end or b"\n"
        if found[0] == b"\r" and found.end() == len(rest) and self._line_end == b"\r\n":
            return b"\r\n"  # its LF was cut off
        return found[0]


def error_field(event: SSEEvent) -> str:
    """The text of an `error` field, which no standard knows but gpustack sends instead of data; "" without one."""
    fields = map(_field, event.raw.splitlines(keepends=True))
    return "\n".join(str(value, "utf-8", "replace") for field, value in fields if field == b"error")


def data_edits(event: SSEEvent, edits: Iterable[Edit]) -> bytes:
    """`event.raw` after edits whose places are those of `event.data`.

    What is taken out across the end of a data line takes the line break and the next field name with it.
    """
    offset = _only_line(event)
    if offset:
        return apply_edits(event.raw, [(start + offset, end + offset, new) for start, end, new in edits])
    lines = list(_data_lines(event.raw))
    return apply_edits(event.raw, [(_place(lines, start), _place(lines, end), new) for start, end, new in edits])


def _only_line(event: SSEEvent) -> int:
    """Where the data stands in the usual forms; 0 when that takes a closer look."""
    data = event.data or b""
    offset = len(event.raw) - 2 - len(data)
    usual = event.raw.endswith(data + b"\n\n") and event.raw.startswith(b"data: ", offset - 6)
    return offset if usual and b"\n" not in data and event.raw[offset - 7 : offset - 6] in (b"", b"\n") else 0


def _data_lines(raw: bytes) -> Iterator[tuple[int, int, int]]:
    """Of every data line: where its value begins in the data, where in `raw`, and how long it is."""
    in_data = in_raw = 0
    for line in raw.splitlines(keepends=True):
        field, value = _field(line)
        if field == b"data":
            yield in_data, in_raw + len(line.rstrip(b"\r\n")) - len(value), len(value)
            in_data += len(value) + 1
        in_raw += len(line)


def _place(lines: list[tuple[int, int, int]], at: int) -> int:
    return next(in_raw + at - in_data for in_data, in_raw, size in lines if in_data <= at <= in_data + size)


def _field(line: bytes) -> tuple[bytes, bytes]:
    """Name and value of a line; a comment has the name b"", a blank line neither."""
    name, _, value = line.rstrip(b"\r\n").partition(b":")
    return name, value[1:] if value.startswith(b" ") else value


def _first_line_end(raw: bytes) -> bytes:
    found = _LINE_END.search(raw)
    return b"\n" if found is None else found[0]


def _completed(rest: bytes, line_end: bytes) -> bytes:
    if rest.endswith(b"\r") and line_end == b"\r\n":
        rest += b"\n"
    return rest + line_end if rest.endswith((b"\r", b"\n")) else rest + line_end * 2


def _is_whole(data: bytes) -> bool:
    if data.strip() == b"[DONE]":
        return True
    try:
        lenient_json.loads(data)
    except ValueError:
        return False
    return True
