"""Filters of lists, as drop-downs whose choice stands in the URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from billing.admin.typed import DropdownFilter, ModelAdmin
from billing.models import Account, Price
from billing.row_ids import row_id
from billing.usage import ENDINGS, METERINGS

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

Choice = tuple[str, "str | _StrPromise"]

ENDING_WORDS: dict[str, str | _StrPromise] = {
    "complete": _("complete"),
    "incomplete": _("incomplete"),
    "client_left": _("client left"),
    "provider_cut": _("provider cut"),
    "provider_error": _("provider error"),
    "stalled": _("stalled"),
    "timed_out": _("timed out"),
    "stopped": _("stopped"),
    "gateway_lost": _("gateway lost"),
    "shutdown": _("shutdown"),
    "refused": _("refused"),
}
METERING_WORDS: dict[str, str | _StrPromise] = {
    "reported": _("reported"),
    "estimated": _("estimated"),
    "checkpoint": _("checkpoint"),
    "none": _("none"),
}
BUCKET_WORDS: dict[str, str | _StrPromise] = {
    "input": _("input"),
    "cache_read": _("cache read"),
    "cache_write": _("cache write"),
    "cache_write_1h": _("cache write, 1 h"),
    "output": _("output"),
    "adjustment": _("adjustment"),
    "carried_over": _("carried over"),
}
WIRE_FORMATS = {"chat_completions": "Chat Completions", "responses": "Responses", "messages": "Messages"}


class FieldFilter(DropdownFilter):
    """Rows whose `field` has the chosen value."""

    field = ""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(**{self.field: self.value()}) if self.value() else queryset


class EndingFilter(FieldFilter):
    title, parameter_name, field = _("ending"), "ending", "ending"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return [(ending, ENDING_WORDS[ending]) for ending in ENDINGS]


class MeteringFilter(FieldFilter):
    title, parameter_name, field = _("metering"), "metering", "metering"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return [(metering, METERING_WORDS[metering]) for metering in METERINGS]


class WireFormatFilter(FieldFilter):
    title, parameter_name, field = _("wire format"), "wire_format", "wire_format"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return list(WIRE_FORMATS.items())


class AccountFilter(FieldFilter):
    title, parameter_name, field = _("account"), "account", "account_id"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return [(str(pk), name) for pk, name in Account.objects.values_list("pk", "name")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        return queryset.filter(account_id=row_id(chosen)) if chosen else queryset


class UnpricedFilter(DropdownFilter):
    title, parameter_name = _("price"), "unpriced"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return [("1", _("unpriced")), ("0", _("priced"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(unpriced=self.value() == "1") if self.value() in ("0", "1") else queryset


class ActiveFilter(DropdownFilter):
    title, parameter_name = _("state"), "active"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return [("1", _("active")), ("0", _("disabled"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(active=self.value() == "1") if self.value() in ("0", "1") else queryset


class ModelFilter(FieldFilter):
    """Public model names: those with a price, and the one that the URL names."""

    title, parameter_name, field = _("model"), "model", "model"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        names = set(Price.objects.values_list("model", flat=True)) | {request.GET.get(self.parameter_name, "")}
        return [(name, name) for name in sorted(names) if name]
