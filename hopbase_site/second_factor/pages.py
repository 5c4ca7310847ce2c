"""The pages of the second factor: the code after the password, and one's own set up, renewed, turned off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.safestring import mark_safe
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from billing.admin.display import ago_inline
from billing.admin.pages import page, show
from hopbase_site import login_throttle
from hopbase_site.models import SecondFactor
from hopbase_site.second_factor import codes, factors
from hopbase_site.second_factor.gate import MARK, SETUP, has_shown, mark, next_of
from streaming import credentials

if TYPE_CHECKING:
    from django.forms import TextInput as TextWidget
else:
    from unfold.widgets import UnfoldAdminTextInputWidget as TextWidget

PENDING = "second_factor_setup"
"""In a session: the secret that is being set up, encrypted."""
FEW = 3
"""Recovery codes: from so many on, each login says how many are left."""
TYPED = {
    "autocomplete": "one-time-code",
    "autocapitalize": "none",
    "autofocus": True,
    "spellcheck": "false",
    "class": "hb-code",
}


class CodeForm(forms.Form):
    """A code of the app, or where one has a second factor already, a recovery code."""

    code = forms.CharField(label=gettext_lazy("Code"), max_length=40, widget=TextWidget(attrs=TYPED))

    def __init__(self, *args: Any, recovery: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        with_recovery, app_alone = _("Six digits from your app, or a recovery code."), _("Six digits from your app.")
        self.fields["code"].help_text = with_recovery if recovery else app_alone


@page("second-factor/code/", name="second_factor_code", right=None)
def code_page(request: HttpRequest) -> HttpResponse:
    """The second step of a login."""
    user, where = _user(request), next_of(request)
    factor = factors.factor_of(user)
    if factor is None or has_shown(request, factor):
        return redirect(where)
    form = CodeForm(request.POST or None)
    refused = _refusal(request, form)
    if refused is None:
        mark(request, factor)
        _tell_of_few_codes(request, factor.recovery_codes.count())
        return redirect(where)
    if isinstance(refused, HttpResponse):
        return refused
    return _waiting(
        show(request, "admin/second_factor/code.html", title=_("Second factor"), form=form, next=where), refused
    )


@page("second-factor/", name="second_factor", right=None)
def second_factor(request: HttpRequest) -> HttpResponse:
    """One's own: how it stands, or its setup with QR code and secret."""
    user, where = _user(request), next_of(request)
    if (factor := factors.factor_of(user)) is not None:
        left = factor.recovery_codes.count()
        words = ngettext("%(left)s recovery code left.", "%(left)s recovery codes left.", left) % {"left": left}
        since = _("On since %(when)s.") % {"when": ago_inline(factor.since)}
        return show(
            request,
            "admin/second_factor/state.html",
            title=_("Second factor"),
            since=since,
            left=words,
            few=left <= FEW,
        )
    secret = _pending_secret(request)
    form = CodeForm(request.POST or None, recovery=False)
    if request.method == "POST" and form.is_valid():
        made = factors.turn_on(user, secret, form.cleaned_data["code"], at=now())
        if made is not None:
            del request.session[PENDING]
            mark(request, SecondFactor.objects.get(user=user))
            return _codes_page(request, made, _("The second factor is on."), next_url=where)
        form.add_error("code", _("This code is not right. Wait for the next one, and compare the clocks."))
    uri = codes.setup_uri(secret, user.get_username(), urlsplit(settings.PUBLIC_URL).hostname or "")
    return show(
        request, "admin/second_factor/setup.html", title=_("Set up the second factor"), form=form, next=where,
        qr_code=mark_safe(codes.qr_code(uri, _("QR code for the app"))),  # noqa: S308 - drawn here, its title escaped
        secret=codes.spaced(secret), required=settings.REQUIRE_SECOND_FACTOR,
    )  # fmt: skip


@page("second-factor/recovery-codes/", name="second_factor_recovery_codes", right=None)
def recovery_codes(request: HttpRequest) -> HttpResponse:
    """New recovery codes, after a code."""
    asked = _asked(
        request, title=_("New recovery codes"), question=_("Make new recovery codes?"), verb=_("Make new codes"),
        effects=[_("The old ones end at once."), _("The new ones are shown once.")],
    )  # fmt: skip
    if asked is not None:
        return asked
    made = factors.renew_codes(_user(request))
    return _codes_page(request, made, _("These replace the old ones.")) if made else redirect(SETUP)


@page("second-factor/off/", name="second_factor_off", right=None)
def off(request: HttpRequest) -> HttpResponse:
    """Turned off, after a code; also the way to another phone."""
    effects = [_("Your password alone then opens the admin."), _("Your recovery codes end too.")]
    if settings.REQUIRE_SECOND_FACTOR:
        effects = [_("You then set up another one before you go on: it is required here."), effects[1]]
    asked = _asked(
        request, title=_("Turn the second factor off"), question=_("Turn your second factor off?"),
        verb=_("Turn off"), danger=True, effects=effects,
    )  # fmt: skip
    if asked is not None:
        return asked
    factors.turn_off(_user(request))
    request.session.pop(MARK, None)
    messages.success(request, _("The second factor is off."))
    return redirect(SETUP)


def _user(request: HttpRequest) -> User:
    """The pages are behind `admin_view`: somebody is logged in."""
    return cast(User, request.user)


def _refusal(request: HttpRequest, form: CodeForm) -> HttpResponse | int | None:
    """None: the code is right. Else what is answered, or how long to wait, with the reason in the form.

    A failure counts like one of the password: towards the lock of this user from this place.
    """
    if request.method != "POST" or not form.is_valid():
        return 0
    user = _user(request)
    if login_throttle.is_locked(request, user):
        return login_throttle.locked_page(request, None, None)
    verdict = factors.check(user, form.cleaned_data["code"], at=now())
    if verdict.passed:
        login_throttle.forget_failures(request, user)
        return None
    if verdict.wait_s:
        words = _("Too many wrong codes. Wait %(wait)s, then try again.")
        form.add_error("code", words % {"wait": _waited(verdict.wait_s)})
        return verdict.wait_s
    login_throttle.count_failure(request, user)
    form.add_error("code", _("This code is not right, or was used before. Wait for the next one."))
    return 0


def _waited(seconds: int) -> str:
    """Rounded up, in the largest unit that is not coarse."""
    if seconds < 120:
        return ngettext("%(count)s second", "%(count)s seconds", seconds) % {"count": seconds}
    minutes = -(-seconds // 60)
    if minutes < 120:
        return ngettext("%(count)s minute", "%(count)s minutes", minutes) % {"count": minutes}
    hours = -(-minutes // 60)
    return ngettext("%(count)s hour", "%(count)s hours", hours) % {"count": hours}


def _waiting(response: HttpResponse, wait_s: int) -> HttpResponse:
    if wait_s:
        response.status_code = 429
        response["Retry-After"] = str(wait_s)
    return response


def _asked(request: HttpRequest, **words: Any) -> HttpResponse | None:
    """A question with a field for the code, or whatever else is answered before the code is right; then None."""
    if factors.factor_of(_user(request)) is None:
        return redirect(SETUP)
    form = CodeForm(request.POST or None)
    refused = _refusal(request, form)
    if refused is None or isinstance(refused, HttpResponse):
        return refused
    return _waiting(show(request, "admin/ask.html", form=form, cancel_url=reverse(SETUP), **words), refused)


def _pending_secret(request: HttpRequest) -> str:
    """The secret of this session's setup, the same until a code of it was given."""
    try:
        secret = credentials.decrypt(request.session.get(PENDING, ""), settings.ENCRYPTION_KEYS)
    except credentials.CredentialUnreadable:  # its key was taken out meanwhile
        secret = ""
    if not secret:
        secret = codes.make_secret()
        request.session[PENDING] = credentials.encrypt(secret, settings.ENCRYPTION_KEYS)
    return secret


def _codes_page(request: HttpRequest, made: list[str], done: str, next_url: str = "") -> HttpResponse:
    """The only page with the recovery codes: the very answer to the request that made them."""
    here = reverse(SETUP)
    return show(
        request, "admin/second_factor/recovery_codes.html", title=_("Recovery codes"), done=done, codes=made,
        here=here, next_url=next_url or here,
    )  # fmt: skip


def _tell_of_few_codes(request: HttpRequest, left: int) -> None:
    if left <= FEW:
        words = ngettext(
            "You have %(left)s recovery code left: make new ones under Second factor.",
            "You have %(left)s recovery codes left: make new ones under Second factor.",
            left,
        )
        messages.warning(request, words % {"left": left})
