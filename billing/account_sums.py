"""What accounts have cost this month, and what they owe: for a page of accounts in three queries."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.db.models import Min

from billing.credit_notes import LESS_DUE
from billing.models import Account, BudgetMonth, CreditNote, Invoice
from billing.periods import local_day
from billing.usage_sums import MoneySum

Status = Invoice.Status


@dataclass(frozen=True, slots=True)
class AccountSums:
    """In nanos of the account's currency. `due_nanos` below zero is what we owe; `overdue_since`: the oldest due day.

    The month is the running one in the account's zone; its cost holds records and adjustments, of all keys.
    """

    month_nanos: int
    due_nanos: int
    overdue_since: dt.date | None


def of(accounts: Sequence[Account], now: dt.datetime) -> dict[int, AccountSums]:
    """By the accounts' ids."""
    today = {account.pk: local_day(now, ZoneInfo(account.timezone)) for account in accounts}
    month, (open_nanos, due_on), credited = _month(today), _open(list(today)), _credited(list(today))
    found = {}
    for pk, day in today.items():
        due = open_nanos.get(pk, 0) - credited.get(pk, 0)
        oldest = due_on.get(pk)
        overdue = oldest if due > 0 and oldest is not None and oldest < day else None
        found[pk] = AccountSums(month.get(pk, 0), due, overdue)
    return found


def _month(today: dict[int, dt.date]) -> dict[int, int]:
    firsts = {pk: day.replace(day=1) for pk, day in today.items()}
    rows = BudgetMonth.objects.filter(api_key__account__in=firsts, month__in=set(firsts.values())).order_by()
    sums = rows.values_list("api_key__account", "month").annotate(nanos=MoneySum("spent_nanos"))
    return {pk: int(nanos) for pk, month, nanos in sums if firsts[pk] == month}


def _open(ids: list[int]) -> tuple[dict[int, int], dict[int, dt.date | None]]:
    """Totals of open invoices, and the day on which the first of them was or is due."""
    rows = Invoice.objects.filter(account__in=ids, status=Status.OPEN).order_by().values_list("account")
    sums = list(rows.annotate(nanos=MoneySum("total_nanos"), oldest=Min("due_on")))
    return {pk: int(nanos) for pk, nanos, _ in sums}, {pk: oldest for pk, _, oldest in sums}


def _credited(ids: list[int]) -> dict[int, int]:
    """What credit notes take off that: of open invoices all, of paid ones what came after the payment."""
    rows = CreditNote.objects.filter(LESS_DUE, account__in=ids).order_by().values_list("account")
    return {pk: int(nanos) for pk, nanos in rows.annotate(nanos=MoneySum("total_nanos"))}
