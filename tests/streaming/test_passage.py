"""What the client gets of a stream, whichever way its bytes come."""

from __future__ import annotations

import pytest

from streaming.passage import Passage
from streaming.protocols import chat_completions, messages, responses
from streaming.protocols.meter import MeterOptions
from tests.streaming.protocols.playback import cut_at

STREAMS = {
    chat_completions: b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\ndata: [DONE]\n\n',
    messages: (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":"Hi"}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
    ),
    responses: (
        b'data: {"type":"response.output_text.delta","output_index":0,"delta":"Hi"}\n\n'
        b'data: {"type":"response.completed","response":{"id":"resp_1"}}\n\n'
    ),
}


@pytest.mark.parametrize("wire", STREAMS, ids=lambda wire: wire.NAME)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_terminal_comes_whole_wherever_it_is_cut(wire: object, line_end: bytes) -> None:
    """An end is known at the CR of its last CRLF, and nothing is read after it: its LF is no less the client's."""
    raw = STREAMS[wire].replace(b"\n", line_end)  # type: ignore[index]
    for cuts in ([], range(1, len(raw)), [len(raw) - 1]):
        passage = Passage(wire.Meter(MeterOptions("m")), 1_000_000, tuple)  # type: ignore[attr-defined]
        got = b""
        for piece in cut_at(raw, cuts):
            if passage.ended is None:
                got += passage.feed(piece)
        assert (got, passage.ended) == (raw, "complete")
