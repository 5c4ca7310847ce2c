"""What people keep of reports: the views that they named, and the files that they asked for."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _


class SavedView(models.Model):
    """A report's whole state under a name: the query of its URL, without the `?`. Shared ones are seen by all."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+", verbose_name=_("owner"))
    name = models.CharField(_("name"), max_length=100)
    query = models.CharField(_("query"), max_length=1000, blank=True)
    shared = models.BooleanField(_("shared"), default=False)
    hidden = models.BooleanField(_("hidden"), default=False)
    created_at = models.DateTimeField(_("created"), default=now, editable=False)

    class Meta:
        verbose_name = _("saved view")
        verbose_name_plural = _("saved views")
        ordering = ["name", "pk"]
        constraints = [models.UniqueConstraint(fields=["owner", "name"], name="view_name_once_per_owner")]

    def __str__(self) -> str:
        return self.name


class Export(models.Model):
    """A file that somebody asked for and a worker makes: what was asked, how far it is, and where the file lies.

    `query` is the report's URL query, read as of `created_at`; so a task that is delivered again asks the same. The
    file is `HOPBASE_VAR_DIR/exports/<id>.<format>` until `expires_at`; the row stays, to tell who took what.
    """

    class Kind(models.TextChoices):
        USAGE = "usage", _("usage report")
        RECORDS = "records", _("requests")
        STATEMENT = "statement", _("statement")
        DRAFT = "draft", _("draft of an invoice")

    class Format(models.TextChoices):
        CSV = "csv", "CSV"
        XLSX = "xlsx", "XLSX"
        PDF = "pdf", "PDF"

    class State(models.TextChoices):
        WAITING = "waiting", _("waiting")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        FAILED = "failed", _("failed")
        EXPIRED = "expired", _("expired")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+", verbose_name=_("owner"))
    kind = models.CharField(_("kind"), max_length=12, choices=Kind.choices)
    format = models.CharField(_("format"), max_length=4, choices=Format.choices)
    query = models.CharField(_("query"), max_length=1000, blank=True)
    language = models.CharField(_("language"), max_length=10, default="en")
    file_name = models.CharField(_("file name"), max_length=200)
    state = models.CharField(_("state"), max_length=8, choices=State.choices, default=State.WAITING)
    tries = models.PositiveSmallIntegerField(_("tries"), default=0)
    rows_done = models.PositiveBigIntegerField(_("rows done"), default=0)
    rows_total = models.PositiveBigIntegerField(_("rows in all"), null=True, blank=True)
    size_bytes = models.PositiveBigIntegerField(_("size"), null=True, blank=True)
    sha256 = models.CharField("SHA-256", max_length=64, blank=True)
    problem = models.CharField(_("problem"), max_length=300, blank=True)
    created_at = models.DateTimeField(_("asked for"), default=now, editable=False)
    progress_at = models.DateTimeField(_("last progress"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)

    class Meta:
        verbose_name = _("export")
        verbose_name_plural = _("exports")
        ordering = ["-created_at"]
        permissions = [("download_export", "Can download other users' exports")]
        indexes = [
            models.Index(fields=["owner", "-created_at"], name="export_of_owner"),
            models.Index(fields=["state"], name="export_open", condition=models.Q(state__in=("waiting", "running"))),
        ]

    def __str__(self) -> str:
        return self.file_name
