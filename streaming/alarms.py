"""Alarms: what wants an operator, raised once however many look, and told to the operator's webhook.

A look compares what stands now with the alarms that are open. Who tells claims the alarm first, for longer than telling
takes, so that two workers, a repeated task or a second beat do not tell it twice; what fails is tried again by a later
look. All of it is in the database: Celery only says when to look.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

import orjson
from django.conf import settings
from django.db.models import F, Q
from django.urls import reverse
from django.utils import translation

from billing.meter_health import MeterReader, Readings, checks
from billing.models import BudgetMonth
from billing.money import show
from billing.periods import local_day
from billing.processes import Folder
from streaming.models import Alarm, Route

log = logging.getLogger(__name__)

BUDGET_ALARMS = (100, 80)
"""Per cent of a month's budget, the higher first."""
LEASE = dt.timedelta(seconds=60)
"""How long an alarm is its teller's; telling takes a sixth of that at most. Later whoever looks takes it for dead."""
FIRST_PAUSE, LONGEST_PAUSE = dt.timedelta(seconds=20), dt.timedelta(minutes=30)
GIVE_UP = dt.timedelta(days=1)
"""An alarm that nobody heard for so long is no news."""

Kind = Alarm.Kind
EVENTS = {
    Kind.METER: ("meter_unhealthy", "meter_healthy"),
    Kind.ROUTE: ("route_out", "route_back"),
    Kind.BUDGET: ("budget_passed", ""),
}
"""What is told when an alarm is raised, and when it ends; a budget's month just ends."""

Post = Callable[[bytes, str], str]
"""Sends a body under the name of a delivery; returns why it did not arrive, or ""."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What wants an operator now. The same trouble has the same `name`; `once`: never raised again after its end."""

    name: str
    kind: Alarm.Kind
    subject: str
    message: str
    details: dict[str, Any] = field(default_factory=dict)
    once: bool = False


def look(now: dt.datetime, *, folder: Folder | None = None) -> None:
    """Raise the alarms that stand and end those that do not. Safe at any time, any number at once."""
    readings = MeterReader(folder or Folder(settings.VAR_DIR)).read(now)
    settle([*of_meter(readings), *of_routes(), *of_budgets(now)], now)


def settle(found: Sequence[Standing], now: dt.datetime) -> None:
    """Make the open alarms what was found at an instant. What another has raised or ended after it stays so."""
    standing = {one.name: one for one in found}
    open_now = set(Alarm.objects.filter(ended_at=None).values_list("name", flat=True))
    fresh = standing.keys() - open_now
    ended = Alarm.objects.filter(name__in=fresh, ended_at__isnull=False).values_list("name", "ended_at")
    barred = {name for name, ended_at in ended if standing[name].once or (ended_at is not None and ended_at >= now)}
    raised = [_alarm(one, now) for name, one in standing.items() if name in fresh - barred]
    Alarm.objects.bulk_create(raised, ignore_conflicts=True)
    if gone := open_now - standing.keys():
        Alarm.objects.filter(ended_at=None, name__in=gone, raised_at__lt=now).update(ended_at=now)


def _alarm(one: Standing, now: dt.datetime) -> Alarm:
    return Alarm(
        name=one.name, kind=one.kind, subject=one.subject[:300], message=one.message, details=one.details, raised_at=now
    )  # fmt: skip


# --- what stands ---


def of_meter(readings: Readings) -> Iterator[Standing]:
    """The checks of the meter that are bad, in English: an alarm has no reader's language."""
    with translation.override("en"):
        for check in checks(readings):
            if check.state == "bad":
                details = {
                    "check": check.name,
                    "value": list(check.value),
                    "threshold": check.threshold,
                    "since": _instant(check.since),
                    "advice": check.advice,
                }
                message = f"The meter is unhealthy: {check.title}: {'; '.join(check.value)}."
                yield Standing(f"meter:{check.name}", Kind.METER, check.name, message, details)


def of_routes() -> Iterator[Standing]:
    """Routes that are out until an operator acts."""
    out = Route.objects.filter(active=True).exclude(out_since=None).select_related("model", "provider")
    for route in out.order_by("out_since", "pk"):
        assert route.out_since is not None
        details = {
            "model": route.model.name,
            "provider": route.provider.name,
            "upstream_model": route.upstream_model,
            "reason": route.out_reason,
            "since": _instant(route.out_since),
        }
        name = f"route:{route.pk}:{route.out_since.isoformat()}"
        yield Standing(name, Kind.ROUTE, str(route), f"The route {route} is out: {route.out_reason}.", details)


def of_budgets(now: dt.datetime) -> Iterator[Standing]:
    """Budgets of which the running month has spent a share that alarms; of two shares the higher."""
    for month in spent_budgets(now):
        key, budget = month.api_key, month.api_key.monthly_budget_nanos
        assert budget is not None
        percent = next(one for one in BUDGET_ALARMS if month.spent_nanos * 100 >= budget * one)
        currency = key.account.currency
        details = {
            "account": key.account.name,
            "key": key.name,
            "percent": percent,
            "month": f"{month.month:%Y-%m}",
            "spent": show(month.spent_nanos),
            "budget": show(budget),
            "currency": currency,
        }
        # A budget that is changed is another: it can be passed anew.
        name = f"budget:{key.pk}:{month.month:%Y-%m}:{percent}:{budget}"
        spent = f"{percent} % of its budget of {currency} {show(budget)} for {month.month:%Y-%m}"
        yield Standing(name, Kind.BUDGET, str(key), f"The key {key} has spent {spent}.", details, once=True)


def spent_budgets(now: dt.datetime) -> list[BudgetMonth]:
    """The running months, each on its account's clocks, that have spent at least the lowest alarming share."""
    today = now.date()
    months = {(today + dt.timedelta(days=days)).replace(day=1) for days in (-1, 0, 1)}
    # Divided first: a hundred times a large amount is no 64-bit integer. What this finds too many, the last line drops.
    share = F("api_key__monthly_budget_nanos") / 100 * BUDGET_ALARMS[-1]
    found = BudgetMonth.objects.filter(
        month__in=months, api_key__monthly_budget_nanos__gt=0, api_key__revoked_at=None, spent_nanos__gte=share
    ).select_related("api_key__account")
    return [month for month in found.order_by("api_key__account__name", "api_key__name") if _alarms(month, now)]


def _alarms(month: BudgetMonth, now: dt.datetime) -> bool:
    budget = month.api_key.monthly_budget_nanos or 0
    running = local_day(now, ZoneInfo(month.api_key.account.timezone)).replace(day=1)
    return month.month == running and month.spent_nanos * 100 >= budget * BUDGET_ALARMS[-1]


# --- telling ---


def untold(now: dt.datetime) -> list[int]:
    """The alarms of which something is to be told now, the oldest first."""
    recent = now - GIVE_UP
    raised = Q(told_at=None, raised_at__gt=recent) & (Q(ended_at=None) | Q(tries__gt=0))
    ended = Q(told_at__isnull=False, end_told_at=None, ended_at__gt=recent) & ~Q(kind=Kind.BUDGET)
    due = Q(next_try_at=None) | Q(next_try_at__lte=now)
    return list(Alarm.objects.filter(raised | ended).filter(due).order_by("id").values_list("id", flat=True))


def tell(id: int, post: Post, now: Callable[[], dt.datetime]) -> bool:
    """Tell of an alarm what is due, and note how that went; False where nothing was due or it did not arrive."""
    alarm = _claimed(id, now())
    if alarm is None:
        return False
    column, event = _next(alarm)
    failure = post(body(alarm, event, now()), f"{alarm.pk}-{event}")
    if failure:
        pause = min(FIRST_PAUSE * 2 ** min(alarm.tries, 10), LONGEST_PAUSE)
        log.warning("alarm %d was not delivered (%s): tried again in %d s", alarm.pk, failure, pause.total_seconds())
        Alarm.objects.filter(pk=id).update(tries=F("tries") + 1, next_try_at=now() + pause)
        return False
    Alarm.objects.filter(pk=id).update(**{column: now(), "tries": 0, "next_try_at": None})
    return True


def _claimed(id: int, now: dt.datetime) -> Alarm | None:
    """The alarm, once it is ours alone; None where nothing is to be told, or another tells it."""
    alarm = Alarm.objects.filter(pk=id).first()
    if alarm is None or not _next(alarm)[1]:
        return None
    due = Q(next_try_at=None) | Q(next_try_at__lte=now)
    unchanged = Alarm.objects.filter(due, pk=id, told_at=alarm.told_at, end_told_at=alarm.end_told_at)
    return alarm if unchanged.update(next_try_at=now + LEASE) else None


def _next(alarm: Alarm) -> tuple[str, str]:
    """Which column notes what is to be told next, and its event; empty where all is told."""
    raised, ended = EVENTS[Kind(alarm.kind)]
    if alarm.told_at is None:
        return "told_at", raised
    if alarm.ended_at is not None and alarm.end_told_at is None:
        return "end_told_at", ended
    return "", ""


def body(alarm: Alarm, event: str, now: dt.datetime) -> bytes:
    """What is sent: docs/operations/alarms.md."""
    told: dict[str, Any] = {
        "object": "alarm",
        "id": f"{alarm.pk}-{event}",
        "event": event,
        "subject": alarm.subject,
        "message": alarm.message if event == EVENTS[Kind(alarm.kind)][0] else _over(alarm),
        "raised_at": _instant(alarm.raised_at),
        "ended_at": _instant(alarm.ended_at),
        "sent_at": _instant(now),
        "details": alarm.details,
        "link": settings.PUBLIC_URL.rstrip("/") + reverse("admin:streaming_alarm_change", args=[alarm.pk]),
    }
    if alarm.kind == Kind.METER:
        still = Alarm.objects.filter(kind=Kind.METER, ended_at=None).order_by("subject")
        told["unhealthy"] = list(still.values_list("subject", flat=True))
    return orjson.dumps(told)


def _over(alarm: Alarm) -> str:
    if alarm.kind == Kind.ROUTE:
        return f"The route {alarm.subject} is in again."
    return f"The meter's check {alarm.subject} is good again."


def _instant(instant: dt.datetime | None) -> str | None:
    return instant.astimezone(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if instant else None
