"""Providers: the companies whose API is called, and a credential that goes in and never comes out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import SplitResult, urlsplit

from django import forms
from django.conf import settings
from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.admin.access import KeptAdmin, asks_first
from billing.admin.display import UNKNOWN, badge, stacked
from billing.admin.filters import WIRE_FORMATS, ActiveFilter
from billing.admin.forms import KeptForm
from billing.admin.typed import ChecksWidget, SecretWidget
from billing.readers import DRAIN, Reader
from streaming import credentials
from streaming.admin import provider_test_page, standing
from streaming.models import Provider, Route, put_back_all

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


class ProviderForm(KeptForm[Provider]):
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
    readers: ClassVar[Mapping[str, Reader]] = {"drain_s": DRAIN, "max_drains": DRAIN}

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
    actions_detail = ("test",)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Routes, their shared states and their attempts once for the page, and not once a row."""
        page = super().get_changelist_instance(request)
        if may_run(request):
            ids = [provider.pk for provider in page.result_list]
            routes = list(standing.last_times(Route.objects.filter(active=True, provider__in=ids)))
            standing.with_states(routes)
            found = standing.by_provider(routes)
            for provider in page.result_list:
                provider.its_routes = found.get(provider.pk, [])
        return page

    def save_model(self, request: HttpRequest, obj: Provider, form: Any, change: bool) -> None:
        """A new credential is the act that routes which are out were waiting for."""
        super().save_model(request, obj, form, change)
        if form.cleaned_data.get("new_credential"):
            put_back_all(obj)

    def get_list_filter(self, request: HttpRequest) -> Any:
        return super().get_list_filter(request) if may_run(request) else ()

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        if not may_run(request):
            return ("name",)
        return ("name", "state", "formats", "credential_state", "route_health", "last_success", "last_failure")

    def get_fieldsets(self, request: HttpRequest, obj: Provider | None = None) -> Any:
        """Who may only look sees a provider's name, not its address."""
        return super().get_fieldsets(request, obj) if may_run(request) else ((None, {"fields": ("name",)}),)

    @admin.display(description=gettext_lazy("state"), ordering="active")
    def state(self, provider: Provider) -> SafeString:
        return badge(_("active"), "good", "check_circle") if provider.active else badge(_("disabled"), "bad", "block")

    @admin.display(description=gettext_lazy("wire formats"))
    def formats(self, provider: Provider) -> SafeString:
        names = ", ".join(WIRE_FORMATS.get(name, name) for name in provider.wire_formats) or UNKNOWN
        return stacked(names, provider.base_url)

    @admin.display(description=gettext_lazy("credential"))
    def credential_state(self, provider: Provider) -> SafeString:
        return badge(_("set"), "good", "lock") if provider.credential else badge(_("none"), "warn", "lock_open")

    @admin.display(description=gettext_lazy("routes"))
    def route_health(self, provider: Provider) -> SafeString | str:
        routes = _routes(provider)
        return standing.health(routes) if routes else UNKNOWN

    @admin.display(description=gettext_lazy("last success"))
    def last_success(self, provider: Provider) -> SafeString | str:
        return standing.shown_moment(standing.latest(_routes(provider), "last_success"))

    @admin.display(description=gettext_lazy("last failure"))
    def last_failure(self, provider: Provider) -> SafeString | str:
        return standing.shown_moment(standing.latest(_routes(provider), "last_failure"))

    @asks_first(gettext_lazy("Test"), "test", icon="science")
    def test(self, request: HttpRequest, object_id: str) -> HttpResponse:
        provider = get_object_or_404(Provider, pk=object_id)
        return provider_test_page.test_page(request, self, provider)


def _routes(provider: Provider) -> list[Route]:
    found: list[Route] = getattr(provider, "its_routes", [])
    return found


def may_run(request: HttpRequest) -> bool:
    """Whether the viewer runs providers, and so may see where they are."""
    return bool(request.user.has_perm("streaming.change_provider"))
