"""Keys, accounts and prices in memory."""

from __future__ import annotations

import datetime as dt
import ipaddress
import logging
from fractions import Fraction
from typing import Any

import pytest
from django.conf import settings
from django.db import DatabaseError, connection

from billing import keys
from billing.catalogue import BillingCatalogue, LookUpLimit, price_version
from billing.models import Account, ApiKey, CatalogueVersion, Price
from billing.pricing import LongContext

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
UNIX = NOW.timestamp()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def account(db: None) -> Account:
    return Account.objects.create(name="northwind", timezone="Asia/Taipei", currency="TWD")


def digest(secret: str) -> str:
    return keys.digest(secret, settings.KEY_PEPPER)


def loaded(**seams: Any) -> BillingCatalogue:
    catalogue = BillingCatalogue(**seams)
    catalogue.load(-1)
    return catalogue


def make_price(effective_from: dt.datetime, **fields: Any) -> Price:
    return Price.objects.create(model="gpt", effective_from=effective_from, currency="USD", **fields)


def test_key_is_known_by_secret(account: Account) -> None:
    key, secret = keys.create(
        account, "production", allowed_models=["gpt"], allowed_ips=["10.0.0.0/8", "::1"], requests_per_minute=60,
        tokens_per_minute=1000, concurrency=2, monthly_budget_nanos=10**11, expires_at=NOW,
    )  # fmt: skip
    entry = loaded().key_by_digest(digest(secret), UNIX)
    assert entry is not None
    assert (entry.id, entry.name, entry.allowed_models) == (key.id, "production", frozenset({"gpt"}))
    assert entry.allowed_ips == (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("::1"))
    assert (entry.requests_per_minute, entry.tokens_per_minute, entry.concurrency) == (60, 1000, 2)
    assert (entry.monthly_budget_nanos, entry.expires_at, entry.revoked) == (10**11, UNIX, False)
    assert (entry.account.id, entry.account.zone, entry.account.currency) == (account.id, "Asia/Taipei", "TWD")
    assert loaded().key_by_digest(digest("x" * 20), UNIX) is None


def test_absent_models_mean_all(account: Account) -> None:
    _, secret = keys.create(account, "production")
    entry = loaded().key_by_digest(digest(secret), UNIX)
    assert entry is not None
    assert (entry.allowed_models, entry.allowed_ips) == (None, ())


def test_unreadable_network_lets_nobody_in(account: Account) -> None:
    key, secret = keys.create(account, "production")
    key.allowed_ips = ["ten dot something"]
    key.save()
    entry = loaded().key_by_digest(digest(secret), UNIX)
    assert entry is not None
    assert entry.allowed_ips == (ipaddress.ip_network("0.0.0.0/32"),)


def test_load_sees_revocation(account: Account) -> None:
    key, secret = keys.create(account, "production")
    catalogue, since = loaded(), CatalogueVersion.current()
    keys.revoke(key, NOW)
    catalogue.load(since)
    entry = catalogue.key_by_digest(digest(secret), UNIX)
    assert entry is not None
    assert entry.revoked


def test_load_reads_changes_only(account: Account) -> None:
    key, secret = keys.create(account, "production")
    catalogue, since = loaded(), CatalogueVersion.current()
    ApiKey.objects.filter(id=key.id).update(name="changed behind our back")
    keys.create(account, "staging")
    catalogue.load(since)
    entry = catalogue.key_by_digest(digest(secret), UNIX)
    assert entry is not None
    assert entry.name == "production"


def test_keys_see_changed_account(account: Account) -> None:
    _, secret = keys.create(account, "production")
    catalogue, since = loaded(), CatalogueVersion.current()
    account.active = False
    account.save()
    catalogue.load(since)
    entry = catalogue.key_by_digest(digest(secret), UNIX)
    assert entry is not None
    assert not entry.account.active


def test_key_moves_to_other_account(account: Account) -> None:
    key, secret = keys.create(account, "production")
    catalogue, since = loaded(), CatalogueVersion.current()
    key.account = Account.objects.create(name="contoso")
    key.save()
    catalogue.load(since)
    entry = catalogue.key_by_digest(digest(secret), UNIX)
    assert entry is not None
    assert entry.account.name == "contoso"


def test_old_secret_works_in_grace(account: Account) -> None:
    key, old = keys.create(account, "production")
    catalogue, since = loaded(), CatalogueVersion.current()
    new = keys.rotate(key, dt.timedelta(hours=24), NOW)
    catalogue.load(since)
    for secret in (old, new):
        entry = catalogue.key_by_digest(digest(secret), UNIX + 86_399)
        assert entry is not None
        assert entry.id == key.id
    assert catalogue.key_by_digest(digest(old), UNIX + 86_400) is None
    assert catalogue.key_by_digest(digest(new), UNIX + 86_400) is not None


def test_twice_rotated_secret_is_gone(account: Account) -> None:
    key, oldest = keys.create(account, "production")
    catalogue = loaded()
    for _ in range(2):
        since = CatalogueVersion.current()
        keys.rotate(key, dt.timedelta(hours=24), NOW)
        catalogue.load(since)
    assert catalogue.key_by_digest(digest(oldest), UNIX) is None


def test_new_key_is_looked_up(account: Account) -> None:
    catalogue = loaded()
    other = Account.objects.create(name="contoso")
    key, secret = keys.create(other, "production")
    assert catalogue.key_by_digest(digest(secret), UNIX) is None
    entry = catalogue.look_up(digest(secret))
    assert entry is not None
    assert (entry.id, entry.account.name) == (key.id, "contoso")
    assert catalogue.key_by_digest(digest(secret), UNIX) is entry


def test_miss_is_not_repeated(account: Account, django_assert_num_queries: Any) -> None:
    clock = Clock()
    catalogue = loaded(limit=LookUpLimit(clock))
    with django_assert_num_queries(1):
        assert [catalogue.look_up("00") for _ in range(5)] == [None] * 5
    clock.now += 5
    with django_assert_num_queries(1):
        assert catalogue.look_up("00") is None


def test_expired_secret_is_a_miss(account: Account, django_assert_num_queries: Any) -> None:
    key, old = keys.create(account, "production")
    keys.rotate(key, dt.timedelta(hours=24), NOW)
    catalogue = BillingCatalogue(wall_clock=lambda: UNIX + 86_400)
    with django_assert_num_queries(1):
        assert [catalogue.look_up(digest(old)) for _ in range(3)] == [None] * 3


def test_look_ups_are_limited() -> None:
    clock = Clock()
    limit = LookUpLimit(clock, per_second=20)
    assert [limit.allows(str(number)) for number in range(21)] == [True] * 20 + [False]
    clock.now += 0.99
    assert not limit.allows("later")
    clock.now += 0.01
    assert limit.allows("later")


def test_misses_are_forgotten() -> None:
    clock = Clock()
    limit = LookUpLimit(clock, miss_s=5)
    limit.missed("00")
    assert not limit.allows("00")
    clock.now += 5
    assert limit.allows("00")


def test_broken_database_is_no_miss(account: Account) -> None:
    _, secret = keys.create(account, "production")
    catalogue = BillingCatalogue()

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        raise DatabaseError("away")

    with connection.execute_wrapper(refuse), pytest.raises(DatabaseError):
        catalogue.look_up(digest(secret))
    assert catalogue.look_up(digest(secret)) is not None


def test_price_in_force_counts(db: None) -> None:
    first, second = NOW, NOW + dt.timedelta(days=1)
    make_price(first, input=5 * 10**9)
    make_price(second, input=6 * 10**9)
    catalogue = loaded()
    second_of = dt.timedelta(seconds=1)
    assert catalogue.price_at("gpt", first - second_of) is None
    assert catalogue.price_at("other", first) is None
    for instant, expected in ((first, 5), (second - second_of, 5), (second, 6)):
        price = catalogue.price_at("gpt", instant)
        assert price is not None
        assert price.per_million == {"input": expected * 10**9}


def test_price_row_is_translated(db: None) -> None:
    row = make_price(
        NOW, input=5, output=30, tiers={"flex": "0.5", "priority": {"input": 10}}, server_tools={"web_search": 10**7},
        long_context={"above": 272_000, "input": "2", "output": "1.5"},
    )  # fmt: skip
    price = loaded().price_at("gpt", NOW)
    assert price is not None
    assert (price.label, price.currency, price.effective_from) == (row.label, "USD", NOW)
    assert price.tiers == {"flex": Fraction(1, 2), "priority": {"input": 10}}
    assert price.long_context == LongContext(272_000, Fraction(2), Fraction(3, 2))
    assert (price.per_million, price.server_tools) == ({"input": 5, "output": 30}, {"web_search": 10**7})


def test_long_tool_of_an_older_price_is_cut(db: None) -> None:
    row = Price(model="gpt", effective_from=NOW, currency="USD", server_tools={"t" * 61: 5})
    assert price_version(row).server_tools == {"t" * 60: 5}


def test_changed_price_replaces_itself(db: None) -> None:
    row = make_price(NOW, input=5)
    catalogue, since = loaded(), CatalogueVersion.current()
    row.effective_from = NOW + dt.timedelta(days=1)
    row.save()
    catalogue.load(since)
    assert catalogue.price_at("gpt", NOW) is None
    row.delete()
    catalogue.load(CatalogueVersion.current())
    assert catalogue.price_at("gpt", NOW + dt.timedelta(days=2)) is None


def test_unreadable_price_prices_nothing(db: None, caplog: pytest.LogCaptureFixture) -> None:
    make_price(NOW, input=5)
    broken = make_price(NOW + dt.timedelta(days=1), input=6, tiers={"flex": "half"})
    price = loaded().price_at("gpt", broken.effective_from)
    assert price is not None
    assert (price.label, price.per_million) == (broken.label, {})
    assert any(broken.label in record.getMessage() for record in caplog.records if record.levelno == logging.ERROR)
