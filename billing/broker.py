"""Hints to workers that there is something to do. What it is stands in the database, and beat finds it there too."""

from __future__ import annotations

import logging

import celery
import kombu.exceptions

log = logging.getLogger(__name__)


def hint(task: str, argument: str) -> None:
    """Tell the broker at once or not at all: whoever asks is waiting for a page. For `transaction.on_commit`."""
    app = celery.current_app
    try:
        with app.connection_for_write(connect_timeout=1, transport_options={"max_retries": 0}) as connection:
            app.send_task(task, args=[argument], retry=False, connection=connection)
    except kombu.exceptions.OperationalError as fault:
        log.warning("no broker for %s %s (%s): beat's next round runs it", task, argument, type(fault).__name__)
