"""Log lines, one way or the other (HOPBASE_LOG_FORMAT): for who reads along, and as JSON for who collects them."""

from __future__ import annotations

import datetime as dt
import json
import logging
import socket

from celery import current_task

from billing.request_ids import REQUEST_ID
from hopbase_site import hidden

HOST = socket.gethostname()


def fields_of(record: logging.LogRecord) -> dict[str, str]:
    """What a line says. `request_id` (or a record's own) is there where it belongs to a request, `task` in a worker."""
    at = dt.datetime.fromtimestamp(record.created, dt.UTC)
    fields = {
        "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), "level": record.levelname.lower(),
        "logger": record.name, "event": hidden.message_of(record), "worker": f"{HOST}:{record.process}",
    }  # fmt: skip
    if request_id := getattr(record, "request_id", "") or REQUEST_ID.get():
        fields["request_id"] = request_id
    if current_task:
        fields |= {"task": current_task.name, "task_id": str(current_task.request.id)}
    if record.exc_info and record.exc_info[1] is not None:
        fields["exception"] = hidden.exception_text(record.exc_info[1], record.name)
    return fields


class JsonFormatter(logging.Formatter):
    """A JSON object for each line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(fields_of(record))


class ConsoleFormatter(logging.Formatter):
    """Time, level, logger and what is said; a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        line = "{time} {level} {logger}: {event}".format(**{**fields, "level": record.levelname})
        for name in ("request_id", "task"):
            if name in fields:
                line += f" [{fields[name]}]"
        return "\n".join([line, *filter(None, [fields.get("exception")])])
