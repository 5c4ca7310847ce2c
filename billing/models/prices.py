"""Prices: versions per model, each in force from a moment on."""

from __future__ import annotations

import json

from django.db import models
from django.db.models import Q
from django.db.models.functions import Cast
from django.utils.translation import gettext_lazy as _

from billing.models.catalogue import CatalogueRow


class Price(CatalogueRow):
    """One price version of a model; never changes once a record was rated with it.

    Buckets are nanos (10^-9 of the currency) per million tokens; None: this bucket has no price. `tiers` maps a service
    tier to a multiplier (a decimal as text) or to a whole block `{bucket: nanos per million}`. `long_context` is None
    or `{"above": tokens, "input": "2.0", "output": "1.5"}`. `server_tools` maps a tool to nanos per request.
    `rated_from`: somebody chose this version for unpriced requests from before its start; the first of them ended then.
    """

    model = models.CharField(_("model"), max_length=200)
    effective_from = models.DateTimeField(_("from"))
    currency = models.CharField(_("currency"), max_length=3)
    input = models.BigIntegerField(_("input"), null=True, blank=True)
    cache_read = models.BigIntegerField(_("cache read"), null=True, blank=True)
    cache_write = models.BigIntegerField(_("cache write"), null=True, blank=True)
    cache_write_1h = models.BigIntegerField(_("cache write, 1 h"), null=True, blank=True)
    output = models.BigIntegerField(_("output"), null=True, blank=True)
    tiers = models.JSONField(_("service tiers"), default=dict, blank=True)
    long_context = models.JSONField(_("long context"), null=True, blank=True)
    server_tools = models.JSONField(_("server tools"), default=dict, blank=True)
    rated_from = models.DateTimeField(_("rated from"), null=True, editable=False)

    class Meta:
        verbose_name = _("price")
        verbose_name_plural = _("prices")
        ordering = ["model", "-effective_from"]
        constraints = [models.UniqueConstraint(fields=["model", "effective_from"], name="one_price_version_per_moment")]

    def __str__(self) -> str:
        return self.label

    @property
    def label(self) -> str:
        """The version's name on records: `model@2026-01-01T00:00:00Z`."""
        return f"{self.model}@{self.effective_from:%Y-%m-%dT%H:%M:%SZ}"

    def is_used(self) -> bool:
        """Whether a record was rated with this version, as a whole or in one of its items.

        Records that ended before the version's start cannot be, but for those that somebody chose it for; so the index
        on `ended_at` bounds the search. A version that was in force when records were dropped counts as used by them.
        """
        from billing.models.dropped import DroppedMonth
        from billing.models.usage import UsageRecord

        if DroppedMonth.objects.filter(last_day__gte=(self.rated_from or self.effective_from).date()).exists():
            return True
        records = UsageRecord.objects.filter(ended_at__gte=self.rated_from or self.effective_from)
        if records.filter(price_version=self.label).exists():
            return True
        # SQLite keeps JSON as Django wrote it, with escapes; PostgreSQL's jsonb gives characters back as they are.
        spellings = {json.dumps(self.label), json.dumps(self.label, ensure_ascii=False)}
        named = Q(*(Q(items_text__contains=spelling) for spelling in spellings), _connector=Q.OR)
        return records.exclude(items=[]).annotate(items_text=Cast("items", models.TextField())).filter(named).exists()
