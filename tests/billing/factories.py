"""Accounts, keys, prices and usage records, as the ledger would write them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import secrets
import uuid
from collections.abc import Sequence
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

from billing.models import Account, Adjustment, ApiKey, RollupDue, UsageRecord
from billing.money import parse
from billing.periods import local_day, local_hour
from billing.pricing import LongContext, PriceOf, PriceVersion, Rating, rate
from billing.usage import Part, TokenUsage

JANUARY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
USUAL = TokenUsage(input=14, output=52)
"""14 x 5 + 52 x 30 millionths: 0.00163 at the standard price."""

_count = itertools.count(1)


def per_million(**prices: str) -> dict[str, int]:
    """Bucket -> nanos per million tokens, from texts."""
    return {bucket: parse(price) for bucket, price in prices.items()}


STANDARD = per_million(input="5", cache_read="0.5", cache_write="6.25", cache_write_1h="10", output="30")
LONG = LongContext(above=272_000, input=Fraction(2), output=Fraction(3, 2))
TIERS = {"priority": Fraction(2), "flex": Fraction(1, 2)}


def price(model: str = "gpt-5.6-sol", **changes: Any) -> PriceVersion:
    """The standard price version of a model."""
    begin = changes.pop("effective_from", JANUARY)
    fields = {"currency": "USD", "per_million": STANDARD, **changes}
    return PriceVersion(model=model, label=f"{model}@{begin:%Y-%m-%dT%H:%M:%SZ}", effective_from=begin, **fields)


def priced(*versions: PriceVersion) -> PriceOf:
    """A price list of one version per model, whatever the instant."""
    by_model = {version.model: version for version in versions}
    return lambda model, at: by_model.get(model)


def make_account(name: str = "northwind", **fields: Any) -> Account:
    return Account.objects.create(name=name, **{"timezone": "UTC", **fields})


def make_key(account: Account | None = None, name: str = "production", **fields: Any) -> ApiKey:
    return ApiKey.objects.create(
        account=account or make_account(), name=name, shown="sk-hb-test", digest=secrets.token_hex(32), **fields
    )


def unsaved_record(
    key: ApiKey,
    ended_at: dt.datetime,
    usage: TokenUsage = USUAL,
    *,
    version: PriceVersion | None = None,
    others: Sequence[PriceVersion] = (),
    parts: Sequence[Part] = (),
    rating: Rating | None = None,
    **fields: Any,
) -> UsageRecord:
    """A record rated with `version` (default: the standard price), not saved."""
    account = key.account
    model, tier = fields.get("model", "gpt-5.6-sol"), fields.get("service_tier", "")
    version = version or price(model, currency=account.currency)
    rating = rating or rate(
        usage,
        model=model,
        tier=tier,
        at=ended_at,
        currency=account.currency,
        price_of=priced(version, *others),
        parts=parts,
    )
    zone = ZoneInfo(account.timezone)
    return UsageRecord(
        **{
            "id": uuid.uuid4(),
            "api_key": key,
            "account": account,
            "key_name": key.name,
            "account_name": account.name,
            "request_name": f"req-{next(_count)}",
            "model": model,
            "wire_format": "chat_completions",
            "stream": True,
            "provider": "acme-cloud",
            "ending": "complete",
            "metering": "reported",
            **usage.buckets(),
            "reasoning": usage.reasoning,
            "server_tools": dict(usage.server_tools),
            "currency": account.currency,
            "price_version": rating.price_version,
            "long_context": rating.long_context,
            "unit_prices": dict(rating.unit_prices),
            **{f"{bucket}_nanos": nanos for bucket, nanos in rating.buckets.items()},
            "items": [dataclasses.asdict(item) for item in rating.items],
            "cost_nanos": rating.cost_nanos,
            "unpriced": rating.unpriced,
            "unpriced_reason": rating.unpriced_reason,
            "started_at": ended_at - dt.timedelta(seconds=2),
            "ended_at": ended_at,
            "day": local_day(ended_at, zone),
            "hour_start": local_hour(ended_at, zone),
            **fields,
        }
    )


def make_record(key: ApiKey, ended_at: dt.datetime, usage: TokenUsage = USUAL, **fields: Any) -> UsageRecord:
    """A record with its due row, as a settled request leaves them."""
    record = unsaved_record(key, ended_at, usage, **fields)
    record.save(force_insert=True)
    RollupDue.objects.create(api_key=key, day=record.day)
    return record


def make_adjustment(key: ApiKey, at: dt.datetime, amount_nanos: int, **fields: Any) -> Adjustment:
    """An adjustment that counts from an instant on: by hand, or the ledger's where it names a record."""
    hand = "settled" if fields.get("record") else "correction"
    return Adjustment.objects.create(
        **{
            "account": key.account, "api_key": key, "currency": key.account.currency, "amount_nanos": amount_nanos,
            "kind": hand, "reason": "as agreed", "created_at": at, "effective_at": at,
            "day": local_day(at, ZoneInfo(key.account.timezone)), **fields,
        }
    )  # fmt: skip


def utc(year: int, month: int, day: int, hour: int = 12, minute: int = 0) -> dt.datetime:
    return dt.datetime(year, month, day, hour, minute, tzinfo=dt.UTC)
