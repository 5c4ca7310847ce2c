"""Accounts: operators run them, Finance keeps what their invoices print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.enums import ActionVariant

from billing import account_sums
from billing.account_sums import AccountSums
from billing.admin.access import KeptAdmin, ask, asks_first
from billing.admin.bulk import Chosen
from billing.admin.changes import history_of
from billing.admin.display import ago, badge, change_url, figure, link, list_url, money, number, stacked
from billing.admin.fields import PPM_PER_CENT, ScaledField, read_currency
from billing.admin.filters import ActiveFilter
from billing.admin.forms import KeptForm
from billing.admin.typed import SelectWidget
from billing.models import Account, ApiKey, Invoice, OpenStream, UsageRecord, one_version
from billing.money import NANO_PLACES
from billing.periods import zones
from billing.readers import DUE_DAYS, Reader

OPERATED = ("name", "timezone", "currency")
BILLED = ("legal_name", "address", "tax_id", "tax_rate_ppm", "due_days", "language")
LANGUAGES = [("en", "English"), ("zh-Hant", "繁體中文")]


def zone_choices(own: str = "UTC") -> list[tuple[str, str]]:
    """The time zones that can be chosen, UTC first; an account's own is among them, whichever it is."""
    return [(zone, zone) for zone in ("UTC", *sorted((zones() | {own}) - {"UTC"}))]


class AccountForm(KeptForm[Account]):
    """An account, with its tax rate in per cent."""

    timezone = forms.ChoiceField(
        label=gettext_lazy("time zone"), choices=zone_choices, widget=SelectWidget(), initial="UTC",
        help_text=gettext_lazy("Days and months are cut in this zone. The first request locks it."),
    )  # fmt: skip
    language = forms.ChoiceField(label=gettext_lazy("language"), choices=LANGUAGES, widget=SelectWidget(), initial="en")
    tax_rate_ppm = ScaledField(scale=PPM_PER_CENT, label=gettext_lazy("tax rate (%)"), max_value=100, initial=0)

    readers: ClassVar[Mapping[str, Reader]] = {"due_days": DUE_DAYS}

    class Meta:
        model = Account
        fields = (*OPERATED, *BILLED)
        help_texts = {"currency": gettext_lazy("ISO code, such as USD or TWD. The first request locks it.")}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "timezone" in self.fields:  # not where the account is used
            cast(forms.ChoiceField, self.fields["timezone"]).choices = zone_choices(self.instance.timezone)

    def clean_currency(self) -> str:
        return read_currency(self.cleaned_data["currency"])


@admin.register(Account)
class AccountAdmin(KeptAdmin[Account]):
    form = AccountForm
    list_display = ("name", "state", "timezone", "currency", "keys_figure", "month_figure", "due_figure")
    list_filter = (ActiveFilter,)
    list_note = gettext_lazy(
        "The month's cost is that of the running month in the account's zone, with adjustments; due is what open "
        "invoices, less their credit notes, still leave to pay."
    )
    actions = ("disable_chosen", "enable_chosen")
    actions_detail = ("disable", "enable")
    change_form_outer_after_template = "admin/audit_history.html"
    search_fields = ("name", "legal_name", "tax_id")
    empty_text = gettext_lazy("No account yet. An account has keys, and gets their invoices.")
    fieldsets = (
        (None, {"fields": ("name", "state", "timezone", "currency", "month_figure", "due_figure", "made")}),
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
        fixed: set[str] = {"links", "made", "state", "month_figure", "due_figure"}
        if not may_operate(request):
            fixed.update(OPERATED)
        if not may_bill(request):
            fixed.update(BILLED)
        if obj is not None and obj.is_used():
            fixed.update(("timezone", "currency"))
        return tuple(sorted(fixed))

    def has_act_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Only operators disable and enable: Finance, who may change an account too, keeps its billing details."""
        return may_operate(request)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        active = Account.objects.filter(pk=object_id, active=True).exists()
        found = list(super().get_actions_detail(request, object_id))  # type: ignore[misc]  # Unfold's
        return [one for one in found if one.action_name.endswith("_disable" if active else "_enable")]

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        page = super().get_changelist_instance(request)
        with_sums(list(page.result_list))
        return page

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Account | None:
        account = super().get_object(request, object_id, from_field)
        if account is not None:
            with_sums([account])
        return account

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Account | None = None,
    ) -> HttpResponse:
        if obj is not None:
            context |= history_of(obj, request, zone=obj.timezone)
        return super().render_change_form(request, context, add, change, form_url, obj)

    @asks_first(gettext_lazy("Disable"), "disable", icon="block", variant=ActionVariant.DANGER, dialog=True)
    def disable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._switch(request, get_object_or_404(Account, pk=object_id), active=False)

    @asks_first(gettext_lazy("Enable"), "enable", icon="check_circle", dialog=True)
    def enable(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._switch(request, get_object_or_404(Account, pk=object_id), active=True)

    def _switch(self, request: HttpRequest, account: Account, *, active: bool) -> HttpResponse:
        if account.active is active:
            messages.info(request, _("Nothing to do: the account is so already."))
            return redirect(change_url(account))
        if request.method == "POST":
            switch([account], active)
            self.log_change(request, account, [{"changed": {"fields": ["active"]}}])
            messages.success(request, _said([account], active))
            return redirect(change_url(account))
        words = _("Enable the account %(account)s?") if active else _("Disable the account %(account)s?")
        return ask(
            request, self, account, question=words % {"account": account}, effects=_effects([account], active),
            title=_title(active), verb=_verb(active), danger=not active, cancel_url=change_url(account),
        )  # fmt: skip

    @admin.action(description=gettext_lazy("Disable"), permissions=["act"])
    def disable_chosen(self, request: HttpRequest, queryset: QuerySet[Account]) -> HttpResponse | None:
        return self._switch_chosen(Chosen(request, self, queryset, "disable_chosen"), request, active=False)

    @admin.action(description=gettext_lazy("Enable"), permissions=["act"])
    def enable_chosen(self, request: HttpRequest, queryset: QuerySet[Account]) -> HttpResponse | None:
        return self._switch_chosen(Chosen(request, self, queryset, "enable_chosen"), request, active=True)

    def _switch_chosen(self, chosen: Chosen, request: HttpRequest, *, active: bool) -> HttpResponse | None:
        there = [account for account in chosen.rows if account.active is not active]
        if chosen.is_confirmed and there:
            switch(there, active)
            for account in there:
                chosen.log(account, ["active"])
            messages.success(request, _said(there, active))
            return None
        words = ngettext("Disable %(count)s account?", "Disable %(count)s accounts?", len(there))
        if active:
            words = ngettext("Enable %(count)s account?", "Enable %(count)s accounts?", len(there))
        return chosen.ask(
            there, question=words % {"count": number(len(there))}, effects=_effects(there, active),
            title=_title(active), verb=_verb(active) if there else "", danger=not active,
        )  # fmt: skip

    @admin.display(description=gettext_lazy("state"), ordering="active")
    def state(self, account: Account) -> SafeString:
        if account.active:
            return badge(_("active"), "good", "check_circle")
        return badge(_("disabled"), "bad", "block", _("Its keys get 403."))

    @admin.display(description=gettext_lazy("keys"), ordering="live_keys")
    def keys_figure(self, account: Account) -> SafeString:
        return figure(number(getattr(account, "live_keys", None)))

    @admin.display(description=gettext_lazy("month's cost"))
    def month_figure(self, account: Account) -> SafeString:
        return figure(money(_sums(account).month_nanos, account.currency, NANO_PLACES))

    @admin.display(description=gettext_lazy("Due"))
    def due_figure(self, account: Account) -> SafeString:
        sums = _sums(account)
        due = figure(money(sums.due_nanos, account.currency))
        if sums.overdue_since is not None:
            return stacked(due, badge(_("overdue since %(day)s") % {"day": sums.overdue_since}, "bad", "event_busy"))
        return due

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


def with_sums(accounts: list[Any]) -> None:
    """Give the accounts of a page what they cost this month and owe, all at once."""
    sums = account_sums.of(accounts, now())
    for account in accounts:
        account.sums = sums[account.pk]


def _sums(account: Any) -> AccountSums:
    found: AccountSums = account.sums
    return found


def switch(accounts: list[Account], active: bool) -> None:
    """Disable or enable accounts, all in one transaction and one version of the catalogue."""
    with one_version():
        for account in accounts:
            account.active = active
            account.save(update_fields=["active"])


def _title(active: bool) -> str:
    return _("Enable accounts") if active else _("Disable accounts")


def _verb(active: bool) -> str:
    return _("Enable") if active else _("Disable")


def _said(accounts: list[Account], active: bool) -> str:
    words = ngettext("%(count)s account is disabled.", "%(count)s accounts are disabled.", len(accounts))
    if active:
        words = ngettext("%(count)s account is enabled.", "%(count)s accounts are enabled.", len(accounts))
    return words % {"count": number(len(accounts))}


def _effects(accounts: list[Account], active: bool) -> list[str]:
    """What becomes of keys and of requests under way."""
    if not accounts:
        return [_("All of the chosen accounts are so already.")]
    live = ApiKey.objects.filter(account__in=accounts, revoked_at=None).count()
    if active:
        words = ngettext("%(count)s key works again within seconds.", "%(count)s keys work again within seconds.", live)
        return [words % {"count": number(live)}]
    words = ngettext("%(count)s key gets 403 within seconds.", "%(count)s keys get 403 within seconds.", live)
    effects = [words % {"count": number(live)}]
    if running := OpenStream.objects.filter(account__in=accounts).count():
        words = ngettext(
            "%(count)s request under way goes on to its end, and is billed.",
            "%(count)s requests under way go on to their end, and are billed.",
            running,
        )
        effects.append(words % {"count": number(running)})
    return [*effects, _("Usage and invoices stay; the account can be enabled again at any time.")]
