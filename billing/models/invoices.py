"""Invoices: one per key and month, with all that they print copied in. A trigger keeps issued ones from changing."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from billing.models.accounts import Account, ApiKey


class InvoiceCounter(models.Model):
    """The last number given in a series and year; locked while the next is taken, so that numbers have no gaps."""

    series = models.CharField(max_length=20)
    year = models.PositiveSmallIntegerField()
    last = models.PositiveIntegerField(default=0)

    class Meta:
        verbose_name = _("invoice counter")
        verbose_name_plural = _("invoice counters")
        constraints = [models.UniqueConstraint(fields=["series", "year"], name="one_counter_per_series_and_year")]

    def __str__(self) -> str:
        return f"{self.series} {self.year}: {self.last}"


class Invoice(models.Model):
    """The bill of a key for a month of its account's zone. Money in nanos, whole in the currency's places."""

    class Status(models.TextChoices):
        DRAFT = "draft", _("draft")
        OPEN = "open", _("open")
        PAID = "paid", _("paid")
        VOID = "void", _("void")

    number = models.CharField(_("number"), max_length=20, null=True, blank=True, unique=True)
    status = models.CharField(_("status"), max_length=8, choices=Status.choices, default=Status.DRAFT)
    account = models.ForeignKey(Account, models.PROTECT, related_name="invoices", verbose_name=_("account"))
    api_key = models.ForeignKey(ApiKey, models.PROTECT, related_name="invoices", verbose_name=_("API key"))
    month = models.DateField(_("month"))
    period_start = models.DateTimeField(_("period start"))
    period_end = models.DateTimeField(_("period end"))
    timezone = models.CharField(_("time zone"), max_length=64)
    currency = models.CharField(_("currency"), max_length=3)
    subtotal_nanos = models.BigIntegerField(_("subtotal"), default=0)
    tax_rate_ppm = models.PositiveIntegerField(_("tax rate (millionths)"), default=0)
    tax_nanos = models.BigIntegerField(_("tax"), default=0)
    total_nanos = models.BigIntegerField(_("total"), default=0)
    unpriced = models.PositiveIntegerField(_("unpriced requests"), default=0)

    seller_name = models.CharField(_("seller"), max_length=200, blank=True)
    seller_address = models.TextField(_("seller's address"), blank=True)
    seller_tax_id = models.CharField(_("seller's tax id"), max_length=64, blank=True)
    account_name = models.CharField(_("account name"), max_length=100)
    key_name = models.CharField(_("key name"), max_length=100)
    legal_name = models.CharField(_("legal name"), max_length=200, blank=True)
    address = models.TextField(_("address"), blank=True)
    tax_id = models.CharField(_("tax id"), max_length=64, blank=True)
    language = models.CharField(_("language"), max_length=10, default="en")

    drafted_at = models.DateTimeField(_("drafted"), auto_now_add=True)
    issued_at = models.DateTimeField(_("issued"), null=True, blank=True)
    due_on = models.DateField(_("due"), null=True, blank=True)
    paid_on = models.DateField(_("paid"), null=True, blank=True)
    payment_reference = models.CharField(_("payment reference"), max_length=100, blank=True)
    voided_at = models.DateTimeField(_("voided"), null=True, blank=True)
    void_reason = models.CharField(_("why void"), max_length=300, blank=True)

    class Meta:
        verbose_name = _("invoice")
        verbose_name_plural = _("invoices")
        ordering = ["-month", "account_name", "key_name"]
        constraints = [
            models.UniqueConstraint(
                fields=["api_key", "month"], condition=~models.Q(status="void"), name="one_invoice_per_key_and_month"
            )
        ]
        indexes = [models.Index(fields=["month", "status"])]

    def __str__(self) -> str:
        return self.number or f"{_('draft')} {self.account_name}/{self.key_name} {self.month:%Y-%m}"


class InvoiceLine(models.Model):
    """A sum of records: `exact_nanos`, that sum in the currency's places (`amount_nanos`), and the difference.

    `unit_nanos` is nanos per million tokens, or per request of a server tool (`per_million` says which); `quantity`
    counts tokens or requests.
    """

    invoice = models.ForeignKey(Invoice, models.PROTECT, related_name="lines", verbose_name=_("invoice"))
    position = models.PositiveIntegerField(_("position"))
    model = models.CharField(_("model"), max_length=200)
    description = models.CharField(_("description"), max_length=300)
    bucket = models.CharField(_("bucket"), max_length=60)
    metering = models.CharField(_("metering"), max_length=12)
    service_tier = models.CharField(_("service tier"), max_length=40, blank=True)
    long_context = models.BooleanField(_("long context"), default=False)
    price_version = models.CharField(_("price version"), max_length=240, blank=True)
    late = models.BooleanField(_("late usage"), default=False)
    quantity = models.BigIntegerField(_("quantity"))
    unit_nanos = models.BigIntegerField(_("unit price"))
    per_million = models.BooleanField(_("per million tokens"), default=True)
    exact_nanos = models.BigIntegerField(_("exact"))
    rounding_nanos = models.BigIntegerField(_("rounding"))
    amount_nanos = models.BigIntegerField(_("amount"))

    class Meta:
        verbose_name = _("invoice line")
        verbose_name_plural = _("invoice lines")
        ordering = ["position"]
        constraints = [models.UniqueConstraint(fields=["invoice", "position"], name="line_position_once_per_invoice")]

    def __str__(self) -> str:
        return self.description


class InvoiceDocument(models.Model):
    """The PDF of an issued invoice, made once and kept with its hash. Never changes (triggers).

    It lies in the database, with the invoice: whoever backs up, restores or moves the one has the other, and no worker
    or web host needs a disk in common. With the characters it needs, it is some 30 to 60 KB.
    """

    invoice = models.OneToOneField(
        Invoice, models.PROTECT, primary_key=True, related_name="document", verbose_name=_("invoice")
    )
    content = models.BinaryField(_("content"))
    size_bytes = models.PositiveIntegerField(_("size"))
    sha256 = models.CharField("SHA-256", max_length=64)
    made_at = models.DateTimeField(_("made"))

    class Meta:
        verbose_name = _("invoice document")
        verbose_name_plural = _("invoice documents")

    def __str__(self) -> str:
        return f"{self.invoice}.pdf"
