"""A key's new secret: asked for with a grace time for the old one, shown once; and the old one's end before that."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.crypto import constant_time_compare, salted_hmac
from django.utils.html import format_html
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.enums import ActionVariant

from billing import keys
from billing.admin.access import ask, asks_first
from billing.admin.display import ago_inline, change_url, code, moment
from billing.admin.key_use import old_secret_works
from billing.admin.secret_page import show_once
from billing.admin.typed import RadioWidget
from billing.models import ApiKey

HOUR = 3600
GRACES = [
    ("0", gettext_lazy("0 h: it stops at once")),
    (str(HOUR), gettext_lazy("1 h")),
    (str(24 * HOUR), gettext_lazy("24 h")),
    (str(7 * 24 * HOUR), gettext_lazy("7 days")),
]
"""Seconds -> how long the old secret works."""


class RotateForm(forms.Form):
    """The old secret's grace time; `mark` tells which secret was to be replaced when it was asked for."""

    grace = forms.ChoiceField(
        label=gettext_lazy("The old secret works for"), choices=GRACES, initial=str(24 * HOUR), widget=RadioWidget()
    )
    mark = forms.CharField(widget=forms.HiddenInput())


def mark_of(key: ApiKey) -> str:
    """Tells one secret of a key from the next, and nothing about either."""
    return salted_hmac("billing.admin.key_rotation", key.digest, algorithm="sha256").hexdigest()[:20]


class KeyRotation:
    """The pages on which a key's secret is replaced. For `ApiKeyAdmin`."""

    @asks_first(gettext_lazy("Rotate"), "rotate", icon="autorenew", dialog=True)
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        key = _key(object_id)
        if key.revoked_at is not None:
            messages.info(request, _("The key %(key)s is revoked: make a new one.") % {"key": key})
            return redirect(change_url(key))
        form = RotateForm(request.POST or None, initial={"mark": mark_of(key)})
        if request.method == "POST" and form.is_valid():
            if not constant_time_compare(form.cleaned_data["mark"], mark_of(key)):
                return self._ask_to_rotate(request, key, RotateForm(initial={"mark": mark_of(key)}), again=True)
            return self._rotate(request, key, dt.timedelta(seconds=int(form.cleaned_data["grace"])))
        return self._ask_to_rotate(request, key, form)

    def _rotate(self, request: HttpRequest, key: ApiKey, grace: dt.timedelta) -> HttpResponse:
        try:
            secret = keys.rotate(key, grace, now(), replaced=key.digest)
        except keys.RotatedMeanwhile:
            key = _key(str(key.pk))
            return self._ask_to_rotate(request, key, RotateForm(initial={"mark": mark_of(key)}), again=True)
        admin: Any = self
        admin.log_change(request, key, [{"changed": {"fields": ["secret"]}}])
        old = _("The old secret %(begins)s works until %(when)s; it can be ended before that.")
        if not grace:
            old = _("The old secret %(begins)s has stopped to work.")
        until = moment(key.previous_until, key.account.timezone)
        return show_once(
            request, admin, key, secret, title=_("Key rotated"),
            done=_("The key %(key)s has a new secret.") % {"key": key},
            notes=[
                old % {"begins": key.previous_shown, "when": until},
                _("Limits, budget, usage and invoice go on as before."),
            ],
            gone=_("The secret was shown once, when the key was rotated. It cannot be shown again."),
        )  # fmt: skip

    def _ask_to_rotate(
        self, request: HttpRequest, key: ApiKey, form: RotateForm, *, again: bool = False
    ) -> HttpResponse:
        """`again`: it was rotated since the question was asked, so that nothing was done."""
        blockers = []
        if again:
            text = _("The key was rotated already. Its new secret was shown then and cannot be shown again.")
            blockers = [text, _("If that one is lost, rotate again; the one before it then stops to work.")]
        return ask(
            request, self, key, title=_("Rotate a key"), verb=_("Rotate"), form=form, blockers=blockers,
            question=_("Give the key %(key)s a new secret?") % {"key": key}, effects=_effects(key),
            cancel_url=change_url(key),
        )  # fmt: skip

    @asks_first(
        gettext_lazy("End the old secret"), "end-old-secret",
        icon="timer_off", variant=ActionVariant.DANGER, dialog=True,
    )  # fmt: skip
    def end_old_secret(self, request: HttpRequest, object_id: str) -> HttpResponse:
        key = _key(object_id)
        if not old_secret_works(key):
            messages.info(request, _("The key %(key)s has no old secret that works.") % {"key": key})
            return redirect(change_url(key))
        if request.method == "POST":
            if not constant_time_compare(request.POST.get("mark", ""), mark_of(key)):
                return self._ask_to_end(request, key, again=True)
            return self._end(request, key)
        return self._ask_to_end(request, key)

    def _end(self, request: HttpRequest, key: ApiKey) -> HttpResponse:
        try:
            keys.end_old_secret(key, now(), ended=key.previous_digest)
        except keys.RotatedMeanwhile:
            return redirect(request.path)  # which asks about the one that is old now
        admin: Any = self
        admin.log_change(request, key, [{"changed": {"fields": ["old secret"]}}])
        messages.success(request, _("The old secret of the key %(key)s is ended.") % {"key": key})
        return redirect(change_url(key))

    def _ask_to_end(self, request: HttpRequest, key: ApiKey, *, again: bool = False) -> HttpResponse:
        """`again`: another secret is the old one since the question was asked, so that nothing was done."""
        effects = [
            format_html(
                _("The old secret {} was last used: {}"), code(key.previous_shown), _used(key, key.previous_used_at)
            ),
            _("Requests with it get 401 within seconds; those under way go on to their end, and are billed."),
            _("This is final. The new secret works on."),
        ]
        return ask(
            request, self, key, title=_("End an old secret"), danger=True, verb=_("End the old secret"),
            question=_("End the old secret of the key %(key)s?") % {"key": key}, effects=effects,
            blockers=[_("The key was rotated meanwhile: its old secret is another one now.")] if again else [],
            hidden=[("mark", mark_of(key))], cancel_url=change_url(key),
        )  # fmt: skip


def _effects(key: ApiKey) -> list[Any]:
    effects: list[Any] = [
        format_html(_("The present secret {} was last used: {}"), code(key.shown), _used(key, key.last_used_at)),
    ]
    if old_secret_works(key):
        text = _("The secret before it, {}, works still and stops at once. It was last used: {}")
        effects.append(format_html(text, code(key.previous_shown), _used(key, key.previous_used_at)))
    return [
        *effects,
        _("It stays the same key: its limits, budget, usage and invoice go on."),
        _("The new secret is shown once, on the next page."),
    ]


def _used(key: ApiKey, at: dt.datetime | None) -> str:
    return ago_inline(at, key.account.timezone) if at else _("never")


def _key(object_id: str) -> ApiKey:
    return get_object_or_404(ApiKey.objects.select_related("account"), pk=object_id)
