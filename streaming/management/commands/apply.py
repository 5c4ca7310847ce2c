"""`manage.py apply FILE [--dry-run]`: make the database match a configuration file."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from billing.audit import acting
from streaming import configuration


class Command(BaseCommand):
    help = "Make the database match a configuration file (YAML); what the file does not name stays as it is."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE")
        parser.add_argument("--dry-run", action="store_true", help="say what would change, and change nothing")

    def handle(self, *args: Any, file: Path, dry_run: bool, **options: Any) -> None:
        try:
            with acting("apply"):
                lines = configuration.apply(file.read_bytes(), variables=os.environ, dry_run=dry_run)
        except OSError as error:
            raise CommandError(f"{file} cannot be read ({error.strerror}): give the path of a YAML file") from None
        except configuration.NotReadable as fault:
            raise CommandError(f"{file} is not YAML: {fault}") from None
        except configuration.ConfigurationFaults as faults:
            ending = "" if len(faults.lines) == 1 else f"\nerror: {len(faults.lines)} faults; nothing was applied"
            raise CommandError("\nerror: ".join(faults.lines) + ending) from None
        for line in lines:
            self.stdout.write(line)
        self.stdout.write(_summary(len(lines), dry_run))


def _summary(changes: int, dry_run: bool) -> str:
    if not changes:
        return "nothing to change"
    return f"{changes} changes {'would be' if dry_run else ''} applied".replace("  ", " ")
