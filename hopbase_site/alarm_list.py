"""What wants an operator, at the top of Home: the meter, routes that are out, budgets, keys near a limit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.utils.translation import gettext as _

from billing import present_use
from billing.admin.display import change_url, list_url, money, number
from billing.meter_health import Check, MeterReader, Readings, checks
from billing.models import ApiKey, OpenStream
from billing.present_use import LIMITED, PresentUse, Use
from billing.processes import Folder
from hopbase_site.meter_page import check_url
from streaming.alarms import BUDGET_ALARMS, spent_budgets
from streaming.meter_watch import WATCH
from streaming.models import Route

RIGHT = "billing.change_openstream"
"""Those who can act on it: operators."""
EARLY = frozenset({"journals", "dead_processes"})
"""Checks that are listed as soon as they want to be looked at: what they tell of may soon be lost bills."""
MOST = 5
"""Of a kind that are listed one by one; the rest is one line."""
LATELY = dt.timedelta(minutes=5)
"""A key that was not used for so long is near no rate. Uses are written once a minute."""
MOST_KEYS = 500


@dataclass(frozen=True, slots=True)
class Item:
    """One line: what is wrong, since when, and where to act. `tone`: bad or warn."""

    text: str
    url: str
    tone: str
    since: dt.datetime | None = None


def alarm_list(now: dt.datetime) -> list[Item]:
    """All that wants an operator at this moment, the worst first."""
    readings = WATCH.fresh or MeterReader(Folder(settings.VAR_DIR)).read(now)
    found = [*of_meter(readings), *of_routes(), *of_budgets(now), *of_limits(now)]
    return sorted(found, key=lambda item: item.tone != "bad")


def of_meter(readings: Readings) -> Iterator[Item]:
    """Checks that are bad, and some that may soon be."""
    for check in checks(readings):
        if check.state == "bad" or (check.state == "warn" and check.name in EARLY):
            yield Item(_check_text(check), check_url(check), "bad" if check.state == "bad" else "warn", check.since)


def _check_text(check: Check) -> str:
    return _("%(check)s: %(value)s") % {"check": check.title, "value": " · ".join(check.value)}


def of_routes() -> Iterator[Item]:
    """Routes that stay out until somebody acts."""
    out = Route.objects.filter(active=True).exclude(out_since=None).select_related("model", "provider")
    routes = list(out.order_by("out_since")[: MOST + 1])
    for route in routes[:MOST]:
        text = _("The route %(route)s is out: %(reason)s") % {"route": route, "reason": route.out_reason}
        yield Item(text, change_url(route), "bad", route.out_since)
    if len(routes) > MOST:
        yield Item(_("More routes are out."), list_url(Route), "bad")


def of_budgets(now: dt.datetime) -> Iterator[Item]:
    """Budgets that have passed a share that alarms, those that are spent first."""
    months = sorted(spent_budgets(now), key=lambda month: -month.spent_nanos * 1000 // _budget(month))
    for month in months[:MOST]:
        percent = month.spent_nanos * 100 // _budget(month)
        currency = month.api_key.account.currency
        text = _("%(key)s has spent %(percent)s %% of its budget: %(spent)s of %(budget)s") % {
            "key": month.api_key,
            "percent": number(percent),
            "spent": money(month.spent_nanos, currency),
            "budget": money(_budget(month), currency),
        }
        yield Item(text, change_url(month.api_key), "bad" if percent >= BUDGET_ALARMS[0] else "warn")
    yield from _more(months)


def _budget(month: Any) -> int:
    return int(month.api_key.monthly_budget_nanos)


def of_limits(now: dt.datetime) -> Iterator[Item]:
    """Keys that use most of a rate or of their requests at a time."""
    used = Q(last_used_at__gte=now - LATELY) | Q(pk__in=OpenStream.objects.order_by().values("api_key_id"))
    in_use = ApiKey.objects.filter(LIMITED, used, revoked_at=None).select_related("account")
    keys = list(in_use.order_by("pk")[:MOST_KEYS])
    if not keys:
        return
    uses = present_use.of(keys, now)
    near = [(key, text) for key in keys for text in _near(key, uses[key.pk])]
    for key, text in near[:MOST]:
        yield Item(text, change_url(key), "warn")
    yield from _more(near)


def _near(key: ApiKey, use: PresentUse) -> Iterator[str]:
    if use.requests.is_near:
        yield _("%(key)s uses %(now)s of its %(limit)s requests per minute") % _figures(key, use.requests)
    if use.tokens.is_near:
        yield _("%(key)s uses %(now)s of its %(limit)s tokens per minute") % _figures(key, use.tokens)
    if use.running.is_near:
        yield _("%(key)s runs %(now)s of its %(limit)s requests at a time") % _figures(key, use.running)


def _figures(key: ApiKey, use: Use) -> dict[str, str]:
    return {"key": str(key), "now": number(use.now), "limit": number(use.limit)}


def _more(found: Sequence[Any]) -> Iterator[Item]:
    if len(found) > MOST:
        yield Item(_("And %(count)s more.") % {"count": number(len(found) - MOST)}, list_url(ApiKey), "warn")
