"""Plays a provider's bytes to a meter, cut as a network may cut them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from billing.usage import ReportedUsage
from streaming.protocols.meter import Ended, MeterOptions, StreamMeter
from streaming.protocols.sse import SSEDecoder, SSEEvent

MAX_EVENT = 8 << 20


@dataclass
class Played:
    """What came of a stream: the client's bytes, the end, the report, and the text that was counted."""

    meter: StreamMeter
    raw: bytes = b""
    ended: Ended | None = None
    outputs: list[bool] = field(default_factory=list)
    texts: dict[Any, str] = field(default_factory=dict)
    usage: ReportedUsage | None = None
    passed: bool = False

    @property
    def text(self) -> str:
        """All counted text, key after key."""
        return "".join(self.texts.values())

    def facts(self) -> tuple[Any, ...]:
        """What must be the same however the bytes were cut."""
        return self.raw, self.ended, self.outputs, self.texts, self.usage, self.meter.produced, self.meter.object_ids


def play(make: Callable[[MeterOptions], StreamMeter], chunks: Iterable[bytes], **options: Any) -> Played:
    """Feed a stream until it ends by itself, or by the end of its bytes."""
    decoder = SSEDecoder(MAX_EVENT)
    played = Played(make(MeterOptions(**{"model": "public-model", **options})))
    for chunk in chunks:
        for event in decoder.feed(chunk):
            _take(played, event)
            if played.ended is not None:
                return _finished(played)
    last = decoder.close()
    if last is not None:
        _take(played, last)
    if played.ended is None:
        verdict = played.meter.finish()
        played.raw, played.ended = played.raw + verdict.raw, verdict.ended
    return _finished(played)


def _take(played: Played, event: SSEEvent) -> None:
    if event.tail and played.passed:
        played.raw += event.raw
    if event.data is None:
        return
    verdict = played.meter.feed(event)
    played.passed = bool(verdict.raw)
    played.raw += verdict.raw
    played.ended = verdict.ended
    played.outputs.append(verdict.output)
    for key, text in played.meter.take_texts().items():
        played.texts[key] = played.texts.get(key, "") + text


def _finished(played: Played) -> Played:
    played.usage = played.meter.usage()
    return played


def framed(kind: str, **fields: Any) -> bytes:
    """One event of Messages or Responses, in the usual form."""
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"


def cut_at(data: bytes, places: Iterable[int]) -> Iterator[bytes]:
    """The data in pieces that begin at these places."""
    edges = [0, *sorted({place for place in places if 0 < place < len(data)}), len(data)]
    return (data[start:end] for start, end in itertools.pairwise(edges))


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """The JSON objects of a stream's events."""
    found = [event.data for event in SSEDecoder(MAX_EVENT).feed(raw) if event.data]
    return [orjson.loads(data) for data in found if data != b"[DONE]"]
