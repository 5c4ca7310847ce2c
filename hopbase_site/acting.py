"""Who acts in a request of the admin: its user, for the audit log."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from billing import audit


def acting_user(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """A middleware, after those that know the user. Who it is is read only where something changes."""

    def respond(request: HttpRequest) -> HttpResponse:
        def who() -> audit.Actor:
            user = request.user
            return audit.Actor(user.get_username(), user.pk) if user.is_authenticated else audit.Actor("nobody")

        with audit.acting(who):
            return get_response(request)

    return respond
