"""A bill is by its account's currency and zone, whatever the process that made it knew of them."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from django.db import connection

from billing.ledger import Ledger
from billing.ledger.terms import Terms, of_accounts
from billing.models import Account, ApiKey, UsageRecord
from billing.pricing import Item, Rating, parts_of
from billing.usage import Part, ReportedUsage, TokenUsage
from tests.billing.ledger.entries import ENDED, opening, settlement

ADVICE = Part("advisor", TokenUsage(input=5, output=7))


def change(**fields: str) -> None:
    """What an operator changed a moment ago."""
    Account.objects.update(**fields)


def test_bill_in_an_old_currency_waits(ledger: Ledger, key: ApiKey) -> None:
    change(currency="EUR")
    row = opening(key)
    usage = TokenUsage(input=14, output=52)
    ledger.open(row)
    ledger.settle(settlement(row, usage=usage, reported=ReportedUsage(usage, parts=(ADVICE,)))).result(5)
    kept = UsageRecord.objects.get()
    assert (kept.currency, kept.unpriced, kept.cost_nanos, kept.output_nanos) == ("EUR", True, 0, 0)
    assert kept.unpriced_reason == "the price of model gpt-5.6-sol is in USD, the account's currency is EUR"
    assert (kept.input, kept.output, kept.price_version) == (14, 52, "")
    assert parts_of([Item(**item) for item in kept.items]) == [ADVICE]  # so that it can be rated


def test_every_bill_of_an_old_catalogue_waits(ledger: Ledger, key: ApiKey) -> None:
    change(currency="EUR")
    for _ in range(3):
        row = opening(key)
        ledger.open(row).result(5)
        ledger.settle(settlement(row)).result(5)
    assert list(UsageRecord.objects.values_list("currency", "unpriced")) == [("EUR", True)] * 3


def test_bill_of_nothing_needs_no_price(ledger: Ledger, key: ApiKey) -> None:
    change(currency="EUR")
    row = opening(key)
    ledger.settle(settlement(row, usage=TokenUsage(), rating=Rating(0, {}, {}), reported=None)).result(5)
    kept = UsageRecord.objects.get()
    assert (kept.currency, kept.unpriced) == ("EUR", False)


def test_unpriced_bill_keeps_its_reason(ledger: Ledger, key: ApiKey) -> None:
    change(currency="EUR")
    unpriced = Rating(0, {}, {}, unpriced_reason="no price for model gpt-5.6-sol")
    ledger.settle(settlement(opening(key), rating=unpriced)).result(5)
    kept = UsageRecord.objects.get()
    assert (kept.currency, kept.unpriced_reason) == ("EUR", "no price for model gpt-5.6-sol")


def test_bill_by_an_old_zone_is_counted_in_the_new_one(ledger: Ledger, key: ApiKey) -> None:
    change(timezone="America/Los_Angeles")
    ledger.settle(settlement(opening(key))).result(5)
    kept = UsageRecord.objects.get()
    assert ENDED.day == 30
    assert (kept.day, kept.unpriced, kept.currency) == (dt.date(2026, 11, 30), False, "USD")  # in Taipei: 1 December


def test_accounts_with_records_are_not_asked_for(key: ApiKey) -> None:
    one = settlement(opening(key))
    other = replace(one, open=replace(one.open, account_id=key.account_id))
    known = {key.account_id: Terms("UTC", "EUR")}
    with connection.execute_wrapper(refuse):
        assert of_accounts([one, other], known, "default") == known


def refuse(*arguments: object) -> object:
    raise AssertionError("the database was asked")
