"""The page Meter health: can the figures be trusted, and what is to be done where they cannot."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.timezone import now
from django.utils.translation import gettext as _

from billing.admin.display import UNKNOWN, ago, badge, list_url
from billing.admin.pages import page, show
from billing.meter_health import Check, MeterReader, checks
from billing.processes import Folder
from streaming import redis_client
from streaming.models import Alarm

ORDER = ("bad", "warn", "good")


@page("health/", name="health", right="billing.view_meterevent")
def health(request: HttpRequest) -> HttpResponse:
    """All checks, as they are now; /metrics and the alarm strip show what was read up to 15 s ago."""
    moment = now()
    found = checks(_reader(settings.VAR_DIR).read(moment))
    raised = dict(Alarm.objects.filter(kind=Alarm.Kind.METER, ended_at=None).values_list("subject", "raised_at"))
    return show(
        request,
        "admin/health.html",
        title=_("Meter health"),
        verdict=verdict(found),
        rows=[_row(check, raised.get(check.name)) for check in sorted(found, key=lambda one: ORDER.index(one.state))],
        as_of=f"{moment:%Y-%m-%d %H:%M:%S UTC}",
        alarms_url=list_url(Alarm),
        webhook=bool(settings.ALARM_WEBHOOK_URL),
    )


@cache
def _reader(var_dir: Path) -> MeterReader:
    """Kept, so that it learns which processes of other hosts fall silent."""
    return MeterReader(Folder(var_dir), lambda: redis_client.answers(settings.VALKEY_URL))


def verdict(found: list[Check]) -> dict[str, str]:
    """The whole in one badge and one sentence."""
    states = {check.state for check in found}
    if "bad" in states:
        return {"badge": state_badge("bad"), "text": _("Some figures cannot be trusted until somebody acts.")}
    if "warn" in states:
        return {"badge": state_badge("warn"), "text": _("All bills are kept. Some checks want to be looked at.")}
    return {"badge": state_badge("good"), "text": _("All bills are kept, priced and rolled up.")}


def state_badge(state: str) -> str:
    """A check's state as word, icon and colour."""
    if state == "bad":
        return badge(_("unhealthy"), "bad", "error")
    return badge(_("look at it"), "warn", "warning") if state == "warn" else badge(_("good"), "good", "check_circle")


def _row(check: Check, raised_at: Any) -> dict[str, Any]:
    """A line of the table. What has no time of its own has that of its alarm."""
    since = check.since or raised_at
    return {
        "title": check.title,
        "state": state_badge(check.state),
        "value": check.value,
        "threshold": check.threshold,
        "since": ago(since) if since is not None and check.state != "good" else UNKNOWN,
        "advice": check.advice if check.state != "good" else "",
        "link": check.link.title if check.link else "",
        "url": check_url(check),
    }


def check_url(check: Check) -> str:
    """The page where a check is dealt with, or ""."""
    if check.link is None:
        return ""
    return reverse(f"admin:{check.link.view}") + (f"?{check.link.query}" if check.link.query else "")
