"""Attempts: each upstream call of a request."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.admin.display import UNKNOWN, ago, badge, change_url, figure, link, number, number_column
from billing.models import Attempt
from billing.words import stored_words

OUTCOME_WORDS = {
    "answered": gettext_lazy("answered"),
    "refused": gettext_lazy("refused"),
    "failed": gettext_lazy("failed"),
    "cut": gettext_lazy("cut"),
    "stalled": gettext_lazy("stalled"),
    "timed_out": gettext_lazy("timed out"),
    "client_left": gettext_lazy("client left"),
    "hollow": gettext_lazy("hollow"),
    "stopped": gettext_lazy("stopped"),
    "gateway_lost": gettext_lazy("gateway lost"),
}


OUTCOME_LOOKS = {
    "answered": ("good", "check_circle"),
    "refused": ("warn", "front_hand"),
    "client_left": ("calm", "logout"),
    "stopped": ("warn", "stop_circle"),
}


def outcome_badge(outcome: str) -> SafeString:
    """How an attempt ended."""
    tone, icon = OUTCOME_LOOKS.get(outcome, ("bad", "error"))
    return badge(OUTCOME_WORDS.get(outcome, outcome), tone, icon)


@admin.register(Attempt)
class AttemptAdmin(EndlessAdmin[Attempt]):
    list_display = (
        "started",
        "request_link",
        "number_figure",
        "provider",
        "upstream_model",
        "outcome_shown",
        "status",
        "took_figure",
    )
    list_select_related = ("record__account",)
    ordering = ("-id",)
    search_fields = ("provider_request_id",)
    search_help_text = gettext_lazy("The provider's request id")
    empty_text = gettext_lazy("No attempt yet.")
    list_note = gettext_lazy("Each call of a provider. What a failed attempt used is billed to nobody.")
    fields = (
        "request_link",
        "number",
        "provider",
        "upstream_model",
        "outcome_shown",
        "status",
        "why",
        "provider_request_id",
        "started",
        "headers_ms",
        "first_output_ms",
        "duration_ms",
        "usage",
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Attempt], search_term: str
    ) -> tuple[QuerySet[Attempt], bool]:
        term = search_term.strip()
        return (queryset.filter(provider_request_id=term) if term else queryset), False

    @admin.display(description=gettext_lazy("started"))
    def started(self, attempt: Attempt) -> SafeString | str:
        return ago(attempt.started_at, attempt.record.account.timezone)

    @admin.display(description=gettext_lazy("request"))
    def request_link(self, attempt: Attempt) -> SafeString:
        return link(change_url(attempt.record), attempt.record.request_name)

    number_figure = number_column("number", gettext_lazy("number"))

    @admin.display(description=gettext_lazy("outcome"))
    def outcome_shown(self, attempt: Attempt) -> SafeString:
        return outcome_badge(attempt.outcome)

    @admin.display(description=gettext_lazy("reason"))
    def why(self, attempt: Attempt) -> str:
        return stored_words(attempt.reason) or UNKNOWN

    @admin.display(description=gettext_lazy("took"))
    def took_figure(self, attempt: Attempt) -> SafeString:
        return figure(_("%(count)s ms") % {"count": number(attempt.duration_ms)})
