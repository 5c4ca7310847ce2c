"""`manage.py export_config`: the database as a configuration file."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from streaming import configuration


class Command(BaseCommand):
    help = "Print the configuration file that the database amounts to, without secrets."

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(configuration.export(), ending="")
