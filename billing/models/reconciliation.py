"""A provider's bill beside ours: our attempts by quarter of an hour, operators' tests, and the files compared."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from billing.models.accounts import ApiKey


class AttemptQuarter(models.Model):
    """The sum of a key's attempts of a day (its account's) that began in one quarter of an hour and ended in another.

    Quarters are UTC's: every zone's midnight is the beginning of one, so that any zone's day is a sum of them. Made
    again with the hourly roll-ups, of the same due rows. `use`: what a customer pays for as the provider reported it,
    or as we counted it, or nobody at all. A row with no attempts moves an amount to the model inside a request that
    earned it. `silent`: attempts that may have cost something, of which nobody knows how much.
    """

    class Use(models.TextChoices):
        BILLED = "billed", _("billed")
        ESTIMATED = "estimated", _("estimated")
        FAILED = "failed", _("failed")

    id = models.BigAutoField(primary_key=True)
    # Neither checked nor indexed, as in `rollups`.
    api_key = models.ForeignKey(
        ApiKey, models.PROTECT, related_name="+", db_index=False, db_constraint=False, verbose_name=_("API key")
    )
    day = models.DateField(_("day"))
    provider = models.CharField(_("provider"), max_length=100)
    upstream_model = models.CharField(_("upstream model"), max_length=200)
    started_quarter = models.DateTimeField(_("started in"))
    ended_quarter = models.DateTimeField(_("ended in"))
    use = models.CharField(_("use"), max_length=10, choices=Use.choices)
    currency = models.CharField(_("currency"), max_length=3)
    attempts = models.BigIntegerField(_("attempts"))
    silent = models.BigIntegerField(_("silent"))
    unpriced = models.BigIntegerField(_("unpriced"))
    input = models.BigIntegerField(_("input"))
    cache_read = models.BigIntegerField(_("cache read"))
    cache_write = models.BigIntegerField(_("cache write"))
    cache_write_1h = models.BigIntegerField(_("cache write, 1 h"))
    output = models.BigIntegerField(_("output"))
    input_nanos = models.BigIntegerField()
    cache_read_nanos = models.BigIntegerField()
    cache_write_nanos = models.BigIntegerField()
    cache_write_1h_nanos = models.BigIntegerField()
    output_nanos = models.BigIntegerField()
    billed_nanos = models.BigIntegerField(_("billed"))

    class Meta:
        verbose_name = _("attempts by quarter of an hour")
        verbose_name_plural = _("attempts by quarter of an hour")
        indexes = [
            models.Index(fields=["day", "api_key"], name="quarter_by_day_and_key"),
            models.Index(fields=["provider", "ended_quarter"], name="quarter_by_provider"),
        ]

    def __str__(self) -> str:
        return f"{self.provider}/{self.upstream_model} {self.ended_quarter:%Y-%m-%d %H:%M}"


class ProviderTest(models.Model):
    """A real call with which an operator tried a provider. No account pays for it; the provider bills it all the same.

    Counts are None where no usage was reported.
    """

    id = models.BigAutoField(primary_key=True)
    provider = models.CharField(_("provider"), max_length=100)
    upstream_model = models.CharField(_("upstream model"), max_length=200)
    wire_format = models.CharField(_("wire format"), max_length=20)
    tested_by = models.CharField(_("by"), max_length=150, blank=True)
    started_at = models.DateTimeField(_("started"))
    ended_at = models.DateTimeField(_("ended"))
    input = models.BigIntegerField(_("input"), null=True)
    cache_read = models.BigIntegerField(_("cache read"), null=True)
    cache_write = models.BigIntegerField(_("cache write"), null=True)
    cache_write_1h = models.BigIntegerField(_("cache write, 1 h"), null=True)
    output = models.BigIntegerField(_("output"), null=True)

    class Meta:
        verbose_name = _("provider test")
        verbose_name_plural = _("provider tests")
        indexes = [models.Index(fields=["provider", "ended_at"], name="test_by_provider")]

    def __str__(self) -> str:
        return f"{self.provider}/{self.upstream_model} {self.ended_at:%Y-%m-%d %H:%M}"


class ReconciliationMapping(models.Model):
    """How a provider's files are read, as it was last done: `provider_files.FileMapping` as JSON."""

    id = models.BigAutoField(primary_key=True)
    provider = models.CharField(_("provider"), max_length=100, unique=True)
    mapping = models.JSONField(_("mapping"))
    changed_at = models.DateTimeField(_("changed"))

    class Meta:
        verbose_name = _("file mapping")
        verbose_name_plural = _("file mappings")
        ordering = ["provider"]

    def __str__(self) -> str:
        return self.provider


class Reconciliation(models.Model):
    """A provider's file, how it is read, and its comparison with our attempts.

    `content` is the file as it came, compressed: the comparison can be made again, and proven. `compared_at` None: the
    columns are not mapped yet. `mapping` is that of the last comparison. `totals`: `matching.Totals` as JSON.
    """

    id = models.BigAutoField(primary_key=True)
    provider = models.CharField(_("provider"), max_length=100)
    file_name = models.CharField(_("file"), max_length=200)
    sha256 = models.CharField("SHA-256", max_length=64, unique=True)
    content = models.BinaryField()
    mapping = models.JSONField(_("mapping"), null=True)
    first_day = models.DateField(_("first day"), null=True)
    last_day = models.DateField(_("last day"), null=True)
    uploaded_by = models.CharField(_("uploaded by"), max_length=150)
    uploaded_at = models.DateTimeField(_("uploaded"))
    compared_at = models.DateTimeField(_("compared"), null=True)
    totals = models.JSONField(_("totals"), null=True)

    class Meta:
        verbose_name = _("reconciliation")
        verbose_name_plural = _("reconciliations")
        indexes = [models.Index(fields=["-uploaded_at"], name="reconciliation_newest")]

    def __str__(self) -> str:
        return self.file_name


class ReconciliationRow(models.Model):
    """A day and model of a comparison. `theirs`, `ours`: bucket -> tokens. `kinds`: kind -> bucket -> theirs - ours.

    Money in nanos; `cost`, `margin` and `price` are in the file's currency, None where they are not known; `billed` is
    currency -> nanos.
    """

    class State(models.TextChoices):
        MATCHED = "matched", _("matched")
        DIFFERS = "differs", _("differs")
        ONLY_THEIRS = "only_theirs", _("only theirs")
        ONLY_OURS = "only_ours", _("only ours")

    id = models.BigAutoField(primary_key=True)
    # The index of the constraint begins with it.
    reconciliation = models.ForeignKey(
        Reconciliation, models.PROTECT, related_name="rows", db_index=False, verbose_name=_("reconciliation")
    )
    day = models.DateField(_("day"))
    model = models.CharField(_("model"), max_length=200)
    state = models.CharField(_("state"), max_length=12, choices=State.choices)
    attempts = models.BigIntegerField(_("attempts"))
    silent = models.BigIntegerField(_("silent"))
    unpriced = models.BigIntegerField(_("unpriced"))
    requests = models.BigIntegerField(_("their requests"), null=True)
    lines = models.PositiveIntegerField(_("lines"), default=0)
    theirs = models.JSONField(_("theirs"), null=True)
    ours = models.JSONField(_("ours"))
    kinds = models.JSONField(_("difference by kind"))
    unexplained = models.BigIntegerField(_("unexplained"))
    cost_nanos = models.BigIntegerField(_("their cost"), null=True)
    billed = models.JSONField(_("billed"))
    margin_nanos = models.BigIntegerField(_("margin"), null=True)
    price_nanos = models.BigIntegerField(_("price"), null=True)

    class Meta:
        verbose_name = _("reconciled day")
        verbose_name_plural = _("reconciled days")
        ordering = ["day", "model"]
        constraints = [
            models.UniqueConstraint(
                fields=["reconciliation", "day", "model"], name="one_row_per_reconciled_day_and_model"
            )
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.model}"
