"""What tells whether the figures can be trusted: events of the meter, and what records were flagged with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from billing.admin.access import EndlessAdmin, ask, asks_first
from billing.admin.display import UNKNOWN, ago, badge, change_url, code, link, number, number_column
from billing.admin.filters import Choice, FieldFilter
from billing.admin.typed import ModelAdmin
from billing.meter_health.readings import UNTIL_ACKNOWLEDGED
from billing.models import FlagRollup, MeterEvent

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

MEANINGS: dict[str, _StrPromise] = {
    "swept": gettext_lazy("The process died. Its requests were settled from their last checkpoint."),
    "late": gettext_lazy("The database was away. These bills waited in the journal, and are written."),
    "dropped": gettext_lazy("The database refused these bills for good: the requests have no record."),
    "unjournalled": gettext_lazy("The disk took these bills no more than the database: they waited in memory alone."),
}


class KindFilter(FieldFilter):
    title, parameter_name, field = gettext_lazy("kind"), "kind", "kind"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[Choice]:
        return list(MeterEvent.Kind.choices)


@admin.register(MeterEvent)
class MeterEventAdmin(EndlessAdmin[MeterEvent]):
    list_display = ("last", "kind_badge", "bills_figure", "process_code", "detail", "acknowledged")
    list_display_links = ("last",)
    list_filter = (KindFilter,)
    ordering = ("-id",)
    empty_text = gettext_lazy("Nothing has happened to the meter: no process died, no bill was late or refused.")
    list_note = gettext_lazy("What happened to bills, by kind, process and hour.")
    fields = ("kind_badge", "meaning", "bills_figure", "process_code", "detail", "first", "last", "acknowledged")
    actions_detail = ("acknowledge",)

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[object]:
        waiting = MeterEvent.objects.filter(pk=object_id, kind__in=UNTIL_ACKNOWLEDGED, acknowledged_at=None)
        return list(super().get_actions_detail(request, object_id)) if waiting.exists() else []  # type: ignore[misc]  # Unfold's

    @asks_first(gettext_lazy("Acknowledge"), "acknowledge", icon="task_alt")
    def acknowledge(self, request: HttpRequest, object_id: str) -> HttpResponse:
        event = get_object_or_404(MeterEvent, pk=object_id)
        if event.acknowledged_at is not None or event.kind not in UNTIL_ACKNOWLEDGED:
            messages.info(request, _("There is nothing to acknowledge any more."))
            return redirect(change_url(event))
        if request.method == "POST":
            self._acknowledge(request, event)
            return redirect(change_url(event))
        question = ngettext("Acknowledge %(count)s bill?", "Acknowledge %(count)s bills?", event.count)
        effects = [
            _("The meter counts as healthy again, as far as this goes."),
            _("Nothing else changes: a missing bill stays missing until you adjust it."),
        ]
        return ask(
            request, self, event, title=_("Acknowledge an event"), verb=_("Acknowledge"), effects=effects,
            question=question % {"count": number(event.count)}, cancel_url=change_url(event),
        )  # fmt: skip

    def _acknowledge(self, request: HttpRequest, event: MeterEvent) -> None:
        """Only what was seen: an event that has grown meanwhile stands."""
        assert isinstance(request.user, User)
        seen = MeterEvent.objects.filter(pk=event.pk, count=event.count, acknowledged_at=None)
        if not seen.update(acknowledged_at=now(), acknowledged_by=request.user.get_username()):
            messages.warning(request, _("It happened again just now: look at it once more."))
            return
        self.log_change(request, event, [{"changed": {"fields": ["acknowledged"]}}])
        messages.success(request, _("The event is acknowledged."))

    @admin.display(description=gettext_lazy("last"))
    def last(self, event: MeterEvent) -> SafeString | str:
        return ago(event.last_at)

    @admin.display(description=gettext_lazy("first"))
    def first(self, event: MeterEvent) -> SafeString | str:
        return ago(event.first_at)

    @admin.display(description=gettext_lazy("kind"))
    def kind_badge(self, event: MeterEvent) -> SafeString:
        if event.kind in UNTIL_ACKNOWLEDGED:
            return badge(event.get_kind_display(), "calm" if event.acknowledged_at else "bad", "report")
        return badge(event.get_kind_display(), "warn", "history" if event.kind == "late" else "cleaning_services")

    @admin.display(description=gettext_lazy("what it means"))
    def meaning(self, event: MeterEvent) -> str:
        return str(MEANINGS.get(event.kind, UNKNOWN))

    bills_figure = number_column("count", gettext_lazy("bills"))

    @admin.display(description=gettext_lazy("process"))
    def process_code(self, event: MeterEvent) -> SafeString | str:
        return code(str(event.process)) if event.process.int else UNKNOWN

    @admin.display(description=gettext_lazy("acknowledged"))
    def acknowledged(self, event: MeterEvent) -> SafeString | str:
        if event.kind not in UNTIL_ACKNOWLEDGED:
            return UNKNOWN
        if event.acknowledged_at is None:
            return badge(_("not yet"), "bad", "pending")
        return _("by %(name)s at %(time)s") % {
            "name": event.acknowledged_by,
            "time": f"{event.acknowledged_at:%Y-%m-%d %H:%M} UTC",
        }


@admin.register(FlagRollup)
class FlagRollupAdmin(EndlessAdmin[FlagRollup]):
    list_display = ("day_shown", "flag_code", "provider", "model", "key", "records_figure", "last")
    list_display_links = ("day_shown", "flag_code")
    list_select_related = ("api_key__account",)
    ordering = ("-id",)
    search_fields = ("flag",)
    empty_text = gettext_lazy("No record bears a flag: every provider's usage was plain.")
    list_note = gettext_lazy(
        "Flags by day: unknown:NAME is a counter that is not billed, zero_with_output an answer billed as nothing."
    )
    fields = ("day_shown", "flag_code", "provider", "model", "key", "records_figure", "first", "last")

    @admin.display(description=gettext_lazy("day"))
    def day_shown(self, row: FlagRollup) -> str:
        return str(row.day)

    @admin.display(description=gettext_lazy("flag"))
    def flag_code(self, row: FlagRollup) -> SafeString:
        return code(row.flag)

    @admin.display(description=gettext_lazy("key"))
    def key(self, row: FlagRollup) -> SafeString:
        return link(change_url(row.api_key), row.api_key)

    records_figure = number_column("records", gettext_lazy("requests"))

    @admin.display(description=gettext_lazy("first"))
    def first(self, row: FlagRollup) -> SafeString | str:
        return ago(row.first_at, row.api_key.account.timezone)

    @admin.display(description=gettext_lazy("last"))
    def last(self, row: FlagRollup) -> SafeString | str:
        return ago(row.last_at, row.api_key.account.timezone)
