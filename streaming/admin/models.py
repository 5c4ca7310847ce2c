"""Public models: to where, and at what price."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Collection, Mapping
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db.models import QuerySet, Sum
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.admin import count_factors
from billing.admin.access import KeptAdmin, KeptInline
from billing.admin.display import UNKNOWN, badge, change_url, figure, number, stacked
from billing.admin.filters import ActiveFilter
from billing.admin.forms import KeptForm
from billing.admin.price_state import is_priced, price_cell
from billing.models import ApiKey, Price, UsageRollup
from billing.readers import MODEL_NAME, TOTAL_TIMEOUT_S, Reader
from streaming import route_states
from streaming.admin import standing
from streaming.admin.routes import RouteForm
from streaming.health import RouteState
from streaming.models import Model, Route
from streaming.protocols.messages import COUNT_FACTOR_PPM


class RouteInline(KeptInline[Route, Model]):
    model = Route
    form = RouteForm
    fields = ("provider", "upstream_model", "priority", "weight", "active", "standing", "left", "recent")
    readonly_fields = ("standing", "left", "recent")
    verbose_name_plural = gettext_lazy("Routes: the lowest priority first, then by weight")

    @functools.cached_property
    def shared(self) -> Mapping[int, RouteState]:
        """What the processes share of routes: read once for a page, for which this inline is made."""
        return route_states.read_all() or {}

    @admin.display(description=gettext_lazy("state"))
    def standing(self, route: Route) -> SafeString | str:
        """The state over its reason, and the way back in."""
        if route.pk is None:
            return UNKNOWN
        route.shared_state = self.shared.get(route.pk)  # type: ignore[attr-defined]
        state, reason = standing.state_badge(route), standing.reason(route)
        told = state if reason == UNKNOWN else stacked(state, reason)
        if standing.state_of(route) not in ("out", "cooling"):
            return told
        url = (
            f"{reverse('admin:streaming_route_reset', args=[route.pk])}?{urlencode({'next': change_url(route.model)})}"
        )
        return format_html(
            '{} <a href="{}" class="hb-button hb-button-small" data-ask>{}<span class="sr-only"> {}</span></a>',
            told, url, _("Reset"), route,
        )  # fmt: skip

    @admin.display(description=gettext_lazy("time left"))
    def left(self, route: Route) -> SafeString | str:
        return standing.time_left(route) if route.pk else UNKNOWN

    @admin.display(description=gettext_lazy("last 20 attempts"))
    def recent(self, route: Route) -> SafeString | str:
        return standing.attempts_strip(standing.last_attempts(route)) if route.pk else UNKNOWN


class PublicModelForm(KeptForm[Model]):
    """A public model, with its stall time in the range that the settings allow."""

    readers: ClassVar[Mapping[str, Reader]] = {"name": MODEL_NAME, "total_timeout_s": TOTAL_TIMEOUT_S}

    class Meta:
        model = Model
        fields = ("name", "stall_seconds", "total_timeout_s", "active")

    def clean_stall_seconds(self) -> int:
        seconds: int = self.cleaned_data["stall_seconds"]
        low, high = settings.STALL_RANGE_S
        if not low <= seconds <= high:
            raise ValidationError(_("Choose from %(low)s to %(high)s seconds.") % {"low": low, "high": high})
        return seconds

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        before, name = self.initial.get("name"), self.cleaned_data.get("name")
        if self.instance.pk and name and name != before and _is_named(str(before)):
            self.add_error("name", _(
                "Keys or prices name this model, and customers ask for it. Make a new model and its price instead, and "
                "take this one out of use."
            ))  # fmt: skip
        return cleaned


def _is_named(model: str) -> bool:
    """Whether a key's list or a price bears a model's name; neither is renamed with it."""
    limited = ApiKey.objects.exclude(allowed_models=None).values_list("allowed_models", flat=True)
    return Price.objects.filter(model=model).exists() or any(model in (names or ()) for names in limited)


@admin.register(Model)
class PublicModelAdmin(KeptAdmin[Model]):
    form = PublicModelForm
    inlines = (RouteInline,)
    list_display = ("name", "state", "route_health", "stall_figure", "price", "count_factor", "requests_figure")
    list_note = gettext_lazy("Requests are those of the last 24 hours that are rolled up.")
    fieldsets = (
        (None, {"fields": ("name", "stall_seconds", "total_timeout_s", "active")}),
        (
            gettext_lazy("Our own count"),
            {
                "fields": ("count_factor_story",),
                "description": gettext_lazy(
                    "Where no usage is reported, we count tokens with a public tokenizer. For requests by Messages "
                    "that count is multiplied by this factor."
                ),
            },
        ),
    )
    readonly_fields = ("count_factor_story",)
    list_filter = (ActiveFilter,)
    search_fields = ("name",)
    empty_text = gettext_lazy("No model yet. A model is a name that customers ask for, with routes to providers.")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        models = super().get_queryset(request).annotate(priced=is_priced("name")).prefetch_related("routes__provider")
        return count_factors.with_factor(models)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """The routes' shared states and the requests of a day once for the page, and not once a row."""
        page = super().get_changelist_instance(request)
        standing.with_states(route for model in page.result_list for route in model.routes.all())
        counts = requests_of_a_day([model.name for model in page.result_list], now())
        for model in page.result_list:
            model.requests_of_a_day = counts.get(model.name, 0)
        return page

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """A model that is about to be made has nothing to tell yet."""
        fieldsets = super().get_fieldsets(request, obj)
        return fieldsets if obj else fieldsets[:1]

    @admin.display(description=gettext_lazy("count factor"))
    def count_factor(self, model: Model) -> SafeString | str:
        speaks = any("messages" in route.provider.wire_formats for route in model.routes.all() if route.active)
        return count_factors.factor_cell(model, COUNT_FACTOR_PPM) if speaks else UNKNOWN

    @admin.display(description=gettext_lazy("count factor"))
    def count_factor_story(self, model: Model) -> SafeString:
        return count_factors.factor_story(model, COUNT_FACTOR_PPM)

    @admin.display(description=gettext_lazy("state"), ordering="active")
    def state(self, model: Model) -> SafeString:
        return badge(_("active"), "good", "check_circle") if model.active else badge(_("disabled"), "bad", "block")

    @admin.display(description=gettext_lazy("route health"))
    def route_health(self, model: Model) -> SafeString | str:
        found = [f"{route.provider.name}/{route.upstream_model}" for route in model.routes.all() if route.active]
        health = standing.health(model.routes.all())
        return stacked(health, ", ".join(found)) if found else health

    @admin.display(description=gettext_lazy("stall"), ordering="stall_seconds")
    def stall_figure(self, model: Model) -> SafeString:
        return figure(_("%(count)s s") % {"count": number(model.stall_seconds)})

    @admin.display(description=gettext_lazy("price"))
    def price(self, model: Model) -> SafeString:
        return price_cell(model.name, priced=bool(getattr(model, "priced", False)))

    @admin.display(description=gettext_lazy("requests, 24 h"))
    def requests_figure(self, model: Model) -> SafeString:
        return figure(number(getattr(model, "requests_of_a_day", None)))


def requests_of_a_day(names: Collection[str], moment: dt.datetime) -> dict[str, int]:
    """Requests of each model in the last 24 h, from the roll-ups: whole hours."""
    since = moment - dt.timedelta(hours=24)
    hours = UsageRollup.objects.filter(
        # A day of any zone that the last 24 h touch: the index is on days.
        day__gte=since.date() - dt.timedelta(days=1), hour_start__gte=since, model__in=names,
    )  # fmt: skip
    return dict(hours.values_list("model").annotate(Sum("requests")).order_by())
