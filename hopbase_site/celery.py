"""The Celery app: `celery -A hopbase_site worker -B`. Tasks are thin; what they call is in the apps."""

from __future__ import annotations

import logging
import logging.config
import os
from typing import Any

from celery import Celery
from celery.signals import beat_init, celeryd_init, setup_logging
from django.core.exceptions import ImproperlyConfigured

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hopbase_site.settings")

app = Celery("hopbase")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


def _schedule(sender: Celery, **kwargs: Any) -> None:
    """Give beat the apps' schedule; only now, since the tasks' modules import models."""
    from billing.tasks import BEAT_SCHEDULE as OF_BILLING
    from hopbase_site.tasks import BEAT_SCHEDULE as OF_SITE
    from streaming.tasks import BEAT_SCHEDULE as OF_STREAMING

    sender.conf.beat_schedule = {**OF_BILLING, **OF_STREAMING, **OF_SITE}


def _refuse_default_secrets(**kwargs: Any) -> None:
    """A worker starts under the same conditions as `manage.py serve`. Signals swallow errors, but not SystemExit."""
    from hopbase_site.checks import make_var_dir, refuse_default_secrets

    try:
        refuse_default_secrets()
        make_var_dir()
    except ImproperlyConfigured as error:
        raise SystemExit(f"error: {error}") from None


def _keep_own_logging(loglevel: int | None = None, **kwargs: Any) -> None:
    """Log as the other processes do, at the level of `--loglevel`; celery leaves logging alone where this is heard."""
    from django.conf import settings

    logging.config.dictConfig(settings.LOGGING)
    if loglevel is not None:
        logging.getLogger().setLevel(loglevel)


app.on_after_finalize.connect(_schedule)
setup_logging.connect(_keep_own_logging)
celeryd_init.connect(_refuse_default_secrets)
beat_init.connect(_refuse_default_secrets)
