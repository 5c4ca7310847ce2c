"""Celery tasks of the gateway: thin, and harmless when they run twice, in parallel or again after a crash."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings
from django.utils.timezone import now

from streaming import alarms
from streaming.webhook import Webhook, post

BEAT_SCHEDULE = {
    "watch-alarms": {"task": "streaming.tasks.watch_alarms", "schedule": 20.0, "options": {"expires": 20}},
}


@shared_task  # type: ignore[untyped-decorator]  # celery ships no types
def watch_alarms() -> int:
    """Raise and end alarms, and have the webhook told, if there is one; returns of how many."""
    alarms.look(now())
    if not settings.ALARM_WEBHOOK_URL:
        return 0
    untold = alarms.untold(now())
    for id in untold:
        tell_alarm.delay(id)
    return len(untold)


@shared_task  # type: ignore[untyped-decorator]
def tell_alarm(id: int) -> bool:
    """Tell of one alarm what is due; what does not arrive is tried again by a later look, with a growing pause."""
    target = Webhook(settings.ALARM_WEBHOOK_URL, settings.ALARM_WEBHOOK_SECRET)
    return bool(target.url) and alarms.tell(id, lambda body, delivery: post(target, body, delivery), now)
