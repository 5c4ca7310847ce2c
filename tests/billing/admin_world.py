"""A small but whole business for the admin's pages: every table has rows, in two zones and two currencies."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib.auth.models import Group, Permission, User
from django.utils.timezone import now

from billing import credit_notes, invoice_documents, invoices, keys, reconciliation, rollups
from billing.models import (
    Account,
    Adjustment,
    ApiKey,
    Attempt,
    CountFactor,
    CreditNote,
    DroppedInvoice,
    DroppedMonth,
    DroppedRecord,
    Export,
    GatewayProcess,
    Invoice,
    InvoiceDocument,
    InvoiceRun,
    MeterEvent,
    OpenStream,
    Price,
    Reconciliation,
    RecordToShip,
    SavedView,
    StoredObject,
    UsageRecord,
)
from billing.money import parse
from billing.periods import next_month
from billing.usage import Part, TokenUsage
from hopbase_site.models import SecondFactor
from streaming import credentials
from streaming.models import Alarm, Model, Provider, Route
from tests.billing.factories import JANUARY, LONG, STANDARD, TIERS, make_adjustment, make_record, price

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
    proposed: Adjustment
    note: CreditNote


def zone_of_this_month(moment: dt.datetime) -> str:
    """A zone away from UTC that has UTC's month: Taipei's next one begins eight hours early."""
    taipei = ZoneInfo("Asia/Taipei")
    return taipei.key if moment.astimezone(taipei).month == moment.month else "America/Los_Angeles"


def make_users() -> dict[str, User]:
    """One user of each kind, by its name."""
    root = User.objects.create_superuser("root", "root@example.com", PASSWORD)
    users = {"root": root}
    for name, group in (("operator", "Operators"), ("finance", "Finance"), ("nobody", None), ("approver", None)):
        users[name] = User.objects.create_user(name, f"{name}@example.com", PASSWORD, is_staff=True)
        if group:
            users[name].groups.add(Group.objects.get(name=group))
    rights = Permission.objects.filter(codename__in=("approve_adjustment", "view_adjustment"))
    users["approver"].user_permissions.set(rights)
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
    zone = zone_of_this_month(moment)
    northwind = Account.objects.create(name="northwind", timezone=zone, legal_name="Northwind Ltd")
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
    make_run(opened, moment)

    make_adjustment(
        key, moment, -1_500_000, record=record, reason="the stream taken for lost ended after all: complete, reported"
    )
    RecordToShip.objects.create(record_id=uuid.uuid4())
    StoredObject.objects.create(
        account=record.account, object_id="resp_kept_1", provider="acme-cloud", upstream_model="gpt-5.6-sol",
        record_id=record.pk, created_at=moment,
    )  # fmt: skip
    proposed, note = make_corrections(key, last_month, moment)
    make_dropped(note.invoice, moment)
    make_alarms(moment)
    make_reports(moment)
    make_reconciliation(last_month)
    CountFactor.objects.create(model="gpt-5.6-sol", factor_ppm=1_183_249, records=500, fitted_at=moment)
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
        proposed,
        note,
    )


def make_dropped(invoice: Invoice, moment: dt.datetime) -> None:
    """A month of long ago that is in a file."""
    month = DroppedMonth.objects.create(
        partition="billing_usagerecord_before", end=dt.datetime(2020, 2, 1, tzinfo=dt.UTC),
        last_day=dt.date(2020, 1, 31), records=1, dropped_at=moment,
        file_name="usage-records-before-2020-02-0123456789ab.jsonl.gz", sha256="0123456789ab",
    )  # fmt: skip
    DroppedInvoice.objects.create(month=month, invoice=invoice, records=0, cost_nanos=0)
    DroppedRecord.objects.create(id=uuid.uuid4())


def make_run(opened: Invoice, moment: dt.datetime) -> None:
    """The run that drafted the month, and the document of an invoice of it (no real one: those take a second)."""
    done = InvoiceRun.State.DONE
    InvoiceRun.objects.create(act=InvoiceRun.Act.DRAFT, month=opened.month, state=done, finished_at=moment)
    content = b"%PDF-1.7 as it was made"
    InvoiceDocument.objects.create(
        invoice=opened, content=content, size_bytes=len(content), sha256=invoice_documents.digest(content),
        made_at=moment,
    )  # fmt: skip


def make_corrections(key: ApiKey, last_month: dt.datetime, moment: dt.datetime) -> tuple[Adjustment, CreditNote]:
    """A large credit that nobody has approved yet, and a paid invoice (over an adjustment alone) that was credited."""
    proposed = make_adjustment(
        key, moment, -parse(250), kind="goodwill", reason="the outage of Tuesday", state="proposed", effective_at=None,
        day=None,
    )  # fmt: skip
    other, _ = keys.create(Account.objects.create(name="initech"), "archive")
    make_adjustment(other, last_month, parse(3))
    (draft,) = invoices.draft(last_month.date().replace(day=1), account=other.account, now=moment)
    paid = invoices.issue(draft.pk, now=moment)
    note = credit_notes.make(paid.pk, credit_notes.Wanted(amount_nanos=parse(1)), "a wrong price", by=None, now=moment)
    invoices.mark_paid(paid.pk, moment.date(), "TX-1")
    return proposed, note


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
        flags=["unknown:prompt_tokens_details.video_tokens"],
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


def make_reconciliation(day: dt.datetime) -> Reconciliation:
    """The provider's bill for one day, compared; a test of the provider is on it too."""
    reconciliation.keep_test(
        "acme-cloud", "sol-large", "messages", by="operator", started_at=day, ended_at=day, usage=TokenUsage(input=8)
    )
    raw = f"date,model,input_tokens,output_tokens,cost_usd\n{day:%Y-%m-%d},sol-large,312508,5000,1.25\n"
    kept = reconciliation.upload("acme-cloud", "last-month.csv", raw.encode(), by="finance", now=now())
    mapping = reconciliation.proposal(kept, reconciliation.table_of(kept))
    return reconciliation.compare(kept.pk, mapping, now=now())


def make_reports(moment: dt.datetime) -> None:
    """A view that somebody shares, who has a second factor, and a file that was asked for."""
    keeper = User.objects.create_user("keeper")
    secret = credentials.encrypt("GEZDGNBV", settings.ENCRYPTION_KEYS)
    SecondFactor.objects.create(user=keeper, secret=secret, since=moment)
    SavedView.objects.create(owner=keeper, name="By model", query="by=model", shared=True)
    Export.objects.create(
        owner=keeper, kind=Export.Kind.USAGE, format=Export.Format.CSV, file_name="usage-20261103-140509.csv",
        created_at=moment,
    )  # fmt: skip


def make_alarms(moment: dt.datetime) -> None:
    """A bill that the database refused, and the alarm of it."""
    hour = moment.replace(minute=0, second=0, microsecond=0)
    MeterEvent.objects.create(
        kind="dropped", process=uuid.UUID(int=7), hour=hour, count=2, detail="request 1: IntegrityError",
        first_at=moment, last_at=moment,
    )  # fmt: skip
    Alarm.objects.create(
        name="meter:dropped", kind="meter", subject="dropped", message="The meter is unhealthy.", raised_at=moment
    )


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
        upstream_model="sol-large",
        tier_asked="auto",
        silence_limit_s=120,
        started_at=moment - dt.timedelta(seconds=75),
        attempt_started_at=moment - dt.timedelta(seconds=75),
        first_output_at=moment - dt.timedelta(seconds=74),
        last_output_at=moment - dt.timedelta(seconds=3),
        provider_request_id="prov-live-1",
        counted_input=96,
        counted_output=1108,
        checkpoint_at=moment - dt.timedelta(seconds=2),
    )
