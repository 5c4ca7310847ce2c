"""What the readings mean: each check with its threshold, and what to do. Pure, but for the language of its words."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from billing.meter_health.readings import FLAG_DAYS, MOST_UNPRICED, Flagged, Journals, Kind, Noted, Readings

State = Literal["good", "warn", "bad"]

JOURNAL = dt.timedelta(seconds=60)
"""A database that is started anew is back within seconds: bills that wait longer wait for somebody."""
OPEN = dt.timedelta(hours=1)
"""The longest answers of today's models take minutes; one of an hour may well be paid for by nobody."""
SWEPT = dt.timedelta(seconds=90)
"""A dead process is swept within 60 s. A sweep that is under way gets half as much again."""
ESTIMATED_WARN, ESTIMATED_BAD = 100, 300
"""Per mille. Clients that leave early make a few per cent; every tenth request means that a provider reports badly."""
ESTIMATED_OF = 50
"""Requests of a provider below which a share says nothing."""
DUE_WARN, DUE_BAD = dt.timedelta(minutes=3), dt.timedelta(minutes=15)
"""Roll-ups are made every minute: three runs late may be one large day, fifteen are a worker that does not run."""
MOST_SHOWN = 5

ZERO_WITH_OUTPUT = "zero_with_output"
UNKNOWN = "unknown:"


@dataclass(frozen=True, slots=True)
class Link:
    """A page of the admin: its title, the name of its URL below `admin:`, and a query."""

    title: str
    view: str
    query: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One check, in words of the active language. `name` is the same in all; `value` has a line for each figure."""

    name: str
    title: str
    value: tuple[str, ...]
    threshold: str
    state: State
    since: dt.datetime | None
    advice: str
    link: Link | None = None


def checks(readings: Readings) -> list[Check]:
    """All checks, those about lost bills first."""
    return [check(readings) for check in ALL]


def journals(readings: Readings) -> Check:
    """Bills that wait on the local disk."""
    waiting = (readings.living_journals, readings.dead_journals)
    since = min((one.since for one in waiting if one.since), default=None)
    lines = (
        _journal_line(readings.living_journals, _("of living processes: %(entries)s entries, %(bytes)s bytes")),
        _journal_line(readings.dead_journals, _("of dead processes: %(entries)s entries, %(bytes)s bytes")),
    )
    return Check(
        "journals",
        _("Journals on this host"),
        tuple(filter(None, lines)) or (_("empty"),),
        _("nothing waits for longer than %(seconds)s s") % {"seconds": JOURNAL.seconds},
        _aged(readings.at, since, warn=dt.timedelta(0), bad=JOURNAL),
        since,
        _("Bills wait on the disk for the database. Bring it back; whatever a dead process left is then swept."),
        Link(_("Processes"), "billing_gatewayprocess_changelist"),
    )


def dropped(readings: Readings) -> Check:
    """Bills that the database refused for good."""
    noted = readings.noted.get(Kind.DROPPED, Noted())
    return Check(
        "dropped",
        _("Bills refused by the database"),
        (_number(noted.bills),),
        _("none that nobody has acknowledged"),
        "bad" if noted.bills else "good",
        noted.first_at,
        _("These requests have no record. Find them in the log by their ids, adjust the bill, then acknowledge."),
        Link(_("Meter events"), "billing_meterevent_changelist", "kind=dropped"),
    )


def unjournalled(readings: Readings) -> Check:
    """Bills that neither database nor disk took at first."""
    noted = readings.noted.get(Kind.UNJOURNALLED, Noted())
    return Check(
        "unjournalled",
        _("Bills refused by the disk"),
        (_number(noted.bills),),
        _("none that nobody has acknowledged"),
        "bad" if noted.bills else "good",
        noted.first_at,
        _("They waited in memory alone, and would have been lost with their process. Make room on the disk."),
        Link(_("Meter events"), "billing_meterevent_changelist", "kind=unjournalled"),
    )


def dead(readings: Readings) -> Check:
    """Processes that have died and are not swept yet."""
    overdue = readings.dead_since is not None and readings.at - readings.dead_since > SWEPT
    text = ngettext(
        "%(dead)s waits for a sweep; %(living)s lives", "%(dead)s wait for a sweep; %(living)s live", readings.dead
    )
    return Check(
        "dead_processes",
        _("Dead processes"),
        (text % {"dead": readings.dead, "living": readings.living},),
        _("swept within %(seconds)s s") % {"seconds": SWEPT.seconds},
        "bad" if overdue else "warn" if readings.dead else "good",
        readings.dead_since,
        _("Their streams are not billed yet. See that a Celery worker with beat runs, or run manage.py sweep."),
        Link(_("Processes"), "billing_gatewayprocess_changelist"),
    )


def swept(readings: Readings) -> Check:
    """Sweeps that found something lately."""
    noted = readings.noted.get(Kind.SWEPT, Noted())
    text = ngettext("%(count)s dead process", "%(count)s dead processes", noted.processes)
    streams = ngettext("%(count)s stream settled", "%(count)s streams settled", noted.bills)
    lines = (text % {"count": noted.processes}, streams % {"count": _number(noted.bills)})
    return Check(
        "sweeps",
        _("Sweeps in the last 24 hours"),
        lines if noted.processes else (_("none had anything to do"),),
        _("no process dies"),
        "warn" if noted.processes else "good",
        noted.first_at,
        _("A process died and its streams were billed to their last checkpoint. Look for what killed it."),
        Link(_("Meter events"), "billing_meterevent_changelist", "kind=swept"),
    )


def late(readings: Readings) -> Check:
    """Bills that were written late."""
    noted = readings.noted.get(Kind.LATE, Noted())
    return Check(
        "late_writes",
        _("Bills written late in the last 24 hours"),
        (_number(noted.bills),),
        _("none"),
        "warn" if noted.bills else "good",
        noted.first_at,
        _("The database was away for a while. All of these bills are written; see why it was away."),
        Link(_("Meter events"), "billing_meterevent_changelist", "kind=late"),
    )


def open_streams(readings: Readings) -> Check:
    """The request that has been under way for longest."""
    lines = [_("%(count)s open") % {"count": _number(readings.open_streams)}]
    if readings.oldest_open is not None:
        lines.append(_("the oldest for %(time)s") % {"time": _length(readings.at - readings.oldest_open)})
    return Check(
        "open_streams",
        _("Oldest unsettled request"),
        tuple(lines),
        _("settled within %(time)s") % {"time": _length(OPEN)},
        _aged(readings.at, readings.oldest_open, warn=OPEN),
        readings.oldest_open,
        _("It is billed only when it ends. See whether it still brings output, and stop it if not."),
        Link(_("Live streams"), "billing_openstream_changelist"),
    )


def unpriced(readings: Readings) -> Check:
    """Records without a price."""
    found = readings.unpriced
    count = _("%(count)s or more") if found.records >= MOST_UNPRICED else "%(count)s"
    lines = [
        count % {"count": _number(found.records)},
        _listed(_("models: %(names)s"), found.models),
        _listed(_("blocked invoices: %(names)s"), found.invoices),
    ]
    return Check(
        "unpriced",
        _("Unpriced records"),
        tuple(filter(None, lines)),
        _("none"),
        "bad" if found.records else "good",
        found.since,
        _("They block their invoices. Add the missing price, then rate these records with it."),
        Link(_("Unpriced"), "unpriced"),
    )


def unknown_counters(readings: Readings) -> Check:
    """Counters of providers that we do not know, and so do not bill."""
    found = [flagged for flagged in readings.flagged if flagged.flag.startswith(UNKNOWN)]
    return Check(
        "unknown_counters",
        _("Unknown usage counters in the last %(days)s days") % {"days": FLAG_DAYS},
        _flag_lines(found, named=True),
        _("none"),
        "warn" if found else "good",
        min((flagged.first_at for flagged in found), default=None),
        _("A provider counts something that we do not bill. Ask what it costs; it may need a new version of HopBase."),
        Link(_("Flagged usage"), "billing_flagrollup_changelist"),
    )


def zero_usage(readings: Readings) -> Check:
    """Answers with output whose usage says zero."""
    found = [flagged for flagged in readings.flagged if flagged.flag == ZERO_WITH_OUTPUT]
    return Check(
        "zero_usage",
        _("Output reported as zero in the last %(days)s days") % {"days": FLAG_DAYS},
        _flag_lines(found, named=False),
        _("none"),
        "warn" if found else "good",
        min((flagged.first_at for flagged in found), default=None),
        _("A provider delivered output and reported none, so none was billed. Compare with its invoice."),
        Link(_("Flagged usage"), "billing_flagrollup_changelist"),
    )


def estimated(readings: Readings) -> Check:
    """Providers whose usage we had to count ourselves."""
    judged = [metered for metered in readings.metered if metered.requests >= ESTIMATED_OF]
    worst = max((metered.permille for metered in judged), default=0)
    lines = tuple(
        _("%(provider)s: %(share)s of %(count)s requests")
        % {"provider": one.provider or "—", "share": _share(one.permille), "count": _number(one.requests)}
        for one in readings.metered[:MOST_SHOWN]
    )
    return Check(
        "estimated_share",
        _("Estimated usage in the last 24 hours"),
        lines or (_("no requests"),),
        _("below %(share)s for each provider, from %(count)s requests on")
        % {"share": _share(ESTIMATED_WARN), "count": ESTIMATED_OF},
        "bad" if worst >= ESTIMATED_BAD else "warn" if worst >= ESTIMATED_WARN else "good",
        None,
        _("The provider does not report usage, or its streams are cut. See how these requests end."),
        Link(_("Requests"), "billing_usagerecord_changelist", "metering=estimated"),
    )


def rollup_lag(readings: Readings) -> Check:
    """For how long roll-ups have been due."""
    since = readings.rollup_due_since
    return Check(
        "rollup_lag",
        _("Roll-up lag"),
        (_("none is due") if since is None else _length(readings.at - since),),
        _("at most %(time)s") % {"time": _length(DUE_WARN)},
        _aged(readings.at, since, warn=DUE_WARN, bad=DUE_BAD),
        since,
        _("Reports read the records themselves meanwhile, and are right but slow. See that a Celery worker runs."),
        Link(_("Roll-ups due"), "billing_rollupdue_changelist"),
    )


def redis(readings: Readings) -> Check:
    """Whether limits are counted over all processes."""
    away = readings.redis_answers is False
    return Check(
        "redis",
        _("Redis"),
        (_("away: limits are counted per process") if away else _("answers"),),
        _("answers"),
        "warn" if away else "good",
        None,
        _("Requests go on; with several processes a key may use its rates once in each. Bring Redis back."),
    )


ALL: tuple[Callable[[Readings], Check], ...] = (
    dropped, journals, unjournalled, dead, unpriced, rollup_lag, estimated, unknown_counters, zero_usage, late, swept,
    open_streams, redis,
)  # fmt: skip


def _aged(now: dt.datetime, since: dt.datetime | None, *, warn: dt.timedelta, bad: dt.timedelta | None = None) -> State:
    """The state of something that has lasted since an instant; good where there is nothing."""
    if since is None:
        return "good"
    if bad is not None and now - since > bad:
        return "bad"
    return "warn" if now - since >= warn else "good"


def _journal_line(journals: Journals, text: str) -> str:
    return text % {"entries": _number(journals.entries), "bytes": _number(journals.bytes)} if journals.files else ""


def _flag_lines(found: Sequence[Flagged], *, named: bool) -> tuple[str, ...]:
    if not found:
        return (_("none"),)
    return tuple(
        (_("%(provider)s: %(flag)s on %(count)s requests") if named else _("%(provider)s: %(count)s requests"))
        % {"provider": one.provider or "—", "flag": one.flag.removeprefix(UNKNOWN), "count": _number(one.records)}
        for one in found[:MOST_SHOWN]
    )


def _listed(text: str, names: Sequence[str]) -> str:
    """The first few of the names; empty where there are none."""
    if not names:
        return ""
    more = len(names) - MOST_SHOWN
    shown = ", ".join(names[:MOST_SHOWN])
    if more > 0:
        shown = _("%(names)s and %(count)s more") % {"names": shown, "count": _number(more)}
    return text % {"names": shown}


def _number(count: int) -> str:
    return f"{count:,}"


def _share(permille: int) -> str:
    whole, tenth = divmod(permille, 10)
    return f"{whole}.{tenth} %" if tenth else f"{whole} %"


def _length(length: dt.timedelta) -> str:
    seconds = max(0, int(length.total_seconds()))
    if seconds < 120:
        return _("%(count)s s") % {"count": seconds}
    if seconds < 7200:
        return _("%(count)s min") % {"count": seconds // 60}
    return _("%(count)s h") % {"count": _number(seconds // 3600)}
