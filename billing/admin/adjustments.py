"""Adjustments: made by the ledger for streams that were taken for lost, and by people, the large ones in twos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AutocompleteSelect
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.enums import ActionVariant

from billing import adjustments
from billing.adjustments import BY_HAND, AdjustmentError, Kind, MadeAlready, State
from billing.admin.access import EndlessAdmin, ask, asks_first
from billing.admin.display import UNKNOWN, ago, badge, change_url, figure, link, moment, signed, stacked
from billing.admin.fields import ScaledField
from billing.admin.filters import AccountFilter, Choice, FieldFilter
from billing.admin.typed import ModelAdmin, ModelForm, TextWidget
from billing.models import Adjustment, ApiKey, UsageRecord
from billing.money import NANO_PLACES, NANOS
from billing.row_ids import row_id
from billing.words import reason_words

APPROVE = "billing.approve_adjustment"
STATE_LOOKS = {
    State.PROPOSED: ("warn", "hourglass_top"),
    State.APPROVED: ("good", "check_circle"),
    State.REJECTED: ("bad", "cancel"),
}


class ProposalForm(ModelForm[Adjustment]):
    """An adjustment made by hand; the account and its currency follow from the key."""

    amount_nanos = ScaledField(
        scale=NANOS, signed=True, label=gettext_lazy("amount"),
        help_text=gettext_lazy("In the account's currency. Below zero for a credit, such as -12.50."),
    )  # fmt: skip
    request_name = forms.CharField(
        required=False, max_length=128, label=gettext_lazy("request id"), widget=TextWidget(),
        help_text=gettext_lazy("If it is about one request of this key. Ours, or the client's."),
    )  # fmt: skip

    class Meta:
        model = Adjustment
        fields = ("api_key", "kind", "amount_nanos", "reason")
        help_texts = {"reason": gettext_lazy("The customer reads it on the invoice.")}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "kind" in self.fields:
            kinds = [("", "—"), *((kind.value, kind.label) for kind in BY_HAND)]
            cast(forms.ChoiceField, self.fields["kind"]).choices = kinds
        if "api_key" in self.fields:  # chosen here, not made or changed
            widget = cast(Any, self.fields["api_key"].widget)
            widget.can_add_related = widget.can_change_related = widget.can_view_related = False
        for field in self.fields.values():
            field.label = capfirst(field.label)

    def clean_amount_nanos(self) -> int:
        nanos: int = self.cleaned_data["amount_nanos"]
        if not nanos:
            raise ValidationError(_("Write an amount other than zero."))
        return nanos

    def clean(self) -> dict[str, Any] | None:
        super().clean()
        given = self.cleaned_data
        if given.get("kind") == Kind.GOODWILL and given.get("amount_nanos", 0) > 0:
            self.add_error("amount_nanos", _("Goodwill is a credit: write the amount below zero."))
        if given.get("api_key") and (name := given.get("request_name", "").strip()):
            given["record"] = UsageRecord.objects.filter(api_key=given["api_key"], request_name=name).first()
            if given["record"] is None:
                self.add_error("request_name", _("This key has no request of this id."))
        return given


class StateFilter(FieldFilter):
    title, parameter_name, field = gettext_lazy("state"), "state", "state"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return list(State.choices)


class KindFilter(FieldFilter):
    title, parameter_name, field = gettext_lazy("kind"), "kind", "kind"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return list(Kind.choices)


class RejectForm(forms.Form):
    """Why an adjustment is turned down."""

    reason = forms.CharField(label=gettext_lazy("reason"), max_length=300, widget=TextWidget())


class KeySelect(AutocompleteSelect):
    """Django's own asks the database for whatever stands in the URL or was sent."""

    def optgroups(self, name: str, value: Sequence[str], attr: dict[str, Any] | None = None) -> Any:
        return super().optgroups(name, [text for text in value if row_id(str(text))], attr)


@admin.register(Adjustment)
class AdjustmentAdmin(EndlessAdmin[Adjustment]):
    form = ProposalForm
    autocomplete_fields = ("api_key",)
    list_display = (
        "created", "key_link", "kind_and_reason", "amount_figure", "state_badge", "by_and_decided", "invoice_link",
    )  # fmt: skip
    list_display_links = ("created",)
    list_filter = (StateFilter, KindFilter, AccountFilter)
    list_select_related = ("account", "api_key", "record", "invoice", "proposed_by", "decided_by")
    ordering = ("-id",)
    empty_text = gettext_lazy("No adjustment yet. Propose one to credit a customer, or to correct a bill.")
    list_note = gettext_lazy(
        "What keys are billed more or less beside their requests, by their next invoice. The gateway makes its own for "
        "streams that it took for lost and that were billed by then."
    )
    actions_detail = ("approve", "reject")
    shown_fields = (
        "state_badge", "amount_figure", "key_link", "kind", "why", "request_link", "created", "by", "decided",
        "counts_from", "invoice_link",
    )  # fmt: skip

    # --- who may what ---

    def has_add_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("billing.add_adjustment"))

    def has_act_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Approving is a right of its own; who proposed something may withdraw it."""
        return bool(request.user.has_perm(APPROVE) or request.user.has_perm("billing.add_adjustment"))

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        return lookup in ("invoice", "invoice__isnull", "api_key") or super().lookup_allowed(lookup, value, request)

    def get_fields(self, request: HttpRequest, obj: Adjustment | None = None) -> tuple[str, ...]:
        return ("api_key", "kind", "amount_nanos", "reason", "request_name") if obj is None else self.shown_fields

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        """Only what this person can do to a proposal."""
        adjustment = Adjustment.objects.filter(pk=object_id, state=State.PROPOSED).first()
        if adjustment is None:
            return []
        fitting = {"billing_adjustment_approve"} if request.user.has_perm(APPROVE) else set()
        if _may_reject(request, adjustment):
            fitting.add("billing_adjustment_reject")
        found: list[Any] = super().get_actions_detail(request, object_id)  # type: ignore[misc]  # Unfold's
        return [action for action in found if action.action_name in fitting]

    # --- changes ---

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name in self.autocomplete_fields:
            kwargs["widget"] = KeySelect(db_field, self.admin_site)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        buttons = {"show_save_and_add_another": False, "show_save_and_continue": False}
        title = {"title": _("Propose an adjustment")}
        try:
            return super().add_view(request, form_url, {**(extra_context or {}), **buttons, **title})
        except MadeAlready as already:
            messages.warning(request, str(already))
            return redirect(change_url(already.adjustment))

    def save_model(self, request: HttpRequest, obj: Adjustment, form: ModelForm[Adjustment], change: bool) -> None:
        """A new one goes through `billing.adjustments`, which knows whether it counts at once."""
        given = form.cleaned_data
        made = adjustments.propose(
            given["api_key"], given["kind"], given["amount_nanos"], given["reason"],
            by=cast(User, request.user), now=now(), record=given.get("record"), once=True,
        )  # fmt: skip
        obj.__dict__.update(made.__dict__)

    def response_add(self, request: HttpRequest, obj: Adjustment, post_url_continue: str | None = None) -> HttpResponse:
        if obj.state == State.PROPOSED:
            messages.warning(request, _("The adjustment is proposed: someone else must approve it before it counts."))
        else:
            messages.success(request, _("The adjustment is made: it counts from now on."))
        return redirect(change_url(obj))

    @asks_first(gettext_lazy("Approve"), "approve", icon="check", variant=ActionVariant.PRIMARY)
    def approve(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if not request.user.has_perm(APPROVE):
            raise PermissionDenied
        adjustment = self._proposal(request, object_id)
        if isinstance(adjustment, HttpResponse):
            return adjustment
        blockers = []
        if adjustment.proposed_by_id == request.user.pk:
            blockers = [_("You proposed this; someone else must approve.")]
        elif request.method == "POST":
            return self._decided(request, adjustment, _approve, _("The adjustment is approved: it counts from now on."))
        effects = [
            _("%(name)s proposed it: %(reason)s") % {"name": adjustment.proposed_by, "reason": adjustment.reason},
            _("It counts from now on: in what the key has spent this month, and on its next invoice. This is final."),
        ]
        return ask(
            request, self, adjustment, title=_("Approve an adjustment"), verb="" if blockers else _("Approve"),
            question=_("Approve the %(kind)s of %(amount)s for %(key)s?") % _words(adjustment), effects=effects,
            blockers=blockers, cancel_url=change_url(adjustment),
        )  # fmt: skip

    @asks_first(gettext_lazy("Reject"), "reject", icon="close", variant=ActionVariant.DANGER)
    def reject(self, request: HttpRequest, object_id: str) -> HttpResponse:
        adjustment = self._proposal(request, object_id)
        if isinstance(adjustment, HttpResponse):
            return adjustment
        if not _may_reject(request, adjustment):
            raise PermissionDenied
        form = RejectForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            reason = form.cleaned_data["reason"]
            rejected = _("The adjustment is rejected. It stays in the list with the reason.")
            return self._decided(request, adjustment, lambda pk, user: _reject(pk, reason, user), rejected)
        return ask(
            request, self, adjustment, title=_("Reject an adjustment"), danger=True, verb=_("Reject"), form=form,
            question=_("Reject the %(kind)s of %(amount)s for %(key)s?") % _words(adjustment),
            effects=[_("It never counts. It stays in the list with your reason. This is final.")],
            cancel_url=change_url(adjustment),
        )  # fmt: skip

    def _decided(self, request: HttpRequest, adjustment: Adjustment, decide: Any, told: str) -> HttpResponse:
        try:
            decided: Adjustment = decide(adjustment.pk, cast(User, request.user))
        except AdjustmentError as error:  # somebody was quicker
            messages.error(request, str(error))
            return redirect(change_url(adjustment))
        self.log_change(request, decided, [{"changed": {"fields": [decided.state]}}])
        messages.success(request, told)
        return redirect(change_url(decided))

    def _proposal(self, request: HttpRequest, object_id: str) -> Adjustment | HttpResponse:
        """The adjustment, if it waits for a decision; else the way back to it."""
        rows = Adjustment.objects.select_related("account", "api_key__account", "proposed_by")
        adjustment = get_object_or_404(rows, pk=object_id)
        return adjustment if adjustment.state == State.PROPOSED else self._too_late(request, adjustment)

    def _too_late(self, request: HttpRequest, adjustment: Adjustment) -> HttpResponse:
        words = {"state": adjustment.get_state_display()}
        messages.error(request, _("Nothing was changed: the adjustment is %(state)s already.") % words)
        return redirect(change_url(adjustment))

    # --- columns and fields ---

    @admin.display(description=gettext_lazy("date"))
    def created(self, adjustment: Adjustment) -> SafeString | str:
        return ago(adjustment.created_at, adjustment.account.timezone)

    @admin.display(description=gettext_lazy("account · key"))
    def key_link(self, adjustment: Adjustment) -> SafeString:
        name = f"{adjustment.account.name}/{adjustment.api_key.name}"
        return link(change_url(ApiKey(pk=adjustment.api_key_id)), name)

    @admin.display(description=gettext_lazy("kind · reason"))
    def kind_and_reason(self, adjustment: Adjustment) -> SafeString:
        about: SafeString | str = ""
        if adjustment.record is not None:
            about = format_html(" · {}", link(change_url(adjustment.record), _("its request")))
        kind = format_html("{}{}", adjustment.get_kind_display(), about)
        return format_html('<span class="hb-words">{}</span>', stacked(kind, reason_words(adjustment)))

    @admin.display(description=gettext_lazy("reason"))
    def why(self, adjustment: Adjustment) -> str:
        return reason_words(adjustment)

    @admin.display(description=gettext_lazy("request"))
    def request_link(self, adjustment: Adjustment) -> SafeString | str:
        if adjustment.record is None:
            return UNKNOWN
        return link(change_url(adjustment.record), adjustment.record.request_name)

    @admin.display(description=gettext_lazy("amount"))
    def amount_figure(self, adjustment: Adjustment) -> SafeString:
        return figure(signed(adjustment.amount_nanos, adjustment.currency, NANO_PLACES))

    @admin.display(description=gettext_lazy("state"))
    def state_badge(self, adjustment: Adjustment) -> SafeString:
        return badge(adjustment.get_state_display(), *STATE_LOOKS[State(adjustment.state)])

    @admin.display(description=gettext_lazy("by"))
    def by(self, adjustment: Adjustment) -> str:
        if adjustment.proposed_by is not None:
            return adjustment.proposed_by.get_username()
        return UNKNOWN if adjustment.kind in BY_HAND else _("the gateway")

    @admin.display(description=gettext_lazy("by · approved by"))
    def by_and_decided(self, adjustment: Adjustment) -> SafeString:
        told = stacked(self.by(adjustment), self.decided(adjustment))
        return format_html('<span class="hb-words hb-words-short">{}</span>', told)

    @admin.display(description=gettext_lazy("approved by"))
    def decided(self, adjustment: Adjustment) -> str:
        if adjustment.state == State.PROPOSED:
            return _("waits for approval")
        if adjustment.decided_by is None:
            return UNKNOWN if adjustment.proposed_by is None else _("needs no approval")
        words = {"name": adjustment.decided_by.get_username(), "reason": adjustment.decision_reason}
        if adjustment.state == State.REJECTED:
            return _("rejected by %(name)s: %(reason)s") % words
        return _("approved by %(name)s") % words

    @admin.display(description=gettext_lazy("counts from"))
    def counts_from(self, adjustment: Adjustment) -> str:
        return moment(adjustment.effective_at, adjustment.account.timezone)

    @admin.display(description=gettext_lazy("invoice"))
    def invoice_link(self, adjustment: Adjustment) -> SafeString | str:
        if adjustment.invoice is not None:
            return link(change_url(adjustment.invoice), adjustment.invoice)
        return _("the next one") if adjustment.state == State.APPROVED else UNKNOWN


def _approve(pk: int, user: User) -> Adjustment:
    return adjustments.approve(pk, by=user, now=now())


def _reject(pk: int, reason: str, user: User) -> Adjustment:
    return adjustments.reject(pk, reason, by=user, now=now())


def _may_reject(request: HttpRequest, adjustment: Adjustment) -> bool:
    return bool(request.user.has_perm(APPROVE) or adjustment.proposed_by_id == request.user.pk)


def _words(adjustment: Adjustment) -> dict[str, str]:
    return {
        "kind": adjustment.get_kind_display(),
        "amount": signed(adjustment.amount_nanos, adjustment.currency),
        "key": str(adjustment.api_key),
    }
