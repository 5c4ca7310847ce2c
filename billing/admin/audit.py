"""The audit log: who changed what, when, from what to what; the newest first, as far back as it goes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing import csv_files
from billing.admin.access import EndlessAdmin
from billing.admin.changes import said, table_name, with_words
from billing.admin.display import moment, stacked
from billing.admin.filters import Choice
from billing.admin.keyset import KeysetChangeList, KeysetPaginator
from billing.admin.pages import page
from billing.admin.typed import DropdownFilter, ModelAdmin, TextFilter
from billing.models import AuditEntry
from billing.periods import parse_day

PROGRAMS = (
    "apply", "close_month", "create_api_key", "createsuperuser", "demo", "gateway", "rotate_credentials",
    "take_off_second_factor",
)  # fmt: skip
"""Who else changes things, beside users."""

ASKED = frozenset({"table", "who", "first", "last", "object_id"})
"""What the list's URL may ask for."""
MOST_EXPORTED = 5_000
SKEW = 1_000
"""Entries that may be written in another order than their times tell; a day's bounds are looked up as ids, for the list
is read by them."""


class TableFilter(DropdownFilter):
    title, parameter_name = gettext_lazy("kind of object"), "table"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        labels = (table._meta.label_lower for table in admin.site._registry)
        return sorted(((label, table_name(label)) for label in labels), key=lambda choice: str(choice[1]))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(table=self.value()) if self.value() else queryset


class WhoFilter(DropdownFilter):
    """Users, commands and the gateway itself; whom the URL names, whoever it is."""

    title, parameter_name = gettext_lazy("who"), "who"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        users = get_user_model().objects.values_list("username", flat=True)
        names = {*users, *PROGRAMS, request.GET.get("who", "")} - {""}
        return [(name, name) for name in sorted(names)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(who=self.value()) if self.value() else queryset


class DayFilter(TextFilter):
    """A day in UTC; what is no day narrows nothing, and is said."""

    def day(self, request: HttpRequest) -> dt.datetime | None:
        text = self.value()
        if not text:
            return None
        try:
            return dt.datetime.combine(parse_day(str(text).strip()), dt.time(), dt.UTC)
        except ValueError:
            messages.warning(request, _("“%(text)s” is no day: write it as 2026-11-03.") % {"text": text})
            return None


class FirstDayFilter(DayFilter):
    title, parameter_name = gettext_lazy("first day (UTC)"), "first"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        day = self.day(request)
        if day is None:
            return queryset
        first = AuditEntry.objects.filter(at__gte=day).order_by("at").values_list("pk", flat=True).first()
        return queryset.none() if first is None else queryset.filter(at__gte=day, pk__gte=first - SKEW)


class LastDayFilter(DayFilter):
    title, parameter_name = gettext_lazy("last day (UTC)"), "last"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        day = self.day(request)
        if day is None:
            return queryset
        end = day + dt.timedelta(days=1)
        last = AuditEntry.objects.filter(at__lt=end).order_by("-at").values_list("pk", flat=True).first()
        return queryset.none() if last is None else queryset.filter(at__lt=end, pk__lte=last + SKEW)


@admin.register(AuditEntry)
class AuditEntryAdmin(EndlessAdmin[AuditEntry]):
    list_display = ("when", "who", "what", "told")
    list_display_links = ("when",)
    list_filter = (TableFilter, WhoFilter, FirstDayFilter, LastDayFilter)
    list_before_template = "admin/billing/auditentry/list_before.html"
    ordering = ("-id",)
    paginator = KeysetPaginator
    search_fields = ("object_name",)
    search_help_text = gettext_lazy("An object's whole name, such as northwind/production")
    empty_text = gettext_lazy("Nothing has been changed yet.")
    list_note = gettext_lazy(
        "Every change by users, commands and the gateway itself; times in UTC, secrets as •••. It never changes."
    )
    fields = ("when", "who", "what", "told")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return KeysetChangeList

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        found = super().get_changelist_instance(request)
        with_words(list(found.result_list), request)
        return found

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> AuditEntry | None:
        entry = super().get_object(request, object_id, from_field)
        if entry is not None:
            with_words([entry], request)
        return entry

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        """None into the values: who may not read one must not find it out by asking for it either."""
        return lookup in ASKED

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditEntry], search_term: str
    ) -> tuple[QuerySet[AuditEntry], bool]:
        term = search_term.strip()
        return (queryset.filter(object_name=term) if term else queryset), False

    @admin.display(description=gettext_lazy("when"))
    def when(self, entry: Any) -> SafeString | str:
        shown: SafeString | str = entry.when_shown
        return shown

    @admin.display(description=gettext_lazy("object"))
    def what(self, entry: Any) -> SafeString:
        return stacked(entry.object_shown, table_name(entry.table))

    @admin.display(description=gettext_lazy("before → after"))
    def told(self, entry: Any) -> SafeString:
        shown: SafeString = entry.changes_shown
        return shown


def _admin() -> Any:
    return admin.site._registry[AuditEntry]


@page("audit/", name="audit", right="billing.view_auditentry")
def audit_log(request: HttpRequest) -> HttpResponseBase:
    """The list, where the sidebar leads."""
    shown: HttpResponseBase = _admin().changelist_view(request)
    return shown


@page("audit/csv/", name="audit_csv", right="billing.view_auditentry")
def audit_csv(request: HttpRequest) -> HttpResponse:
    """The list with its filters as a file: a line per column that changed."""
    entries = list(_admin().get_changelist_instance(request).queryset.order_by("-pk")[:MOST_EXPORTED])
    text = csv_files.text(_lines(with_words(entries, request)))
    response = HttpResponse(text, content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="audit-{now():%Y-%m-%d}.csv"'
    return response


def _lines(entries: list[Any]) -> Iterator[list[object]]:
    yield [
        _("when (UTC)"), _("who"), _("kind of object"), _("object"), _("what"), _("column"), _("before"), _("after"),
    ]  # fmt: skip
    for entry in entries:
        head = [moment(entry.at), entry.who, table_name(entry.table), entry.object_name]
        if not entry.changes_told:
            yield [*head, said(entry) if entry.message else entry.get_action_display(), "", "", ""]
        for change in entry.changes_told:
            yield [*head, entry.get_action_display(), change.label, change.before, change.after]
