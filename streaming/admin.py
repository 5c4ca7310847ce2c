"""Providers, public models and the routes between them."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.admin.access import KeptAdmin, KeptInline, ask, asks_first
from billing.admin.display import UNKNOWN, ago, badge, change_url, figure, link, list_url, number
from billing.admin.filters import WIRE_FORMATS, ActiveFilter
from billing.admin.typed import ChecksWidget, ModelForm, SecretWidget
from billing.models import Price
from streaming import credentials, route_states
from streaming.health import RouteState
from streaming.models import Model, Provider, Route, put_back, put_back_all

DEFAULT_PORTS = {"http": 80, "https": 443}


def split_base_url(text: str) -> SplitResult:
    """A provider's base URL, taken apart; ValueError says what it may not have."""
    url = urlsplit(text)
    if url.scheme not in DEFAULT_PORTS or not url.hostname or any(letter.isspace() for letter in text):
        raise ValueError(_("Write a whole URL that begins with http:// or https://."))
    if "@" in url.netloc:
        raise ValueError(_("A user or password does not belong in the URL: enter it as the credential."))
    if "?" in text or "#" in text:
        raise ValueError(_("The URL ends with its path: without a query and without a fragment."))
    try:
        url.port  # noqa: B018 - reading it checks it
    except ValueError:
        raise ValueError(_("The port is a number from 1 to 65535.")) from None
    return url


def target(base_url: str) -> tuple[str, str | None, int | None]:
    """To whom a credential goes: scheme, host and port."""
    url = urlsplit(base_url)
    return url.scheme, url.hostname, url.port or DEFAULT_PORTS.get(url.scheme)


class ProviderForm(ModelForm[Provider]):
    """A provider. Its credential goes in and never comes out."""

    new_credential = forms.CharField(
        label=gettext_lazy("new credential"),
        required=False,
        strip=True,
        max_length=4000,
        widget=SecretWidget(attrs={"autocomplete": "new-password"}, render_value=False),
        help_text=gettext_lazy(
            "Kept encrypted and never shown again. Empty keeps the old one; another scheme, host, port or "
            "authentication needs it anew."
        ),
    )
    wire_formats = forms.MultipleChoiceField(
        label=gettext_lazy("wire formats"), choices=list(WIRE_FORMATS.items()), widget=ChecksWidget()
    )
    reasoning_outside = forms.MultipleChoiceField(
        label=gettext_lazy("reasoning outside"),
        choices=list(WIRE_FORMATS.items()),
        widget=ChecksWidget(),
        required=False,
        help_text=gettext_lazy("Wire formats in which this provider's output count leaves reasoning out."),
    )
    also_changed = ("credential",)

    class Meta:
        model = Provider
        fields = (
            "name",
            "base_url",
            "auth",
            "wire_formats",
            "drain_s",
            "max_drains",
            "stored_objects",
            "ratelimit_headers",
            "reasoning_outside",
            "active",
        )
        help_texts = {
            "name": gettext_lazy("Never shown to clients."),
            "base_url": gettext_lazy("The wire format's path is joined to it, such as https://api.example.com/v1."),
            "drain_s": gettext_lazy(
                "How long a stream is read on when its client has left. Empty: it is cancelled at once."
            ),
            "stored_objects": gettext_lazy("Refused: customers cannot name stored objects of this account of ours."),
        }

    def clean_base_url(self) -> str:
        text: str = self.cleaned_data["base_url"].strip().rstrip("/")
        try:
            split_base_url(text)
        except ValueError as error:
            raise ValidationError(str(error)) from None
        return text

    def clean_new_credential(self) -> str:
        text: str = self.cleaned_data["new_credential"]
        if not re.fullmatch("[!-~]*", text):
            raise ValidationError(_("A credential is of printable ASCII characters without spaces."))
        return text

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        if (self.cleaned_data.get("drain_s") is None) != (self.cleaned_data.get("max_drains") is None):
            self.add_error("max_drains", ValidationError(_("Draining needs both its seconds and how many at a time.")))
        if not self.errors:
            self._clean_credential()
        return cleaned

    def _clean_credential(self) -> None:
        new = self.cleaned_data["new_credential"]
        kept = Provider.objects.filter(pk=self.instance.pk).values("base_url", "auth", "credential").first()
        if kept and kept["credential"] and not new and self._is_other(kept):
            text = _("The credential goes elsewhere with this change: enter it anew.")
            self.add_error("new_credential", ValidationError(text))
        if new:
            self.instance.credential = credentials.encrypt(new, settings.ENCRYPTION_KEYS)

    def _is_other(self, kept: Mapping[str, Any]) -> bool:
        same_auth = kept["auth"] == self.cleaned_data["auth"]
        return not same_auth or target(kept["base_url"]) != target(self.cleaned_data["base_url"])


@admin.register(Provider)
class ProviderAdmin(KeptAdmin[Provider]):
    form = ProviderForm
    list_filter = (ActiveFilter,)
    search_fields = ("name",)
    empty_text = gettext_lazy("No provider yet. A provider is a company whose API the gateway calls.")
    fieldsets = (
        (
            None,
            {"fields": ("name", "active", "base_url", "auth", "credential_state", "new_credential", "wire_formats")},
        ),
        (gettext_lazy("When a client has left"), {"fields": ("drain_s", "max_drains")}),
        (gettext_lazy("Peculiarities"), {"fields": ("stored_objects", "ratelimit_headers", "reasoning_outside")}),
    )
    readonly_fields = ("credential_state",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Provider]:
        return super().get_queryset(request).annotate(live_routes=Count("routes", filter=Q(routes__active=True)))

    def save_model(self, request: HttpRequest, obj: Provider, form: Any, change: bool) -> None:
        """A new credential is the act that routes which are out were waiting for."""
        super().save_model(request, obj, form, change)
        if form.cleaned_data.get("new_credential"):
            put_back_all(obj)

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        if not may_run(request):
            return ("name",)
        return ("name", "state", "base_url", "formats", "credential_state", "routes_figure")

    def get_fieldsets(self, request: HttpRequest, obj: Provider | None = None) -> Any:
        """Who may only look sees a provider's name, not its address."""
        return super().get_fieldsets(request, obj) if may_run(request) else ((None, {"fields": ("name",)}),)

    @admin.display(description=gettext_lazy("state"), ordering="active")
    def state(self, provider: Provider) -> SafeString:
        return badge(_("active"), "good", "check_circle") if provider.active else badge(_("disabled"), "bad", "block")

    @admin.display(description=gettext_lazy("wire formats"))
    def formats(self, provider: Provider) -> str:
        return ", ".join(WIRE_FORMATS.get(name, name) for name in provider.wire_formats) or UNKNOWN

    @admin.display(description=gettext_lazy("credential"))
    def credential_state(self, provider: Provider) -> SafeString:
        return badge(_("set"), "good", "lock") if provider.credential else badge(_("none"), "warn", "lock_open")

    @admin.display(description=gettext_lazy("active routes"), ordering="live_routes")
    def routes_figure(self, provider: Provider) -> SafeString:
        return figure(number(getattr(provider, "live_routes", None)))


class RouteInline(KeptInline[Route, Model]):
    model = Route
    fields = ("provider", "upstream_model", "priority", "weight", "active")
    verbose_name_plural = gettext_lazy("Routes: the lowest priority first, then by weight")


class PublicModelForm(ModelForm[Model]):
    """A public model, with its stall time in the range that the settings allow."""

    class Meta:
        model = Model
        fields = ("name", "stall_seconds", "total_timeout_s", "active")

    def clean_stall_seconds(self) -> int:
        seconds: int = self.cleaned_data["stall_seconds"]
        low, high = settings.STALL_RANGE_S
        if not low <= seconds <= high:
            raise ValidationError(_("Choose from %(low)s to %(high)s seconds.") % {"low": low, "high": high})
        return seconds


@admin.register(Model)
class PublicModelAdmin(KeptAdmin[Model]):
    form = PublicModelForm
    inlines = (RouteInline,)
    list_display = ("name", "state", "route_list", "stall", "price")
    list_filter = (ActiveFilter,)
    search_fields = ("name",)
    empty_text = gettext_lazy("No model yet. A model is a name that customers ask for, with routes to providers.")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        in_force = Price.objects.filter(model=OuterRef("name"), effective_from__lte=now())
        return super().get_queryset(request).annotate(priced=Exists(in_force)).prefetch_related("routes__provider")

    @admin.display(description=gettext_lazy("state"), ordering="active")
    def state(self, model: Model) -> SafeString:
        return badge(_("active"), "good", "check_circle") if model.active else badge(_("disabled"), "bad", "block")

    @admin.display(description=gettext_lazy("routes"))
    def route_list(self, model: Model) -> SafeString | str:
        found = [f"{route.provider.name}/{route.upstream_model}" for route in model.routes.all() if route.active]
        return ", ".join(found) or badge(_("no route"), "bad", "wrong_location", _("Requests get 503."))

    @admin.display(description=gettext_lazy("stall"), ordering="stall_seconds")
    def stall(self, model: Model) -> str:
        return _("%(count)s s") % {"count": model.stall_seconds}

    @admin.display(description=gettext_lazy("price"))
    def price(self, model: Model) -> SafeString:
        if getattr(model, "priced", False):
            return link(list_url(Price, model=model.name), _("in force"))
        return badge(_("no price"), "bad", "money_off", _("Its requests are kept unpriced, and block the invoice."))


@admin.register(Route)
class RouteAdmin(KeptAdmin[Route]):
    list_display = ("model", "provider_link", "upstream_model", "priority", "weight", "standing", "because", "left")
    list_filter = (ActiveFilter,)
    list_select_related = ("model", "provider")
    search_fields = ("model__name", "provider__name", "upstream_model")
    fields = ("model", "provider", "upstream_model", "priority", "weight", "active", "standing", "because", "left")
    readonly_fields = ("standing", "because", "left")
    actions_detail = ("reset",)
    empty_text = gettext_lazy("No route yet. A route leads from a public model to a provider's model.")

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        page = super().get_changelist_instance(request)
        with_states(page.result_list)
        return page

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Route | None:
        route = super().get_object(request, object_id, from_field)
        if route is not None:
            with_states([route])
        return route

    @asks_first(gettext_lazy("Reset"), "reset", icon="restart_alt")
    def reset(self, request: HttpRequest, object_id: str) -> HttpResponse:
        route = get_object_or_404(Route.objects.select_related("model", "provider"), pk=object_id)
        if request.method == "POST":
            self._reset(request, route)
            return redirect(change_url(route))
        question = _("Reset the route %(route)s?") % {"route": route}
        effects = [
            _("Requests take it again within a second."),
            _("If the cause is still there, it cools down or goes out again with its next failure."),
        ]
        return ask(
            request, self, route, title=_("Reset a route"), verb=_("Reset"), question=question, effects=effects,
            cancel_url=change_url(route),
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
        if not route.active:
            return badge(_("disabled"), "bad", "block")
        if route.out_since is not None:
            return badge(_("out"), "bad", "link_off", _("It stays out until somebody resets it."))
        return badge(_("cooling down"), "warn", "ac_unit") if cooling(route) else badge(_("in"), "good", "check_circle")

    @admin.display(description=gettext_lazy("reason"))
    def because(self, route: Route) -> str:
        state = cooling(route)
        return route.out_reason or (state.reason if state else UNKNOWN)

    @admin.display(description=gettext_lazy("time left"))
    def left(self, route: Route) -> SafeString | str:
        if route.out_since is not None:
            return ago(route.out_since)
        state = cooling(route)
        return _("%(count)s s") % {"count": math.ceil(state.until - time.time())} if state else UNKNOWN


def with_states(routes: Iterable[Route]) -> None:
    """Give each route what the processes share of it; nothing where Redis is away."""
    shared = route_states.read_all() or {}
    for route in routes:
        route.shared_state = shared.get(route.pk)  # type: ignore[attr-defined]


def cooling(route: Route) -> RouteState | None:
    """A route's state while it cools down."""
    state: RouteState | None = getattr(route, "shared_state", None)
    return state if state is not None and state.is_cooling(time.time()) else None


def may_run(request: HttpRequest) -> bool:
    """Whether the viewer runs providers, and so may see where they are."""
    return bool(request.user.has_perm("streaming.change_provider"))
