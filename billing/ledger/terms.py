"""The currency and zone that an account has for good from its first request on, and bills that were made by others.

A gateway's process hears of a changed account a moment later. A record of a request that it took in between would be in
a currency that no invoice of the account ever bills.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from billing.ledger.entries import Settlement
from billing.models import Account
from billing.pricing import foreign


class Terms(NamedTuple):
    """An account's."""

    zone: str
    currency: str


def of_accounts(settlements: Sequence[Settlement], known: Mapping[int, Terms], using: str) -> dict[int, Terms]:
    """By the accounts' ids. `known`: those of accounts that have a record; the database is asked for the others."""
    ids = {settlement.open.account_id for settlement in settlements}
    found = {id: known[id] for id in ids & known.keys()}
    if unknown := ids - known.keys():
        rows = Account.objects.using(using).filter(pk__in=unknown).values_list("pk", "timezone", "currency")
        found |= {id: Terms(zone, currency) for id, zone, currency in rows}
    return found


def held(settlement: Settlement, terms: Terms) -> Settlement:
    """The bill by its account's terms: what has a price in another currency is unpriced, until somebody rates it."""
    zone, currency = terms
    rating = settlement.rating
    if currency != settlement.currency and (rating.price_version or rating.items):
        parts = settlement.reported.parts if settlement.reported else ()
        rating = foreign(settlement.open.model, settlement.currency, currency, parts)
    if rating is settlement.rating and terms == (settlement.zone, settlement.currency):
        return settlement
    return dataclasses.replace(settlement, zone=zone, currency=currency, rating=rating)
