"""Who pays: accounts and their API keys. Neither is ever deleted."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _

from billing.models.catalogue import CatalogueRow
from billing.money import is_currency
from billing.periods import zones


class Account(CatalogueRow):
    """A customer. Its zone and currency are locked by its first request (see `clean`)."""

    name = models.CharField(_("name"), max_length=100, unique=True)
    timezone = models.CharField(_("time zone"), max_length=64, default="UTC")
    currency = models.CharField(_("currency"), max_length=3, default="USD")
    active = models.BooleanField(_("active"), default=True)
    legal_name = models.CharField(_("legal name"), max_length=200, blank=True)
    address = models.TextField(_("address"), blank=True)
    tax_id = models.CharField(_("tax id"), max_length=64, blank=True)
    tax_rate_ppm = models.PositiveIntegerField(_("tax rate (millionths)"), default=0)
    due_days = models.PositiveSmallIntegerField(_("due days"), default=30)
    language = models.CharField(_("language"), max_length=10, default="en")
    created_at = models.DateTimeField(_("created"), default=now, editable=False)

    class Meta:
        verbose_name = _("account")
        verbose_name_plural = _("accounts")
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Zone and currency must exist, and stay what they are once there is use (which a trigger guards as well)."""
        before = type(self).objects.filter(pk=self.pk).first() if self.pk else None
        if self.timezone not in zones() and not (before and before.timezone == self.timezone):
            raise ValidationError({"timezone": _("Write a zone of the tz database, for example Asia/Taipei.")})
        if not is_currency(self.currency):
            raise ValidationError({"currency": _("Write an ISO 4217 code in capitals, for example USD.")})
        for field in ("timezone", "currency"):
            if before and getattr(before, field) != getattr(self, field) and before.is_used():
                raise ValidationError({field: _("This was locked by the account's first request.")})

    def is_used(self) -> bool:
        """Whether anything is or will be billed on the account's clocks and in its currency, which locks both."""
        issued = self.invoices.exclude(status="draft")  # their records may have been dropped
        uses = (self.records, self.adjustments, self.open_streams, issued)
        return any(use.exists() for use in uses)


class ApiKey(CatalogueRow):
    """A customer's key: HMACs of its secrets alone. `previous_*` is the secret before a rotation, in its grace time.

    `last_used_at` is of the secret of today, `previous_used_at` of the one before; a minute of either may be missing.
    """

    account = models.ForeignKey(Account, models.PROTECT, related_name="keys", verbose_name=_("account"))
    name = models.CharField(_("name"), max_length=100)
    shown = models.CharField(_("secret begins"), max_length=24, editable=False)
    digest = models.CharField(max_length=64, unique=True, editable=False)
    previous_digest = models.CharField(max_length=64, null=True, blank=True, unique=True, editable=False)
    previous_until = models.DateTimeField(_("old secret works until"), null=True, blank=True, editable=False)
    previous_shown = models.CharField(
        _("old secret begins"), max_length=24, blank=True, default="", db_default="", editable=False
    )
    previous_used_at = models.DateTimeField(_("old secret last used"), null=True, blank=True, editable=False)
    allowed_models = models.JSONField(_("models"), null=True, blank=True)
    allowed_ips = models.JSONField(_("allowed networks"), default=list, blank=True)
    requests_per_minute = models.PositiveIntegerField(_("requests per minute"), null=True, blank=True)
    tokens_per_minute = models.PositiveBigIntegerField(_("tokens per minute"), null=True, blank=True)
    concurrency = models.PositiveIntegerField(_("concurrency"), null=True, blank=True)
    monthly_budget_nanos = models.BigIntegerField(
        _("monthly budget (nanos)"), null=True, blank=True, validators=[MinValueValidator(0)]
    )
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)
    revoked_at = models.DateTimeField(_("revoked"), null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)
    created_at = models.DateTimeField(_("created"), default=now, editable=False)

    class Meta:
        verbose_name = _("API key")
        verbose_name_plural = _("API keys")
        ordering = ["account__name", "name"]
        constraints = [models.UniqueConstraint(fields=["account", "name"], name="key_name_once_per_account")]

    def __str__(self) -> str:
        return f"{self.account.name}/{self.name}"
