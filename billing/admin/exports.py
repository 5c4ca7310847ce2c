"""Exports: how far a file is that somebody asked for, and its download, for its owner or with a right of its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing import exports
from billing.admin.access import ReadOnlyAdmin
from billing.admin.display import UNKNOWN, ago, badge, change_url, code, figure, number
from billing.admin.faults import fault_words
from billing.exports import CONTENT_TYPES, Format, State
from billing.models import Export
from billing.report_query import BadQuery
from billing.words import stored_words

READ_BYTES = 256 * 1024
STATE_LOOKS = {
    State.WAITING: ("calm", "hourglass_top"),
    State.RUNNING: ("info", "sync"),
    State.DONE: ("good", "check_circle"),
    State.FAILED: ("bad", "error"),
    State.EXPIRED: ("calm", "auto_delete"),
}


@admin.register(Export)
class ExportAdmin(ReadOnlyAdmin[Export]):
    list_display = ("asked", "file_name", "kind", "owner_name", "state_badge", "progress_figure", "expires")
    list_display_links = ("asked", "file_name")
    list_select_related = ("owner",)
    ordering = ("-created_at",)
    empty_text = gettext_lazy("No export yet. Reports of more than 5,000 rows, and PDFs, are made in the background.")
    list_note = gettext_lazy("Files that were made for you. Each is kept for seven days; that it was made stays known.")
    next_step = ("admin:usage", gettext_lazy("Usage"))
    fields = ("file_name", "kind", "owner_name", "asked", "query_shown", "finished", "expires", "size", "digest")
    change_form_outer_before_template = "admin/billing/export/progress.html"

    class Media:
        js = ("hopbase/exports.js",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Export]:
        """One's own; those of others with the right to download them."""
        found = super().get_queryset(request)
        return found if may_take_all(request) else found.filter(owner_id=request.user.pk)

    def get_urls(self) -> list[URLPattern]:
        own = [
            path("<uuid:pk>/file/", self.admin_site.admin_view(self.download), name="billing_export_file"),
            path("<uuid:pk>/progress/", self.admin_site.admin_view(self.tell), name="billing_export_progress"),
        ]
        return [*own, *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        found = self.get_queryset(request).filter(pk=object_id).first() if _is_uuid(object_id) else None
        told = {} if found is None else {"told": progress(found)}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **told})

    def download(self, request: HttpRequest, pk: object) -> HttpResponseBase:
        """The file. 403: it is another user's."""
        export = get_object_or_404(Export, pk=pk)
        if export.owner_id != request.user.pk and not may_take_all(request):
            raise PermissionDenied
        file = exports.path(export)
        if export.state != State.DONE or not file.exists():
            words = _("The file is not there: it is not made yet, has expired, or lies on another host.")
            messages.error(request, words)
            return redirect(change_url(export))
        response = StreamingHttpResponse(_pieces(file), content_type=CONTENT_TYPES[Format(export.format)])
        response["Content-Disposition"] = f'attachment; filename="{export.file_name}"'
        response["Content-Length"] = str(file.stat().st_size)
        response["Cache-Control"] = "private, no-store"
        return response

    def tell(self, request: HttpRequest, pk: object) -> JsonResponse:
        """How far it is, for the page that shows it."""
        export = get_object_or_404(self.get_queryset(request), pk=pk)
        return JsonResponse(progress(export), headers={"Cache-Control": "no-store"})

    @admin.display(description=gettext_lazy("asked for"))
    def asked(self, export: Export) -> SafeString | str:
        return ago(export.created_at)

    @admin.display(description=gettext_lazy("owner"))
    def owner_name(self, export: Export) -> str:
        return export.owner.get_username()

    @admin.display(description=gettext_lazy("state"))
    def state_badge(self, export: Export) -> SafeString:
        return badge(export.get_state_display(), *STATE_LOOKS[State(export.state)])

    @admin.display(description=gettext_lazy("rows"))
    def progress_figure(self, export: Export) -> SafeString:
        return figure(_rows(export))

    @admin.display(description=gettext_lazy("finished"))
    def finished(self, export: Export) -> SafeString | str:
        return ago(export.finished_at)

    @admin.display(description=gettext_lazy("expires"))
    def expires(self, export: Export) -> SafeString | str:
        return ago(export.expires_at)

    @admin.display(description=gettext_lazy("query"))
    def query_shown(self, export: Export) -> SafeString:
        return code(export.query)

    @admin.display(description=gettext_lazy("bytes"))
    def size(self, export: Export) -> str:
        return number(export.size_bytes)

    @admin.display(description="SHA-256")
    def digest(self, export: Export) -> SafeString:
        return code(export.sha256)


def may_take_all(request: HttpRequest) -> bool:
    """Whether the viewer may see and download what others have asked for."""
    return bool(request.user.has_perm("billing.download_export"))


def progress(export: Export) -> dict[str, Any]:
    """What the page of an export says: `share` in per cent, or None where it is not known."""
    total = export.rows_total
    return {
        "state": str(export.get_state_display()),
        "open": export.state in (State.WAITING, State.RUNNING),
        "words": _words(export),
        "share": None if not total else min(100, 100 * export.rows_done // total),
        "url": reverse("admin:billing_export_file", args=[export.pk]) if export.state == State.DONE else "",
        "progress_url": reverse("admin:billing_export_progress", args=[export.pk]),
    }


def _words(export: Export) -> str:
    sentences = {
        State.WAITING: _("It waits for a worker."),
        State.RUNNING: _("%(rows)s rows are written.") % {"rows": _rows(export)},
        State.DONE: _("The file is ready."),
        State.FAILED: _("It could not be made. %(why)s") % {"why": _why(export.problem)},
        State.EXPIRED: _("Its file was removed after seven days. Ask for it again where you did before."),
    }
    return sentences[State(export.state)]


def _why(problem: str) -> str:
    """Why there is no file; of a question that cannot be answered any more the row has its field and code."""
    field, colon, code = problem.partition(": ")
    if not colon or " " in field:
        return stored_words(problem)
    words = _("What it asks for is not there any more: %(fault)s")
    return words % {"fault": fault_words(BadQuery(field, code))}


def _rows(export: Export) -> str:
    if export.format == Format.PDF:
        return UNKNOWN
    done = number(export.rows_done)
    return done if export.rows_total in (None, export.rows_done) else f"{done} / {number(export.rows_total)}"


async def _pieces(file: Path) -> AsyncIterator[bytes]:
    """The file piece by piece, read beside the event loop: under ASGI a plain iterator would be read whole first."""
    with await asyncio.to_thread(file.open, "rb") as opened:
        while piece := await asyncio.to_thread(opened.read, READ_BYTES):
            yield piece


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
