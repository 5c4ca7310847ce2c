"""The versions of a model's price in their order, and the next one made like one that is there."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse
from django.utils.timezone import now
from django.utils.translation import gettext_lazy

from billing.admin.display import badge, change_url, moment, price_per_million
from billing.models import Price
from billing.periods import next_month

STATES = {
    "in_force": (gettext_lazy("in force"), "good", "check_circle"),
    "coming": (gettext_lazy("coming"), "info", "schedule"),
    "past": (gettext_lazy("past"), "calm", "history"),
}
SHOWN = 12
"""Versions of a timeline, the newest of them."""


def timeline(request: HttpRequest, model: str, shown: int | None = None) -> dict[str, Any]:
    """The context of `timeline.html`: a model's versions, the oldest first, and where the next one is added."""
    versions = list(Price.objects.filter(model=model).order_by("-effective_from")[:SHOWN])[::-1]
    moment_now = now()
    begun = [version for version in versions if version.effective_from <= moment_now]
    add = request.user.has_perm("billing.add_price")
    return {
        "timeline_model": model,
        "timeline": [_entry(version, begun, current=version.pk == shown) for version in versions],
        "add_url": f"{reverse('admin:billing_price_add')}?{urlencode({'copy_model': model})}" if add else "",
    }


def _entry(version: Price, begun: list[Price], *, current: bool) -> dict[str, Any]:
    state = "coming" if version not in begun else "in_force" if version is begun[-1] else "past"
    return {
        "from": moment(version.effective_from),
        "state": badge(*STATES[state]),
        "input": price_per_million(version.input, version.currency),
        "output": price_per_million(version.output, version.currency),
        "url": "" if current else change_url(version),
    }


def to_copy(query: Mapping[str, str]) -> Price | None:
    """The version that is in force of the model in the query, or the one that comes first; None where there is none."""
    if not (model := query.get("copy_model")):
        return None
    versions = Price.objects.filter(model=model)
    return (
        versions.filter(effective_from__lte=now()).order_by("-effective_from").first()
        or versions.order_by("effective_from").first()
    )


def next_month_start(moment_now: dt.datetime) -> dt.datetime:
    """The first instant of the next month, in UTC."""
    return dt.datetime.combine(next_month(moment_now.astimezone(dt.UTC).date()), dt.time(), dt.UTC)
