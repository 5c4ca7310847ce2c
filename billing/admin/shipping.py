"""Records that ClickHouse has not got yet."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext_lazy

from billing.admin.access import EndlessAdmin
from billing.models import RecordToShip


@admin.register(RecordToShip)
class RecordToShipAdmin(EndlessAdmin[RecordToShip]):
    list_display = ("record_id", "created_at")
    ordering = ("-id",)
    empty_text = gettext_lazy("Nothing waits: ClickHouse has all requests, or none is set.")
