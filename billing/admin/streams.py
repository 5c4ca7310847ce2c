"""Streams under way, kept fresh while somebody looks and stopped where that is asked for; and their processes."""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.cache import add_never_cache_headers
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.enums import ActionVariant

from billing.admin import live
from billing.admin.access import EndlessAdmin, ReadOnlyAdmin, ask, asks_first
from billing.admin.display import (
    UNKNOWN,
    ago,
    change_url,
    clipped,
    code,
    figure,
    link,
    list_url,
    money,
    number,
    number_column,
    stacked,
)
from billing.admin.filters import WIRE_FORMATS, AccountFilter, ModelFilter, WireFormatFilter
from billing.admin.typed import ModelAdmin
from billing.models import ApiKey, GatewayProcess, OpenStream, UsageRecord
from billing.money import NANO_PLACES

Row = TypeVar("Row", bound=Model)

MOST_AT_ONCE = 50
"""Streams that are stopped by one click: a page of the list."""


def ask_to_stop(page: ModelAdmin[Any], request: HttpRequest, streams: QuerySet[OpenStream]) -> int:
    """Ask the owners of these streams to stop them: a checkpoint tells them, within seconds. Returns how many anew.

    Each is logged, so that its record can say who it was.
    """
    with transaction.atomic():
        asked = list(streams.filter(stop_requested=False))
        OpenStream.objects.filter(pk__in=[stream.pk for stream in asked]).update(stop_requested=True)
        for stream in asked:
            page.log_change(request, stream, [{"changed": {"fields": ["stop_requested"]}}])
    return len(asked)


@admin.register(OpenStream)
class OpenStreamAdmin(EndlessAdmin[OpenStream]):
    list_display = (
        "started",
        "key_and_request",
        "model_and_provider",
        "state_and_attempt",
        "tokens_figure",
        "silence_figure",
        "process_label",
    )
    list_display_links = ("started",)
    list_filter = (AccountFilter, ModelFilter, WireFormatFilter)
    list_select_related = ("account",)
    list_before_template = "admin/billing/openstream/bar.html"
    ordering = (Coalesce("last_output_at", "attempt_started_at", "started_at"),)
    search_fields = ("request_name",)
    search_help_text = gettext_lazy("Request id, ours or the provider's")
    empty_text = gettext_lazy("No stream is under way.")
    see_also = UsageRecord._meta
    list_note = gettext_lazy("The most silent first. Tokens are those of the last checkpoint, seconds old.")
    actions_detail = ("stop",)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("state", "what_it_means"), ("request_name", "billing_id"), ("key_link", "model"), ("wire", "tier"),
                )
            },
        ),
        (
            gettext_lazy("Progress"),
            {
                "fields": (
                    ("started", "first_output"), ("silence_figure", "tokens_figure"), ("checkpoint", "process_label"),
                )
            },
        ),
        (
            gettext_lazy("Attempt"),
            {
                "fields": (
                    ("attempt", "attempt_started"), ("provider", "upstream_model"), ("provider_id", "retry_count"),
                )
            },
        ),
    )  # fmt: skip

    class Media:
        js = ("hopbase/live.js",)

    def get_urls(self) -> list[URLPattern]:
        own = [
            path("rows/", self.admin_site.admin_view(self.rows), name="billing_openstream_rows"),
            path("stop/", self.admin_site.admin_view(self.stop_selected), name="billing_openstream_stop_selected"),
        ]
        return own + super().get_urls()

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        """Who may not stop a stream sees no button for it."""
        return ("pick", *self.list_display, "act") if self.has_act_permission(request) else self.list_display

    def get_queryset(self, request: HttpRequest) -> QuerySet[OpenStream]:
        process = GatewayProcess.objects.filter(pk=OuterRef("process"))
        rows = super().get_queryset(request)
        return rows.annotate(
            process_name=Subquery(process.values("label")[:1]), heartbeat=Subquery(process.values("heartbeat")[:1])
        )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[OpenStream], search_term: str
    ) -> tuple[QuerySet[OpenStream], bool]:
        """Exact ids, as in the list of requests."""
        if not (term := search_term.strip()):
            return queryset, False
        found = queryset.filter(request_name=term) | queryset.filter(provider_request_id=term)
        if identity := _uuid(term):
            found |= queryset.filter(pk=identity)
        return found, False

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        page = super().get_changelist_instance(request)
        query = request.GET.urlencode()
        for stream in page.result_list:
            _look_at(stream)
            stream.came_by = query
        return page

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> OpenStream | None:
        stream = super().get_object(request, object_id, from_field)
        if stream is not None:
            _look_at(stream)
        return stream

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        asked = _with_id(OpenStream, object_id).filter(stop_requested=True).exists()
        return [] if asked else list(super().get_actions_detail(request, object_id))  # type: ignore[misc]  # Unfold's

    # --- pages ---

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> TemplateResponse | HttpResponse:
        response = super().changelist_view(request, {**(extra_context or {}), **self._bar(request)})
        if isinstance(response, TemplateResponse) and response.context_data and "cl" in response.context_data:
            response.context_data.update(state_of_list(response.context_data["cl"]))
        return response

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """A stream's page; once it has ended, its record's."""
        if not _with_id(OpenStream, object_id).exists() and self.has_view_permission(request):
            return self._ended(request, object_id)
        return super().change_view(request, object_id, form_url, extra_context)

    def rows(self, request: HttpRequest) -> HttpResponse:
        """What changes of the list, for the page's script; the same query as the list itself takes."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            page = self.get_changelist_instance(request)
        except IncorrectLookupParameters:
            return HttpResponseBadRequest()
        page.formset = None  # as in the list itself, which the template is of
        context = {"cl": page, "opts": self.opts, **state_of_list(page)}
        response = TemplateResponse(request, "admin/billing/openstream/rows.html", context)
        add_never_cache_headers(response)
        return response

    @asks_first(gettext_lazy("Stop"), "stop", icon="stop_circle", variant=ActionVariant.DANGER)
    def stop(self, request: HttpRequest, object_id: str) -> HttpResponse:
        stream = self.get_object(request, object_id)
        if stream is None:
            return self._ended(request, object_id)
        back = _back(request)
        if stream.stop_requested:
            messages.info(request, _("This stream is being stopped already."))
            return redirect(back)
        found = _seen(stream)
        if request.method == "POST" and not found.is_lost:
            ask_to_stop(self, request, OpenStream.objects.filter(pk=stream.pk))
            messages.success(request, _("Stopping the stream of %(key)s. Its record follows.") % {"key": _key(stream)})
            return redirect(back)
        question = _("Stop this stream of %(key)s?") % {"key": _key(stream)}
        if found.is_lost:
            return ask(
                request, self, stream, title=_("Stop a stream"), question=question, blockers=_lost([stream]),
                cancel_url=back,
            )  # fmt: skip
        return ask(
            request, self, stream, title=_("Stop a stream"), danger=True, verb=_("Stop"), question=question,
            effects=_effects([stream]), cancel_url=back,
        )  # fmt: skip

    @asks_first(gettext_lazy("Stop selected"), "stop", icon="stop_circle", variant=ActionVariant.DANGER)
    def stop_selected(self, request: HttpRequest) -> HttpResponse:
        """Ask about, then stop, the streams of `?id=…&id=…`: those of a page's list."""
        chosen = [identity for text in request.GET.getlist("id")[:MOST_AT_ONCE] if (identity := _uuid(text))]
        streams = list(self.get_queryset(request).filter(pk__in=chosen, stop_requested=False).order_by("started_at"))
        for stream in streams:
            _look_at(stream)
        able = [stream for stream in streams if not _seen(stream).is_lost]
        back = _back(request)
        if request.method == "POST" and able:
            asked = ask_to_stop(self, request, OpenStream.objects.filter(pk__in=[stream.pk for stream in able]))
            words = ngettext("Stopping %(count)s stream.", "Stopping %(count)s streams.", asked)
            messages.success(request, words % {"count": number(asked)})
            return redirect(back)
        if not streams:
            messages.info(request, _("None of the chosen streams is under way any more, or none was chosen."))
            return redirect(back)
        words = ngettext("Stop %(count)s stream?", "Stop %(count)s streams?", len(able or streams))
        question = words % {"count": number(len(able or streams))}
        names = [f"{_key(stream)} · {stream.model}" for stream in able or streams]
        if not able:
            return ask(
                request, self, None, title=_("Stop streams"), question=question, names=names, blockers=_lost(streams),
                cancel_url=back,
            )  # fmt: skip
        return ask(
            request, self, None, title=_("Stop streams"), danger=True, verb=_("Stop"), question=question, names=names,
            effects=[*_effects(able), *_lost(streams)], cancel_url=back,
        )  # fmt: skip

    def _ended(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Where to go from the page of a stream that is no more."""
        record = _with_id(UsageRecord, object_id).first()
        if record is None:
            messages.info(request, _("This stream is not under way, and it left no record: nothing is billed."))
            return redirect(list_url(OpenStream))
        messages.info(request, _("This stream has ended. This is its record."))
        return redirect(change_url(record))

    def _bar(self, request: HttpRequest) -> dict[str, Any]:
        query = request.GET.urlencode()
        rows_url = reverse("admin:billing_openstream_rows")
        return {
            "rows_url": f"{rows_url}?{query}" if query else rows_url,
            "may_stop": self.has_act_permission(request),
            "stop_url": reverse("admin:billing_openstream_stop_selected"),
            "came_by": query,
        }

    # --- columns and fields ---

    @admin.display(description=gettext_lazy("select"))
    def pick(self, stream: OpenStream) -> SafeString:
        if stream.stop_requested or _seen(stream).is_lost:
            return SafeString(UNKNOWN)
        label = _("Select the stream %(request)s") % {"request": stream.request_name}
        return format_html(
            '<input type="checkbox" class="hb-pick" name="id" value="{}" form="hb-stop" aria-label="{}">',
            stream.pk,
            label,
        )

    @admin.display(description=gettext_lazy("since"))
    def started(self, stream: OpenStream) -> SafeString | str:
        return ago(stream.started_at, stream.account.timezone)

    @admin.display(description=gettext_lazy("key · request id"))
    def key_and_request(self, stream: OpenStream) -> SafeString:
        return stacked(self.key_link(stream), clipped(stream.request_name))

    @admin.display(description=gettext_lazy("key"))
    def key_link(self, stream: OpenStream) -> SafeString:
        return link(change_url(ApiKey(pk=stream.api_key_id)), _key(stream))

    @admin.display(description=gettext_lazy("model · provider"))
    def model_and_provider(self, stream: OpenStream) -> SafeString:
        return stacked(stream.model, stream.provider or UNKNOWN)

    @admin.display(description=gettext_lazy("state"))
    def state(self, stream: OpenStream) -> SafeString:
        return live.state_badge(_seen(stream))

    @admin.display(description=gettext_lazy("what to do"))
    def what_it_means(self, stream: OpenStream) -> str:
        return live.unanswered(_process(stream), _seen(stream).standing) or UNKNOWN

    @admin.display(description=gettext_lazy("state · attempt"))
    def state_and_attempt(self, stream: OpenStream) -> SafeString:
        words = _("attempt %(number)s") % {"number": number(stream.attempt)}
        return stacked(live.state_badge(_seen(stream)), words)

    @admin.display(description=gettext_lazy("tokens so far"))
    def tokens_figure(self, stream: OpenStream) -> SafeString:
        usage = live.used_so_far(stream)
        words = _("in %(input)s · out %(output)s") % {
            "input": number(usage.total_input),
            "output": number(usage.output),
        }
        return stacked(figure(number(usage.total_input + usage.output)), words)

    @admin.display(description=gettext_lazy("silent / limit"))
    def silence_figure(self, stream: OpenStream) -> SafeString | str:
        return live.silence_shown(_seen(stream))

    @admin.display(description=gettext_lazy("process"))
    def process_label(self, stream: OpenStream) -> str:
        return _process(stream)

    @admin.display(description=gettext_lazy("action"))
    def act(self, stream: OpenStream) -> SafeString | str:
        if _seen(stream).is_lost:
            return _("settled within 60 s")
        if stream.stop_requested:
            return _("stopping")
        url = reverse("admin:billing_openstream_stop", args=[stream.pk])
        query = urlencode({"back": stream.came_by}) if stream.came_by else ""  # type: ignore[attr-defined]
        return format_html(
            '<a href="{}" class="hb-button hb-button-small" data-ask>{}<span class="sr-only"> {}</span></a>',
            f"{url}?{query}" if query else url,
            _("Stop"),
            f"{_key(stream)} {stream.request_name}",
        )

    @admin.display(description=gettext_lazy("billing id"))
    def billing_id(self, stream: OpenStream) -> SafeString:
        return code(str(stream.pk))

    @admin.display(description=gettext_lazy("wire format"))
    def wire(self, stream: OpenStream) -> str:
        name = WIRE_FORMATS.get(stream.wire_format, stream.wire_format)
        return name if stream.stream else _("%(wire_format)s, as a whole answer") % {"wire_format": name}

    @admin.display(description=gettext_lazy("first output"))
    def first_output(self, stream: OpenStream) -> SafeString | str:
        return ago(stream.first_output_at, stream.account.timezone)

    @admin.display(description=gettext_lazy("last checkpoint"))
    def checkpoint(self, stream: OpenStream) -> SafeString | str:
        return ago(stream.checkpoint_at, stream.account.timezone)

    @admin.display(description=gettext_lazy("attempt started"))
    def attempt_started(self, stream: OpenStream) -> SafeString | str:
        return ago(stream.attempt_started_at or stream.started_at, stream.account.timezone)

    @admin.display(description=gettext_lazy("provider's request id"))
    def provider_id(self, stream: OpenStream) -> SafeString:
        return code(stream.provider_request_id)

    @admin.display(description=gettext_lazy("service tier asked"))
    def tier(self, stream: OpenStream) -> str:
        return stream.tier_asked or UNKNOWN


def state_of_list(page: ChangeList) -> dict[str, Any]:
    """What the list says beside its rows: how many there are, as of when, and what became of those stopped by hand."""
    moment, shown = now(), list(page.result_list)
    return {
        "said": live.under_way(len(shown), more=len(shown) >= page.list_per_page),
        "as_of": f"{moment:%H:%M:%S} UTC",
        "stopped": [_stopped_row(one) for one in live.lately_stopped(moment)],
    }


def _stopped_row(one: live.Stopped) -> dict[str, Any]:
    record = one.record
    if record is None:
        return {"name": one.name, "who": one.who, "url": ""}
    return {
        "name": f"{record.account_name}/{record.key_name} · {record.model}",
        "who": one.who,
        "url": change_url(record),
        "cost": UNKNOWN if record.unpriced else money(record.cost_nanos, record.currency, NANO_PLACES),
        "request": record.request_name,
    }


def _look_at(stream: Any) -> None:
    """Give a row read by `get_queryset` what is known of it at this moment."""
    standing = live.onlooker().standing(stream.process, stream.heartbeat)
    stream.seen = live.look(stream, standing, now())
    stream.came_by = ""


def _seen(stream: Any) -> live.Look:
    found: live.Look = stream.seen
    return found


def _key(stream: OpenStream) -> str:
    return f"{stream.account_name}/{stream.key_name}"


def _process(stream: Any) -> str:
    return stream.process_name or str(stream.process)


def _back(request: HttpRequest) -> str:
    """The list as it was left: its query comes along in `back`, and cannot lead anywhere else."""
    query = request.GET.get("back", "")
    return f"{list_url(OpenStream)}?{query}" if query else list_url(OpenStream)


def _lost(streams: list[OpenStream]) -> list[str]:
    """What stands against stopping those of the streams whose process is gone."""
    lost = {_process(stream): _seen(stream).standing for stream in streams if _seen(stream).is_lost}
    return [live.unanswered(process, standing) for process, standing in lost.items()]


def _effects(streams: list[OpenStream]) -> list[str]:
    """What stopping does to clients and bills, and that there is no way back."""
    effects = [_effect_on_bills(streams)]
    if any(stream.stream for stream in streams):
        text = _("It takes up to %(seconds)s s; what is produced until then is billed too.")
        effects.append(text % {"seconds": f"{settings.CHECKPOINT_S:g}"})
    if any(not stream.stream for stream in streams):
        effects.append(_("An answer that is no stream is not billed: it comes whole or not at all."))
    silent = {_process(stream): _seen(stream).standing for stream in streams}
    effects += filter(None, (live.unanswered(*one) for one in silent.items()))
    return [*effects, _("There is no way back: the client can only send its request again.")]


def _effect_on_bills(streams: list[OpenStream]) -> str:
    tokens = live.tokens_so_far(streams)
    if not tokens:
        words = ngettext(
            "The client gets an error; nothing is billed so far.",
            "The clients get an error; nothing is billed so far.",
            len(streams),
        )
    elif len(streams) == 1:
        words = ngettext(
            "The client gets an error event; the %(tokens)s token so far is billed.",
            "The client gets an error event; the %(tokens)s tokens so far are billed.",
            tokens,
        )
    else:
        words = ngettext(
            "The clients get an error event; the %(tokens)s token so far is billed.",
            "The clients get an error event; the %(tokens)s tokens so far are billed.",
            tokens,
        )
    return words % {"tokens": number(tokens)}


def _with_id(table: type[Row], text: str) -> QuerySet[Row]:
    """The row whose id a URL names; none where that is no id."""
    rows, identity = table._default_manager.all(), _uuid(text)
    return rows.none() if identity is None else rows.filter(pk=identity)


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


@admin.register(GatewayProcess)
class GatewayProcessAdmin(ReadOnlyAdmin[GatewayProcess]):
    list_display = ("label", "started", "heartbeat_figure")
    ordering = ("-started_at",)
    empty_text = gettext_lazy("No gateway process has started yet.")
    fields = ("label", "started", "heartbeat")
    heartbeat_figure = number_column("heartbeat", gettext_lazy("heartbeat"))

    @admin.display(description=gettext_lazy("started"), ordering="started_at")
    def started(self, process: GatewayProcess) -> SafeString | str:
        return ago(process.started_at)
