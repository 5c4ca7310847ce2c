"""One attempt's stream on its way: framed, metered, held until its first output. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streaming.protocols.meter import Ended, StreamMeter
from streaming.protocols.scrub import Replacement, scrub, scrub_error, scrub_text
from streaming.protocols.sse import EventTooLarge, SSEDecoder, SSEEvent, error_field


class Passage:
    """Takes a provider's bytes, gives the client's.

    Events before the first real output are held, so that a failed attempt leaks nothing. `ended` says how the stream
    ended by itself; `field_error` is the text of an `error:` line without data, of which nothing is passed on. `hidden`
    is asked for what a client must not see only when there is an error to tell.
    """

    def __init__(self, meter: StreamMeter, max_event_bytes: int, hidden: Callable[[], Sequence[Replacement]]) -> None:
        self.meter = meter
        self.ended: Ended | None = None
        self.field_error = ""
        self.new_output = False
        self.events = self.outputs = 0
        self._decoder = SSEDecoder(max_event_bytes)
        self._max_held, self._hidden = max_event_bytes, hidden
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._flowing = False
        self._passed = False

    @property
    def saw_id_or_retry(self) -> bool:
        return self._decoder.saw_id_or_retry

    @property
    def in_event(self) -> bool:
        return self._decoder.in_event

    def feed(self, chunk: bytes) -> bytes:
        """What the client gets of these bytes now; EventTooLarge past the limit (one event, or all held)."""
        self.new_output = False
        for event in self._decoder.feed(chunk):
            if event.data is None:
                self._without_data(event)
            else:
                self._event(event)
            if self.ended is not None:
                break
        if self._flowing:
            return self._release()
        if self._held_bytes > self._max_held:
            raise EventTooLarge(f"more than {self._max_held} bytes before the first output")
        return b""

    def close(self) -> bytes:
        """The provider's body ended, or its silence is the end: what is left for the client."""
        last = self._decoder.close() if self.ended is None else None
        if last is not None and last.data is not None:
            self._event(last)
        if self.ended is None:
            raw, _, self.ended = self.meter.finish()
            self._held.append(raw)
        return self._release() if self._flowing else b""

    def release(self) -> bytes:
        """Let the held events go: the stream ended properly without any output, and was paid for."""
        self._flowing = True
        return self._release()

    def _event(self, event: SSEEvent) -> None:
        raw, output, self.ended = self.meter.feed(event)
        self.events += 1
        if self.ended is not None and raw.endswith(b"\r\n\r"):  # the last byte of a CRLF stream, perhaps not here yet
            raw += b"\n"
        if self.meter.error is not None:  # whoever asks for it later gets no more than the client
            hidden = self._hidden()
            raw, self.meter.error = scrub(raw, hidden), scrub_error(self.meter.error, hidden)
        self._passed = bool(raw)
        if raw:
            self._held.append(raw)
            self._held_bytes += len(raw)
        if output:
            self.new_output = self._flowing = True
            self.outputs += 1

    def _without_data(self, event: SSEEvent) -> None:
        if event.tail:
            if self._passed:
                self._held.append(event.raw)
            return
        self._passed = False
        if text := error_field(event):
            self.field_error = scrub_text(text, self._hidden())
            self.ended = "error"

    def _release(self) -> bytes:
        data = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        return data
