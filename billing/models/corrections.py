"""What corrects money after the fact: adjustments for the next invoice, credit notes on an issued one."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from billing.models.accounts import Account, ApiKey
from billing.models.invoices import Invoice, InvoiceLine


class Adjustment(models.Model):
    """What a key is billed beside its records, by its next invoice: `amount_nanos`, signed, below zero for a credit.

    The ledger makes them: the record of a stream that was taken for lost may be on an issued invoice by the time its
    owner tells how it ended; that invoice stays as it is, and the difference is for the next one. People make them, and
    a large one needs a second person. An issue makes them in pairs (`CARRIED`), where credits were more than it bills.

    One counts from `effective_at` on, on `day` of the account's zone: that of its making, or of its approval. As long
    as it is proposed, and once it is rejected, it has neither. Triggers keep all but its state from changing.
    """

    class Kind(models.TextChoices):
        SETTLED = "settled", _("ended after all")
        SWEPT = "swept", _("later checkpoint")
        GOODWILL = "goodwill", _("goodwill")
        CORRECTION = "correction", _("correction")
        CARRIED = "carried", _("carried over")

    class State(models.TextChoices):
        PROPOSED = "proposed", _("proposed")
        APPROVED = "approved", _("approved")
        REJECTED = "rejected", _("rejected")

    account = models.ForeignKey(Account, models.PROTECT, related_name="adjustments", verbose_name=_("account"))
    api_key = models.ForeignKey(ApiKey, models.PROTECT, related_name="+", verbose_name=_("API key"))
    record = models.ForeignKey(
        "billing.UsageRecord",
        models.PROTECT,
        null=True,
        blank=True,
        related_name="adjustments",
        verbose_name=_("request"),
    )
    currency = models.CharField(_("currency"), max_length=3)
    amount_nanos = models.BigIntegerField(_("amount"))
    kind = models.CharField(_("kind"), max_length=12, choices=Kind.choices)
    reason = models.CharField(_("reason"), max_length=200)
    created_at = models.DateTimeField(_("created"))
    proposed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+", verbose_name=_("by")
    )
    state = models.CharField(_("state"), max_length=8, choices=State.choices, default=State.APPROVED)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+", verbose_name=_("decided by")
    )
    decided_at = models.DateTimeField(_("decided"), null=True, blank=True)
    decision_reason = models.CharField(_("why rejected"), max_length=300, blank=True)
    effective_at = models.DateTimeField(_("counts from"), null=True, blank=True)
    day = models.DateField(_("day"), null=True, blank=True)
    invoice = models.ForeignKey(
        Invoice, models.PROTECT, null=True, blank=True, related_name="adjustments", verbose_name=_("invoice")
    )

    class Meta:
        verbose_name = _("adjustment")
        verbose_name_plural = _("adjustments")
        permissions = [("approve_adjustment", "Can approve adjustments")]
        constraints = [
            models.UniqueConstraint(fields=["record"], condition=Q(kind="settled"), name="one_last_word_per_record"),
            models.CheckConstraint(
                condition=Q(state="approved", effective_at__isnull=False, day__isnull=False)
                | (~Q(state="approved") & Q(effective_at=None, day=None, invoice=None)),
                name="adjustment_counts_once_approved",
            ),
            models.CheckConstraint(
                condition=~Q(state="approved")
                | Q(decided_by=None)
                | Q(proposed_by=None)
                | ~Q(decided_by=F("proposed_by")),
                name="adjustment_not_by_its_proposer",
            ),
        ]
        indexes = [
            models.Index(fields=["api_key"], name="adjustment_unclaimed", condition=Q(invoice=None)),
            models.Index(fields=["api_key", "day"], name="adjustment_by_day"),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.pk}"


class CreditNote(models.Model):
    """What an issued invoice is owed less, with all that the note prints copied in. Never changes (triggers).

    Amounts are above zero and whole in the currency's places; `after_payment` tells that the invoice had been paid by
    then, so that the total is to be paid back.
    """

    number = models.CharField(_("number"), max_length=20, unique=True)
    invoice = models.ForeignKey(Invoice, models.PROTECT, related_name="credit_notes", verbose_name=_("invoice"))
    account = models.ForeignKey(Account, models.PROTECT, related_name="credit_notes", verbose_name=_("account"))
    invoice_number = models.CharField(_("invoice number"), max_length=20)
    currency = models.CharField(_("currency"), max_length=3)
    subtotal_nanos = models.BigIntegerField(_("subtotal"))
    tax_rate_ppm = models.PositiveIntegerField(_("tax rate (millionths)"), default=0)
    tax_nanos = models.BigIntegerField(_("tax"), default=0)
    total_nanos = models.BigIntegerField(_("total"))
    line_count = models.PositiveIntegerField(_("lines"))
    reason = models.CharField(_("reason"), max_length=300)
    after_payment = models.BooleanField(_("to be paid back"), default=False)

    seller_name = models.CharField(_("seller"), max_length=200, blank=True)
    seller_address = models.TextField(_("seller's address"), blank=True)
    seller_tax_id = models.CharField(_("seller's tax id"), max_length=64, blank=True)
    account_name = models.CharField(_("account name"), max_length=100)
    key_name = models.CharField(_("key name"), max_length=100)
    legal_name = models.CharField(_("legal name"), max_length=200, blank=True)
    address = models.TextField(_("address"), blank=True)
    tax_id = models.CharField(_("tax id"), max_length=64, blank=True)
    language = models.CharField(_("language"), max_length=10, default="en")
    issued_at = models.DateTimeField(_("issued"))
    issued_on = models.DateField(_("date"))
    made_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+", verbose_name=_("by")
    )

    class Meta:
        verbose_name = _("credit note")
        verbose_name_plural = _("credit notes")
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(total_nanos__gt=0, subtotal_nanos__gte=0, tax_nanos__gte=0)
                & Q(total_nanos=F("subtotal_nanos") + F("tax_nanos")),
                name="credit_note_adds_up",
            )
        ]

    def __str__(self) -> str:
        return self.number


class CreditNoteLine(models.Model):
    """A line of the invoice taken back in whole (`invoice_line`), or an amount off its total. Before tax."""

    credit_note = models.ForeignKey(CreditNote, models.PROTECT, related_name="lines", verbose_name=_("credit note"))
    invoice_line = models.OneToOneField(
        InvoiceLine,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="credit_note_line",
        verbose_name=_("invoice line"),
    )
    position = models.PositiveIntegerField(_("position"))
    description = models.CharField(_("description"), max_length=300)
    amount_nanos = models.BigIntegerField(_("amount"))

    class Meta:
        verbose_name = _("credit note line")
        verbose_name_plural = _("credit note lines")
        ordering = ["position"]
        constraints = [models.UniqueConstraint(fields=["credit_note", "position"], name="line_position_once_per_note")]

    def __str__(self) -> str:
        return self.description
