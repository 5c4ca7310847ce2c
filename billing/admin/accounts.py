"""Accounts: operators run them, Finance keeps what their invoices print."""

from __future__ import annotations

from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.contrib import admin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.admin.access import KeptAdmin
from billing.admin.display import ago, badge, figure, link, list_url, number
from billing.admin.fields import PPM_PER_CENT, ScaledField, read_currency
from billing.admin.filters import ActiveFilter
from billing.admin.typed import ModelForm, SelectWidget
from billing.models import Account, ApiKey, Invoice, UsageRecord

OPERATED = ("name", "timezone", "currency", "active")
BILLED = ("legal_name", "address", "tax_id", "tax_rate_ppm", "due_days", "language")
LANGUAGES = [("en", "English"), ("zh-Hant", "繁體中文")]


def zones() -> list[tuple[str, str]]:
    """The time zones that can be chosen, UTC first."""
    named = sorted(
        zone for zone in available_timezones() if "/" in zone and not zone.startswith(("Etc/", "posix/", "right/"))
    )
    return [("UTC", "UTC"), *((zone, zone) for zone in named)]


class AccountForm(ModelForm[Account]):
    """An account, with its tax rate in per cent."""

    timezone = forms.ChoiceField(
        label=gettext_lazy("time zone"), choices=zones, widget=SelectWidget(), initial="UTC",
        help_text=gettext_lazy("Days and months are cut in this zone. The first request locks it."),
    )  # fmt: skip
    language = forms.ChoiceField(label=gettext_lazy("language"), choices=LANGUAGES, widget=SelectWidget(), initial="en")
    tax_rate_ppm = ScaledField(scale=PPM_PER_CENT, label=gettext_lazy("tax rate (%)"), max_value=100, initial=0)

    class Meta:
        model = Account
        fields = (*OPERATED, *BILLED)
        help_texts = {"currency": gettext_lazy("ISO code, such as USD or TWD. The first request locks it.")}

    def clean_currency(self) -> str:
        return read_currency(self.cleaned_data["currency"])


@admin.register(Account)
class AccountAdmin(KeptAdmin[Account]):
    form = AccountForm
    list_display = ("name", "state", "timezone", "currency", "keys_figure", "created")
    list_filter = (ActiveFilter,)
    search_fields = ("name", "legal_name", "tax_id")
    empty_text = gettext_lazy("No account yet. An account has keys, and gets their invoices.")
    fieldsets = (
        (None, {"fields": (*OPERATED, "made")}),
        (gettext_lazy("Billing details"), {"fields": BILLED}),
        (gettext_lazy("See also"), {"fields": ("links",)}),
    )
    add_fieldsets = (
        (None, {"fields": OPERATED}),
        (gettext_lazy("Billing details"), {"fields": BILLED}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Account]:
        return super().get_queryset(request).annotate(live_keys=Count("keys", filter=Q(keys__revoked_at=None)))

    def get_fieldsets(self, request: HttpRequest, obj: Account | None = None) -> Any:
        if obj is None:
            return self.add_fieldsets if may_bill(request) else self.add_fieldsets[:1]
        return super().get_fieldsets(request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: Account | None = None) -> tuple[str, ...]:
        fixed: set[str] = {"links", "made"}
        if not may_operate(request):
            fixed.update(OPERATED)
        if not may_bill(request):
            fixed.update(BILLED)
        if obj is not None and UsageRecord.objects.filter(account=obj).exists():
            fixed.update(("timezone", "currency"))
        return tuple(sorted(fixed))

    @admin.display(description=gettext_lazy("state"), ordering="active")
    def state(self, account: Account) -> SafeString:
        if account.active:
            return badge(_("active"), "good", "check_circle")
        return badge(_("disabled"), "bad", "block", _("Its keys get 403."))

    @admin.display(description=gettext_lazy("keys"), ordering="live_keys")
    def keys_figure(self, account: Account) -> SafeString:
        return figure(number(getattr(account, "live_keys", None)))

    @admin.display(description=gettext_lazy("created"), ordering="created_at")
    def created(self, account: Account) -> SafeString | str:
        return ago(account.created_at, account.timezone)

    @admin.display(description=gettext_lazy("created"))
    def made(self, account: Account) -> SafeString | str:
        return ago(account.created_at, account.timezone)

    @admin.display(description=gettext_lazy("lists"))
    def links(self, account: Account) -> SafeString:
        found = [
            link(list_url(ApiKey, account=account.pk), _("API keys")),
            link(list_url(UsageRecord, account=account.pk), _("requests")),
            link(list_url(Invoice, account=account.pk), _("invoices")),
        ]
        return SafeString(" · ".join(found))


def may_operate(request: HttpRequest) -> bool:
    """Whether the viewer may change what an account is: the operators, who may also add one."""
    return bool(request.user.has_perm("billing.add_account"))


def may_bill(request: HttpRequest) -> bool:
    """Whether the viewer may change what an account's invoices print: Finance, who may also change invoices."""
    return bool(request.user.has_perm("billing.change_invoice"))
