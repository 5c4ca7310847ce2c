"""API keys: made with a secret that is shown once, changed within limits, revoked for good."""

from __future__ import annotations

import json
from typing import Any, cast

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.enums import ActionVariant

from billing import keys
from billing.admin.access import KeptAdmin, ask, asks_first
from billing.admin.display import ago, badge, change_url, code, link, list_url, money, number, stacked
from billing.admin.fields import NamesField, ScaledField, model_name, network
from billing.admin.filters import AccountFilter, Choice
from billing.admin.typed import DropdownFilter, ModelAdmin, ModelForm
from billing.models import ApiKey, OpenStream, Price, UsageRecord
from billing.money import NANOS

LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency", "monthly_budget_nanos")
ACCESS = ("allowed_models", "allowed_ips", "expires_at")


class KeyForm(ModelForm[ApiKey]):
    """A key's name, limits and access; its secret is no field."""

    allowed_models = NamesField(
        label=gettext_lazy("models"), empty=None, check=model_name,
        help_text=gettext_lazy("One name a line. Empty: all models."),
    )  # fmt: skip
    allowed_ips = NamesField(
        label=gettext_lazy("allowed networks"), empty=[], check=network,
        help_text=gettext_lazy("One a line, such as 10.0.0.0/8. Empty: from anywhere."),
    )  # fmt: skip
    monthly_budget_nanos = ScaledField(
        scale=NANOS, required=False, label=gettext_lazy("monthly budget"),
        help_text=gettext_lazy("In the account's currency, for a month of its zone. Empty: no limit."),
    )  # fmt: skip

    class Meta:
        model = ApiKey
        fields = ("account", "name", *ACCESS, *LIMITS)
        help_texts = {
            "requests_per_minute": gettext_lazy("Empty: no limit."),
            "tokens_per_minute": gettext_lazy("Empty: no limit."),
            "concurrency": gettext_lazy("Requests at a time. Empty: no limit."),
            "expires_at": gettext_lazy("In UTC. Empty: never."),
        }

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        account, name = self.cleaned_data.get("account"), self.cleaned_data.get("name")
        if account and name and ApiKey.objects.filter(account=account, name=name).exclude(pk=self.instance.pk).exists():
            text = _(
                "This account has a key of this name. If you have just made it, its secret was shown then and cannot "
                "be shown again: revoke that key and make one under another name."
            )
            self.add_error("name", ValidationError(text))
        return cleaned


class KeyStateFilter(DropdownFilter):
    title, parameter_name = gettext_lazy("state"), "state"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return [
            ("active", gettext_lazy("active")),
            ("expired", gettext_lazy("expired")),
            ("revoked", gettext_lazy("revoked")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        expired = Q(revoked_at=None, expires_at__lte=now())
        states = {"active": Q(revoked_at=None) & ~expired, "expired": expired, "revoked": Q(revoked_at__isnull=False)}
        return queryset.filter(states.get(self.value() or "", Q()))


@admin.register(ApiKey)
class ApiKeyAdmin(KeptAdmin[ApiKey]):
    form = KeyForm
    list_display = ("title", "account_link", "secret_begins", "state", "limits", "used", "expires")
    list_display_links = ("title",)
    list_filter = (KeyStateFilter, AccountFilter)
    list_select_related = ("account",)
    search_fields = ("name", "account__name", "shown")
    search_help_text = gettext_lazy("Name, account or the secret's beginning")
    empty_text = gettext_lazy("No key yet. A key is what a customer's program sends with each request.")
    actions_detail = ("revoke",)
    fieldsets = (
        (None, {"fields": ("account", "name", "state", "secret_kept", "made", "used", "links")}),
        (gettext_lazy("Access"), {"fields": ACCESS}),
        (gettext_lazy("Limits"), {"fields": LIMITS}),
    )
    add_fieldsets = (
        (None, {"fields": ("account", "name")}),
        (gettext_lazy("Access"), {"fields": ACCESS}),
        (gettext_lazy("Limits"), {"fields": LIMITS}),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:
        shown = ("state", "secret_kept", "made", "used", "links")
        return shown if obj is None else ("account", *shown)

    def has_change_permission(self, request: HttpRequest, obj: ApiKey | None = None) -> bool:
        revoked = obj is not None and obj.revoked_at is not None
        return not revoked and super().has_change_permission(request, obj)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        if ApiKey.objects.filter(pk=object_id, revoked_at=None).exists():
            return list(super().get_actions_detail(request, object_id))  # type: ignore[misc]  # Unfold's
        return []

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """After a new key comes the page with its secret: no button leads past it."""
        buttons = {"show_save_and_add_another": False, "show_save_and_continue": False}
        return super().add_view(request, form_url, {**(extra_context or {}), **buttons})

    def save_model(self, request: HttpRequest, obj: ApiKey, form: ModelForm[ApiKey], change: bool) -> None:
        if change:
            super().save_model(request, obj, form, change)
            return
        fields = {name: form.cleaned_data[name] for name in (*ACCESS, *LIMITS)}
        made, secret = keys.create(obj.account, obj.name, **fields)
        obj.__dict__.update(made.__dict__)
        cast(Any, obj).secret_once = secret

    def response_add(self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None) -> HttpResponse:
        """The only page with the secret: this very response, no redirect. So it is in no URL, session or message."""
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "original": obj,
            "title": _("Key made"),
            "key": obj,
            "secret": cast(Any, obj).secret_once,
            "snippet": curl_line(cast(Any, obj).secret_once, _example_model(obj)),
            "next_url": change_url(obj),
        }
        response = TemplateResponse(request, "admin/billing/apikey/made.html", context)
        add_never_cache_headers(response)
        return response

    @asks_first(gettext_lazy("Revoke"), "revoke", icon="key_off", variant=ActionVariant.DANGER)
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        key = get_object_or_404(ApiKey.objects.select_related("account"), pk=object_id)
        if key.revoked_at is not None:
            messages.info(request, _("The key %(key)s is revoked already.") % {"key": key})
            return redirect(change_url(key))
        if request.method == "POST":
            keys.revoke(key, now())
            self.log_change(request, key, [{"changed": {"fields": ["revoked"]}}])
            messages.success(request, _("The key %(key)s is revoked.") % {"key": key})
            return redirect(change_url(key))
        question = _("Revoke the key %(key)s?") % {"key": key}
        return ask(
            request, self, key, title=_("Revoke a key"), danger=True, verb=_("Revoke"), question=question,
            effects=_revoke_effects(key), cancel_url=change_url(key),
        )  # fmt: skip

    @admin.display(description=gettext_lazy("name"), ordering="name")
    def title(self, key: ApiKey) -> str:
        return key.name

    @admin.display(description=gettext_lazy("account"), ordering="account__name")
    def account_link(self, key: ApiKey) -> SafeString:
        return link(change_url(key.account), key.account.name)

    @admin.display(description=gettext_lazy("secret begins"))
    def secret_begins(self, key: ApiKey) -> SafeString:
        return code(key.shown)

    @admin.display(description=gettext_lazy("secret"))
    def secret_kept(self, key: ApiKey) -> SafeString:
        return stacked(code(key.shown), _("It was shown once, when the key was made, and cannot be shown again."))

    @admin.display(description=gettext_lazy("state"))
    def state(self, key: ApiKey) -> SafeString:
        if key.revoked_at is not None:
            return badge(_("revoked"), "bad", "key_off")
        if key.expires_at is not None and key.expires_at <= now():
            return badge(_("expired"), "warn", "timer_off")
        if not key.account.active:
            return badge(_("account disabled"), "bad", "block")
        return badge(_("active"), "good", "check_circle")

    @admin.display(description=gettext_lazy("limits"))
    def limits(self, key: ApiKey) -> str:
        found = [
            _("%(count)s requests/min") % {"count": number(key.requests_per_minute)} if key.requests_per_minute else "",
            _("%(count)s tokens/min") % {"count": number(key.tokens_per_minute)} if key.tokens_per_minute else "",
            _("%(count)s at a time") % {"count": number(key.concurrency)} if key.concurrency else "",
            _budget(key),
        ]
        return " · ".join(limit for limit in found if limit) or _("none")

    @admin.display(description=gettext_lazy("last used"), ordering="last_used_at")
    def used(self, key: ApiKey) -> SafeString | str:
        return ago(key.last_used_at, key.account.timezone) if key.last_used_at else _("never")

    @admin.display(description=gettext_lazy("expires"), ordering="expires_at")
    def expires(self, key: ApiKey) -> SafeString | str:
        return ago(key.expires_at, key.account.timezone) if key.expires_at else _("never")

    @admin.display(description=gettext_lazy("created"))
    def made(self, key: ApiKey) -> SafeString | str:
        return ago(key.created_at, key.account.timezone)

    @admin.display(description=gettext_lazy("lists"))
    def links(self, key: ApiKey) -> SafeString:
        found = [
            link(list_url(UsageRecord, api_key=key.pk), _("requests")),
            link(list_url(OpenStream, api_key=key.pk), _("live streams")),
        ]
        return SafeString(" · ".join(found))


def _budget(key: ApiKey) -> str:
    if key.monthly_budget_nanos is None:
        return ""
    return _("%(amount)s a month") % {"amount": money(key.monthly_budget_nanos, key.account.currency)}


def _revoke_effects(key: ApiKey) -> list[str]:
    running = OpenStream.objects.filter(api_key=key).count()
    effects = [_("Requests with it get 401 within seconds.")]
    if running:
        words = ngettext(
            "Its %(count)s running request goes on to its end, and is billed.",
            "Its %(count)s running requests go on to their end, and are billed.",
            running,
        )
        effects.append(words % {"count": number(running)})
    effects.append(_("This is final: a revoked key never works again. Its usage and invoices stay."))
    return effects


def _example_model(key: ApiKey) -> str:
    """A model that the key may use, for the snippet."""
    if key.allowed_models:
        return str(key.allowed_models[0])
    return Price.objects.order_by("model").values_list("model", flat=True).first() or "MODEL"


def curl_line(secret: str, model: str) -> str:
    """A command that tries the key at the public address (the Host header is not believed)."""
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello"}]})
    return (
        f"curl -N {settings.PUBLIC_URL}/v1/chat/completions \\\n"
        f'  -H "Authorization: Bearer {secret}" \\\n'
        f'  -H "Content-Type: application/json" \\\n'
        f"  -d '{body}'"
    )
