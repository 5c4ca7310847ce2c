"""Every task has its queue, and a worker that is told nothing takes all of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import redis
import yaml
from django.conf import settings

from hopbase_site.celery import app

ROOT = Path(__file__).resolve().parents[2]
OURS = ("billing.", "streaming.", "hopbase_site.")


@pytest.fixture(autouse=True)
def _tasks() -> None:
    app.loader.import_default_modules()


def own_tasks() -> set[str]:
    return {name for name in app.tasks if name.startswith(OURS)}


def test_every_task_has_a_queue() -> None:
    assert set(settings.CELERY_TASK_ROUTES) == own_tasks()
    assert {route["queue"] for route in settings.CELERY_TASK_ROUTES.values()} == set(app.amqp.queues)


def test_default_worker_takes_all_queues() -> None:
    assert set(app.amqp.queues.consume_from) == {settings.QUICK, settings.LONG}


def test_unknown_queue_is_refused() -> None:
    with pytest.raises(KeyError):
        app.amqp.Queues(settings.CELERY_TASK_QUEUES, create_missing=False).select(["lnog"])


@pytest.mark.parametrize(
    ("task", "queue"), [("billing.tasks.sweep", settings.QUICK), ("billing.tasks.run_export", settings.LONG)]
)
def test_message_waits_in_its_queue_alone(valkey: str, task: str, queue: str) -> None:
    broker = valkey.replace("unix://", "redis+socket://")
    with app.connection_for_write(broker) as connection:
        app.send_task(task, args=["x"], connection=connection)
    with redis.Redis.from_url(valkey) as client:
        assert {name: client.llen(name) for name in (settings.QUICK, settings.LONG)} == {
            settings.QUICK: int(queue == settings.QUICK),
            settings.LONG: int(queue == settings.LONG),
        }


def test_deployed_workers_take_every_queue() -> None:
    """The one that always runs takes all, with beat; the others only help."""
    compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    commands = [compose["worker"]["command"], compose["worker-long"]["command"]]
    for unit in ("hopbase-worker", "hopbase-worker-long"):
        text = (ROOT / f"deploy/systemd/{unit}.service").read_text()
        commands.append(shlex.split(re.findall(r"^ExecStart=.*hopbase_site (worker .*)$", text, re.MULTILINE)[0]))
    assert [("-B" in command, "--queues" in command and "long" in command) for command in commands] == [
        (True, False),
        (False, True),
    ] * 2
