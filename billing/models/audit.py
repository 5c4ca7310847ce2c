"""The audit log's entries, which `billing.audit` writes."""

from __future__ import annotations

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _


class AuditEntry(models.Model):
    """One change of one object. `changes`: column -> [before, after], as JSON; many-to-many columns as lists of names.

    `who` is a user's name, or that of a command or program. What was done without a column of a watched table changing
    (an invoice issued, a route reset) has a `message` instead, as Django's own log keeps it.
    """

    class Action(models.TextChoices):
        MADE = "made", _("made")
        CHANGED = "changed", _("changed")
        DONE = "done", _("done")

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(_("when"), default=now)
    who = models.CharField(_("who"), max_length=150)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, related_name="+", db_index=False, verbose_name=_("user")
    )
    table = models.CharField(_("kind of object"), max_length=100)
    object_id = models.CharField(_("object id"), max_length=100)
    object_name = models.CharField(_("object"), max_length=300)
    action = models.CharField(_("action"), max_length=8, choices=Action.choices)
    changes = models.JSONField(_("before → after"), default=dict, encoder=DjangoJSONEncoder)
    message = models.TextField(_("message"), blank=True)

    class Meta:
        verbose_name = _("audit log entry")
        verbose_name_plural = _("audit log")
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["table", "object_id", "-id"], name="audit_by_object"),
            models.Index(fields=["table", "-id"], name="audit_by_table"),
            models.Index(fields=["who", "-id"], name="audit_by_who"),
            models.Index(fields=["object_name", "-id"], name="audit_by_name"),
            models.Index(fields=["at"], name="audit_by_time"),
        ]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.who} {self.object_name}"
