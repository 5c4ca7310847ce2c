"""The catalogue's version, which the gateway's processes poll."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext_lazy

from billing.admin.access import ReadOnlyAdmin
from billing.models import CatalogueVersion


@admin.register(CatalogueVersion)
class CatalogueVersionAdmin(ReadOnlyAdmin[CatalogueVersion]):
    list_display = ("id", "value")
    empty_text = gettext_lazy("Nothing has been configured yet.")
    list_note = gettext_lazy("Raised by every change of a key, account, price, model, route or count factor.")
