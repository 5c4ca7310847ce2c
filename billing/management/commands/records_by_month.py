"""`manage.py records_by_month`: usage records of PostgreSQL in monthly partitions, and back."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.utils.timezone import now

from billing import partitions


class Command(BaseCommand):
    help = "Put usage records into monthly partitions (PostgreSQL; stop gateways and workers first)."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--undo", action="store_true", help="make one plain table again: all records are copied")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["undo"]:
                self.stderr.write(
                    "All records are copied into one table: that takes a while, and nothing is changed until then."
                )
                partitions.revert(connection)
            else:
                partitions.convert(connection, now())
        except partitions.Impossible as error:
            raise CommandError(str(error)) from None
        if options["undo"]:
            self.stdout.write("The records are in one table.")
        for one in partitions.partitions(connection) if not options["undo"] else ():
            self.stdout.write(f"{one.name}: to {one.end:%Y-%m-%d}")
