"""The admin's home: what went through and what it cost, day by day."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib.auth import get_user_model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.timezone import now
from django.utils.translation import gettext as _

from billing.admin.charts import COLOURS, Chart, Series, columns
from billing.admin.daily import DaySum, sum_of_today, sums_by_day
from billing.admin.display import UNKNOWN, list_url, money, number
from billing.admin.price_state import is_priced
from billing.models import OpenStream, RollupDue, UsageRecord
from billing.money import NANO_PLACES, to_decimal
from hopbase_site import finance_home
from hopbase_site.alarm_list import RIGHT, alarm_list
from streaming.models import Model, Route

DAYS = 30
BLUE, ORANGE = COLOURS[:2]


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """What the home page shows: the figures, or whom to ask for the right to see them."""
    user = request.user
    if not user.has_perm("billing.view_usagerecord"):
        admins = get_user_model().objects.filter(is_superuser=True, is_active=True).order_by("pk")
        return {**context, "title": _("Home"), "to_ask": [admin.get_username() for admin in admins[:3]]}
    # Finance has a home of its own; a superuser, who is in both groups' place, sees both.
    billed = {"finance": finance_home.figures(now())} if finance_home.is_for(user) else {}
    own = {} if billed and not user.is_superuser else figures()
    alarms = alarm_list(now()) if user.has_perm(RIGHT) else []
    return {**context, "title": _("Home"), "alarms": alarms, **billed, **own}


def figures() -> dict[str, Any]:
    """Cards, charts and table of the last 30 days.

    Each request counts on the day of its own account's zone, so the latest day is the furthest zone's: tomorrow in UTC,
    where some account has begun it.
    """
    today = now().date()
    days = sums_by_day(today - dt.timedelta(days=DAYS - 1), today + dt.timedelta(days=1))
    if not days[-1].requests:
        days.pop()
    used = any(day.requests for day in days)
    currencies = sorted({currency for day in days for currency in day.cost})
    return {
        "cards": cards(),
        "empty": not used and not UsageRecord.objects.exists(),
        "make_key_url": reverse("admin:billing_apikey_add"),
        "charts": [requests_chart(days), *(cost_chart(days, currency) for currency in currencies)] if used else [],
        "table": day_table(days, currencies) if used else None,
        "as_of": now().strftime("%Y-%m-%d %H:%M:%S UTC"),
        "due": RollupDue.objects.exists(),
    }


def cards() -> list[dict[str, Any]]:
    """The present in cards; each currency is a figure of its own, for they are never added up."""
    today = sum_of_today(now())
    unpriced = UsageRecord.objects.filter(unpriced=True).count()
    last_day = list_url(UsageRecord, period=1)
    return [
        _card(_("Requests today"), [number(today.requests)], _("on each account's own clock"), last_day),
        _card(_("Cost today"), _amounts(today) or [UNKNOWN], _("on each account's own clock"), last_day),
        {
            **_card(
                _("Unpriced records"),
                [number(unpriced)],
                _("They block their invoices.") if unpriced else _("Every record has its price."),
                list_url(UsageRecord, unpriced=1, period="all"),
            ),
            "alarm": bool(unpriced),
        },
        _routes_out(),
        *_models_without_price(),
        _card(_("Open streams"), [number(OpenStream.objects.count())], _("under way now"), list_url(OpenStream)),
    ]


def _routes_out() -> dict[str, Any]:
    """Routes that the providers turned our account away from: somebody must act."""
    out = Route.objects.filter(active=True).exclude(out_since=None).count()
    note = _("A provider refuses our account: mend the credential, then reset.") if out else _("Every route is in.")
    return {**_card(_("Routes out"), [number(out)], note, list_url(Route)), "alarm": bool(out)}


def _models_without_price() -> list[dict[str, Any]]:
    """Models that customers can ask for and that nobody has priced; no card while there are none."""
    active = Model.objects.filter(active=True, routes__active=True).distinct()
    count = active.annotate(priced=is_priced("name")).filter(priced=False).count()
    if not count:
        return []
    note = _("Their requests are kept unpriced, and block the invoices.")
    return [{**_card(_("Models without a price"), [number(count)], note, list_url(Model)), "alarm": True}]


def _card(title: str, values: list[str], note: str, url: str) -> dict[str, Any]:
    return {"title": title, "figures": values, "note": note, "url": url}


def _amounts(day: DaySum) -> list[str]:
    return [money(nanos, currency) for currency, nanos in sorted(day.cost.items())]


def requests_chart(days: list[DaySum]) -> Chart:
    """Requests per day."""
    counts = [str(day.requests) for day in days]
    return _chart(days, _("Requests per day"), _("requests"), counts, BLUE, whole=True)


def cost_chart(days: list[DaySum], currency: str) -> Chart:
    """Cost per day in one currency: another unit is another chart."""
    amounts = [f"{to_decimal(day.cost.get(currency, 0)):f}" for day in days]
    return _chart(days, _("Cost per day, %(currency)s") % {"currency": currency}, currency, amounts, ORANGE)


def _chart(days: list[DaySum], title: str, unit: str, values: list[str], colour: str, *, whole: bool = False) -> Chart:
    labels = [f"{day.day:%m-%d}" for day in days]
    return columns(title, unit, labels, [Series(unit, values, colour)], before=None, whole=whole)


def day_table(days: list[DaySum], currencies: list[str]) -> dict[str, Any]:
    """The same figures as text, newest first, with their sums; costs with nine places, so that they add up."""
    heads = [
        _("Day"),
        _("Requests"),
        _("Tokens"),
        _("Unpriced"),
        *(_("Cost, %(currency)s") % {"currency": name} for name in currencies),
    ]
    rows = [
        {"day": str(day.day), "url": list_url(UsageRecord, day=day.day), "figures": _day_figures(day, currencies)}
        for day in reversed(days)
        if day.requests
    ]
    total = DaySum(days[0].day)
    for day in days:
        total.requests += day.requests
        total.tokens += day.tokens
        total.unpriced += day.unpriced
        for currency, nanos in day.cost.items():
            total.cost[currency] = total.cost.get(currency, 0) + nanos
    return {"heads": heads, "rows": rows, "total": _day_figures(total, currencies)}


def _day_figures(day: DaySum, currencies: list[str]) -> list[str]:
    cost = [
        money(day.cost.get(currency), currency, NANO_PLACES).removeprefix(f"{currency} ") for currency in currencies
    ]
    return [number(day.requests), number(day.tokens), number(day.unpriced), *cost]
