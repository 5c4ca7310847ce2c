"""`manage.py ship_records`: begin or end to keep usage records in ClickHouse as well, or send what waits now."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from billing import clickhouse
from billing.management.progress import progress
from billing.models import RecordToShip


class Command(BaseCommand):
    help = "Sends usage records to ClickHouse (HOPBASE_CLICKHOUSE_URL)."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--begin", action="store_true", help="make its table, and note all records and every change")
        which.add_argument("--end", action="store_true", help="note no more")

    def handle(self, *args: Any, **options: Any) -> None:
        if connection.vendor != "postgresql":
            raise CommandError("records go to ClickHouse from PostgreSQL alone")
        if options["end"]:
            clickhouse.end()
            self.stdout.write("Changes are noted no more.")
            return
        store = clickhouse.store()
        if store is None:
            raise CommandError("HOPBASE_CLICKHOUSE_URL is not set: set it, for example to http://clickhouse:8123")
        try:
            if options["begin"]:
                self.stdout.write(
                    f"{clickhouse.begin(store)} records are noted; beat sends them, or this command does."
                )
            else:
                total, shown = RecordToShip.objects.count(), progress(self.stderr, "records sent")
                sent = clickhouse.ship(store, most=1_000_000, tell=lambda sent: shown(sent, max(sent, total)))
                self.stdout.write(f"{sent} records sent.")
        except clickhouse.Unavailable as error:
            raise CommandError(f"ClickHouse does not take it ({error}): nothing is lost, run this again") from None
