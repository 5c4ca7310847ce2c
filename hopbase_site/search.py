"""What Ctrl/⌘ K finds: pages by their names, keys, requests by any exact id, invoices by number.

In place of Unfold's search, which keeps what it found for minutes, in whatever language that was, and knows ids only in
small letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from django.contrib import admin
from django.db.models import Model, Q, QuerySet, Value
from django.db.models.functions import Concat
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from billing import keys
from billing.admin.display import change_url, moment
from billing.admin.pages import page, site_admin
from billing.models import ApiKey, Invoice, OpenStream, UsageRecord
from hopbase_site.navigation import sidebar

LONGEST = 200
MOST = 10
"""Of each kind: who has more to choose from writes on."""


class Found(NamedTuple):
    title: str
    description: str
    link: str
    icon: str


Finder = Callable[[HttpRequest, str], Iterable[Found]]


@page("search/", name="search", right=None)
def search(request: HttpRequest) -> HttpResponse:
    """The list in the dialog of Ctrl/⌘ K."""
    term = request.GET.get("s", "").replace("\x00", "").strip()[:LONGEST]
    if not term:
        return HttpResponse()
    found = [*pages(request, term)]
    for right, find in FINDERS:
        if request.user.has_perm(right):
            found += find(request, term)
    return TemplateResponse(request, "admin/search_results.html", {"results": found})


def pages(request: HttpRequest, term: str) -> Iterator[Found]:
    """Pages of the viewer's own menu, and lists of the site that stand in no menu, in the language that is active."""
    seen = set()
    for found in (*_menu(request), *_lists(request)):
        if term.casefold() in found.title.casefold() and found.link not in seen:
            seen.add(found.link)
            yield found


def _menu(request: HttpRequest) -> Iterator[Found]:
    for part in sidebar(request):
        for item in part["items"]:
            if item.get("permission", bool)(request):
                yield Found(str(item["title"]), str(part.get("title", "HopBase")), item["link"], item["icon"])


def _lists(request: HttpRequest) -> Iterator[Found]:
    for app in admin.site.get_app_list(request):
        for model in app["models"]:
            if model["admin_url"]:
                yield Found(str(model["name"]), str(app["name"]), model["admin_url"], "list")


def _keys(request: HttpRequest, term: str) -> Iterator[Found]:
    """By account and name, and by what is shown of either secret."""
    beginning = term.rstrip("…")[: keys.SHOWN_LENGTH]  # no more of a secret is kept
    begins = Q(shown__startswith=beginning) | Q(previous_shown__startswith=beginning)
    named = ApiKey.objects.select_related("account").annotate(path=Concat("account__name", Value("/"), "name"))
    for key in named.filter(Q(path__icontains=term) | begins)[:MOST]:
        state = _("revoked") if key.revoked_at else _("API key")
        yield Found(str(key), f"{state} · {key.shown}", change_url(key), "key")


def _requests(request: HttpRequest, term: str) -> Iterator[Found]:
    for record in _by_id(UsageRecord, request, term):
        yield Found(
            record.request_name,
            f"{record.model} · {moment(record.ended_at, record.account.timezone)}",
            change_url(record),
            "receipt_long",
        )


def _streams(request: HttpRequest, term: str) -> Iterator[Found]:
    for stream in _by_id(OpenStream, request, term):
        yield Found(stream.request_name, f"{stream.model} · {_('under way now')}", change_url(stream), "bolt")


def _by_id(model: type[Model], request: HttpRequest, term: str) -> Iterable[Any]:
    """Requests as their own list finds them: by exact ids alone."""
    rows: QuerySet[Any]
    rows, _twice = site_admin(model).get_search_results(request, model._default_manager.select_related("account"), term)
    return rows[:MOST]


def _invoices(request: HttpRequest, term: str) -> Iterator[Found]:
    for invoice in Invoice.objects.filter(number__icontains=term).order_by("-number")[:MOST]:
        yield Found(str(invoice), f"{invoice.account_name}/{invoice.key_name}", change_url(invoice), "request_quote")


FINDERS: tuple[tuple[str, Finder], ...] = (
    ("billing.view_apikey", _keys),
    ("billing.view_usagerecord", _requests),
    ("billing.view_openstream", _streams),
    ("billing.view_invoice", _invoices),
)
"""The right without which a kind is not found, and what finds it: each a fixed number of queries."""
