"""`manage.py close_month YYYY-MM [--issue] [--json]`: roll up the month and draft, or issue, its invoices."""

from __future__ import annotations

import datetime as dt
import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from billing import audit, invoices, money, month_close
from billing.management.progress import progress
from billing.models import Invoice
from billing.periods import parse_month

EARLIEST_ZONE = dt.timedelta(hours=14)
"""The zone where a month begins first is so far ahead of UTC."""


class Command(BaseCommand):
    help = "Rolls up a month and drafts its invoices; with --issue, issues them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("month", metavar="YYYY-MM")
        parser.add_argument(
            "--issue", action="store_true", help="issue the drafts: they get numbers and never change again"
        )
        parser.add_argument("--json", action="store_true", dest="as_json", help="print the month's invoices as JSON")

    @audit.acting("close_month")
    def handle(self, *args: Any, month: str, issue: bool, as_json: bool, **options: Any) -> None:
        now = timezone.now()
        first = _month(month, now)
        refused: list[str] = []
        rebuilt = month_close.roll_up(progress(self.stderr, "days rolled up"), refused.append)
        drafted = month_close.draft(
            first, now=now, tell=progress(self.stderr, "drafting, steps"), refuse=refused.append
        )
        self.stderr.write(f"{month}: {rebuilt} days rolled up, {len(drafted)} invoices drafted")
        reasons = self._issue(drafted, now) if issue else []
        self._print(list(invoices.of_month(first).prefetch_related("lines")), as_json)
        # What cannot be rolled up was told twice.
        told = {"not rolled up or drafted": list(dict.fromkeys(refused)), "not issued": reasons}
        if refused or reasons:
            raise CommandError("\n".join(_listed(what, each) for what, each in told.items() if each))

    def _issue(self, drafted: list[Invoice], now: dt.datetime) -> list[str]:
        """Issue what can be issued; returns why the rest cannot."""
        outcome = month_close.issue(drafted, now=now, tell=progress(self.stderr, "invoices issued"))
        for issued in outcome.issued:
            if note := invoices.warning(issued, now=now):
                self.stderr.write(f"warning: {note}")
        return outcome.reasons

    def _print(self, found: list[Invoice], as_json: bool) -> None:
        if as_json:
            self.stdout.write(
                json.dumps([invoices.as_json(invoice) for invoice in found], ensure_ascii=False, indent=1)
            )
            return
        rows = [("NUMBER", "STATUS", "ACCOUNT", "KEY", "TOTAL", "UNPRICED"), *map(_row, found)]
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        for row in rows:
            cells = [
                cell.rjust(width) if at >= 4 else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            self.stdout.write("  ".join(cells).rstrip())


def _month(text: str, now: dt.datetime) -> dt.date:
    try:
        first = parse_month(text)
    except ValueError as fault:
        raise CommandError(str(fault)) from None
    if first > (now + EARLIEST_ZONE).date():
        raise CommandError(f"{text} has not begun anywhere: close a month that has")
    return first


def _listed(what: str, reasons: list[str]) -> str:
    return "\n".join([f"{what}:", *(f"- {reason}" for reason in reasons)])


def _row(invoice: Invoice) -> tuple[str, ...]:
    total = money.show(invoice.total_nanos, money.currency_places(invoice.currency))
    return (
        invoice.number or "-",
        invoice.status,
        invoice.account_name,
        invoice.key_name,
        f"{invoice.currency} {total}",
        str(invoice.unpriced),
    )
