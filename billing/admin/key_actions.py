"""What is done with several keys at once: revoke, change limits, set expiry. Each asks first."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from billing import keys
from billing.admin.bulk import Chosen
from billing.admin.display import moment, number
from billing.admin.fields import ScaledField, read_by
from billing.admin.typed import MomentWidget, NumberWidget, PlainSelectWidget
from billing.models import ApiKey, OpenStream, one_version
from billing.money import NANOS
from billing.readers import KEY_LIMITS

KEEP, NONE, SET = "keep", "none", "set"
WHAT = [(KEEP, gettext_lazy("as it is")), (NONE, gettext_lazy("no limit")), (SET, gettext_lazy("set to"))]
LIMITS = {
    "requests_per_minute": gettext_lazy("requests per minute"),
    "tokens_per_minute": gettext_lazy("tokens per minute"),
    "concurrency": gettext_lazy("requests at a time"),
}
"""Column -> name; the budget is a field of its own kind."""
BUDGET = "monthly_budget_nanos"


class LimitsForm(forms.Form):
    """Each limit as it is, or none, or a number. `currencies`: those of the keys, for a budget has one."""

    def __init__(self, *args: Any, currencies: set[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._currencies = currencies
        for column, label in LIMITS.items():
            name = _("%(limit)s: number") % {"limit": label}
            value = forms.IntegerField(required=False, widget=NumberWidget, label=name)
            read_by(KEY_LIMITS[column], value)
            self._add(column, label, value)
        budget = ScaledField(scale=NANOS, required=False, label=_("monthly budget: amount"))
        self._add(BUDGET, gettext_lazy("monthly budget"), budget)

    def _add(self, column: str, label: Any, value: forms.Field) -> None:
        self.fields[f"{column}_what"] = forms.ChoiceField(
            choices=WHAT, initial=KEEP, required=False, widget=PlainSelectWidget, label=label
        )
        self.fields[column] = value

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or self.cleaned_data
        for column in (*LIMITS, BUDGET):
            what = given.get(f"{column}_what")
            if what == SET and given.get(column) is None and column not in self.errors:
                self.add_error(column, ValidationError(_("Write the new limit.")))
            if what in (KEEP, "") and given.get(column) is not None:
                self.add_error(f"{column}_what", ValidationError(_("Choose “set to” for the number to count.")))
        if given.get(f"{BUDGET}_what") == SET and len(self._currencies) > 1:
            names = ", ".join(sorted(self._currencies))
            text = _("These keys' accounts have several currencies (%(names)s): set their budgets apart.")
            self.add_error(BUDGET, ValidationError(text % {"names": names}))
        if not self.errors and not self.changes():
            raise ValidationError(_("Choose at least one limit to change."))
        return given

    def changes(self) -> dict[str, int | None]:
        """Column -> new limit."""
        given = self.cleaned_data
        chosen = {column: given.get(f"{column}_what") for column in (*LIMITS, BUDGET)}
        return {
            column: given[column] if what == SET else None for column, what in chosen.items() if what in (NONE, SET)
        }


class ExpiryForm(forms.Form):
    """A moment to come, or never."""

    expires_at = forms.SplitDateTimeField(
        label=gettext_lazy("expires"), required=False, widget=MomentWidget,
        help_text=gettext_lazy("In UTC. Empty: never."),
    )  # fmt: skip

    def clean_expires_at(self) -> dt.datetime | None:
        moment_: dt.datetime | None = self.cleaned_data["expires_at"]
        if moment_ is not None and moment_ <= now():
            raise ValidationError(_("This has passed: to stop keys now, revoke them."))
        return moment_


class KeyActions:
    """The actions of the list of keys. For `ApiKeyAdmin`."""

    @admin.action(description=gettext_lazy("Revoke"), permissions=["act"])
    def revoke_chosen(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> HttpResponse | None:
        chosen = Chosen(request, self, queryset, "revoke_chosen")
        there = _not_revoked(chosen)
        if not chosen.is_confirmed or not there:
            words = ngettext("Revoke %(count)s key?", "Revoke %(count)s keys?", len(there))
            effects = _left_out(chosen, there) + (_revoked(there) if there else [])
            return _ask(chosen, there, words, effects, title=_("Revoke keys"), verb=_("Revoke"), danger=True)
        moment_ = now()
        with one_version():
            for key in there:
                keys.revoke(key, moment_)
                chosen.log(key, ["revoked"])
        _say(request, ngettext("%(count)s key is revoked.", "%(count)s keys are revoked.", len(there)), there)
        return None

    @admin.action(description=gettext_lazy("Change limits"), permissions=["act"])
    def change_limits(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> HttpResponse | None:
        chosen = Chosen(request, self, queryset, "change_limits")
        there = _not_revoked(chosen)
        form, count = LimitsForm(chosen.answers, currencies={key.account.currency for key in there}), len(there)
        if there and form.is_valid():
            _set(chosen, there, form.changes())
            words = ngettext(
                "The limits of %(count)s key are changed.", "The limits of %(count)s keys are changed.", count
            )
            _say(request, words, there)
            return None
        effects = [
            *_left_out(chosen, there),
            _("Requests beyond a new limit get 429, of a spent budget 402, within seconds."),
            *_running(there),
            _("What each key has now stays in its history, for the way back."),
        ]
        words = ngettext("Change the limits of %(count)s key?", "Change the limits of %(count)s keys?", count)
        return _ask(
            chosen, there, words, effects, title=_("Change limits"), verb=_("Change limits"), form=form, in_pairs=True
        )

    @admin.action(description=gettext_lazy("Set expiry"), permissions=["act"])
    def set_expiry(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> HttpResponse | None:
        chosen = Chosen(request, self, queryset, "set_expiry")
        there = _not_revoked(chosen)
        form = ExpiryForm(chosen.answers)
        if there and form.is_valid():
            at = form.cleaned_data["expires_at"]
            _set(chosen, there, {"expires_at": at})
            words = ngettext("%(count)s key expires: %(when)s.", "%(count)s keys expire: %(when)s.", len(there))
            _say(request, words, there, when=moment(at) if at else _("never"))
            return None
        effects = [
            *_left_out(chosen, there),
            _("From then on requests with them get 401; those under way go on to their end, and are billed."),
            _("It can be changed as long as a key is not revoked, also once it has expired."),
        ]
        words = ngettext("Set when %(count)s key expires?", "Set when %(count)s keys expire?", len(there))
        return _ask(chosen, there, words, effects, title=_("Set expiry"), verb=_("Set expiry"), form=form)


def _ask(
    chosen: Chosen, there: list[ApiKey], words: str, effects: list[str], *, verb: str, form: Any = None, **more: Any
) -> HttpResponse | None:
    """The question; where none of the keys is left to act on, only why."""
    question = words % {"count": number(len(there))}
    if not there:
        return chosen.ask(there, question=question, effects=_left_out(chosen, there), verb="", **more)
    return chosen.ask(there, question=question, effects=effects, verb=verb, form=form, **more)


def _not_revoked(chosen: Chosen) -> list[ApiKey]:
    return [key for key in chosen.rows if key.revoked_at is None]


def _set(chosen: Chosen, there: list[ApiKey], columns: dict[str, Any]) -> None:
    """Set columns of keys, all in one transaction and one version of the catalogue."""
    with one_version():
        for key in there:
            for column, value in columns.items():
                setattr(key, column, value)
            key.save(update_fields=columns)
            chosen.log(key, list(columns))


def _say(request: HttpRequest, words: str, there: list[ApiKey], **more: str) -> None:
    messages.success(request, words % {"count": number(len(there)), **more})


def _revoked(there: list[ApiKey]) -> list[str]:
    return [
        _("Requests with them get 401 within seconds."),
        *_running(there),
        _("This is final: a revoked key never works again. Its usage and invoices stay."),
    ]


def _left_out(chosen: Chosen, there: list[ApiKey]) -> list[str]:
    """Those that are revoked already are not touched."""
    count = len(chosen.rows) - len(there)
    words = ngettext(
        "%(count)s of the chosen keys is revoked already and stays as it is.",
        "%(count)s of the chosen keys are revoked already and stay as they are.",
        count,
    )
    return [words % {"count": number(count)}] if count else []


def _running(there: list[ApiKey]) -> list[str]:
    count = OpenStream.objects.filter(api_key__in=[key.pk for key in there]).count()
    words = ngettext(
        "%(count)s request under way goes on to its end, and is billed.",
        "%(count)s requests under way go on to their end, and are billed.",
        count,
    )
    return [words % {"count": number(count)}] if count else []
