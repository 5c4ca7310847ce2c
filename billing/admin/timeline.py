"""A request's attempts on one time axis, as numbers for the template: which phase lasts from where to where."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.admin.display import duration
from billing.models import Attempt, UsageRecord

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

UNITS = 1000
"""How wide the axis is in the drawing's own units."""
NARROWEST = 4
"""What lasts next to nothing is drawn so wide, to be seen."""
MOST_STEPS = 5
STEPS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(seconds * 1000 for seconds in (1, 2, 5, 10, 20, 30)),
    *(minutes * 60_000 for minutes in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)),
)
"""Round distances between the labels of an axis."""

PHASES: dict[str, tuple[_StrPromise, int]] = {
    "headers": (gettext_lazy("waiting for the answer to begin"), 4),
    "thinking": (gettext_lazy("waiting for the first output"), 8),
    "output": (gettext_lazy("output"), 12),
}
"""Phase -> its words and how high its bar is: colour does not stand alone."""
HEIGHT = 12


@dataclass(frozen=True, slots=True)
class Bar:
    """A phase of an attempt, in units of the drawing."""

    phase: str
    x: int
    width: int

    @property
    def height(self) -> int:
        return PHASES[self.phase][1]

    @property
    def y(self) -> int:
        return (HEIGHT - self.height) // 2


@dataclass(frozen=True, slots=True)
class Row:
    """An attempt: `words` say what its bars show."""

    attempt: Attempt
    bars: Sequence[Bar]
    words: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The rows, the labels of the axis at equal distances, and what the phases are called."""

    rows: Sequence[Row]
    ticks: Sequence[str]

    @property
    def legend(self) -> list[tuple[str, _StrPromise]]:
        return [(phase, words) for phase, (words, _height) in PHASES.items()]


def axis(record: UsageRecord, attempts: Sequence[Attempt]) -> Axis | None:
    """The axis from the request's start to its end or that of its last attempt; None without attempts."""
    if not attempts:
        return None
    starts = [_ms(attempt.started_at - record.started_at) for attempt in attempts]
    ends = [start + attempt.duration_ms for start, attempt in zip(starts, attempts, strict=True)]
    whole = max(*ends, _ms(record.ended_at - record.started_at), 1)
    step = _step(whole)
    length = step * -(-whole // step)
    rows = [
        Row(attempt, _bars(attempt, start, length), _words(attempt, start))
        for start, attempt in zip(starts, attempts, strict=True)
    ]
    return Axis(rows, [_tick(at) for at in range(0, length + 1, step)])


def _tick(at_ms: int) -> str:
    """A label of the axis: `0`, `500 ms`, `10 s`, `5 min`; these are round."""
    if at_ms == 0:
        return "0"
    if at_ms % 60_000 == 0:
        return _("%(count)s min") % {"count": at_ms // 60_000}
    return _("%(count)s s") % {"count": at_ms // 1000} if at_ms % 1000 == 0 else _("%(count)s ms") % {"count": at_ms}


def _ms(length: dt.timedelta) -> int:
    return max(0, length // dt.timedelta(milliseconds=1))


def _step(length_ms: int) -> int:
    """The smallest round distance between labels that needs no more than a few of them."""
    return next((step for step in STEPS_MS if step * MOST_STEPS >= length_ms), -(-length_ms // MOST_STEPS))


def _bars(attempt: Attempt, start_ms: int, length_ms: int) -> list[Bar]:
    return [
        Bar(phase, _units(start_ms + begin, length_ms), max(NARROWEST, _units(end - begin, length_ms)))
        for phase, begin, end in _phases(attempt)
    ]


def _phases(attempt: Attempt) -> list[tuple[str, int, int]]:
    """Phases with where they begin and end, in ms of the attempt; one that nobody saw the end of lasts as long as it.

    Of an attempt that a sweep settled nobody knows when its headers came.
    """
    end, headers, first = attempt.duration_ms, attempt.headers_ms, attempt.first_output_ms
    if headers is None and first is None:
        return [("headers", 0, end)]
    began, spoke = min(headers or 0, end), end if first is None else min(first, end)
    found = [("headers", 0, began), ("thinking", began, spoke), ("output", spoke, end)]
    return [phase for phase in found if phase[2] > phase[1]] or [("headers", 0, end)]


def _units(ms: int, length_ms: int) -> int:
    return ms * UNITS // length_ms


def _words(attempt: Attempt, start_ms: int) -> str:
    """The same for those who do not see it."""
    return _("Attempt %(number)s began after %(start)s and took %(length)s.") % {
        "number": attempt.number,
        "start": duration(dt.timedelta(milliseconds=start_ms)),
        "length": duration(dt.timedelta(milliseconds=attempt.duration_ms)),
    }
