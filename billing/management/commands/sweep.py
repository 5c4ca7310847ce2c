"""`manage.py sweep [--json]`: settle what dead gateway processes left, and replay their journals."""

from __future__ import annotations

import dataclasses
import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from billing import sweep


class Command(BaseCommand):
    help = "Settles lost streams and replays journals now. Processes of other hosts are watched for 20 s first."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", dest="as_json", help="print the counts as JSON")

    def handle(self, *args: Any, as_json: bool, **options: Any) -> None:
        try:
            done = sweep.sweep()
        except sweep.NotSwept as error:
            raise CommandError(f"{error}: nothing is lost; sweep again when it does") from None
        if as_json:
            self.stdout.write(json.dumps(dataclasses.asdict(done)))
            return
        self.stdout.write(
            f"{done.streams} lost streams settled, {done.replayed} journal entries replayed, "
            f"{done.processes} dead processes removed"
        )
