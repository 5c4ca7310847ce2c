"""How a stream under way looks to an operator: its state, its silence, what it would cost to stop, what became of it.

Nothing here changes anything; `billing.admin.streams` has the pages.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from billing.admin.display import UNKNOWN, badge, number
from billing.models import OpenStream, UsageRecord
from billing.processes import Folder, Onlooker, Standing
from billing.sweep import as_checkpoint, metered_so_far
from billing.usage import TokenUsage

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

STALLING = 0.75
"""The share of the silence limit from which on a stream counts as about to stall."""

SHOWN_AFTER_STOP = dt.timedelta(minutes=10)
"""How long the list shows what became of a stream that was stopped."""

BEATS_MISSED = 5

STATES: dict[str, tuple[_StrPromise, str, str]] = {
    "unanswered": (gettext_lazy("process does not answer"), "bad", "cloud_off"),
    "stopping": (gettext_lazy("stop requested"), "warn", "stop_circle"),
    "stalling": (gettext_lazy("stalling"), "bad", "warning"),
    "waiting": (gettext_lazy("waiting"), "info", "hourglass_top"),
    "silent": (gettext_lazy("silent"), "calm", "volume_off"),
    "streaming": (gettext_lazy("streaming"), "good", "play_circle"),
}
"""State -> word, tone, icon."""

_onlooker: Onlooker | None = None


def onlooker() -> Onlooker:
    """The one of this process, which remembers the heartbeats that its pages have read."""
    global _onlooker
    if _onlooker is None:
        still_s = max(10.0, BEATS_MISSED * settings.CHECKPOINT_S)
        _onlooker = Onlooker(Folder(settings.VAR_DIR), still_s=still_s)
    return _onlooker


@dataclass(frozen=True, slots=True)
class Look:
    """A stream as it stands at a moment. `silence` and its limit are the attempt's; without a limit nobody told one."""

    state: str
    standing: Standing
    silence: dt.timedelta
    limit: dt.timedelta | None

    @property
    def is_lost(self) -> bool:
        """Whether its process is gone, so that nobody can stop it: a sweep is about to settle it."""
        return self.standing is Standing.GONE


def look(stream: OpenStream, standing: Standing, moment: dt.datetime) -> Look:
    """How a stream stands; `standing` is its process's."""
    since = stream.last_output_at or stream.attempt_started_at or stream.started_at
    silence = max(moment - since, dt.timedelta())
    limit = None if stream.silence_limit_s is None else dt.timedelta(seconds=stream.silence_limit_s)
    return Look(_state(stream, standing, silence, limit), standing, silence, limit)


def _state(stream: OpenStream, standing: Standing, silence: dt.timedelta, limit: dt.timedelta | None) -> str:
    if standing is not Standing.ANSWERS:
        return "unanswered"
    if stream.stop_requested:
        return "stopping"
    if limit is not None and silence >= limit * STALLING:
        return "stalling"
    if stream.last_output_at is None:
        return "waiting"
    return "silent" if silence >= dt.timedelta(seconds=settings.KEEPALIVE_S) else "streaming"


def state_badge(found: Look) -> SafeString:
    """The state as word, icon and colour."""
    return badge(*STATES[found.state])


def silence_shown(found: Look) -> SafeString | str:
    """`75 s / 120 s` with a bar; the limit is the model's stall time, of a whole answer its time in all."""
    seconds = found.silence // dt.timedelta(seconds=1)
    if found.limit is None:
        return _("%(count)s s") % {"count": number(seconds)}
    limit = found.limit // dt.timedelta(seconds=1)
    words = _("%(silence)s s of %(limit)s s") % {"silence": number(seconds), "limit": number(limit)}
    return format_html(
        '<span class="hb-limit"><span class="hb-figure">{} / {}</span>'
        '<meter min="0" max="{}" low="{}" high="{}" optimum="0" value="{}" aria-label="{}"></meter></span>',
        _("%(count)s s") % {"count": number(seconds)},
        _("%(count)s s") % {"count": number(limit)},
        limit,
        limit // 2,
        int(limit * STALLING),
        min(seconds, limit),
        words,
    )


def used_so_far(stream: OpenStream) -> TokenUsage:
    """What would be billed if the stream ended at its last checkpoint."""
    return metered_so_far(as_checkpoint(stream)).usage


def tokens_so_far(streams: Iterable[OpenStream]) -> int:
    """The tokens of several, of all buckets."""
    return sum(usage.total_input + usage.output for usage in map(used_so_far, streams))


def unanswered(process: str, standing: Standing) -> str:
    """What it means that a process does not answer; "" where it does."""
    if standing is Standing.GONE:
        return _("Process %(process)s does not answer; settled within 60 s.") % {"process": process}
    if standing is Standing.SILENT:
        return _(
            "Process %(process)s lives but does not answer: it is stopped, or its database is away. Its streams stop "
            "once it answers."
        ) % {"process": process}
    return ""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A stream that somebody stopped lately, and what became of it."""

    name: str
    who: str
    record: UsageRecord | None


def lately_stopped(moment: dt.datetime, most: int = 20) -> list[Stopped]:
    """The streams that were stopped by hand in the last minutes and have ended, newest first; four queries at most."""
    kind = ContentType.objects.get_for_model(OpenStream)
    asked = LogEntry.objects.filter(
        content_type=kind, action_flag=CHANGE, action_time__gte=moment - SHOWN_AFTER_STOP
    ).select_related("user")[:most]
    entries = {identity: entry for entry in asked if (identity := _uuid(entry.object_id)) is not None}
    if not entries:
        return []
    running = set(OpenStream.objects.filter(pk__in=entries).values_list("pk", flat=True))
    records = UsageRecord.objects.in_bulk(list(entries.keys() - running))
    return [
        Stopped(entry.object_repr, str(entry.user), records.get(identity))
        for identity, entry in entries.items()
        if identity not in running
    ]


def stopped_by(record: UsageRecord) -> str:
    """Who stopped the stream that a record is of; a dash where that was not by hand or nobody knows."""
    kind = ContentType.objects.get_for_model(OpenStream)
    entry = LogEntry.objects.filter(content_type=kind, object_id=str(record.pk)).select_related("user").first()
    return UNKNOWN if entry is None else str(entry.user)


def under_way(count: int, more: bool) -> str:
    """How many streams a page shows, for those who see it and those who hear it."""
    if more:
        return _("%(count)s or more streams under way.") % {"count": number(count)}
    words = ngettext("%(count)s stream under way.", "%(count)s streams under way.", count)
    return words % {"count": number(count)} if count else _("No stream is under way.")


def _uuid(text: Any) -> uuid.UUID | None:
    try:
        return uuid.UUID(str(text))
    except ValueError:
        return None
