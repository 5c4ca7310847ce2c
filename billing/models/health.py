"""What tells whether the figures can be trusted: what went wrong with the meter, and what records were flagged with."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from billing.models.accounts import ApiKey


class MeterEvent(models.Model):
    """What happened to bills of one gateway process within an hour, noted by whoever saw it.

    For people: nothing is decided by it, and a note may be missing or doubled where its writer died. A dropped bill
    stands until an operator has acknowledged it.
    """

    class Kind(models.TextChoices):
        SWEPT = "swept", _("swept after its death")
        LATE = "late", _("written late")
        DROPPED = "dropped", _("refused by the database")
        UNJOURNALLED = "unjournalled", _("not taken by the disk")

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(_("kind"), max_length=12, choices=Kind.choices)
    process = models.UUIDField(_("process"))
    hour = models.DateTimeField(_("hour"))
    count = models.BigIntegerField(_("count"), default=0)
    detail = models.CharField(_("the last one"), max_length=300, blank=True)
    first_at = models.DateTimeField(_("first"))
    last_at = models.DateTimeField(_("last"))
    acknowledged_at = models.DateTimeField(_("acknowledged"), null=True, blank=True)
    acknowledged_by = models.CharField(_("acknowledged by"), max_length=150, blank=True)

    class Meta:
        verbose_name = _("meter event")
        verbose_name_plural = _("meter events")
        constraints = [
            models.UniqueConstraint(fields=["kind", "process", "hour"], name="one_event_per_process_and_hour")
        ]
        indexes = [models.Index(fields=["kind", "last_at"], name="event_by_kind")]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.hour:%Y-%m-%d %H}"


class FlagRollup(models.Model):
    """How many of a key's records of a day bear a flag (`unknown:NAME`, `zero_with_output`); made with the roll-ups."""

    id = models.BigAutoField(primary_key=True)
    # Neither checked nor indexed, as in `rollups`.
    api_key = models.ForeignKey(
        ApiKey, models.PROTECT, related_name="+", db_index=False, db_constraint=False, verbose_name=_("API key")
    )
    day = models.DateField(_("day"))
    provider = models.CharField(_("provider"), max_length=100, blank=True)
    model = models.CharField(_("model"), max_length=200)
    flag = models.CharField(_("flag"), max_length=200)
    records = models.BigIntegerField(_("requests"))
    first_at = models.DateTimeField(_("first"))
    last_at = models.DateTimeField(_("last"))

    class Meta:
        verbose_name = _("flagged usage")
        verbose_name_plural = _("flagged usage")
        constraints = [
            models.UniqueConstraint(
                fields=["api_key", "day", "provider", "model", "flag"], name="one_flag_rollup_per_day_and_dimensions"
            )
        ]
        indexes = [models.Index(fields=["day"], name="flag_rollup_by_day")]

    def __str__(self) -> str:
        return f"{self.flag} {self.day}"
