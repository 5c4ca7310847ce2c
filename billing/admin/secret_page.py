"""The only page with a secret: the very answer to the request that made it, kept by nobody, shown once."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers

from billing import gateway
from billing.admin.display import change_url
from billing.admin.snippets import snippets
from billing.models import ApiKey


def show_once(
    request: HttpRequest, admin: Any, key: ApiKey, secret: str, *, title: str, done: str, notes: list[str], gone: str
) -> HttpResponse:
    """No redirect leads here, so the secret is in no URL, session or message.

    `done` says what has happened, `notes` what follows from it; `gone` stands in the secret's place once the page was
    left.
    """
    context = {
        **admin.admin_site.each_context(request),
        "opts": admin.opts,
        "original": key,
        "title": title,
        "done": done,
        "notes": notes,
        "gone": gone,
        "secret": secret,
        # The Host header is not believed.
        "snippets": snippets(settings.PUBLIC_URL, secret, gateway.offer(), key.allowed_models),
        "next_url": change_url(key),
    }
    request.current_app = admin.admin_site.name
    response = TemplateResponse(request, "admin/billing/apikey/made.html", context)
    add_never_cache_headers(response)
    return response
