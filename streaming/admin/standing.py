"""How routes stand, in words: in, cooling down or out, why and for how long, and how their last attempts went."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from billing.admin.display import UNKNOWN, ago, badge, number, passed, stacked
from billing.models import Attempt
from billing.phrases import gettext_noop
from billing.words import know, stored_words
from streaming import route_states
from streaming.health import RouteState
from streaming.models import Route

LAST = 20
"""Attempts of a route that its model's page shows."""
LOOKED_THROUGH = 200
"""Attempts of a route among which lists look for the last success and the last failure."""
ANSWERED = "answered"
FAILED = ("failed", "hollow", "cut", "stalled", "timed_out")
"""Outcomes that are the provider's doing; of the others the client, an operator or ourselves were the cause."""
WRITTEN = (
    gettext_noop("all routes cool down"),
    gettext_noop("no route"),
    gettext_noop("cut before any output"),
    gettext_noop("a complete answer with neither output nor usage"),
    gettext_noop("a 200 without an answer in it"),
    gettext_noop("the client did not read"),
    gettext_noop("the provider broke off: %(what)s"),
    gettext_noop("the answer broke off: %(what)s"),
    gettext_noop("the provider's address is link-local or a metadata service"),
    gettext_noop("an event of more than %(limit)s bytes"),
    gettext_noop("more than %(limit)s bytes before the first output"),
    gettext_noop("the answer is larger than %(limit)s bytes"),
    gettext_noop("error event: %(what)s"),
    gettext_noop("no output for %(seconds)s s"),
    gettext_noop("no whole answer within %(seconds)s s"),
    gettext_noop("no connection: %(what)s"),
    gettext_noop("no answer: %(what)s"),
    gettext_noop("no HTTP answer: %(what)s"),
    gettext_noop("internal error: %(what)s"),
    gettext_noop("status %(status)s"),
)
"""What relay and upstream keep of a failure, in English; `stored_words` says it in the reader's language."""
know(*WRITTEN)

NO_ATTEMPT = gettext_lazy("None among the last 200 attempts of each of its routes.")


def with_states(routes: Iterable[Route]) -> None:
    """Give each route what the processes share of it; nothing where Redis is away."""
    shared = route_states.read_all() or {}
    for route in routes:
        route.shared_state = shared.get(route.pk)  # type: ignore[attr-defined]


def cooling(route: Route) -> RouteState | None:
    """A route's state while it cools down."""
    state: RouteState | None = getattr(route, "shared_state", None)
    return state if state is not None and state.is_cooling(time.time()) else None


def state_of(route: Route) -> str:
    """`disabled`, `out`, `cooling` or `in`."""
    if not route.active:
        return "disabled"
    if route.out_since is not None:
        return "out"
    return "cooling" if cooling(route) else "in"


def state_badge(route: Route) -> SafeString:
    """The same as word, icon and colour."""
    state = state_of(route)
    if state == "disabled":
        return badge(_("disabled"), "bad", "block")
    if state == "out":
        return badge(_("out"), "bad", "link_off", _("It stays out until somebody resets it."))
    return badge(_("cooling down"), "warn", "ac_unit") if state == "cooling" else badge(_("in"), "good", "check_circle")


def reason(route: Route) -> str:
    """Why it is out or cools down."""
    state = cooling(route)
    return stored_words(route.out_reason or (state.reason if state else UNKNOWN))


def time_left(route: Route) -> SafeString | str:
    """How long it still cools down, or since when it is out."""
    if route.out_since is not None:
        return ago(route.out_since)
    state = cooling(route)
    return _("%(count)s s") % {"count": math.ceil(state.until - time.time())} if state else UNKNOWN


def health(routes: Iterable[Route]) -> SafeString | str:
    """How many of several routes are in, and what the others are; a model or provider without any is told so."""
    states = [state_of(route) for route in routes if route.active]
    if not states:
        return badge(_("no route"), "bad", "wrong_location", _("Requests get 503."))
    counts = {state: states.count(state) for state in ("in", "cooling", "out")}
    words = {"n_in": number(counts["in"]), "n_cooling": number(counts["cooling"]), "n_out": number(counts["out"])}
    if counts["out"]:
        return badge(_("%(n_in)s in, %(n_out)s out") % words, "bad", "link_off", _("Reset those that are out."))
    if counts["cooling"]:
        return badge(_("%(n_in)s in, %(n_cooling)s cooling down") % words, "warn", "ac_unit")
    return badge(_("%(n_in)s in") % words, "good", "check_circle")


# --- attempts ---


def last_attempts(route: Route) -> list[Attempt]:
    """The newest attempts on a route, the newest first."""
    found = Attempt.objects.filter(provider=route.provider.name, upstream_model=route.upstream_model)
    return list(found.order_by("-pk").only("outcome", "status", "reason", "started_at")[:LAST])


def attempts_strip(attempts: list[Attempt]) -> SafeString | str:
    """The last attempts as marks, the newest at the right, over how many were answered and why the last one was not."""
    if not attempts:
        return UNKNOWN
    marks = "".join("●" if attempt.outcome == ANSWERED else "✕" for attempt in reversed(attempts))
    answered = sum(attempt.outcome == ANSWERED for attempt in attempts)
    words = ngettext("%(answered)s of %(count)s answered", "%(answered)s of %(count)s answered", len(attempts))
    said = words % {"answered": answered, "count": len(attempts)}
    strip = format_html('<span class="hb-marks" aria-hidden="true">{}</span><br>{}', marks, said)
    failed = next((attempt for attempt in attempts if attempt.outcome != ANSWERED), None)
    if failed is None:
        return strip
    told = {"reason": stored_words(failed.reason or failed.outcome), "passed": passed(failed.started_at)}
    return stacked(strip, _("last: %(reason)s, %(passed)s") % told)


def last_times(routes: QuerySet[Route]) -> QuerySet[Route]:
    """With `last_success` and `last_failure` of each, as far as its last `LOOKED_THROUGH` attempts tell."""
    mine = Attempt.objects.filter(provider=OuterRef("provider__name"), upstream_model=OuterRef("upstream_model"))
    newest = mine.order_by("-pk")
    recent = newest.filter(pk__gte=OuterRef("looked_from"))
    return routes.annotate(
        looked_from=Coalesce(Subquery(newest.values("pk")[LOOKED_THROUGH - 1 : LOOKED_THROUGH]), 0)
    ).annotate(
        last_success=Subquery(recent.filter(outcome=ANSWERED).values("started_at")[:1]),
        last_failure=Subquery(recent.filter(outcome__in=FAILED).values("started_at")[:1]),
    )


def latest(routes: Iterable[Route], column: str) -> Any:
    """The newest of a moment over several routes, None where none has one."""
    return max((moment for route in routes if (moment := getattr(route, column, None))), default=None)


def shown_moment(moment: Any) -> SafeString | str:
    """A moment, or a dash that says why there is none."""
    if moment is not None:
        return ago(moment)
    return format_html('<span title="{}">{}</span>', NO_ATTEMPT, UNKNOWN)


def by_provider(routes: Iterable[Route]) -> Mapping[int, list[Route]]:
    """Routes by their provider's number."""
    found: dict[int, list[Route]] = {}
    for route in routes:
        found.setdefault(route.provider_id, []).append(route)
    return found
