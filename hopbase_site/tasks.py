"""Celery tasks of the site: thin, and harmless when they run twice, in parallel or again after a crash."""

from __future__ import annotations

from celery import shared_task
from django.contrib.sessions.models import Session
from django.utils.timezone import now

from hopbase_site import login_throttle

BEAT_SCHEDULE = {
    "forget-logins": {"task": "hopbase_site.tasks.forget_logins", "schedule": 3600.0, "options": {"expires": 3600}},
}


@shared_task  # type: ignore[untyped-decorator]  # celery ships no types
def forget_logins() -> int:
    """Remove failed logins that no longer count and sessions that are over; returns how many of both."""
    at = now()
    over, _ = Session.objects.filter(expire_date__lt=at).delete()
    return login_throttle.forget(at) + over
