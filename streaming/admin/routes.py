"""Routes: from a public model to a provider's model, and back in once they are out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.admin.access import KeptAdmin, ask, asks_first
from billing.admin.display import change_url, link, moment, number_column
from billing.admin.filters import ActiveFilter
from billing.admin.forms import KeptForm
from billing.admin.price_state import is_priced, price_cell
from billing.readers import PRIORITY, WEIGHT, Reader
from billing.words import stored_words
from streaming import route_states
from streaming.admin import standing
from streaming.models import Route, put_back


class RouteForm(KeptForm[Route]):
    """A route, on its own page and on its model's."""

    readers: ClassVar[Mapping[str, Reader]] = {"priority": PRIORITY, "weight": WEIGHT}


@admin.register(Route)
class RouteAdmin(KeptAdmin[Route]):
    form = RouteForm
    list_display = (
        "model",
        "provider_link",
        "upstream_model",
        "priority_figure",
        "weight_figure",
        "standing",
        "because",
        "left",
        "price",
    )
    list_filter = (ActiveFilter,)
    list_select_related = ("model", "provider")
    search_fields = ("model__name", "provider__name", "upstream_model")
    fields = (
        "model",
        "provider",
        "upstream_model",
        "priority",
        "weight",
        "active",
        "standing",
        "because",
        "left",
        "recent",
    )
    readonly_fields = ("standing", "because", "left", "recent")
    actions_detail = ("reset",)
    empty_text = gettext_lazy("No route yet. A route leads from a public model to a provider's model.")

    priority_figure = number_column("priority", gettext_lazy("priority"), ordering="priority")
    weight_figure = number_column("weight", gettext_lazy("weight"), ordering="weight")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Route]:
        return super().get_queryset(request).annotate(priced=is_priced("model__name"))

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        page = super().get_changelist_instance(request)
        standing.with_states(page.result_list)
        return page

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Route | None:
        route = super().get_object(request, object_id, from_field)
        if route is not None:
            standing.with_states([route])
        return route

    @asks_first(gettext_lazy("Reset"), "reset", icon="restart_alt")
    def reset(self, request: HttpRequest, object_id: str) -> HttpResponse:
        route = get_object_or_404(Route.objects.select_related("model", "provider"), pk=object_id)
        if request.method == "POST":
            self._reset(request, route)
            return redirect(_back(request, route))
        question = _("Reset the route %(route)s?") % {"route": route}
        if route.out_since is not None:
            words = _("Out since %(moment)s (%(reason)s). Reset the route %(route)s?")
            told = {"moment": moment(route.out_since), "reason": stored_words(route.out_reason), "route": route}
            question = words % told
        effects = [
            _("Requests take it again within a second."),
            _("If the cause is still there, it cools down or goes out again with its next failure."),
        ]
        return ask(
            request, self, route, title=_("Reset a route"), verb=_("Reset"), question=question, effects=effects,
            cancel_url=_back(request, route),
        )  # fmt: skip

    def _reset(self, request: HttpRequest, route: Route) -> None:
        if route.out_since is not None:
            put_back(route)
        ended = route_states.reset(route.pk)
        self.log_change(request, route, [{"changed": {"fields": ["standing"]}}])
        if ended:
            messages.success(request, _("The route %(route)s is reset.") % {"route": route})
        else:
            text = _("The route %(route)s is in, but Redis is away: each process ends its cool-down by itself.")
            messages.warning(request, text % {"route": route})

    @admin.display(description=gettext_lazy("provider"), ordering="provider__name")
    def provider_link(self, route: Route) -> SafeString:
        return link(change_url(route.provider), route.provider.name)

    @admin.display(description=gettext_lazy("state"))
    def standing(self, route: Route) -> SafeString:
        return standing.state_badge(route)

    @admin.display(description=gettext_lazy("reason"))
    def because(self, route: Route) -> str:
        return standing.reason(route)

    @admin.display(description=gettext_lazy("time left"))
    def left(self, route: Route) -> SafeString | str:
        return standing.time_left(route)

    @admin.display(description=gettext_lazy("price"))
    def price(self, route: Route) -> SafeString:
        return price_cell(route.model.name, priced=bool(getattr(route, "priced", False)))

    @admin.display(description=gettext_lazy("last 20 attempts"))
    def recent(self, route: Route) -> SafeString | str:
        return standing.attempts_strip(standing.last_attempts(route))


def _back(request: HttpRequest, route: Route) -> str:
    """Where the question was asked from: another page of ours, or the route's own."""
    url = request.GET.get("next", "")
    ours = url.startswith("/") and url_has_allowed_host_and_scheme(url, allowed_hosts=None)
    return url if ours else change_url(route)
