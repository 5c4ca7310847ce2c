"""No page before the code: a session whose user has a second factor is sent to give it, whatever URL it asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from hopbase_site.models import SecondFactor
from hopbase_site.second_factor.factors import factor_of

MARK = "second_factor"
"""In a session: which factor it has shown. Another one, set up later, it has not."""
SETUP, CODE = "admin:second_factor", "admin:second_factor_code"
OPEN = frozenset({"admin:login", "admin:logout", "set_language", CODE})
"""What answers before the code."""


class UserBackend(ModelBackend):
    """Django's own, but a session's user comes with the second factor: each request asks for it, at no query more."""

    def get_user(self, user_id: Any) -> User | None:
        user = User._default_manager.select_related("second_factor").filter(pk=user_id).first()
        return user if user is not None and self.user_can_authenticate(user) else None


class SecondFactorGate:
    """A middleware, after those that know the session and its user."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., HttpResponseBase], args: Any, kwargs: Any
    ) -> HttpResponse | None:
        """Where the request is sent instead of to its view, if it is."""
        match = request.resolver_match
        if match is not None and match.view_name in OPEN:
            return None
        user = request.user
        if not user.is_authenticated:
            return None
        factor = factor_of(user)
        if factor is None:
            missing = settings.REQUIRE_SECOND_FACTOR and user.is_staff
            return _sent(request, SETUP) if missing and (match is None or match.view_name != SETUP) else None
        return None if has_shown(request, factor) else _sent(request, CODE)


def has_shown(request: HttpRequest, factor: SecondFactor) -> bool:
    """Whether a code of this factor was given in this session."""
    return bool(request.session.get(MARK) == factor.pk)


def mark(request: HttpRequest, factor: SecondFactor) -> None:
    """From now on this session has given a code; like a login, that changes its cookie."""
    request.session.cycle_key()
    request.session[MARK] = factor.pk


def next_of(request: HttpRequest) -> str:
    """Where the request wanted to go: a path of this host, else the home page."""
    wanted = request.POST.get("next") or request.GET.get("next") or ""
    safe = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure())
    # What is no path may be taken for a view's name by `redirect`.
    return wanted if safe and wanted.startswith("/") else reverse("admin:index")


def _sent(request: HttpRequest, name: str) -> HttpResponse:
    query = {"next": request.get_full_path()} if request.method == "GET" else {}
    response = redirect(f"{reverse(name)}?{urlencode(query)}" if query else reverse(name))
    response["Cache-Control"] = "no-store"
    return response
