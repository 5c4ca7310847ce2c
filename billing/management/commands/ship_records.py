"""`manage.py ship_records`: begin or end to keep usage records in ClickHouse as well, or send what waits now."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from billing import clickhouse


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
            raise CommandError("HOPBASE_CLICKHOUSE_URL is not set")
        try:
            if options["begin"]:
                self.stdout.write(
                    f"{clickhouse.begin(store)} records are noted; beat sends them, or this command does."
                )
            else:
                self.stdout.write(f"{clickhouse.ship(store, most=1_000_000)} records sent.")
        except clickhouse.Unavailable as error:
            raise CommandError(f"ClickHouse does not take it ({error})") from None
