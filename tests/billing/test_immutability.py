"""What the database itself refuses, on whichever database runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError, connection, models, transaction
from django.db.models import Model, QuerySet

from billing import credit_notes, immutability, invoices, spending
from billing.models import (
    Account,
    Adjustment,
    ApiKey,
    CreditNote,
    CreditNoteLine,
    Invoice,
    InvoiceLine,
    UsageRecord,
)
from billing.usage import TokenUsage
from tests.billing.admin_world import make_stream
from tests.billing.factories import make_account, make_adjustment, make_key, make_record, unsaved_record, utc

NOVEMBER = dt.date(2026, 11, 1)
NOW = utc(2026, 12, 2)


def issued(key: ApiKey) -> Invoice:
    make_record(key, utc(2026, 11, 3))
    (draft,) = invoices.draft(NOVEMBER, account=key.account, now=NOW)
    return invoices.issue(draft.pk, now=NOW)


@pytest.fixture
def invoice(db: None) -> Invoice:
    return issued(make_key())


def refused(write: Callable[[], object], told: str) -> None:
    with pytest.raises(IntegrityError, match=told), transaction.atomic():
        write()


def raw_delete(queryset: QuerySet[Any]) -> None:
    """DELETE without Django's own protections."""
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {queryset.model._meta.db_table}")


def other_value(row: Model, field: models.Field[Any, Any]) -> object:
    """Another value than the one that a column has."""
    value = getattr(row, field.attname)
    match field:
        case models.JSONField():
            return {"other": 1}
        case models.BooleanField():
            return not value
        case models.DateTimeField() | models.DateField():
            return (value or NOW) + dt.timedelta(days=1)
        case models.UUIDField():
            return value.int + 1
        case models.IntegerField():
            return (value or 0) + 1
        case _:
            return f"{value}x"[-3:]


def written(row: Model, field: models.Field[Any, Any], value: object) -> Callable[[], object]:
    return lambda: type(row)._default_manager.filter(pk=row.pk).update(**{field.name: value})


FROZEN = [
    field
    for field in Invoice._meta.concrete_fields
    if field.column not in immutability.AFTER_ISSUE and not isinstance(field, models.ForeignKey | models.AutoField)
]


@pytest.mark.parametrize("field", FROZEN, ids=lambda field: field.name)
def test_issued_invoice_keeps_its_columns(invoice: Invoice, field: models.Field[Any, Any]) -> None:
    refused(written(invoice, field, other_value(invoice, field)), "an issued invoice never changes")


@pytest.mark.parametrize("field", FROZEN, ids=lambda field: field.name)
def test_void_keeps_its_columns_too(invoice: Invoice, field: models.Field[Any, Any]) -> None:
    invoices.void(invoice.pk, "wrong address", NOW)
    refused(written(invoice, field, other_value(invoice, field)), "an issued invoice never changes")


def test_invoice_stays_with_its_key(invoice: Invoice) -> None:
    other = make_key(make_account("southwind"))
    for change in ({"api_key": other}, {"account": other.account}):
        refused(lambda change=change: Invoice.objects.update(**change), "an issued invoice never changes")


@pytest.mark.parametrize(
    ("first", "second", "allowed"),
    [
        ("open", "paid", True),
        ("open", "void", True),
        ("open", "draft", False),
        ("paid", "void", False),
        ("paid", "open", False),
        ("void", "open", False),
        ("void", "paid", False),
        ("void", "draft", False),
    ],
)
def test_status_only_moves_on(invoice: Invoice, first: str, second: str, allowed: bool) -> None:
    if first != "open":
        Invoice.objects.update(status=first)
    if allowed:
        assert Invoice.objects.update(status=second) == 1
    else:
        refused(lambda: Invoice.objects.update(status=second), "an issued invoice never changes")


def test_payment_comes_with_its_status(invoice: Invoice) -> None:
    refused(lambda: Invoice.objects.update(paid_on=dt.date(2026, 12, 3)), "an issued invoice never changes")
    Invoice.objects.update(paid_on=dt.date(2026, 12, 3), payment_reference="TX-1", status="paid")
    refused(lambda: Invoice.objects.update(payment_reference="TX-2"), "an issued invoice never changes")


def test_draft_opens_only_with_a_number(db: None) -> None:
    make_record(make_key(), utc(2026, 11, 3))
    invoices.draft(NOVEMBER, now=NOW)
    refused(lambda: Invoice.objects.update(status="open"), "an issued invoice never changes")
    refused(lambda: Invoice.objects.update(status="paid", number="2026-000009"), "an issued invoice never changes")


def test_saving_unchanged_invoice_is_harmless(invoice: Invoice) -> None:
    Invoice.objects.get().save()


@pytest.mark.parametrize(
    "table", [Invoice, InvoiceLine, UsageRecord, Adjustment, CreditNote, CreditNoteLine, ApiKey, Account]
)
def test_nothing_billed_is_deleted(dear_invoice: Invoice, table: type[Model]) -> None:
    make_adjustment(dear_invoice.api_key, NOW, 5, state="proposed", effective_at=None, day=None)
    credited(dear_invoice)
    refused(lambda: raw_delete(table._default_manager.all()), "never")


def test_unbilled_record_is_not_deleted_either(db: None) -> None:
    make_record(make_key(), utc(2026, 11, 3))
    refused(lambda: UsageRecord.objects.all().delete(), "a usage record is never deleted")


def test_void_invoice_is_not_deleted(invoice: Invoice) -> None:
    invoices.void(invoice.pk, "wrong address", NOW)
    refused(lambda: raw_delete(Invoice.objects.all()), "an issued invoice never changes")


def test_lines_neither_come_nor_change(invoice: Invoice) -> None:
    line = invoice.lines.first()
    assert line is not None
    refused(lambda: InvoiceLine.objects.filter(pk=line.pk).update(amount_nanos=1), "lines of an issued invoice")
    line.pk, line.position = None, 99
    refused(line.save, "lines of an issued invoice")


def test_line_does_not_move_to_a_draft(invoice: Invoice) -> None:
    make_record(invoice.api_key, utc(2026, 12, 1))
    (draft,) = invoices.draft(dt.date(2026, 12, 1), now=NOW)
    refused(lambda: invoice.lines.update(invoice=draft), "lines of an issued invoice")


BILLED = [
    field
    for field in UsageRecord._meta.concrete_fields
    if field.column in immutability.BILLED and not isinstance(field, models.ForeignKey) and not field.primary_key
]


def test_billed_columns_exist() -> None:
    assert set(immutability.BILLED) <= {field.column for field in UsageRecord._meta.concrete_fields}
    assert {field.column for field in Invoice._meta.concrete_fields} >= immutability.AFTER_ISSUE


@pytest.mark.parametrize("paid", [False, True])
@pytest.mark.parametrize("field", BILLED, ids=lambda field: field.name)
def test_billed_record_keeps_its_money(invoice: Invoice, field: models.Field[Any, Any], paid: bool) -> None:
    if paid:
        invoices.mark_paid(invoice.pk, dt.date(2026, 12, 3), "TX-1")
    record = invoice.records.get()
    refused(written(record, field, other_value(record, field)), "what an issued invoice bills never changes")


def test_billed_record_stays_on_its_invoice(invoice: Invoice) -> None:
    refused(lambda: UsageRecord.objects.update(invoice=None), "what an issued invoice bills never changes")


def test_no_record_joins_an_issued_invoice(invoice: Invoice) -> None:
    later = make_record(invoice.api_key, utc(2026, 11, 4))
    refused(lambda: UsageRecord.objects.filter(pk=later.pk).update(invoice=invoice), "never changes")
    refused(unsaved_record(invoice.api_key, utc(2026, 11, 5), invoice=invoice).save, "never changes")


def test_billed_record_may_get_flags(invoice: Invoice) -> None:
    assert UsageRecord.objects.update(flags=["unknown:new_counter"], reason="noted") == 1


def test_record_of_void_invoice_is_free(invoice: Invoice) -> None:
    invoices.void(invoice.pk, "wrong price", NOW)
    assert UsageRecord.objects.update(cost_nanos=1, input_nanos=1) == 1


DECIDED = {"state", "decided_by_id", "decided_at", "decision_reason", "effective_at", "day"}


def fields_of(table: type[Model], *, leaving_out: set[str]) -> list[models.Field[Any, Any]]:
    """Plain columns of a table: no foreign keys, which could be refused for another reason."""
    plain = [field for field in table._meta.concrete_fields if not isinstance(field, models.ForeignKey)]
    return [field for field in plain if field.column not in leaving_out and not field.primary_key]


@pytest.mark.parametrize("field", fields_of(Adjustment, leaving_out=DECIDED), ids=lambda field: field.name)
def test_adjustment_keeps_its_facts(db: None, field: models.Field[Any, Any]) -> None:
    """Also while it is proposed: what is approved is what was proposed."""
    made = make_adjustment(make_key(), NOW, -5, state="proposed", effective_at=None, day=None)
    refused(written(made, field, other_value(made, field)), "an adjustment is never deleted, is decided once")


@pytest.mark.parametrize(
    ("first", "second"), [("approved", "proposed"), ("approved", "rejected"), ("rejected", "approved")]
)
def test_adjustment_is_decided_once(db: None, first: str, second: str) -> None:
    counts = {"approved": {"effective_at": NOW, "day": NOW.date()}}
    nothing: dict[str, Any] = {"effective_at": None, "day": None}
    made = make_adjustment(make_key(), NOW, -5, state="proposed", **nothing)
    mine = Adjustment.objects.filter(pk=made.pk)
    assert mine.update(state=first, **counts.get(first, nothing)) == 1
    refused(lambda: mine.update(state=second, **counts.get(second, nothing)), "is decided once")
    refused(lambda: mine.update(decision_reason="other words"), "is decided once")


def test_billed_adjustment_stays_on_its_invoice(invoice: Invoice) -> None:
    made = make_adjustment(invoice.api_key, NOW, 5)
    mine = Adjustment.objects.filter(pk=made.pk)
    refused(lambda: mine.update(invoice=invoice), "stays on the issued invoice")
    refused(lambda: make_adjustment(invoice.api_key, NOW, 5, invoice=invoice), "stays on the issued invoice")
    (draft,) = invoices.draft(dt.date(2026, 12, 1), now=NOW)
    billing = invoices.issue(draft.pk, now=NOW)
    for elsewhere in (None, invoice):
        refused(lambda elsewhere=elsewhere: mine.update(invoice=elsewhere), "stays on the issued invoice")
    invoices.mark_paid(billing.pk, dt.date(2026, 12, 3), "TX-1")
    refused(lambda: mine.update(invoice=None), "stays on the issued invoice")


def test_only_approved_adjustments_are_billed(invoice: Invoice) -> None:
    make_record(invoice.api_key, utc(2026, 12, 1))
    (draft,) = invoices.draft(dt.date(2026, 12, 1), now=NOW)
    made = make_adjustment(invoice.api_key, NOW, 5, state="proposed", effective_at=None, day=None)
    with pytest.raises(IntegrityError), transaction.atomic():
        Adjustment.objects.filter(pk=made.pk).update(invoice=draft)


def credited(invoice: Invoice, nanos: int = 10**7) -> CreditNote:
    wanted = credit_notes.Wanted(amount_nanos=nanos)
    return credit_notes.make(invoice.pk, wanted, "a gift", by=None, now=NOW)


@pytest.fixture
def dear_invoice(db: None) -> Invoice:
    """One over 30.00."""
    key = make_key()
    make_record(key, utc(2026, 11, 3), TokenUsage(output=1_000_000))
    return issued(key)


@pytest.mark.parametrize("field", fields_of(CreditNote, leaving_out=set()), ids=lambda field: field.name)
def test_credit_note_keeps_its_columns(dear_invoice: Invoice, field: models.Field[Any, Any]) -> None:
    note = credited(dear_invoice)
    refused(written(note, field, other_value(note, field)), "a credit note never changes")


@pytest.mark.parametrize("field", fields_of(CreditNoteLine, leaving_out=set()), ids=lambda field: field.name)
def test_credit_note_line_keeps_its_columns(dear_invoice: Invoice, field: models.Field[Any, Any]) -> None:
    line = credited(dear_invoice).lines.get()
    refused(written(line, field, other_value(line, field)), "the lines of a credit note never change")


def test_no_line_joins_a_credit_note(dear_invoice: Invoice) -> None:
    line = credited(dear_invoice).lines.get()
    for position in (0, 2):
        line.pk, line.position = None, position
        refused(line.save, "the lines of a credit note never change")


def test_notes_never_exceed_their_invoice(dear_invoice: Invoice) -> None:
    """Whoever writes them."""
    note = credited(dear_invoice, 29 * 10**9)
    for nanos, number in ((10**9, "CN-A"), (1, "CN-B")):
        note.pk, note.number = None, number
        note.subtotal_nanos = note.total_nanos = nanos
        if number == "CN-A":
            note.save(force_insert=True)
        else:
            refused(lambda: note.save(force_insert=True), "never exceeds what its open or paid invoice has left")


def test_only_issued_invoices_are_credited(dear_invoice: Invoice) -> None:
    note = credited(dear_invoice)
    make_record(dear_invoice.api_key, utc(2026, 12, 1), TokenUsage(output=1_000_000))
    (draft,) = invoices.draft(dt.date(2026, 12, 1), now=NOW)
    note.pk, note.number, note.invoice = None, "CN-A", draft
    refused(lambda: note.save(force_insert=True), "its open or paid invoice")


def test_credited_invoice_is_not_void(dear_invoice: Invoice) -> None:
    credited(dear_invoice)
    refused(lambda: Invoice.objects.update(status="void"), "made void as long as it has no credit note")
    assert Invoice.objects.update(status="paid") == 1


def test_adjustment_locks_zone_and_currency(db: None) -> None:
    make_adjustment(make_key(), NOW, 5)
    refused(lambda: Account.objects.update(timezone="Asia/Taipei"), "its time zone and currency stay")
    account = Account.objects.get()
    account.currency = "EUR"
    with pytest.raises(ValidationError, match="locked by the account's first request"):
        account.full_clean()


@pytest.mark.parametrize("change", [{"timezone": "Asia/Taipei"}, {"currency": "EUR"}])
def test_first_record_locks_zone_and_currency(db: None, change: dict[str, str]) -> None:
    key = make_key()
    Account.objects.update(**change)
    Account.objects.update(timezone="UTC", currency="USD")
    make_record(key, utc(2026, 11, 3))
    refused(lambda: Account.objects.update(**change), "its time zone and currency stay")
    account = Account.objects.get()
    for name, value in change.items():
        setattr(account, name, value)
    with pytest.raises(ValidationError, match="locked by the account's first request"):
        account.full_clean()


@pytest.mark.parametrize("change", [{"timezone": "Asia/Taipei"}, {"currency": "EUR"}])
def test_request_under_way_locks_zone_and_currency(db: None, change: dict[str, str]) -> None:
    stream = make_stream(make_key(), NOW)
    refused(lambda: Account.objects.update(**change), "its time zone and currency stay")
    account = Account.objects.get()
    for name, value in change.items():
        setattr(account, name, value)
    with pytest.raises(ValidationError, match="locked by the account's first request"):
        account.full_clean()
    stream.delete()  # refused after all: nothing is billed of it
    account.full_clean()
    account.save()


def test_used_account_may_change_otherwise(db: None) -> None:
    make_record(make_key(), utc(2026, 11, 3))
    account = Account.objects.get()
    account.legal_name = "Northwind Ltd"
    account.full_clean()
    account.save()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"timezone": "Mars/Olympus"}, "tz database"),
        ({"timezone": "localtime"}, "tz database"),
        ({"currency": "usd"}, "ISO 4217"),
    ],
)
def test_account_names_real_zone_and_currency(db: None, fields: dict[str, str], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Account(name="northwind", **fields).full_clean()


def trigger_names() -> set[str]:
    query = {
        "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
    }
    with connection.cursor() as cursor:
        cursor.execute(query[connection.vendor])
        return {name for (name,) in cursor.fetchall() if name.startswith("hb_")}


@pytest.mark.django_db(transaction=True)
def test_migration_goes_back_and_forth() -> None:
    every = {trigger.name for trigger in (*immutability.TRIGGERS, *spending.TRIGGERS)}
    assert trigger_names() == every
    call_command("migrate", "billing", "0001", verbosity=0)
    try:
        assert trigger_names() == set()
    finally:
        call_command("migrate", verbosity=0)  # all of them: other apps' migrations went back with these
    assert trigger_names() == every


def widen_tax_id(old_length: int, new_length: int) -> None:
    """Migrate a column of the invoices, as `migrate` does it."""
    old, new = (models.CharField(max_length=length, blank=True) for length in (old_length, new_length))
    for field in (old, new):
        field.set_attributes_from_name("tax_id")
    plan = ["something to do"]
    immutability.take_off_for_migrations(using="default", plan=plan)
    with connection.schema_editor() as editor:
        editor.alter_field(Invoice, old, new)
    immutability.put_back(using="default", plan=plan)


@pytest.mark.django_db(transaction=True)
def test_table_can_still_be_migrated() -> None:
    """SQLite makes a table anew for most changes: the triggers that name it are off by then, and back afterwards."""
    issued(make_key())
    widen_tax_id(64, 65)
    try:
        refused(lambda: Invoice.objects.update(tax_id="other"), "an issued invoice never changes")
        refused(lambda: raw_delete(Invoice.objects.all()), "an issued invoice never changes")
    finally:
        widen_tax_id(65, 64)
