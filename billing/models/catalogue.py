"""The catalogue's version: one integer that every change of a key, account, price, model or route raises.

A gateway process polls that integer and then reads only the rows whose `changed_in` is newer than what it has.
The version's row stays locked until the change commits, so versions become visible in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db import models, router, transaction
from django.db.models import F
from django.utils.translation import gettext_lazy as _


class CatalogueVersion(models.Model):
    """One row, id 1."""

    value = models.BigIntegerField(default=0)

    class Meta:
        verbose_name = _("catalogue version")
        verbose_name_plural = _("catalogue versions")

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def current(cls) -> int:
        """The version as last committed; 0 before the first change."""
        return cls.objects.filter(pk=1).values_list("value", flat=True).first() or 0

    @classmethod
    def raise_within(cls, using: str) -> int:
        """Raise the version inside the caller's transaction and return it."""
        rows = cls.objects.using(using)
        if not rows.filter(pk=1).update(value=F("value") + 1):
            CatalogueVersion.objects.using(using).bulk_create([CatalogueVersion(pk=1)], ignore_conflicts=True)
            rows.filter(pk=1).update(value=F("value") + 1)
        return int(rows.values_list("value", flat=True).get(pk=1))


_shared_version: ContextVar[int | None] = ContextVar("shared_version", default=None)


@contextmanager
def one_version(using: str = "default") -> Iterator[None]:
    """A transaction whose saves all bear one new version: a file of hundreds of rows raises it once."""
    with transaction.atomic(using=using):
        token = _shared_version.set(CatalogueVersion.raise_within(using))
        try:
            yield
        finally:
            _shared_version.reset(token)


class CatalogueRow(models.Model):
    """A row that the gateway keeps in memory: saving it raises the catalogue's version in the same transaction.

    `QuerySet.update` and `bulk_*` bypass this and are not used on such tables.
    """

    changed_in = models.BigIntegerField(_("changed in version"), default=0, db_index=True, editable=False)

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        using = kwargs.get("using") or router.db_for_write(type(self), instance=self)
        if (fields := kwargs.get("update_fields")) is not None:
            kwargs["update_fields"] = {*fields, "changed_in"}
        if (shared := _shared_version.get()) is not None:
            self.changed_in = shared
            super().save(*args, **kwargs)
            return
        with transaction.atomic(using=using):
            self.changed_in = CatalogueVersion.raise_within(using)
            super().save(*args, **kwargs)
