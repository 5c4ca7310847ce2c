"""What a worker does with invoices, and how far it is: months drafted and issued, invoices proved."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _

from billing.models.invoices import Invoice


class InvoiceRun(models.Model):
    """One piece of work in the background: a month's drafts or issue, or the proof of one invoice.

    At most one of a month, and one of an invoice, is under way: whoever asks meanwhile gets that one. `result` is what
    came of it, as JSON: of an issue `issued` (ids) and `blocked` (id and reasons), beside `chosen`, the ids asked for;
    of a proof what `billing.proofs.Proof` holds.
    """

    class Act(models.TextChoices):
        DRAFT = "draft", _("draft the month")
        ISSUE = "issue", _("issue the month")
        PROVE = "prove", _("prove an invoice")

    class State(models.TextChoices):
        WAITING = "waiting", _("waiting")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        FAILED = "failed", _("failed")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    act = models.CharField(_("act"), max_length=8, choices=Act.choices)
    month = models.DateField(_("month"))
    invoice = models.ForeignKey(
        Invoice, models.CASCADE, null=True, blank=True, related_name="proofs", verbose_name=_("invoice")
    )
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+", verbose_name=_("by")
    )
    state = models.CharField(_("state"), max_length=8, choices=State.choices, default=State.WAITING)
    tries = models.PositiveSmallIntegerField(_("tries"), default=0)
    steps_done = models.PositiveBigIntegerField(_("steps done"), default=0)
    steps_total = models.PositiveBigIntegerField(_("steps in all"), default=0)
    result = models.JSONField(_("result"), default=dict, blank=True)
    problem = models.CharField(_("problem"), max_length=300, blank=True)
    asked_at = models.DateTimeField(_("asked for"), default=now, editable=False)
    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    progress_at = models.DateTimeField(_("last progress"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)

    class Meta:
        verbose_name = _("invoice run")
        verbose_name_plural = _("invoice runs")
        ordering = ["-asked_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["month"], name="one_open_run_per_month",
                condition=Q(invoice=None, state__in=("waiting", "running")),
            ),
            models.UniqueConstraint(
                fields=["invoice"], name="one_open_proof_per_invoice", condition=Q(state__in=("waiting", "running"))
            ),
        ]  # fmt: skip
        indexes = [
            models.Index(fields=["month", "-asked_at"], name="run_of_month"),
            models.Index(fields=["state"], name="run_open", condition=Q(state__in=("waiting", "running"))),
        ]

    def __str__(self) -> str:
        return f"{self.get_act_display()} {self.month:%Y-%m}"
