"""What a key has spent in a month, as one row that every settlement moves on."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from billing.models.accounts import ApiKey


class BudgetMonth(models.Model):
    """The cost of a key's records of one month (in its account's zone), kept by `billing.spending` in the database.

    `spent_nanos` is absolute and `version` grows with each change: whoever holds a copy can tell which is newer.
    """

    id = models.BigAutoField(primary_key=True)
    # The unique constraint begins with the key: an index of its own would only cost.
    api_key = models.ForeignKey(ApiKey, models.PROTECT, related_name="+", db_index=False, verbose_name=_("API key"))
    month = models.DateField(_("month"))
    spent_nanos = models.BigIntegerField(_("spent"), default=0)
    version = models.BigIntegerField(_("version"), default=0)

    class Meta:
        verbose_name = _("month's spending")
        verbose_name_plural = _("months' spending")
        constraints = [models.UniqueConstraint(fields=["api_key", "month"], name="one_spending_per_key_and_month")]
        indexes = [models.Index(fields=["month"], name="spending_by_month")]

    def __str__(self) -> str:
        return f"{self.api_key_id} {self.month:%Y-%m}"
