"""The product's Celery app in a hurry: beat asks every second, what is not done in one second is delivered again."""

from __future__ import annotations

from typing import Any

from hopbase_site.celery import app

EVERY_S = 1.0
WANTED = ("rebuild-rollups", "tend-invoices", "draft-month", "sweep")

app.conf.broker_transport_options = {
    "visibility_timeout": 1, "unacked_restore_interval": 0.5, "unacked_restore_throttle": 1,
}  # fmt: skip


def _hurry(sender: Any, **kwargs: Any) -> None:
    """After the product has given beat its schedule."""
    due = sender.conf.beat_schedule
    sender.conf.beat_schedule = {name: {**due[name], "schedule": EVERY_S} for name in WANTED}


app.on_after_finalize.connect(_hurry)
