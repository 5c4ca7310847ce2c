"""`manage.py demo [--port P] [--once]`: everything at once, on data of its own. See hopbase_site.demo."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from hopbase_site import valkey
from hopbase_site.demo import stage
from hopbase_site.demo.show import Show
from streaming import configuration

ENTERED = "HOPBASE_DEMO"
"""Set in the process that runs with the demo's settings."""
USER = "admin"
CONFIGURATION = Path(stage.__file__).with_name("demo.yaml")
EXAMPLE_ADDRESS = b"127.0.0.1:9101"
LOOK_S = 0.5
ASK = '{"model":"gpt-5.6-sol","stream":true,"messages":[{"role":"user","content":"What is a gateway? [silent 6]"}]}'


class Command(BaseCommand):
    help = "Show HopBase: gateway, admin, worker and a fake provider, on data of their own under var/."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument(
            "--once", action="store_true", help="end after the show; status 0 only if all came out right"
        )

    def handle(self, *args: Any, port: int, once: bool, **options: Any) -> None:
        try:
            stage.require_free(port)
            if ENTERED not in os.environ:
                _enter(port)
            self._run(port, once)
        except stage.DemoFailed as failure:
            raise CommandError(str(failure)) from None

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    def _run(self, port: int, once: bool) -> None:
        secrets_file = os.environ["HOPBASE_ENV_FILE"]
        self._say(f"HopBase demo: its data and logs are in {settings.VAR_DIR}, its secrets in {secrets_file}")
        settings.VAR_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
        call_command("migrate", verbosity=0)
        logs = settings.VAR_DIR / "logs"
        with valkey.running(), socket.create_server(("127.0.0.1", 0)) as listener:
            prepare(listener.getsockname()[1])
            provider = ["-m", "hopbase_site.demo.provider", "--fd", str(listener.fileno())]
            gateway = ["manage.py", "serve", "--port", str(port)]
            schedule = str(settings.VAR_DIR / "celerybeat-schedule")
            worker = ["-m", "celery", "-A", "hopbase_site", "worker", "-B", "-s", schedule, "-c", "1", "-l", "warning"]
            with (
                stage.child("fake provider", provider, logs / "provider.log", pass_fds=[listener.fileno()]) as one,
                stage.child("gateway", gateway, logs / "serve.log") as two,
                stage.child("worker", worker, logs / "worker.log") as three,
            ):
                self._say("Starting …")
                stage.await_ready(port, [two, one, three])
                self._introduce(port)
                self._show(port)
                if not once:
                    self._keep_serving([one, two, three])

    def _introduce(self, port: int) -> None:
        own = stage.demo_settings()
        self._say(f"""
  API      http://127.0.0.1:{port}/v1      key {own["DEMO_API_KEY"]}
  admin    http://127.0.0.1:{port}/admin/  user {USER}, password {own["DEMO_ADMIN_PASSWORD"]}

  curl -N http://127.0.0.1:{port}/v1/chat/completions -H 'Authorization: Bearer {own["DEMO_API_KEY"]}' \\
    -H 'Content-Type: application/json' -d '{ASK}'

  Words in the prompt direct the fake provider: [slow] [silent 12] [cut] [error] [fail] [fail 429]""")

    def _show(self, port: int) -> None:
        show = Show(port, stage.demo_settings()["DEMO_API_KEY"], self._say)
        show.run()
        connections.close_all()
        if show.problems:
            raise stage.DemoFailed(f"not everything came out right: {'; '.join(show.problems)}")
        self._say("\nEverything came out right.")

    def _keep_serving(self, children: list[stage.Child]) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
        self._say("Serving until Ctrl-C.")
        try:
            while True:
                for one in children:
                    one.require_running()
                time.sleep(LOOK_S)
        except KeyboardInterrupt:
            self._say("\nStopping; the data stays.")


def _enter(port: int) -> None:
    """Become the demo's own process, with its settings in place of the developer's."""
    path = stage.settings_file(settings.VAR_DIR)
    environment = {**stage.environment(path, port), ENTERED: "1"}
    os.chdir(settings.BASE_DIR)
    os.execve(sys.executable, [sys.executable, "manage.py", *sys.argv[1:]], environment)  # noqa: S606 - ourselves


def prepare(provider_port: int) -> None:
    """The demo's configuration, through the code of `manage.py apply`, and its admin user."""
    raw = CONFIGURATION.read_bytes().replace(EXAMPLE_ADDRESS, f"127.0.0.1:{provider_port}".encode())
    configuration.apply(raw, variables=os.environ)
    users = get_user_model()
    if not users.objects.filter(username=USER).exists():
        users.objects.create_superuser(USER, password=os.environ["DEMO_ADMIN_PASSWORD"])
    connections.close_all()
