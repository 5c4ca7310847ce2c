"""Proving an invoice: it finds what agrees, and every kind of what does not."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from billing import immutability, invoice_documents, invoice_sheet, invoices, proofs
from billing.models import Adjustment, ApiKey, Invoice, InvoiceDocument, InvoiceLine, UsageRecord
from billing.money import parse, round_to_places, show, to_decimal
from billing.proofs import Proof, prove
from billing.usage import Part, TokenUsage
from tests.billing.factories import LONG, make_account, make_adjustment, make_key, make_record, per_million, price, utc
from tests.billing.pdf_text import text_of

pytestmark = pytest.mark.django_db
NOVEMBER = dt.date(2026, 11, 1)
NOW = utc(2026, 12, 2)
THIRDS = per_million(input="3.333333", cache_read="0.333333", cache_write="6.25", cache_write_1h="10", output="29.999")


@pytest.fixture
def key(db: None) -> ApiKey:
    return make_key(make_account(tax_rate_ppm=50_000))


def full(key: ApiKey) -> Invoice:
    """A draft with use, late use, tiers whose factors leave fractions, a tool, an advisor and adjustments."""
    terms = price(
        per_million=THIRDS, tiers={"x": Fraction(1, 7)}, long_context=LONG, server_tools={"web_search": parse("0.0123")}
    )
    advisor = price("advisor-1")
    tools = TokenUsage(input=1_234_567, cache_read=11, output=13, server_tools={"web_search": 3})
    make_record(key, utc(2026, 11, 3), tools, version=terms, service_tier="x")
    make_record(
        key, utc(2026, 11, 3), TokenUsage(input=7), version=terms, others=[advisor],
        parts=[Part("advisor-1", TokenUsage(output=200_001))],
    )  # fmt: skip
    make_record(key, utc(2026, 10, 30), TokenUsage(output=123_457), version=terms, metering="estimated")
    lost = make_record(key, utc(2026, 11, 4), TokenUsage(), metering="none")
    make_adjustment(key, utc(2026, 11, 9), parse("0.004999999"), record=lost)
    for _ in range(2):
        make_adjustment(key, utc(2026, 11, 9), -parse("0.005"))
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    return draft


def proof_of(invoice: Invoice) -> Proof:
    return prove(Invoice.objects.get(pk=invoice.pk), now=NOW)


@pytest.mark.parametrize("issued", [False, True])
def test_sound_invoice_is_proved(key: ApiKey, issued: bool) -> None:
    invoice = full(key)
    if issued:
        invoices.issue(invoice.pk, now=NOW)
    found = proof_of(invoice)
    assert [row for row in (*found.lines, *found.sums) if not row.agrees] == []
    assert (found.holds, found.records, found.unpriced, found.odd_count) == (True, 4, 0, 0)
    assert [row.name for row in found.sums] == ["subtotal", "tax", "total"]
    assert found.sums[2].records_nanos == Invoice.objects.get().total_nanos > 0
    assert sum(row.records_quantity for row in found.lines) == sum(
        line.quantity for line in InvoiceLine.objects.exclude(bucket="adjustment")
    )


@pytest.mark.parametrize("issued", [False, True])
def test_carried_credit_is_proved(key: ApiKey, issued: bool) -> None:
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000))
    make_adjustment(key, utc(2026, 11, 9), -parse("7.001"))
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    if issued:
        invoices.issue(draft.pk, now=NOW)
        make_record(key, utc(2026, 12, 3), TokenUsage(input=1_000_000))
        (after,) = invoices.draft(dt.date(2026, 12, 1), now=utc(2027, 1, 2))
        assert proof_of(after).holds
    assert proof_of(draft).holds


def test_credit_that_a_void_invoice_freed_is_proved(key: ApiKey) -> None:
    """The half that one had taken over comes back with the rest, and may be on any later one."""
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000))
    make_adjustment(key, utc(2026, 11, 9), -parse("100"))
    first = invoices.issue(invoices.draft(NOVEMBER, now=NOW)[0].pk, now=NOW)
    proved = []
    for month, at, tokens in (
        (dt.date(2026, 12, 1), utc(2027, 1, 2), 2_000_000),
        (dt.date(2027, 1, 1), utc(2027, 2, 2), 1_000_000),
        (dt.date(2027, 2, 1), utc(2027, 3, 2), 50_000_000),
    ):
        make_record(key, dt.datetime.combine(month, dt.time(12), dt.UTC), TokenUsage(input=tokens))
        (draft,) = invoices.draft(month, now=at)
        assert proof_of(draft).holds
        proved.append(invoices.issue(draft.pk, now=at))
        if first.status != "void":
            first = invoices.void(first.pk, "wrong address", at)
    carried = Adjustment.objects.filter(kind="carried", invoice=proved[1]).order_by("amount_nanos")
    assert list(carried.values_list("amount_nanos", flat=True)) == [-parse("85"), parse("80"), parse("95")]
    for invoice in proved:
        found = proof_of(invoice)
        assert [row for row in (*found.lines, *found.sums) if not row.agrees] == []


def damage(table: type[Any], pk: object, **values: object) -> None:
    """Change what nothing of ours would ever change: the triggers are off meanwhile."""
    immutability.remove(connection)
    table.objects.filter(pk=pk).update(**values)
    immutability.install(connection)


@pytest.mark.parametrize(
    "changed",
    [
        {"cost_nanos": 1},
        {"input_nanos": 5_000_001, "cost_nanos": 5_000_001},
        {"input": 1_000_001},
        {"model": "another"},
        {"unpriced": True},
        {"ended_at": utc(2026, 10, 3)},
    ],
)
def test_damaged_record_is_found(key: ApiKey, changed: dict[str, object]) -> None:
    record = make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000))
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    invoices.issue(draft.pk, now=NOW)
    assert proof_of(draft).holds
    damage(UsageRecord, record.pk, **changed)
    assert not proof_of(draft).holds


def test_odd_records_are_named(key: ApiKey) -> None:
    """Two that err in opposite directions leave every sum as it was."""
    pair = [make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000)) for _ in range(2)]
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    for record, error in zip(pair, (1, -1), strict=True):
        nanos = record.cost_nanos + error * 1_000
        damage(UsageRecord, record.pk, cost_nanos=nanos, input_nanos=nanos)
    found = proof_of(draft)
    assert all(row.agrees for row in (*found.lines, *found.sums))
    assert (found.holds, found.odd_count, set(found.odd)) == (False, 2, {record.request_name for record in pair})


def test_record_taken_away_is_found(key: ApiKey) -> None:
    records = [make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000)) for _ in range(2)]
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    invoices.issue(draft.pk, now=NOW)
    damage(UsageRecord, records[0].pk, invoice=None)
    found = proof_of(draft)
    assert [(row.difference_nanos, row.records_quantity) for row in found.lines] == [(-parse(5), 1_000_000)]


def test_changed_document_is_found(key: ApiKey) -> None:
    make_record(key, utc(2026, 11, 3), TokenUsage(input=1_000_000))
    (draft,) = invoices.draft(NOVEMBER, now=NOW)
    invoice = invoices.issue(draft.pk, now=NOW)
    document = invoice_documents.of(invoice, now=NOW)
    found = proof_of(invoice)
    assert found.holds
    assert found.hashes.stored == found.hashes.kept == found.hashes.anew == document.sha256
    damage(InvoiceDocument, invoice.pk, content=bytes(document.content) + b" ")
    assert not proof_of(invoice).holds


def test_proof_survives_json(key: ApiKey) -> None:
    found = proof_of(full(key))
    assert proofs.read(found.as_json()) == found


def test_progress_counts_records(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "CHUNK", 2)
    invoice, told = full(key), []
    prove(invoice, now=NOW, tell=lambda done, total: told.append((done, total)))
    assert told == [(2, 4), (4, 4)]


COUNTS = st.integers(0, 10**7)
USES = st.lists(
    st.tuples(
        st.builds(TokenUsage, *[COUNTS] * 5, server_tools=st.dictionaries(st.just("web"), COUNTS)),
        st.sampled_from(["", "x"]),
        st.sampled_from([utc(2026, 10, 30), utc(2026, 11, 3)]),
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


@hypothesis_settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(USES)
def test_all_forms_have_one_sum(key: ApiKey, uses: list[tuple[TokenUsage, str, dt.datetime]]) -> None:
    """Records = lines = total = PDF = CSV = proof, to the last digit."""
    terms = price(
        per_million=THIRDS, tiers={"x": Fraction(1, 7)}, long_context=LONG, server_tools={"web": parse("0.0123")}
    )
    owner = make_key(key.account, f"key-{ApiKey.objects.count()}")
    cost = sum(make_record(owner, at, usage, service_tier=tier, version=terms).cost_nanos for usage, tier, at in uses)
    drafts = {draft.api_key_id: draft for draft in invoices.draft(NOVEMBER, now=NOW)}
    invoice = invoices.issue(drafts[owner.pk].pk, now=NOW)
    lines = list(invoice.lines.all())
    assert sum(line.exact_nanos for line in lines) == cost
    assert all(line.amount_nanos == round_to_places(line.exact_nanos, 2) for line in lines)
    assert sum(line.amount_nanos for line in lines) + invoice.tax_nanos == invoice.total_nanos
    table = invoice_sheet.sheet(invoice)
    assert [row[-3:] for row in table.rows] == [
        [to_decimal(line.exact_nanos), to_decimal(line.rounding_nanos), to_decimal(line.amount_nanos)] for line in lines
    ]
    assert [row[-1] for row in table.totals][-1] == to_decimal(invoice.total_nanos)
    printed = text_of(invoice_documents.preview(invoice)).replace(",", "").splitlines()
    for nanos, places in [*((line.exact_nanos, 9) for line in lines), *((line.amount_nanos, 2) for line in lines)]:
        assert show(nanos, places) in printed
    assert show(invoice.total_nanos, 2) in printed
    assert prove(invoice, now=NOW).holds
