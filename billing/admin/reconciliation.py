"""Reconciliation: a provider's file is uploaded, its columns mapped, the comparison read. Finance does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.enums import ActionVariant

from billing import csv_files, provider_files, reconciliation
from billing.admin.access import EndlessAdmin, KeptAdmin, asks_first
from billing.admin.display import (
    UNKNOWN,
    ago,
    badge,
    change_url,
    code,
    figure,
    link,
    list_url,
    moment,
    money,
    number,
    number_column,
)
from billing.admin.filters import BUCKET_WORDS
from billing.admin.reconciliation_forms import (
    FIELD_WORDS,
    MappingForm,
    UploadForm,
    fault_words,
    not_csv_words,
    tokens_words,
)
from billing.admin.reconciliation_page import KIND_WORDS, context, csv_rows, signed, state_badge, state_of
from billing.csv_files import CsvFile, NotCsv
from billing.matching import KINDS
from billing.models import Reconciliation, ReconciliationMapping, ReconciliationRow
from billing.money import NANO_PLACES
from billing.provider_files import Fault, FileMapping, Reading
from billing.reconciliation import AlreadyUploaded, Unreadable
from billing.row_ids import row_id
from billing.usage import BUCKETS

SAMPLE_LINES = 8
SHOWN_FAULTS = 50


@admin.register(Reconciliation)
class ReconciliationAdmin(KeptAdmin[Reconciliation]):
    list_display = (
        "file_name",
        "provider",
        "period",
        "state",
        "theirs_figure",
        "ours_figure",
        "unexplained_figure",
        "margin_figure",
        "uploaded",
    )
    list_display_links = ("file_name",)
    search_fields = ("file_name", "provider")
    search_help_text = gettext_lazy("File or provider")
    ordering = ("-uploaded_at",)
    empty_text = gettext_lazy("No provider's bill yet. Upload a usage export or an invoice to compare it with ours.")
    list_note = gettext_lazy("Ours as of each comparison. Tokens too many and too few are added up in “unexplained”.")
    actions_detail = ("map_columns",)
    change_form_outer_before_template = "admin/billing/reconciliation/result.html"
    fieldsets = (
        (
            None,
            {"fields": ("provider", "file_link", "period", "read_as", "compared", "uploaded", "uploaded_by", "digest")},
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Reconciliation]:
        return super().get_queryset(request).defer("content")

    def has_change_permission(self, request: HttpRequest, obj: Reconciliation | None = None) -> bool:
        """No field is edited; the mapping has a page of its own, for those with `has_act_permission`."""
        return False

    def get_urls(self) -> list[URLPattern]:
        own = [
            path("<int:pk>/csv/", self.admin_site.admin_view(self.csv_view), name="billing_reconciliation_csv"),
            path("<int:pk>/file/", self.admin_site.admin_view(self.file_view), name="billing_reconciliation_file"),
        ]
        return [*own, *super().get_urls()]

    # --- upload ---

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = UploadForm(request.POST, request.FILES) if request.method == "POST" else UploadForm()
        if form.is_valid() and (answer := self._upload(request, form)) is not None:
            return answer
        return self._page(
            request, "upload", None, title=_("Upload a provider's bill"), form=form, cancel_url=list_url(Reconciliation)
        )

    def _upload(self, request: HttpRequest, form: UploadForm) -> HttpResponse | None:
        """Keep the file and go on to its columns; None: the form says what is wrong with it."""
        file = form.cleaned_data["file"]
        by = request.user.get_username()
        try:
            kept = reconciliation.upload(form.cleaned_data["provider"], file.name, file.read(), by=by, now=now())
        except NotCsv as fault:
            form.add_error("file", not_csv_words(fault))
            return None
        except AlreadyUploaded as known:
            before = known.reconciliation
            told = {"file": before.file_name, "who": before.uploaded_by, "when": moment(before.uploaded_at)}
            messages.warning(
                request, _("The same file was uploaded before: %(file)s, by %(who)s on %(when)s. Here it is.") % told
            )
            return redirect(change_url(before))
        self.log_addition(request, kept, [{"added": {}}])
        return redirect("admin:billing_reconciliation_map_columns", kept.pk)

    # --- mapping ---

    @asks_first(gettext_lazy("Map the columns"), "mapping", icon="table_chart", variant=ActionVariant.PRIMARY)
    def map_columns(self, request: HttpRequest, object_id: str) -> HttpResponse:
        kept = get_object_or_404(Reconciliation, pk=object_id)
        file = reconciliation.table_of(kept)
        mapping = reconciliation.proposal(kept, file)
        faults: tuple[Fault, ...] = ()
        if request.method != "POST":
            form = MappingForm(file.header, mapping, initial_days(kept))
            return self._mapping_page(request, kept, file, form, mapping, faults)
        form = MappingForm(file.header, mapping, None, request.POST)
        if form.is_valid():
            mapping = form.mapping()
            if "compare" in request.POST:
                try:
                    return self._compare(request, kept, mapping, form)
                except Unreadable as refused:
                    faults = refused.faults
        return self._mapping_page(request, kept, file, form, mapping, faults)

    def _compare(
        self, request: HttpRequest, kept: Reconciliation, mapping: FileMapping, form: MappingForm
    ) -> HttpResponse:
        days = form.cleaned_data
        done = reconciliation.compare(kept.pk, mapping, now=now(), first=days["first"], last=days["last"])
        self.log_change(request, done, [{"changed": {"fields": ["compared"]}}])
        messages.success(
            request, _("%(file)s is compared; its columns are remembered for %(provider)s.")
            % {"file": done.file_name, "provider": done.provider},
        )  # fmt: skip
        return redirect(change_url(done))

    def _mapping_page(
        self,
        request: HttpRequest,
        kept: Reconciliation,
        file: CsvFile,
        form: MappingForm,
        mapping: FileMapping,
        faults: tuple[Fault, ...],
    ) -> HttpResponse:
        sample: Mapping[str, Any] = {}
        if {"day", "model"} <= set(mapping.columns) and not (form.is_bound and form.errors):
            sample = _sample(kept, file, mapping)
        stopped = [fault for fault in faults if not fault.number or fault.code == "outside"]
        return self._page(
            request, "mapping", kept, title=_("Map the columns of %(file)s") % {"file": kept.file_name}, form=form,
            cancel_url=change_url(kept), sample=sample, stopped=_faults(stopped), nothing_saved=bool(faults),
        )  # fmt: skip

    # --- result ---

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        kept = Reconciliation.objects.defer("content").filter(pk=row_id(object_id)).first()
        found = {} if kept is None else context(kept, request)
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **found})

    def csv_view(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        """The rows of a tab, all of its pages."""
        kept = self._seen(request, pk)
        if kept.totals is None:
            return redirect(change_url(kept))
        text = csv_files.text(csv_rows(kept, state_of(request)))
        return _attachment(text.encode(), "text/csv; charset=utf-8", f"reconciliation-{kept.pk}.csv")

    def file_view(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        """The file as it was uploaded."""
        raw = reconciliation.raw_file(self._seen(request, pk))
        return _attachment(raw, "application/octet-stream", f"provider-file-{pk}.csv")

    def _seen(self, request: HttpRequest, pk: int) -> Reconciliation:
        if not self.has_view_permission(request):
            raise PermissionDenied
        return get_object_or_404(Reconciliation, pk=pk)

    def _page(self, request: HttpRequest, name: str, kept: Reconciliation | None, **shown: Any) -> TemplateResponse:
        request.current_app = self.admin_site.name
        here = {**self.admin_site.each_context(request), "opts": self.opts, "original": kept, "object": kept, **shown}
        return TemplateResponse(request, f"admin/billing/reconciliation/{name}.html", here)

    # --- columns and fields ---

    @admin.display(description=gettext_lazy("file"))
    def file_link(self, kept: Reconciliation) -> SafeString:
        return link(reverse("admin:billing_reconciliation_file", args=[kept.pk]), kept.file_name)

    @admin.display(description=gettext_lazy("days"))
    def period(self, kept: Reconciliation) -> SafeString | str:
        if kept.first_day is None:
            return UNKNOWN
        days = f"{kept.first_day} –", str(kept.last_day)
        return format_html('<span><span class="hb-nowrap">{}</span> <span class="hb-nowrap">{}</span></span>', *days)

    @admin.display(description="SHA-256")
    def digest(self, kept: Reconciliation) -> SafeString:
        return code(kept.sha256)

    @admin.display(description=gettext_lazy("read as"))
    def read_as(self, kept: Reconciliation) -> str:
        if kept.mapping is None:
            return UNKNOWN
        mapping = FileMapping.from_json(kept.mapping)
        columns = ", ".join(f"{FIELD_WORDS[name]}: {column}" for name, column in mapping.columns.items())
        return f"{mapping.zone} · {mapping.currency} · {columns}"

    @admin.display(description=gettext_lazy("state"))
    def state(self, kept: Reconciliation) -> SafeString:
        if kept.totals is None:
            return badge(_("columns not mapped"), "calm", "table_chart")
        if kept.totals["all"]["unsettled"]:
            return badge(_("unexplained"), "warn", "difference")
        return badge(_("explained"), "good", "check_circle")

    @admin.display(description=gettext_lazy("theirs"))
    def theirs_figure(self, kept: Reconciliation) -> SafeString:
        tells = kept.mapping is not None and FileMapping.from_json(kept.mapping).buckets
        return figure(number(kept.totals["all"]["theirs"] if kept.totals and tells else None))

    @admin.display(description=gettext_lazy("ours"))
    def ours_figure(self, kept: Reconciliation) -> SafeString:
        return figure(number(kept.totals["all"]["ours"] if kept.totals else None))

    @admin.display(description=gettext_lazy("unexplained"))
    def unexplained_figure(self, kept: Reconciliation) -> SafeString:
        sums = kept.totals["all"] if kept.totals else None
        return figure(number(None if sums is None else sums["too_many"] - sums["too_few"]))

    @admin.display(description=gettext_lazy("margin"))
    def margin_figure(self, kept: Reconciliation) -> SafeString:
        if kept.totals is None or kept.mapping is None:
            return figure(UNKNOWN)
        return figure(money(_margin(kept.totals["all"]), kept.mapping["currency"]))

    @admin.display(description=gettext_lazy("compared"))
    def compared(self, kept: Reconciliation) -> SafeString | str:
        return ago(kept.compared_at)

    @admin.display(description=gettext_lazy("uploaded"), ordering="uploaded_at")
    def uploaded(self, kept: Reconciliation) -> SafeString | str:
        return ago(kept.uploaded_at)


def initial_days(kept: Reconciliation) -> dict[str, Any]:
    """The period of the comparison before, where there was one."""
    return {} if kept.first_day is None else {"first": kept.first_day, "last": kept.last_day}


def _margin(sums: Mapping[str, Any]) -> int | None:
    margin: int | None = sums["margin_nanos"]
    return margin


def _faults(faults: list[Fault]) -> list[str]:
    """Faults as sentences, the first of them where they are many."""
    lines = [
        _("Line %(line)s: %(what)s") % {"line": number(fault.number), "what": fault_words(fault)}
        if fault.number
        else fault_words(fault)
        for fault in faults[:SHOWN_FAULTS]
    ]
    if rest := len(faults) - len(lines):
        lines.append(ngettext("And %(count)s more.", "And %(count)s more.", rest) % {"count": number(rest)})
    return lines


def _sample(kept: Reconciliation, file: CsvFile, mapping: FileMapping) -> dict[str, Any]:
    """The first lines as they are read, what cannot be read, and whose models those are."""
    reading = provider_files.read(file, mapping)
    return {
        "heads": [*(BUCKET_WORDS[bucket] for bucket in mapping.buckets), *_other_heads(mapping)],
        "rows": [_sample_row(line, mapping) for line in reading.lines[:SAMPLE_LINES]],
        "said": _said(reading),
        "faults": _faults(list(reading.faults)),
        "models": _models(kept, reading, mapping),
    }


def _other_heads(mapping: FileMapping) -> list[Any]:
    return [FIELD_WORDS[name] for name in ("requests", "cost") if name in mapping.columns]


def _sample_row(line: provider_files.TheirLine, mapping: FileMapping) -> dict[str, Any]:
    figures = tokens_words(line.tokens, mapping.buckets)
    if "requests" in mapping.columns:
        figures.append(number(line.requests))
    if mapping.has_cost:
        figures.append(money(line.cost_nanos, mapping.currency, NANO_PLACES))
    return {"number": number(line.number), "day": str(line.day), "model": line.model, "figures": figures}


def _said(reading: Reading) -> str:
    if reading.days is None:
        return _("No line can be read so.")
    words = ngettext(
        "%(lines)s line from %(first)s to %(last)s.", "%(lines)s lines from %(first)s to %(last)s.", len(reading.lines)
    )
    said = [words % {"lines": number(len(reading.lines)), "first": reading.days[0], "last": reading.days[1]}]
    if reading.empty:
        words = ngettext("%(count)s line counts nothing.", "%(count)s lines count nothing.", reading.empty)
        said.append(words % {"count": number(reading.empty)})
    return " ".join(said)


def _models(kept: Reconciliation, reading: Reading, mapping: FileMapping) -> list[dict[str, Any]]:
    """Their names, ours, and whether we asked for such a model in those days."""
    if reading.days is None:
        return []
    known = reconciliation.known_models(kept.provider, *reading.days, mapping.zone)
    ours = {mapping.aliases.get(name, name) for name in known}
    found = []
    for name in reading.models:
        mapped = mapping.aliases.get(name, name)
        mark = badge(_("asked for here"), "good", "check_circle") if mapped in ours else badge(
            _("not asked for in these days"), "warn", "help"
        )  # fmt: skip
        found.append({"theirs": name, "ours": mapped, "mark": mark})
    return found


def _attachment(content: bytes, kind: str, name: str) -> HttpResponse:
    response = HttpResponse(content, content_type=kind)
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@admin.register(ReconciliationRow)
class ReconciliationRowAdmin(EndlessAdmin[ReconciliationRow]):
    list_display = ("day_shown", "model", "file", "state_shown", "attempts_figure", "unexplained_figure")
    list_select_related = ("reconciliation",)
    ordering = ("-id",)
    empty_text = gettext_lazy("No provider's bill is compared yet.")
    fields = (
        "file", "day_shown", "model", "state_shown", "attempts_figure", "silent_figure", "requests", "lines",
        "cost_shown", "billed_shown", "margin_shown", "price_shown",
    )  # fmt: skip
    change_form_outer_before_template = "admin/billing/reconciliationrow/buckets.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[ReconciliationRow]:
        return super().get_queryset(request).defer("reconciliation__content")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        row = ReconciliationRow.objects.filter(pk=row_id(object_id)).first()
        found = {} if row is None else _bucket_table(row)
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **found})

    @admin.display(description=gettext_lazy("file"))
    def file(self, row: ReconciliationRow) -> SafeString:
        return link(change_url(row.reconciliation), row.reconciliation.file_name)

    @admin.display(description=gettext_lazy("day"))
    def day_shown(self, row: ReconciliationRow) -> str:
        return str(row.day)

    @admin.display(description=gettext_lazy("state"))
    def state_shown(self, row: ReconciliationRow) -> SafeString:
        return state_badge(row)

    attempts_figure = number_column("attempts", gettext_lazy("attempts"))
    silent_figure = number_column("silent", gettext_lazy("attempts that reported nothing"))
    unexplained_figure = number_column("unexplained", gettext_lazy("unexplained"))

    @admin.display(description=gettext_lazy("their cost"))
    def cost_shown(self, row: ReconciliationRow) -> str:
        return _money(row, row.cost_nanos)

    @admin.display(description=gettext_lazy("billed"))
    def billed_shown(self, row: ReconciliationRow) -> str:
        amounts = [money(nanos, currency, NANO_PLACES) for currency, nanos in sorted(row.billed.items())]
        return " · ".join(amounts) or UNKNOWN

    @admin.display(description=gettext_lazy("margin"))
    def margin_shown(self, row: ReconciliationRow) -> str:
        return _money(row, row.margin_nanos)

    @admin.display(description=gettext_lazy("difference by price"))
    def price_shown(self, row: ReconciliationRow) -> str:
        return _money(row, row.price_nanos)


def _money(row: ReconciliationRow, nanos: int | None) -> str:
    mapping: Mapping[str, Any] = row.reconciliation.mapping or {}
    return money(nanos, mapping.get("currency", ""), NANO_PLACES)


def _bucket_table(row: ReconciliationRow) -> dict[str, Any]:
    """Bucket by bucket: ours, theirs, and what explains the difference."""
    kinds = [kind for kind in KINDS if any(row.kinds[kind].values())]
    buckets = [bucket for bucket in BUCKETS if bucket in row.ours or bucket in (row.theirs or {})]
    return {
        "heads": [_("ours"), _("theirs"), _("difference"), *(KIND_WORDS[kind] for kind in kinds)],
        "buckets": [(BUCKET_WORDS[bucket], _bucket_figures(row, bucket, kinds)) for bucket in buckets],
    }


def _bucket_figures(row: ReconciliationRow, bucket: str, kinds: list[str]) -> list[str]:
    ours, theirs = row.ours.get(bucket, 0), (row.theirs or {}).get(bucket)
    parts = [row.kinds[kind].get(bucket, 0) for kind in kinds]
    return [number(ours), number(theirs), signed((theirs or 0) - ours), *(signed(part) for part in parts)]


@admin.register(ReconciliationMapping)
class ReconciliationMappingAdmin(EndlessAdmin[ReconciliationMapping]):
    list_display = ("provider", "changed")
    ordering = ("provider",)
    fields = ("provider", "changed", "mapping")
    empty_text = gettext_lazy("No mapping yet. One is remembered for each provider whose file was compared.")

    @admin.display(description=gettext_lazy("changed"))
    def changed(self, kept: ReconciliationMapping) -> SafeString | str:
        return ago(kept.changed_at)
