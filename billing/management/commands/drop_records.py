"""`manage.py drop_records`: months of usage records that are past their time into files, and out of the database."""

from __future__ import annotations

import argparse
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.utils.timezone import now

from billing import dropping, money, partitions
from billing.management.progress import progress


class Command(BaseCommand):
    help = "Drops months of usage records older than HOPBASE_RECORDS_KEEP_MONTHS, each into a file (PostgreSQL)."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="only say of each month what stands in the way")

    def handle(self, *args: Any, **options: Any) -> None:
        if connection.vendor != "postgresql":
            raise CommandError("records are dropped by partitions, which SQLite does not have")
        if not partitions.is_partitioned(connection):
            raise CommandError("the records are in one plain table: `records_by_month` divides it first")
        if not settings.RECORDS_KEEP_MONTHS:
            raise CommandError("HOPBASE_RECORDS_KEEP_MONTHS is not set: records are kept for ever")
        at = now()
        if not (months := dropping.old(at)):
            self.stdout.write(f"No month is older than {settings.RECORDS_KEEP_MONTHS} months.")
        if options["dry_run"]:
            for month in months:
                self.stdout.write(f"{month.name}: {'; '.join(dropping.in_the_way(month, at)) or 'can be dropped'}")
            return
        dropped, problem = dropping.drop_old(at, progress(self.stderr, "records written"))
        for one in dropped:
            costs = ", ".join(f"{currency} {money.show(nanos)}" for currency, nanos in sorted(one.costs.items()))
            self.stdout.write(f"{one.partition}: {one.records} records ({costs}) in {one.file_name}, {one.sha256}")
        if problem is not None:
            raise CommandError(str(problem))
