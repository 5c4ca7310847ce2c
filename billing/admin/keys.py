"""API keys: made with a secret that is shown once, changed within limits, revoked for good."""

from __future__ import annotations

import datetime as dt
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet, Value
from django.db.models.functions import Coalesce, Greatest
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.enums import ActionVariant

from billing import gateway, keys, present_use, readers
from billing.admin.access import KeptAdmin, ask, asks_first
from billing.admin.changes import history_of
from billing.admin.display import ago, badge, change_url, code, link, list_url, moment, number, stacked
from billing.admin.fields import NamesField, ScaledField, model_name, network
from billing.admin.filters import AccountFilter, Choice
from billing.admin.forms import KeptForm
from billing.admin.key_actions import KeyActions
from billing.admin.key_rotation import KeyRotation
from billing.admin.key_use import context as use_of
from billing.admin.key_use import count_shown, last_used, old_secret_works, spent_shown, with_use
from billing.admin.price_state import no_price_marks
from billing.admin.secret_page import show_once
from billing.admin.streams import ask_to_stop
from billing.admin.typed import DropdownFilter, ModelAdmin, ModelForm, RadioWidget
from billing.models import ApiKey, OpenStream, UsageRecord
from billing.money import NANOS
from billing.phrases import said_by
from billing.words import in_words

NEVER = Value(dt.datetime(1970, 1, 1, tzinfo=dt.UTC))
LAST_USED = Coalesce(Greatest("last_used_at", "previous_used_at"), "last_used_at", "previous_used_at", NEVER)
"""Of either secret. SQLite's greatest of a moment and nothing is nothing; each database sorts nothing elsewhere."""

LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency", "monthly_budget_nanos")
ACCESS = ("allowed_models", "allowed_ips", "expires_at")


class KeyForm(KeptForm[ApiKey]):
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

    readers = readers.KEY_LIMITS

    class Meta:
        model = ApiKey
        fields = ("account", "name", *ACCESS, *LIMITS)
        help_texts = {
            "requests_per_minute": gettext_lazy("Empty: no limit."),
            "tokens_per_minute": gettext_lazy("Empty: no limit."),
            "concurrency": gettext_lazy("Requests at a time. Empty: no limit."),
            "expires_at": gettext_lazy("In UTC. Empty: never."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        allowed = self.instance.allowed_models or []
        if (field := self.fields.get("allowed_models")) and (marks := no_price_marks(allowed)):
            field.help_text = format_html("{} {}", field.help_text, marks)

    def clean_allowed_models(self) -> list[str] | None:
        names: list[str] | None = self.cleaned_data["allowed_models"]
        read = readers.known_model(gateway.models())
        try:
            return names and [read(name) for name in names]
        except ValueError as fault:
            raise ValidationError(in_words(said_by(fault))) from None

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        account, name = self.cleaned_data.get("account", self.instance.account_id), self.cleaned_data.get("name")
        if account and name and ApiKey.objects.filter(account=account, name=name).exclude(pk=self.instance.pk).exists():
            self.add_error("name", ValidationError(self._name_is_taken()))
        return cleaned

    def _name_is_taken(self) -> str:
        if self.instance.pk is not None:
            return _("This account has another key of this name: choose another name.")
        return _(
            "This account has a key of this name. If you have just made it, its secret was shown then and cannot "
            "be shown again: revoke that key and make one under another name."
        )


class RevokeForm(forms.Form):
    """What becomes of the streams that run with a key while it is revoked."""

    streams = forms.ChoiceField(
        required=False, initial="finish", widget=RadioWidget(),
        choices=[
            ("finish", gettext_lazy("finish: they go on to their end, and are billed")),
            ("stop", gettext_lazy("stop: their clients get an error event; what they produced until then is billed")),
        ],
    )  # fmt: skip

    def __init__(self, running: int, *args: Any) -> None:
        super().__init__(*args)
        words = ngettext("Its %(count)s open stream", "Its %(count)s open streams", running)
        self.fields["streams"].label = words % {"count": number(running)}


class NearFilter(DropdownFilter):
    """Keys that have used most of one of their limits, now or this month."""

    title, parameter_name = gettext_lazy("limits"), "near"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return [("1", gettext_lazy("near a limit (80 % or more)"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(pk__in=present_use.near_a_limit(now())) if self.value() == "1" else queryset


class UnusedFilter(DropdownFilter):
    """Keys that nobody misses, so it seems: neither secret was used for so many days, nor is the key younger."""

    title, parameter_name = gettext_lazy("use"), "unused"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return [("30", gettext_lazy("unused for 30 days"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() != "30":
            return queryset
        since = now() - dt.timedelta(days=30)
        used = Q(last_used_at__gte=since) | Q(previous_used_at__gte=since)
        return queryset.filter(revoked_at=None, created_at__lt=since).exclude(used)


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
class ApiKeyAdmin(KeyActions, KeyRotation, KeptAdmin[ApiKey]):
    form = KeyForm
    list_display = (
        "title", "account_link", "state", "used", "requests_figure", "running_figure", "spent_figure",
    )  # fmt: skip
    list_display_links = ("title",)
    list_filter = (KeyStateFilter, NearFilter, UnusedFilter, AccountFilter)
    list_before_template = "admin/billing/apikey/list_before.html"
    list_note = gettext_lazy(
        "In use now / limit: requests of the last minute, requests under way, and what the month has cost in the "
        "account's zone."
    )
    change_form_outer_before_template = "admin/billing/apikey/use.html"
    change_form_outer_after_template = "admin/audit_history.html"
    list_select_related = ("account",)
    search_fields = ("name", "account__name", "shown")
    search_help_text = gettext_lazy("Name, account or the secret's beginning")
    empty_text = gettext_lazy("No key yet. A key is what a customer's program sends with each request.")
    actions = ("revoke_chosen", "change_limits", "set_expiry")
    actions_detail = ("rotate", "end_old_secret", "revoke")
    fieldsets = (
        (None, {"fields": ("account", "name", "state", "made", "links")}),
        (gettext_lazy("Access"), {"fields": ACCESS}),
        (gettext_lazy("Limits"), {"fields": LIMITS}),
    )
    add_fieldsets = (
        (None, {"fields": ("account", "name")}),
        (gettext_lazy("Access"), {"fields": ACCESS}),
        (gettext_lazy("Limits"), {"fields": LIMITS}),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: ApiKey | None = None) -> tuple[str, ...]:
        shown = ("state", "made", "links")
        return shown if obj is None else ("account", *shown)

    def is_closed(self, obj: ApiKey) -> bool:
        return obj.revoked_at is not None

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        key = ApiKey.objects.filter(pk=object_id, revoked_at=None).first()
        if key is None:
            return []
        found = list(super().get_actions_detail(request, object_id))  # type: ignore[misc]  # Unfold's
        return [one for one in found if old_secret_works(key) or not one.action_name.endswith("end_old_secret")]

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        page: Any = super().get_changelist_instance(request)
        page.redis_away = not with_use(list(page.result_list), now())
        return cast(ChangeList, page)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], add: bool = False, change: bool = False,
        form_url: str = "", obj: ApiKey | None = None,
    ) -> HttpResponse:  # fmt: skip
        if obj is not None:
            context |= {**use_of(obj), **history_of(obj, request, zone=obj.account.timezone)}
        return super().render_change_form(request, context, add, change, form_url, obj)

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
        return show_once(
            request, self, obj, cast(Any, obj).secret_once, title=_("Key made"), notes=[],
            done=_("The key %(key)s is made.") % {"key": obj},
            gone=_("The secret was shown once, when the key was made. It cannot be shown again."),
        )  # fmt: skip

    @asks_first(gettext_lazy("Revoke"), "revoke", icon="key_off", variant=ActionVariant.DANGER)
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        key = get_object_or_404(ApiKey.objects.select_related("account"), pk=object_id)
        if key.revoked_at is not None:
            messages.info(request, _("The key %(key)s is revoked already.") % {"key": key})
            return redirect(change_url(key))
        running = OpenStream.objects.filter(api_key=key, stop_requested=False)
        count, may_stop = running.count(), bool(request.user.has_perm("billing.change_openstream"))
        form = RevokeForm(count, *([request.POST] if request.method == "POST" else [])) if may_stop else None
        if request.method == "POST" and (form is None or form.is_valid()):
            keys.revoke(key, now())
            self.log_change(request, key, [{"changed": {"fields": ["revoked"]}}])
            messages.success(request, _("The key %(key)s is revoked.") % {"key": key})
            if form is not None and form.cleaned_data["streams"] == "stop":
                stopped = ask_to_stop(self, request, running)
                words = ngettext("Stopping %(count)s stream.", "Stopping %(count)s streams.", stopped)
                messages.info(request, words % {"count": number(stopped)})
            return redirect(change_url(key))
        question = _("Revoke the key %(key)s?") % {"key": key}
        asks = form if count or (form is not None and form.errors) else None
        return ask(
            request, self, key, title=_("Revoke a key"), danger=True, verb=_("Revoke"), question=question, form=asks,
            effects=_revoke_effects(0 if asks else count), cancel_url=change_url(key),
        )  # fmt: skip

    @admin.display(description=gettext_lazy("key"), ordering="name")
    def title(self, key: ApiKey) -> SafeString:
        return stacked(key.name, code(key.shown))

    @admin.display(description=gettext_lazy("account"), ordering="account__name")
    def account_link(self, key: ApiKey) -> SafeString:
        return link(change_url(key.account), key.account.name)

    @admin.display(description=gettext_lazy("state"))
    def state(self, key: ApiKey) -> SafeString:
        if key.revoked_at is not None:
            return badge(_("revoked"), "bad", "key_off")
        if key.expires_at is not None and key.expires_at <= now():
            return badge(_("expired"), "warn", "timer_off")
        if not key.account.active:
            return badge(_("account disabled"), "bad", "block")
        active = badge(_("active"), "good", "check_circle")
        return stacked(active, _("until %(when)s") % {"when": moment(key.expires_at)}) if key.expires_at else active

    @admin.display(description=gettext_lazy("requests/min"))
    def requests_figure(self, key: Any) -> SafeString:
        return count_shown(key.use.requests)

    @admin.display(description=gettext_lazy("concurrency"))
    def running_figure(self, key: Any) -> SafeString:
        return count_shown(key.use.running)

    @admin.display(description=gettext_lazy("month's spend"))
    def spent_figure(self, key: Any) -> SafeString:
        return spent_shown(key.use.spent, key.account.currency)

    @admin.display(description=gettext_lazy("last used"), ordering=LAST_USED)
    def used(self, key: ApiKey) -> SafeString | str:
        at = last_used(key)
        return ago(at, key.account.timezone) if at else _("never")

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


def _revoke_effects(running: int) -> list[str]:
    """What revoking does; `running`: the requests that go on, where nobody is asked about them."""
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
