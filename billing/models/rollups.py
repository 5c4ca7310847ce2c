"""Sums of records by hour, and the days whose sums are due to be made again.

Accounts and keys of sums are copied from records, which the database checks, and neither is ever deleted: a check of
each sum would only cost. Nor have they indexes of their own: sums are read by their days.
"""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _

from billing.models.accounts import Account, ApiKey


class RollupDue(models.Model):
    """A key's day that has records newer than its roll-up. One row per cause; a run deletes just those that it read.

    `created_at` decides nothing: it tells the operator how far roll-ups are behind.
    """

    id = models.BigAutoField(primary_key=True)
    # Its index would only cost: all that is asked for is asked for by its day.
    api_key = models.ForeignKey(ApiKey, models.PROTECT, related_name="+", db_index=False)
    day = models.DateField()
    created_at = models.DateTimeField(default=now, db_default=Now())

    class Meta:
        verbose_name = _("roll-up due")
        verbose_name_plural = _("roll-ups due")
        indexes = [models.Index(fields=["day", "api_key"], name="due_by_day")]

    def __str__(self) -> str:
        return f"{self.api_key_id} {self.day}"


class UsageRollup(models.Model):
    """The sum of a key's records of one hour (in the account's zone), by the dimensions that reports ask for.

    There may be nearly as many rows as records: that none is there twice shows in the days that are made of them.
    """

    id = models.BigAutoField(primary_key=True)
    account = models.ForeignKey(
        Account, models.PROTECT, related_name="+", db_index=False, db_constraint=False, verbose_name=_("account")
    )
    api_key = models.ForeignKey(
        ApiKey, models.PROTECT, related_name="+", db_index=False, db_constraint=False, verbose_name=_("API key")
    )
    day = models.DateField(_("day"))
    hour_start = models.DateTimeField(_("hour"))
    model = models.CharField(_("model"), max_length=200)
    provider = models.CharField(_("provider"), max_length=100, blank=True)
    service_tier = models.CharField(_("service tier"), max_length=40, blank=True)
    metering = models.CharField(_("metering"), max_length=12)
    long_context = models.BooleanField(_("long context"), default=False)
    currency = models.CharField(_("currency"), max_length=3)
    requests = models.BigIntegerField(_("requests"))
    interrupted = models.BigIntegerField(_("interrupted"))
    unpriced = models.BigIntegerField(_("unpriced"))
    input = models.BigIntegerField(_("input"))
    cache_read = models.BigIntegerField(_("cache read"))
    cache_write = models.BigIntegerField(_("cache write"))
    cache_write_1h = models.BigIntegerField(_("cache write, 1 h"))
    output = models.BigIntegerField(_("output"))
    reasoning = models.BigIntegerField(_("reasoning"))
    cost_nanos = models.BigIntegerField(_("cost"))

    class Meta:
        verbose_name = _("hourly roll-up")
        verbose_name_plural = _("hourly roll-ups")
        indexes = [models.Index(fields=["day", "api_key"], name="usage_hours_by_day")]

    def __str__(self) -> str:
        return f"{self.api_key_id} {self.hour_start:%Y-%m-%d %H} {self.model}"


class UsageDay(models.Model):
    """The sum of a key's hourly roll-ups of one day (in the account's zone) by model and provider: what reports read.

    Made in the transaction that makes the hours, from nothing but them. `estimated`: requests of which we counted at
    least a part ourselves.
    """

    id = models.BigAutoField(primary_key=True)
    account = models.ForeignKey(
        Account, models.PROTECT, related_name="+", db_index=False, db_constraint=False, verbose_name=_("account")
    )
    api_key = models.ForeignKey(
        ApiKey, models.PROTECT, related_name="+", db_index=False, db_constraint=False, verbose_name=_("API key")
    )
    day = models.DateField(_("day"))
    model = models.CharField(_("model"), max_length=200)
    provider = models.CharField(_("provider"), max_length=100, blank=True)
    currency = models.CharField(_("currency"), max_length=3)
    requests = models.BigIntegerField(_("requests"))
    interrupted = models.BigIntegerField(_("interrupted"))
    estimated = models.BigIntegerField(_("estimated"))
    unpriced = models.BigIntegerField(_("unpriced"))
    input = models.BigIntegerField(_("input"))
    cache_read = models.BigIntegerField(_("cache read"))
    cache_write = models.BigIntegerField(_("cache write"))
    cache_write_1h = models.BigIntegerField(_("cache write, 1 h"))
    output = models.BigIntegerField(_("output"))
    reasoning = models.BigIntegerField(_("reasoning"))
    cost_nanos = models.BigIntegerField(_("cost"))

    class Meta:
        verbose_name = _("daily roll-up")
        verbose_name_plural = _("daily roll-ups")
        constraints = [
            models.UniqueConstraint(fields=["api_key", "day", "model", "provider"], name="one_usage_day_per_dimensions")
        ]
        indexes = [models.Index(fields=["day"], name="usage_day_by_day")]

    def __str__(self) -> str:
        return f"{self.api_key_id} {self.day} {self.model}"
