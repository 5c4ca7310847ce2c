"""Streams under way, and the gateway processes that carry them."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin, ReadOnlyAdmin
from billing.admin.display import ago, change_url, clipped, duration, figure, link, number, stacked
from billing.admin.filters import WIRE_FORMATS, AccountFilter, ModelFilter, WireFormatFilter
from billing.models import ApiKey, GatewayProcess, OpenStream


@admin.register(OpenStream)
class OpenStreamAdmin(EndlessAdmin[OpenStream]):
    list_display = (
        "started",
        "request_clipped",
        "key_and_model",
        "provider",
        "attempt",
        "silent",
        "input_figure",
        "output_figure",
    )
    list_display_links = ("started", "request_clipped")
    list_filter = (AccountFilter, ModelFilter, WireFormatFilter)
    list_select_related = ("account",)
    ordering = ("started_at",)
    search_fields = ("request_name",)
    empty_text = gettext_lazy("No stream is under way.")
    list_note = gettext_lazy("Requests under way, the oldest first. Tokens are those of the last checkpoint.")
    fields = (
        "request_name",
        "key_link",
        "model",
        "wire",
        "stream",
        "provider",
        "upstream_model",
        "attempt",
        "started",
        "silent",
        "input_figure",
        "output_figure",
        "checkpoint",
        "process_label",
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[OpenStream], search_term: str
    ) -> tuple[QuerySet[OpenStream], bool]:
        term = search_term.strip()
        return (queryset.filter(request_name=term) if term else queryset), False

    @admin.display(description=gettext_lazy("since"))
    def started(self, stream: OpenStream) -> SafeString | str:
        return ago(stream.started_at, stream.account.timezone)

    @admin.display(description=gettext_lazy("request id"))
    def request_clipped(self, stream: OpenStream) -> SafeString:
        return clipped(stream.request_name)

    @admin.display(description=gettext_lazy("key · model"))
    def key_and_model(self, stream: OpenStream) -> SafeString:
        return stacked(self.key_link(stream), stream.model)

    @admin.display(description=gettext_lazy("key"))
    def key_link(self, stream: OpenStream) -> SafeString:
        return link(change_url(ApiKey(pk=stream.api_key_id)), f"{stream.account_name}/{stream.key_name}")

    @admin.display(description=gettext_lazy("wire format"))
    def wire(self, stream: OpenStream) -> str:
        return WIRE_FORMATS.get(stream.wire_format, stream.wire_format)

    @admin.display(description=gettext_lazy("silent for"))
    def silent(self, stream: OpenStream) -> str:
        return duration(now() - (stream.last_output_at or stream.started_at))

    @admin.display(description=gettext_lazy("input so far"))
    def input_figure(self, stream: OpenStream) -> SafeString:
        return figure(number(stream.counted_input))

    @admin.display(description=gettext_lazy("output so far"))
    def output_figure(self, stream: OpenStream) -> SafeString:
        return figure(number(stream.counted_output))

    @admin.display(description=gettext_lazy("last checkpoint"))
    def checkpoint(self, stream: OpenStream) -> SafeString | str:
        return ago(stream.checkpoint_at, stream.account.timezone)

    @admin.display(description=gettext_lazy("process"))
    def process_label(self, stream: OpenStream) -> str:
        return GatewayProcess.objects.filter(pk=stream.process).values_list("label", flat=True).first() or str(
            stream.process
        )


@admin.register(GatewayProcess)
class GatewayProcessAdmin(ReadOnlyAdmin[GatewayProcess]):
    list_display = ("label", "started", "heartbeat")
    ordering = ("-started_at",)
    empty_text = gettext_lazy("No gateway process has started yet.")
    fields = ("label", "started", "heartbeat")

    @admin.display(description=gettext_lazy("started"), ordering="started_at")
    def started(self, process: GatewayProcess) -> SafeString | str:
        return ago(process.started_at)
