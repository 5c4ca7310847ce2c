"""Pages of the admin that are no model's list or form: where each is under /admin/, and the right that opens it.

    @page("usage/", name="usage", right="billing.view_usagerecord")
    def usage(request): …

`hopbase_site.urls` puts `urls()` before the site's own, in its namespace: `reverse("admin:usage")`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

View = Callable[..., HttpResponseBase]

_pages: list[tuple[str, str, View]] = []


def page(route: str, *, name: str, right: str | None) -> Callable[[View], View]:
    """Make a view a page for those with a right: who is not logged in is asked to, who lacks the right gets 403.

    None: for everybody who may log in.
    """

    def add(view: View) -> View:
        @functools.wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if right is not None and not request.user.has_perm(right):
                raise PermissionDenied
            return view(request, *args, **kwargs)

        _pages.append((route, name, guarded))
        return guarded

    return add


def urls() -> list[URLPattern]:
    """The pages' URLs, for the site that is in use."""
    return [path(route, admin.site.admin_view(view), name=name) for route, name, view in _pages]


def show(request: HttpRequest, template: str, *, status: int = 200, **context: Any) -> TemplateResponse:
    """A page in the admin's frame: sidebar, user, messages. `title` is its heading."""
    request.current_app = admin.site.name  # as Django's own views do
    return TemplateResponse(request, template, {**admin.site.each_context(request), **context}, status=status)


def site_admin(model: type[Model]) -> Any:
    """The site's ModelAdmin of a model, for pages that look like its own."""
    return admin.site._registry[model]
