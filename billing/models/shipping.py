"""Records that another store has not got yet."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _


class RecordToShip(models.Model):
    """A record that is new or was changed, as a trigger notes it in the same transaction (`billing.clickhouse`).

    One row per change. Its number grows with each change of a record, so the store knows which is the latest.
    """

    id = models.BigAutoField(primary_key=True)
    record_id = models.UUIDField(_("request"))
    created_at = models.DateTimeField(_("since"), default=now, db_default=Now())

    class Meta:
        verbose_name = _("request to ship")
        verbose_name_plural = _("requests to ship")

    def __str__(self) -> str:
        return str(self.record_id)
