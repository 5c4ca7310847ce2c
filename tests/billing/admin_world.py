"""A small but whole business for the admin's pages: every table has rows, in two zones and two currencies."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.utils.timezone import now

from billing import invoices, keys, rollups
from billing.models import (
    Account,
    Adjustment,
    ApiKey,
    Attempt,
    GatewayProcess,
    Invoice,
    OpenStream,
    Price,
    StoredObject,
    UsageRecord,
)
from billing.money import parse
from billing.periods import next_month
from billing.usage import Part, TokenUsage
from streaming import credentials
from streaming.models import Model, Provider, Route
from tests.billing.factories import JANUARY, LONG, STANDARD, TIERS, make_record, price

CREDENTIAL = "sk-acme-very-secret-credential"
PASSWORD = "correct horse battery"


@dataclass
class World:
    northwind: Account
    umbrella: Account
    key: ApiKey
    other_key: ApiKey
    secret: str
    provider: Provider
    model: Model
    price: Price
    record: UsageRecord
    unpriced: UsageRecord
    stream: OpenStream
    draft: Invoice
    open: Invoice


def make_users() -> dict[str, User]:
    """One user of each kind, by its name."""
    root = User.objects.create_superuser("root", "root@example.com", PASSWORD)
    users = {"root": root}
    for name, group in (("operator", "Operators"), ("finance", "Finance"), ("nobody", None)):
        users[name] = User.objects.create_user(name, f"{name}@example.com", PASSWORD, is_staff=True)
        if group:
            users[name].groups.add(Group.objects.get(name=group))
    return users


def make_price(model: str = "gpt-5.6-sol", start: dt.datetime = JANUARY, **fields: object) -> Price:
    defaults = {
        "currency": "USD",
        **STANDARD,
        "tiers": {"priority": "2", "flex": "0.5"},
        "long_context": {"above": 272000, "input": "2", "output": "1.5"},
        "server_tools": {"web_search": parse("0.01")},
    }
    return Price.objects.create(model=model, effective_from=start, **{**defaults, **fields})


def make_routes() -> tuple[Provider, Model]:
    provider = Provider.objects.create(
        name="acme-cloud",
        base_url="https://api.acme.test/v1",
        credential=credentials.encrypt(CREDENTIAL, settings.ENCRYPTION_KEYS),
        wire_formats=["chat_completions", "responses", "messages"],
    )
    model = Model.objects.create(name="gpt-5.6-sol")
    Route.objects.create(model=model, provider=provider, upstream_model="sol-large")
    Model.objects.create(name="unpriced-model")
    return provider, model


def make_world() -> World:
    """Requests of last month and of today, an issued and a draft invoice, roll-ups of all but today."""
    moment = now()
    provider, model = make_routes()
    kept_price = make_price()
    northwind = Account.objects.create(name="northwind", timezone="Asia/Taipei", legal_name="Northwind Ltd")
    umbrella = Account.objects.create(name="umbrella", timezone="UTC", currency="TWD")
    key, secret = keys.create(northwind, "production", requests_per_minute=600, monthly_budget_nanos=parse("100"))
    other_key, _ = keys.create(umbrella, "batch")

    this_month = moment.replace(day=1, hour=12, minute=0, second=0, microsecond=0)
    last_month = (this_month - dt.timedelta(days=10)).replace(hour=12)
    record = make_full_record(key, last_month)
    make_record(other_key, last_month, TokenUsage(input=2_000_000, output=400_000), version=price(currency="TWD"))
    invoices.draft(last_month.date().replace(day=1), now=moment)
    rollups.rebuild_due()
    opened = invoices.issue(Invoice.objects.get(api_key=key).pk, now=moment)

    make_adjustment(record, moment)
    StoredObject.objects.create(
        account=record.account, object_id="resp_kept_1", provider="acme-cloud", upstream_model="gpt-5.6-sol",
        record_id=record.pk, created_at=moment,
    )  # fmt: skip
    make_record(key, moment, TokenUsage(input=1234, output=567))
    make_record(other_key, moment, TokenUsage(input=99, output=1), version=price(currency="TWD"), ending="client_left")
    unpriced = make_record(other_key, moment, model="unpriced-model", version=price("another"), metering="estimated")
    draft_month = next_month(last_month.date())
    invoices.draft(draft_month, now=moment)
    return World(
        northwind,
        umbrella,
        key,
        other_key,
        secret,
        provider,
        model,
        kept_price,
        record,
        unpriced,
        make_stream(key, moment),
        Invoice.objects.get(api_key=other_key, month=draft_month),
        opened,
    )


def make_adjustment(record: UsageRecord, moment: dt.datetime) -> Adjustment:
    return Adjustment.objects.create(
        account=record.account,
        api_key=record.api_key,
        record=record,
        currency=record.currency,
        amount_nanos=-1_500_000,
        kind=Adjustment.Kind.SETTLED,
        reason="the stream taken for lost ended after all: complete, reported",
        created_at=moment,
    )


def make_full_record(key: ApiKey, ended_at: dt.datetime) -> UsageRecord:
    """A record with all that one can have: cache, reasoning, a server tool, an advisor, two attempts."""
    advisor = price("advisor-1", tiers=TIERS)
    own = price(tiers=TIERS, long_context=LONG, server_tools={"web_search": parse("0.01")})
    usage = TokenUsage(
        input=300_000, cache_read=12_000, cache_write=500, output=5_000, reasoning=700, server_tools={"web_search": 3}
    )
    record = make_record(
        key,
        ended_at,
        usage,
        version=own,
        others=[advisor],
        parts=[Part("advisor-1", TokenUsage(input=1000, output=10))],
        service_tier="priority",
        tier_asked="auto",
        raw_usage={"prompt_tokens": 312_500, "completion_tokens": 5_000},
        upstream_model="sol-large",
        first_output_at=ended_at - dt.timedelta(seconds=1),
    )
    started = ended_at - dt.timedelta(seconds=2)
    Attempt.objects.create(
        record=record,
        number=1,
        provider="acme-cloud",
        upstream_model="sol-large",
        outcome="failed",
        status=503,
        reason="overloaded",
        started_at=started,
        duration_ms=312,
    )
    Attempt.objects.create(
        record=record,
        number=2,
        provider="acme-cloud",
        upstream_model="sol-large",
        outcome="answered",
        status=200,
        provider_request_id="prov-req-77",
        started_at=started,
        headers_ms=200,
        first_output_ms=400,
        duration_ms=1600,
    )
    return record


def make_stream(key: ApiKey, moment: dt.datetime) -> OpenStream:
    process = GatewayProcess.objects.create(id=uuid.uuid4(), label="gw-1", started_at=moment)
    return OpenStream.objects.create(
        id=uuid.uuid4(),
        api_key=key,
        account=key.account,
        key_name=key.name,
        account_name=key.account.name,
        request_name="req-under-way",
        process=process.pk,
        model="gpt-5.6-sol",
        wire_format="messages",
        stream=True,
        provider="acme-cloud",
        started_at=moment - dt.timedelta(seconds=75),
        counted_output=1204,
    )
