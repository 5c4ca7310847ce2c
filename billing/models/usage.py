"""What was used: open streams, usage records, their attempts, and the gateway processes that own the open ones.

Providers, routes and models are copied by name, for they may change; the bill may not. Every request pays for every
index: a foreign key has none of its own where another begins with it or nobody asks by it alone.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from billing.models.accounts import Account, ApiKey


class GatewayProcess(models.Model):
    """A process that relays. Its heartbeat is a number that it raises; clocks, pids and host names decide nothing."""

    id = models.UUIDField(primary_key=True, editable=False)
    label = models.CharField(_("process"), max_length=100)
    heartbeat = models.BigIntegerField(_("heartbeat"), default=0)
    started_at = models.DateTimeField(_("started"))

    class Meta:
        verbose_name = _("gateway process")
        verbose_name_plural = _("gateway processes")

    def __str__(self) -> str:
        return self.label


class OpenStream(models.Model):
    """A request under way. `id` is the billing identity (UUIDv7), the same in record, journal and sweep.

    `silence_limit_s`: how long its attempt may be silent before it ends (of a whole answer: how long it may take).
    `provider_request_id` and `attempt_started_at` are the attempt's, as of the last checkpoint. Columns that came later
    have a default in the database too, so that processes of the version before can still write rows.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    api_key = models.ForeignKey(ApiKey, models.PROTECT, related_name="+", db_index=False, verbose_name=_("API key"))
    account = models.ForeignKey(
        Account, models.PROTECT, related_name="open_streams", db_index=False, verbose_name=_("account")
    )
    key_name = models.CharField(_("key name"), max_length=100)
    account_name = models.CharField(_("account name"), max_length=100)
    request_name = models.CharField(_("request id"), max_length=128)
    process = models.UUIDField(_("process"))
    model = models.CharField(_("model"), max_length=200)
    wire_format = models.CharField(_("wire format"), max_length=20)
    stream = models.BooleanField(_("stream"))
    provider = models.CharField(_("provider"), max_length=100, blank=True)
    upstream_model = models.CharField(_("upstream model"), max_length=200, blank=True)
    tier_asked = models.CharField(_("service tier asked"), max_length=40, blank=True, default="", db_default="")
    retry_count = models.PositiveSmallIntegerField(_("client's retries"), default=0, db_default=0)
    silence_limit_s = models.PositiveIntegerField(_("silence limit (seconds)"), null=True)
    count_factor_ppm = models.PositiveIntegerField(_("count factor"), null=True)
    attempt = models.PositiveSmallIntegerField(_("attempt"), default=1)
    attempt_started_at = models.DateTimeField(_("attempt started"), null=True)
    provider_request_id = models.CharField(
        _("provider's request id"), max_length=200, blank=True, default="", db_default=""
    )
    object_ids = models.JSONField(_("stored objects"), default=list)
    started_at = models.DateTimeField(_("started"))
    first_output_at = models.DateTimeField(_("first output"), null=True)
    last_output_at = models.DateTimeField(_("last output"), null=True)
    counted_input = models.BigIntegerField(_("counted input"), default=0)
    counted_output = models.BigIntegerField(_("counted output"), default=0)
    reported = models.JSONField(_("reported usage"), null=True)
    checkpoint_at = models.DateTimeField(_("last checkpoint"), null=True)
    stop_requested = models.BooleanField(_("stop requested"), default=False)

    class Meta:
        verbose_name = _("live stream")
        verbose_name_plural = _("live streams")
        constraints = [models.UniqueConstraint(fields=["api_key", "request_name"], name="open_name_once_per_key")]
        indexes = [models.Index(fields=["process"])]

    def __str__(self) -> str:
        return self.request_name


class UsageRecord(models.Model):
    """One client request, over all its attempts: what was used, at which price, and how it ended.

    Money is in nanos (10^-9 of `currency`). `cost_nanos` is the sum of the five `*_nanos` columns and of the amounts in
    `items`; an unpriced record has zeros there and says why in `unpriced_reason`.

    What we counted ourselves, as it would be billed, is in `counted_input` and `counted_output`: o200k tokens times
    `count_factor_ppm` millionths, or as they are where that is None. `text_only` says that the answer was streamed text
    and nothing else, so that its counted output can be compared with the reported one.
    """

    id = models.UUIDField(primary_key=True, editable=False)
    api_key = models.ForeignKey(
        ApiKey, models.PROTECT, related_name="records", db_index=False, verbose_name=_("API key")
    )
    account = models.ForeignKey(Account, models.PROTECT, related_name="records", verbose_name=_("account"))
    key_name = models.CharField(_("key name"), max_length=100)
    account_name = models.CharField(_("account name"), max_length=100)
    request_name = models.CharField(_("request id"), max_length=128)
    model = models.CharField(_("model"), max_length=200)
    wire_format = models.CharField(_("wire format"), max_length=20)
    stream = models.BooleanField(_("stream"))
    provider = models.CharField(_("provider"), max_length=100, blank=True)
    upstream_model = models.CharField(_("upstream model"), max_length=200, blank=True)
    ending = models.CharField(_("ending"), max_length=20)
    metering = models.CharField(_("metering"), max_length=12)
    reason = models.CharField(_("reason"), max_length=500, blank=True)

    input = models.BigIntegerField(_("input"), default=0)
    cache_read = models.BigIntegerField(_("cache read"), default=0)
    cache_write = models.BigIntegerField(_("cache write"), default=0)
    cache_write_1h = models.BigIntegerField(_("cache write, 1 h"), default=0)
    output = models.BigIntegerField(_("output"), default=0)
    reasoning = models.BigIntegerField(_("reasoning"), null=True)
    server_tools = models.JSONField(_("server tools"), default=dict)
    counted_input = models.BigIntegerField(_("counted input"), null=True)
    counted_output = models.BigIntegerField(_("counted output"), null=True)
    count_factor_ppm = models.PositiveIntegerField(_("count factor"), null=True)
    text_only = models.BooleanField(_("text only"), default=False, db_default=False)
    tier_asked = models.CharField(_("service tier asked"), max_length=40, blank=True)
    service_tier = models.CharField(_("service tier"), max_length=40, blank=True)
    raw_usage = models.JSONField(_("raw usage"), null=True)
    flags = models.JSONField(_("flags"), default=list)
    object_ids = models.JSONField(_("stored objects"), default=list)

    currency = models.CharField(_("currency"), max_length=3)
    price_version = models.CharField(_("price version"), max_length=240, blank=True)
    long_context = models.BooleanField(_("long context"), default=False)
    unit_prices = models.JSONField(_("unit prices"), default=dict)
    input_nanos = models.BigIntegerField(default=0)
    cache_read_nanos = models.BigIntegerField(default=0)
    cache_write_nanos = models.BigIntegerField(default=0)
    cache_write_1h_nanos = models.BigIntegerField(default=0)
    output_nanos = models.BigIntegerField(default=0)
    items = models.JSONField(_("other items"), default=list)
    cost_nanos = models.BigIntegerField(_("cost"), default=0)
    unpriced = models.BooleanField(_("unpriced"), default=False)
    unpriced_reason = models.CharField(_("why unpriced"), max_length=200, blank=True)

    started_at = models.DateTimeField(_("started"))
    first_output_at = models.DateTimeField(_("first output"), null=True)
    ended_at = models.DateTimeField(_("ended"))
    day = models.DateField(_("day"))
    hour_start = models.DateTimeField(_("hour"))
    retry_count = models.PositiveSmallIntegerField(_("client's retries"), default=0)
    invoice = models.ForeignKey(
        "billing.Invoice", models.PROTECT, null=True, blank=True, related_name="records", db_index=False,
        verbose_name=_("invoice"),
    )  # fmt: skip

    class Meta:
        verbose_name = _("request")
        verbose_name_plural = _("requests")
        constraints = [models.UniqueConstraint(fields=["request_name", "api_key"], name="record_name_once_per_key")]
        indexes = [
            models.Index(fields=["api_key", "day"]),
            models.Index(fields=["invoice"], name="record_by_invoice", condition=models.Q(invoice__isnull=False)),
            models.Index(fields=["api_key", "ended_at"], name="record_unclaimed", condition=models.Q(invoice=None)),
            models.Index(fields=["-ended_at"], name="record_newest"),
            models.Index(fields=["model"], name="record_unpriced", condition=models.Q(unpriced=True)),
            models.Index(fields=["ended_at"], name="record_unpriced_since", condition=models.Q(unpriced=True)),
            models.Index(
                fields=["model", "-ended_at"],
                name="record_count_sample",
                condition=models.Q(text_only=True, count_factor_ppm__isnull=False),
            ),
            # What a roll-up looks at one by one: the few that are more than their own columns.
            models.Index(
                fields=["day", "api_key"],
                name="record_unusual",
                condition=~models.Q(flags=[]) | ~models.Q(items=[]) | models.Q(metering="none"),
            ),
        ]

    def __str__(self) -> str:
        return self.request_name


class Attempt(models.Model):
    """One upstream call of a request, for the operator. What a failed one reported (`usage`) is billed to nobody.

    The buckets are what `usage` means, None where nothing was reported; what a customer pays for is the record's.
    """

    id = models.BigAutoField(primary_key=True)
    # Not checked: it is inserted with its record, which is never deleted.
    record = models.ForeignKey(
        UsageRecord, models.PROTECT, related_name="attempts", db_index=False, db_constraint=False,
        verbose_name=_("request"),
    )  # fmt: skip
    number = models.PositiveSmallIntegerField(_("number"))
    provider = models.CharField(_("provider"), max_length=100)
    upstream_model = models.CharField(_("upstream model"), max_length=200)
    outcome = models.CharField(_("outcome"), max_length=30)
    status = models.PositiveSmallIntegerField(_("status"), null=True)
    reason = models.CharField(_("reason"), max_length=500, blank=True)
    provider_request_id = models.CharField(_("provider's request id"), max_length=200, blank=True)
    object_ids = models.JSONField(_("stored objects"), default=list)
    usage = models.JSONField(_("usage"), null=True)
    started_at = models.DateTimeField(_("started"))
    headers_ms = models.PositiveIntegerField(_("time to headers (ms)"), null=True)
    first_output_ms = models.PositiveIntegerField(_("time to first output (ms)"), null=True)
    duration_ms = models.PositiveIntegerField(_("duration (ms)"))
    input = models.BigIntegerField(_("input"), null=True)
    cache_read = models.BigIntegerField(_("cache read"), null=True)
    cache_write = models.BigIntegerField(_("cache write"), null=True)
    cache_write_1h = models.BigIntegerField(_("cache write, 1 h"), null=True)
    output = models.BigIntegerField(_("output"), null=True)

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        ordering = ["number"]
        constraints = [models.UniqueConstraint(fields=["record", "number"], name="attempt_number_once_per_record")]
        indexes = [
            models.Index(fields=["provider_request_id"], name="attempt_by_provider_id"),
            models.Index(fields=["provider", "upstream_model", "id"], name="attempt_by_route"),
            models.Index(fields=["record"], name="attempt_second", condition=models.Q(number=2)),
        ]

    def __str__(self) -> str:
        return f"{self.record_id} #{self.number}"


class StoredObject(models.Model):
    """An object that a provider keeps and that an answer to this account brought: nobody else may name it.

    All customers share our account with the provider, which would give anyone's object to anyone. The route is kept by
    its number and names: it may be gone by the time somebody asks.
    """

    id = models.BigAutoField(primary_key=True)
    # Nobody asks for all objects of an account: its index would only cost.
    account = models.ForeignKey(Account, models.PROTECT, related_name="+", db_index=False, verbose_name=_("account"))
    object_id = models.CharField(_("object"), max_length=500)
    provider = models.CharField(_("provider"), max_length=100)
    upstream_model = models.CharField(_("upstream model"), max_length=200)
    route_id = models.BigIntegerField(_("route"), null=True)
    record_id = models.UUIDField(_("request"))
    created_at = models.DateTimeField(_("created"))

    class Meta:
        verbose_name = _("stored object")
        verbose_name_plural = _("stored objects")
        constraints = [models.UniqueConstraint(fields=["object_id", "account"], name="object_once_per_account")]

    def __str__(self) -> str:
        return self.object_id
