"""How often one may fail to log in: django-axes counts and refuses, this says what counts and what is kept of it.

A user's failures from one place lock that user out from there, many users' failures the place. Settings: `AXES_*`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from axes.handlers.database import AxesDatabaseHandler
from axes.handlers.proxy import AxesProxyHandler
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_login_failed
from django.db.models import QuerySet, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hopbase_site.second_factor.factors import factor_of

LONGEST_NAME = 150
"""Django's own limit for a user's name; what is longer names nobody, and would not fit axes' column."""


class LoginThrottle(AxesDatabaseHandler):  # type: ignore[misc]  # axes ships no types
    """Axes' own handler, with a limit of its own for a place and a reset that frees nobody else."""

    def get_failures(self, request: HttpRequest, credentials: Mapping[str, Any] | None = None) -> int:
        """Recent failures, measured by AXES_FAILURE_LIMIT: those of a place count for less, as offices share one."""
        by_user, by_place = map(_failures, self.get_user_attempts(request, credentials))
        return max(by_user, by_place * settings.AXES_FAILURE_LIMIT // settings.LOGIN_FAILURES_OF_A_PLACE)

    def user_logged_in(self, sender: object, request: HttpRequest, user: User, **kwargs: Any) -> None:
        """Nothing is forgotten halfway: who knows the password would else guess codes without end."""
        if factor_of(user) is None:
            super().user_logged_in(sender, request, user, **kwargs)

    def reset_user_attempts(self, request: HttpRequest, credentials: Mapping[str, Any] | None = None) -> int:
        """Forget the failures of the user who has logged in; those at other names still count against the place."""
        by_user, _by_place = self.filter_user_attempts(request, credentials)
        count, _ = by_user.delete()
        return int(count)


def _failures(attempts: QuerySet[Any]) -> int:
    return attempts.aggregate(sum=Sum("failures_since_start"))["sum"] or 0


def is_locked(request: HttpRequest, user: User) -> bool:
    """Whether a user's code is refused from here, as the password would be."""
    return bool(AxesProxyHandler.is_locked(request, _credentials(user)))


def count_failure(request: HttpRequest, user: User) -> None:
    """Count a wrong code like a wrong password; the one too many is answered by `locked_page`."""
    user_login_failed.send(sender=__name__, credentials=_credentials(user), request=request)


def forget_failures(request: HttpRequest, user: User) -> None:
    """A login is complete: forget the user's own failures, as a login without a second step does."""
    AxesProxyHandler.update_request(request)
    AxesProxyHandler.get_implementation().reset_user_attempts(request, _credentials(user))


def _credentials(user: User) -> dict[str, str]:
    return {"username": user.get_username()}


def name_of(request: HttpRequest, credentials: Mapping[str, Any] | None) -> str:
    """The name that somebody tries to log in by."""
    name = (credentials or request.POST).get("username") or ""
    return str(name)[:LONGEST_NAME]


def keep_no_forms(sender: object, instance: Any, **kwargs: Any) -> None:
    """Axes would keep the fields of each form that failed, all but the password; nobody needs them."""
    instance.get_data = instance.post_data = ""


def locked_page(request: HttpRequest, response: HttpResponse | None, credentials: object) -> HttpResponse:
    """What is answered instead while somebody is locked out: 429, in the admin's look."""
    wait: dt.timedelta = settings.AXES_COOLOFF_TIME
    context = {**admin.site.each_context(request), "minutes": int(wait.total_seconds() // 60)}
    page = render(request, "admin/locked.html", context, status=429)
    page["Retry-After"] = str(int(wait.total_seconds()))
    page["Cache-Control"] = "no-store"
    return page


def forget(now: dt.datetime) -> int:
    """Remove failures that no longer count, and with them whose they were; returns how many rows."""
    count, _ = AccessAttempt.objects.filter(attempt_time__lt=now - settings.AXES_COOLOFF_TIME).delete()
    return int(count)
