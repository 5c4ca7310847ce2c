"""Count factors: how many of its own tokens a model reports for each that we count."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from billing.models.catalogue import CatalogueRow


class CountFactor(CatalogueRow):
    """A model's factor as its finished records showed it at one time: the median of reported / counted output.

    Rows are only ever added, and a model's newest is in force: the rows are the history. The factor is in millionths.
    """

    model = models.CharField(_("model"), max_length=200)
    factor_ppm = models.PositiveIntegerField(_("count factor"))
    records = models.PositiveIntegerField(_("records"))
    fitted_at = models.DateTimeField(_("since"))

    class Meta:
        verbose_name = _("count factor")
        verbose_name_plural = _("count factors")
        ordering = ["-id"]
        indexes = [models.Index(fields=["model", "-id"], name="count_factor_newest")]

    @classmethod
    def in_force(cls, using: str = "default", since: int = -1) -> dict[str, int]:
        """The newest factor of each model that got one after this catalogue version, in millionths."""
        newest = cls.objects.using(using).filter(changed_in__gt=since).order_by().values("model")
        ids = newest.annotate(newest=models.Max("id")).values("newest")
        return dict(cls.objects.using(using).filter(id__in=ids).values_list("model", "factor_ppm"))

    def __str__(self) -> str:
        return f"{self.model} × {shown_factor(self.factor_ppm)}"


def shown_factor(factor_ppm: int) -> str:
    """A factor to four decimal places: `1.1832`."""
    tenthousandths = (factor_ppm + 50) // 100
    return f"{tenthousandths // 10_000}.{tenthousandths % 10_000:04d}"
