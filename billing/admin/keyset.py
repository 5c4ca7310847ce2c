"""Pages of an endless list by the key of their first and last row: the thousandth costs what the first one does.

Rows are the newest first, by their ids. `?before=ID` is the page of older ones, `?after=ID` that of newer ones; another
choice of filters begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest
from unfold.paginator import InfinitePaginator

from billing.row_ids import row_id

BEFORE, AFTER = "before", "after"


class KeysetPaginator(InfinitePaginator):  # type: ignore[misc]  # Unfold ships no types
    """Only tells which template has the links; the list itself knows its pages."""

    template_name = "admin/keyset_pages.html"


class KeysetChangeList(ChangeList):
    """`older_url`, `newer_url`: the pages on both sides, "" where there is none; `newest_url`: the first page."""

    at: Mapping[str, str] = MappingProxyType({})
    """Where the page is: `before` or `after`, as the query says it."""

    def get_filters_params(self, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """What narrows the list. Where in it we are is no filter, and no link keeps it unless it is said anew."""
        found: dict[str, Any] = super().get_filters_params(params)
        self.at = {**self.at, **{name: found.pop(name)[-1] for name in (BEFORE, AFTER) if name in found}}
        for name in self.at:
            self.params.pop(name, None)
            self.filter_params.pop(name, None)
        return found

    def get_results(self, request: HttpRequest) -> None:
        before, after = (row_id(self.at.get(name, "")) or None for name in (BEFORE, AFTER))
        rows, more = self.queryset, self.list_per_page + 1  # one more than is shown tells whether there are more
        if after is not None:
            found = list(rows.filter(pk__gt=after).order_by("pk")[:more])
            newer, older = len(found) == more, True
            shown = found[: self.list_per_page][::-1]
        else:
            found = list((rows if before is None else rows.filter(pk__lt=before)).order_by("-pk")[:more])
            newer, older = before is not None, len(found) == more
            shown = found[: self.list_per_page]
        self._take(request, shown)
        self.newest_url = self.get_query_string() if newer or self.at else ""
        self.newer_url = self.get_query_string({AFTER: shown[0].pk}) if newer and shown else ""
        self.older_url = self.get_query_string({BEFORE: shown[-1].pk}) if older and shown else ""

    def _take(self, request: HttpRequest, shown: list[Any]) -> None:
        """What Django's list and its templates look at."""
        self.paginator = self.model_admin.get_paginator(request, self.queryset, self.list_per_page)
        self.result_list, self.result_count = shown, len(shown)
        self.full_result_count, self.show_full_result_count = len(shown), False
        self.show_admin_actions, self.can_show_all, self.multi_page = True, False, False
