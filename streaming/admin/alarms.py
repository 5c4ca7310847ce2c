"""Alarms: what wanted an operator."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.admin.display import ago, badge
from streaming.models import Alarm


@admin.register(Alarm)
class AlarmAdmin(EndlessAdmin[Alarm]):
    list_display = ("raised", "kind", "subject", "state", "ended", "told")
    list_display_links = ("raised", "subject")
    ordering = ("-id",)
    empty_text = gettext_lazy("No alarm was raised yet.")
    list_note = gettext_lazy("What wanted an operator, the newest first. The settings can name a webhook to tell.")
    fields = ("kind", "subject", "message", "state", "raised", "ended", "told", "end_told")

    @admin.display(description=gettext_lazy("raised"))
    def raised(self, alarm: Alarm) -> SafeString | str:
        return ago(alarm.raised_at)

    @admin.display(description=gettext_lazy("ended"))
    def ended(self, alarm: Alarm) -> SafeString | str:
        return ago(alarm.ended_at)

    @admin.display(description=gettext_lazy("state"))
    def state(self, alarm: Alarm) -> SafeString:
        if alarm.ended_at is not None:
            return badge(_("over"), "calm", "notifications_off")
        return badge(_("stands"), "bad", "notifications_active")

    @admin.display(description=gettext_lazy("webhook told"))
    def told(self, alarm: Alarm) -> SafeString | str:
        if alarm.told_at is None and alarm.tries:
            return badge(_("not delivered"), "warn", "sync_problem", _("It is tried again for a day."))
        return ago(alarm.told_at)

    @admin.display(description=gettext_lazy("webhook told of its end"))
    def end_told(self, alarm: Alarm) -> SafeString | str:
        return ago(alarm.end_told_at)
