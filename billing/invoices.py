"""Invoices: drafted again and again, issued once, then only paid or made void.

A draft sums what could be claimed now. The issue claims the records by setting their invoice and builds the lines from
the claimed rows, in one transaction; so no record is ever on two invoices, and none that ended before the period's end
is on none.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils import translation

from billing import lines, locks, money
from billing.models import Account, ApiKey, Invoice, InvoiceCounter, InvoiceLine, UsageRecord
from billing.periods import local_day, month_bounds

SERIES = "invoice"
Status = Invoice.Status


class InvoiceError(Exception):
    """What was asked cannot be done to this invoice; the text says why, for the operator."""


class IssueBlocked(InvoiceError):
    """Why an invoice cannot be issued yet: one sentence per reason."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


def of_month(month: dt.date) -> QuerySet[Invoice]:
    """The month's invoices, drafts included and void ones left out."""
    standing = Invoice.objects.filter(month=month.replace(day=1)).exclude(status=Status.VOID)
    return standing.order_by("account_name", "key_name", "pk")


def draft(month: dt.date, *, account: Account | None = None, now: dt.datetime) -> list[Invoice]:
    """Draft the month's invoices, or make their drafts anew: one per key with usage that is on no invoice yet.

    Months that have not begun in an account's zone, and keys whose invoice of the month is issued, are left alone.
    """
    drafts = []
    for payer in [account] if account else Account.objects.all():
        start, end = month_bounds(month, ZoneInfo(payer.timezone))
        if start > now:
            continue
        for key in _keys_to_draft(payer, month.replace(day=1), end):
            if found := _draft_key(payer, key, month.replace(day=1)):
                drafts.append(found)
    return drafts


def issue(invoice_id: int, *, now: dt.datetime) -> Invoice:
    """Turn a draft into an invoice with a number. IssueBlocked, and nothing changed, when something is in the way."""
    key_id = Invoice.objects.values_list("api_key_id", flat=True).get(pk=invoice_id)
    with transaction.atomic():
        locks.hold("invoice", key_id)
        invoice = _locked(invoice_id)
        if invoice.status != Status.DRAFT:
            raise IssueBlocked([f"invoice {invoice.number} is {invoice.status} already"])
        _copy_facts(invoice, invoice.account, invoice.api_key)
        claimed = _claim(invoice)
        totals = _totals(claimed, invoice.currency)
        if reasons := _blockers(invoice, claimed, totals):
            raise IssueBlocked(reasons)
        if misfit := _write_lines(invoice, claimed, totals):
            raise IssueBlocked([misfit])
        _number(invoice, now)  # last, since the counter stays locked until the commit
    return invoice


def void(invoice_id: int, reason: str, now: dt.datetime) -> Invoice:
    """Take an open invoice back: it keeps its number, and its records are free for another one."""
    if not reason.strip():
        raise InvoiceError("an invoice is made void for a reason: say which")
    with transaction.atomic():
        invoice = _open(invoice_id, "made void")
        invoice.status, invoice.void_reason, invoice.voided_at = Status.VOID, reason.strip(), now
        invoice.save(update_fields=["status", "void_reason", "voided_at"])
        UsageRecord.objects.filter(invoice=invoice).update(invoice=None)
    return invoice


def mark_paid(invoice_id: int, paid_on: dt.date, reference: str) -> Invoice:
    """Note that an open invoice was paid, on which day and under which reference."""
    with transaction.atomic():
        invoice = _open(invoice_id, "marked as paid")
        invoice.status, invoice.paid_on, invoice.payment_reference = Status.PAID, paid_on, reference.strip()
        invoice.save(update_fields=["status", "paid_on", "payment_reference"])
    return invoice


def warning(invoice: Invoice, *, now: dt.datetime) -> str:
    """What the one who issues this invoice should know first; empty where there is nothing."""
    if invoice.period_end <= now:
        return ""
    ends = invoice.period_end.astimezone(ZoneInfo(invoice.timezone)).isoformat()
    return (
        f"{invoice.month:%Y-%m} is still running for {invoice.account_name}/{invoice.key_name}, until {ends}: "
        "what comes after the issue goes onto the next month's invoice"
    )


def as_json(invoice: Invoice) -> dict[str, object]:
    """The shape that `close_month --json` prints. Amounts are decimal strings: unit price, exact and rounding with nine
    places, the rest in the currency's own; unit prices are per million tokens, of server tools per request."""
    places = money.currency_places(invoice.currency)
    return {
        "number": invoice.number,
        "status": invoice.status,
        "key": invoice.key_name,
        "account": invoice.account_name,
        "month": f"{invoice.month:%Y-%m}",
        "period_start": _instant(invoice.period_start),
        "period_end": _instant(invoice.period_end),
        "timezone": invoice.timezone,
        "currency": invoice.currency,
        "lines": [_line_as_json(line, places) for line in invoice.lines.all()],
        "subtotal": money.show(invoice.subtotal_nanos, places),
        "tax_rate_ppm": invoice.tax_rate_ppm,
        "tax": money.show(invoice.tax_nanos, places),
        "total": money.show(invoice.total_nanos, places),
        "unpriced": invoice.unpriced,
        "issued_at": _instant(invoice.issued_at) if invoice.issued_at else None,
        "due_on": invoice.due_on.isoformat() if invoice.due_on else None,
    }


def _line_as_json(line: InvoiceLine, places: int) -> dict[str, object]:
    return {
        "model": line.model,
        "description": line.description,
        "bucket": line.bucket,
        "metering": line.metering,
        "service_tier": line.service_tier,
        "long_context": line.long_context,
        "price_version": line.price_version,
        "quantity": line.quantity,
        "unit_price": money.show(line.unit_nanos),
        "per_million": line.per_million,
        "exact": money.show(line.exact_nanos),
        "rounding": money.show(line.rounding_nanos),
        "late": line.late,
        "amount": money.show(line.amount_nanos, places),
    }


def _instant(instant: dt.datetime) -> str:
    return instant.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


def _claimable(key_id: int, period_end: dt.datetime) -> QuerySet[UsageRecord]:
    """What the invoice of a period claims: ended before its end, on no invoice. No clock decides what is late."""
    return UsageRecord.objects.filter(api_key_id=key_id, invoice=None, ended_at__lt=period_end)


def _keys_to_draft(account: Account, month: dt.date, period_end: dt.datetime) -> Iterable[ApiKey]:
    """Keys with something to claim, and keys whose draft may have lost it."""
    used = UsageRecord.objects.filter(account=account, invoice=None, ended_at__lt=period_end)
    drafted = Invoice.objects.filter(account=account, month=month, status=Status.DRAFT)
    wanted = Q(pk__in=used.order_by().values("api_key")) | Q(pk__in=drafted.order_by().values("api_key"))
    return ApiKey.objects.filter(wanted, account=account).order_by("name", "pk")


def _draft_key(account: Account, key: ApiKey, month: dt.date) -> Invoice | None:
    """The key's draft, written anew; None where its invoice is issued, or where nothing is left to claim."""
    with transaction.atomic():
        locks.hold("invoice", key.pk)
        invoice = Invoice.objects.filter(api_key=key, month=month).exclude(status=Status.VOID).first()
        if invoice and invoice.status != Status.DRAFT:
            return None
        invoice = invoice or Invoice(month=month)
        _copy_facts(invoice, account, key)
        records = _claimable(key.pk, invoice.period_end)
        totals = _totals(records, invoice.currency)
        if not totals.records:
            _discard(invoice)
            return None
        invoice.save()
        _write_lines(invoice, records, totals)
    return invoice


def _discard(invoice: Invoice) -> None:
    """Another month's invoice has claimed what this draft stood for."""
    if invoice.pk:
        invoice.lines.all().delete()
        invoice.delete()


def _locked(invoice_id: int) -> Invoice:
    with_owner = Invoice.objects.select_related("account", "api_key")
    return with_owner.select_for_update(of=("self",)).get(pk=invoice_id)


def _open(invoice_id: int, act: str) -> Invoice:
    invoice = _locked(invoice_id)
    if invoice.status != Status.OPEN:
        raise InvoiceError(f"only an open invoice can be {act}; {invoice} is {invoice.status}")
    return invoice


def _copy_facts(invoice: Invoice, account: Account, key: ApiKey) -> None:
    """Copy all that the invoice prints, so that no later change of an account or of the settings reaches it."""
    invoice.account, invoice.api_key = account, key
    invoice.account_name, invoice.key_name = account.name, key.name
    invoice.timezone, invoice.currency = account.timezone, account.currency
    invoice.period_start, invoice.period_end = month_bounds(invoice.month, ZoneInfo(account.timezone))
    invoice.legal_name, invoice.address, invoice.tax_id = account.legal_name, account.address, account.tax_id
    invoice.tax_rate_ppm, invoice.language = account.tax_rate_ppm, account.language
    seller = settings.SELLER
    invoice.seller_name, invoice.seller_address = seller["name"], seller["address"]
    invoice.seller_tax_id = seller["tax_id"]


def _claim(invoice: Invoice) -> QuerySet[UsageRecord]:
    """Set the invoice of all that it claims, and return exactly those."""
    _claimable(invoice.api_key_id, invoice.period_end).update(invoice=invoice)
    return UsageRecord.objects.filter(invoice=invoice)


@dataclass(frozen=True, slots=True)
class _Totals:
    """Of the records of an invoice: how many there are, are unpriced, are in another currency; what they cost."""

    records: int
    unpriced: int
    foreign: int
    cost_nanos: int


def _totals(records: QuerySet[UsageRecord], currency: str) -> _Totals:
    found = records.aggregate(
        records=Count("id"),
        unpriced=Count("id", filter=Q(unpriced=True)),
        foreign=Count("id", filter=~Q(currency=currency)),
        cost=Coalesce(Sum("cost_nanos"), 0),
    )
    return _Totals(found["records"], found["unpriced"], found["foreign"], found["cost"])


def _blockers(invoice: Invoice, claimed: QuerySet[UsageRecord], totals: _Totals) -> list[str]:
    """Why these records cannot be billed, one sentence per reason."""
    name = f"{invoice.account_name}/{invoice.key_name} {invoice.month:%Y-%m}"
    if not totals.records:
        return [f"{name}: nothing is left to bill; draft the month again"]
    reasons = []
    if totals.unpriced:
        causes = claimed.filter(unpriced=True).order_by("unpriced_reason").values_list("unpriced_reason")
        for cause, requests in causes.annotate(requests=Count("id")):
            reasons.append(f"{name}: {requests} unpriced requests ({cause})")
    if totals.foreign:
        reasons.append(
            f"{name}: {totals.foreign} requests are in another currency than the account, {invoice.currency}"
        )
    return reasons


def _write_lines(invoice: Invoice, records: QuerySet[UsageRecord], totals: _Totals) -> str:
    """Replace a draft's lines by the sums of these records, and its totals by the sums of the lines.

    Returns why the lines are not the records' cost to the nano, or nothing: only a damaged record brings that about.
    """
    with translation.override(invoice.language):
        built = lines.build(records, invoice.period_start, invoice.currency)
    for line in built:
        line.invoice = invoice
    invoice.lines.all().delete()
    InvoiceLine.objects.bulk_create(built)
    places = money.currency_places(invoice.currency)
    invoice.subtotal_nanos = sum(line.amount_nanos for line in built)
    invoice.tax_nanos = money.share(invoice.subtotal_nanos, invoice.tax_rate_ppm, places)
    invoice.total_nanos = invoice.subtotal_nanos + invoice.tax_nanos
    invoice.unpriced = totals.unpriced
    invoice.save()
    exact_nanos = sum(line.exact_nanos for line in built)
    if exact_nanos == totals.cost_nanos:
        return ""
    return (
        f"{invoice}: the lines sum to {money.show(exact_nanos)}, the records cost {money.show(totals.cost_nanos)}: "
        "a record's parts do not sum to its cost"
    )


def _number(invoice: Invoice, now: dt.datetime) -> None:
    """Give a draft the next number of the year and open it. The caller's transaction holds the counter: no gaps."""
    today = local_day(now, ZoneInfo(settings.SELLER["zone"]))
    counters = InvoiceCounter.objects.filter(series=SERIES, year=today.year)
    InvoiceCounter.objects.bulk_create([InvoiceCounter(series=SERIES, year=today.year)], ignore_conflicts=True)
    counter = counters.select_for_update().get()
    counter.last += 1
    counter.save(update_fields=["last"])
    invoice.number = f"{today.year}-{counter.last:06d}"
    invoice.status, invoice.issued_at = Status.OPEN, now
    invoice.due_on = today + dt.timedelta(days=invoice.account.due_days)
    invoice.save()
