"""The strip on every page of the admin while the meter is unhealthy. It reads nothing: this process's watch has."""

from __future__ import annotations

from typing import Any

from django import template
from django.urls import reverse

from billing.meter_health import checks
from streaming.meter_watch import WATCH, MeterWatch

register = template.Library()

RIGHT = "billing.view_meterevent"
OWN_PAGE = "health"


@register.inclusion_tag("admin/alarm_strip.html", takes_context=True)
def alarm_strip(context: dict[str, Any]) -> dict[str, Any]:
    """What is unhealthy, for those who may see it; nothing on the page that says more."""
    request = context.get("request")
    if request is None or not request.user.has_perm(RIGHT):
        return {}
    if request.resolver_match is not None and request.resolver_match.url_name == OWN_PAGE:
        return {}
    return strip(WATCH)


def strip(watch: MeterWatch) -> dict[str, Any]:
    """`unhealthy`: the titles of the checks that are bad. `unknown`: nothing could be read for a while."""
    if watch.latest is None:
        return {}
    titles = [] if watch.fresh is None else [check.title for check in checks(watch.fresh) if check.state == "bad"]
    return {"unhealthy": titles, "unknown": watch.fresh is None, "url": reverse("admin:health")}
