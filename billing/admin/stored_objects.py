"""Stored objects: what a provider keeps for us, and whose it is."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.admin.display import ago, change_url, code, link
from billing.models import StoredObject


@admin.register(StoredObject)
class StoredObjectAdmin(EndlessAdmin[StoredObject]):
    list_display = ("made", "account_link", "object_code", "provider", "upstream_model")
    list_select_related = ("account",)
    ordering = ("-id",)
    search_fields = ("object_id",)
    search_help_text = gettext_lazy("The whole id of the object")
    empty_text = gettext_lazy("No stored object yet. Answers bring them: responses and containers.")
    fields = ("made", "account_link", "object_code", "provider", "upstream_model", "record_id")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[StoredObject], search_term: str
    ) -> tuple[QuerySet[StoredObject], bool]:
        term = search_term.strip()
        return (queryset.filter(object_id=term) if term else queryset), False

    @admin.display(description=gettext_lazy("started"))
    def made(self, stored: StoredObject) -> SafeString | str:
        return ago(stored.created_at, stored.account.timezone)

    @admin.display(description=gettext_lazy("account"))
    def account_link(self, stored: StoredObject) -> SafeString:
        return link(change_url(stored.account), stored.account.name)

    @admin.display(description=gettext_lazy("object"))
    def object_code(self, stored: StoredObject) -> SafeString:
        return code(stored.object_id)
