"""What is left in the database of usage records that were dropped with their month (`billing.dropping`).

None of it ever changes (triggers): it is what an invoice's proof stands on once its records are in a file.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from billing.models.invoices import Invoice


class DroppedMonth(models.Model):
    """A partition that is no more, and the file that its records are in.

    `start` None: whatever was earlier than `end`. Every key's days up to `last_day` are sealed (`billing.seals`).
    `costs`: currency -> nanos. `sha256` is that of the file's content, unpacked.
    """

    partition = models.CharField(_("partition"), max_length=63)
    start = models.DateTimeField(_("from"), null=True)
    end = models.DateTimeField(_("until"), unique=True)
    last_day = models.DateField(_("last day"))
    records = models.BigIntegerField(_("requests"))
    costs = models.JSONField(_("cost"), default=dict)
    file_name = models.CharField(_("file"), max_length=200)
    sha256 = models.CharField("SHA-256", max_length=64)
    dropped_at = models.DateTimeField(_("dropped"))

    class Meta:
        verbose_name = _("dropped month")
        verbose_name_plural = _("dropped months")
        ordering = ["-end"]

    def __str__(self) -> str:
        return self.file_name


class DroppedInvoice(models.Model):
    """What an invoice bills of a dropped month: so many records, and their sums by the lines that they are on.

    `sums`: a list of lists, each what tells a line apart (`billing.proofs.LineId`), its quantity and its nanos. An
    invoice with no more than kept records of sealed days has a row too, of nothing: it is never made void either.
    """

    month = models.ForeignKey(DroppedMonth, models.PROTECT, related_name="invoices", verbose_name=_("dropped month"))
    invoice = models.ForeignKey(Invoice, models.PROTECT, related_name="dropped", verbose_name=_("invoice"))
    records = models.BigIntegerField(_("requests"))
    cost_nanos = models.BigIntegerField(_("cost"))
    sums = models.JSONField(default=list)

    class Meta:
        verbose_name = _("dropped part of an invoice")
        verbose_name_plural = _("dropped parts of invoices")
        constraints = [models.UniqueConstraint(fields=["invoice", "month"], name="one_dropped_part_per_invoice")]

    def __str__(self) -> str:
        return f"{self.invoice_id} {self.month_id}"


class DroppedRecord(models.Model):
    """The billing identity of a dropped record: whoever tells of it once more, from an old journal, is not believed."""

    id = models.UUIDField(primary_key=True, editable=False)

    class Meta:
        verbose_name = _("dropped request")
        verbose_name_plural = _("dropped requests")

    def __str__(self) -> str:
        return str(self.id)
