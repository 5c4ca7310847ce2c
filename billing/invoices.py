"""Invoices: drafted again and again, issued once, then only paid or made void.

A draft sums what could be claimed now. The issue claims records and adjustments by setting their invoice and builds the
lines from the claimed rows, in one transaction; so none of them is ever on two invoices, and none that is from before
the period's end is on none. No invoice is below zero: what is left of a credit goes to the next one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils import translation

from billing import adjustments, lines, locks, money, numbering, pricing
from billing.models import Account, Adjustment, ApiKey, CreditNote, Invoice, InvoiceLine, UsageRecord
from billing.periods import local_day, month_bounds
from billing.phrases import gettext_noop, known_again, phrase

Status = Invoice.Status


ALREADY = {
    Status.OPEN: gettext_noop("invoice %(number)s is open already"),
    Status.PAID: gettext_noop("invoice %(number)s is paid already"),
    Status.VOID: gettext_noop("invoice %(number)s is void already"),
}
NOTHING_LEFT = gettext_noop("%(name)s: nothing is left to bill; draft the month again")
UNPRICED = gettext_noop("%(name)s: %(count)s unpriced requests (%(reason)s)")
FOREIGN = gettext_noop("%(name)s: %(count)s requests are in another currency than the account, %(currency)s")
MISFIT = gettext_noop(
    "%(name)s: the lines sum to %(lines)s, the records cost %(records)s: a record's parts do not sum to its cost"
)
REASONS = (*ALREADY.values(), NOTHING_LEFT, UNPRICED, FOREIGN, MISFIT)
"""Why an invoice cannot be issued, as runs keep it."""


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
    """Draft the month's invoices, or make their drafts anew: one per key with use or adjustments on no invoice yet.

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


def draft_again(key_ids: Collection[int]) -> None:
    """Make the drafts of these keys anew: what they bill has changed."""
    stale = Invoice.objects.filter(api_key__in=key_ids, status=Status.DRAFT).select_related("account", "api_key")
    for invoice in stale.order_by("month", "pk"):
        _draft_key(invoice.account, invoice.api_key, invoice.month)


def issue(invoice_id: int, *, now: dt.datetime) -> Invoice:
    """Turn a draft into an invoice with a number. IssueBlocked, and nothing changed, when something is in the way."""
    key_id = Invoice.objects.values_list("api_key_id", flat=True).get(pk=invoice_id)
    with transaction.atomic():
        locks.hold("invoice", key_id)
        invoice = _locked(invoice_id)
        if invoice.status != Status.DRAFT:
            raise IssueBlocked([phrase(ALREADY[Status(invoice.status)], number=invoice.number)])
        _copy_facts(invoice, invoice.account, invoice.api_key)
        claimed = _claim(invoice)
        totals = _totals(claimed, invoice.currency)
        if reasons := _blockers(invoice, claimed, totals):
            raise IssueBlocked(reasons)
        built = _write_lines(invoice, claimed, totals)
        if misfit := _misfit(invoice, built, totals):
            raise IssueBlocked([misfit])
        adjustments.carry_over(invoice, lines.carried_nanos(built), now)
        _number(invoice, now)  # last, since the counter stays locked until the commit
    return invoice


def void(invoice_id: int, reason: str, now: dt.datetime) -> Invoice:
    """Take an open invoice back: it keeps its number, and what it billed is free for another one."""
    if not reason.strip():
        raise InvoiceError("an invoice is made void for a reason: say which")
    with transaction.atomic():
        invoice = _open(invoice_id, "made void")
        if CreditNote.objects.filter(invoice=invoice).exists():
            raise InvoiceError(f"{invoice} has credit notes, which stand: credit the rest of it instead")
        invoice.status, invoice.void_reason, invoice.voided_at = Status.VOID, reason.strip(), now
        invoice.save(update_fields=["status", "void_reason", "voided_at"])
        for claimed in _claimed(invoice):
            claimed.update(invoice=None)
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


class _Claim(NamedTuple):
    """What an invoice bills."""

    records: QuerySet[UsageRecord]
    adjustments: QuerySet[Adjustment]


def _claimable(key_id: int, period_end: dt.datetime) -> _Claim:
    """What the invoice of a period claims: from before its end, on no invoice. No clock decides what is late."""
    records = UsageRecord.objects.filter(api_key_id=key_id, invoice=None, ended_at__lt=period_end)
    return _Claim(records, adjustments.claimable(period_end).filter(api_key_id=key_id))


def _keys_to_draft(account: Account, month: dt.date, period_end: dt.datetime) -> Iterable[ApiKey]:
    """Keys with something to claim, and keys whose draft may have lost it."""
    used = UsageRecord.objects.filter(account=account, invoice=None, ended_at__lt=period_end)
    adjusted = adjustments.claimable(period_end).filter(account=account)
    drafted = Invoice.objects.filter(account=account, month=month, status=Status.DRAFT)
    wanted = Q()
    for rows in (used, adjusted, drafted):
        wanted |= Q(pk__in=rows.order_by().values("api_key"))
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
        claim = _claimable(key.pk, invoice.period_end)
        totals = _totals(claim, invoice.currency)
        if not totals.worth_an_invoice:
            _discard(invoice)
            return None
        invoice.save()
        _write_lines(invoice, claim, totals)
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


def _claim(invoice: Invoice) -> _Claim:
    """Set the invoice of all that it claims, and return exactly those."""
    for claimable in _claimable(invoice.api_key_id, invoice.period_end):
        claimable.update(invoice=invoice)
    return _claimed(invoice)


def _claimed(invoice: Invoice) -> _Claim:
    return _Claim(UsageRecord.objects.filter(invoice=invoice), Adjustment.objects.filter(invoice=invoice))


@dataclass(frozen=True, slots=True)
class _Totals:
    """Of what an invoice bills: how many records there are, are unpriced, are in another currency; what they cost.

    `adjustments` counts those that are not merely carried over; `adjusted_nanos` is the sum of all.
    """

    records: int
    unpriced: int
    foreign: int
    cost_nanos: int
    adjustments: int
    adjusted_nanos: int

    @property
    def worth_an_invoice(self) -> bool:
        """A credit carried over waits for something to bill: by itself it would make an invoice of zero each month."""
        return bool(self.records or self.adjustments or self.adjusted_nanos > 0)


def _totals(claim: _Claim, currency: str) -> _Totals:
    foreign = Count("id", filter=~Q(currency=currency))
    used = claim.records.aggregate(
        records=Count("id"),
        unpriced=Count("id", filter=Q(unpriced=True)),
        foreign=foreign,
        cost=Coalesce(Sum("cost_nanos"), 0),
    )
    adjusted = claim.adjustments.aggregate(
        made=Count("id", filter=~Q(kind=Adjustment.Kind.CARRIED)),
        foreign=foreign,
        nanos=Coalesce(Sum("amount_nanos"), 0),
    )
    return _Totals(
        records=used["records"],
        unpriced=used["unpriced"],
        foreign=used["foreign"] + adjusted["foreign"],
        cost_nanos=used["cost"],
        adjustments=adjusted["made"],
        adjusted_nanos=adjusted["nanos"],
    )


def _blockers(invoice: Invoice, claimed: _Claim, totals: _Totals) -> list[str]:
    """Why this cannot be billed, one sentence per reason."""
    name = f"{invoice.account_name}/{invoice.key_name} {invoice.month:%Y-%m}"
    if not totals.worth_an_invoice:
        return [phrase(NOTHING_LEFT, name=name)]
    reasons: list[str] = []
    if totals.unpriced:
        causes = claimed.records.filter(unpriced=True).order_by("unpriced_reason").values_list("unpriced_reason")
        for cause, requests in causes.annotate(requests=Count("id")):
            reasons.append(phrase(UNPRICED, name=name, count=requests, reason=known_again(cause, pricing.REASONS)))
    if totals.foreign:
        reasons.append(phrase(FOREIGN, name=name, count=totals.foreign, currency=invoice.currency))
    return reasons


def _write_lines(invoice: Invoice, claim: _Claim, totals: _Totals) -> list[InvoiceLine]:
    """Replace a draft's lines by the sums of these rows, and its totals by the sums of the lines; returns the lines."""
    with translation.override(invoice.language):
        built = lines.build(*claim, invoice.period_start, invoice.currency)
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
    return built


def _misfit(invoice: Invoice, built: Sequence[InvoiceLine], totals: _Totals) -> str:
    """Why the lines are not what was claimed, to the nano, or nothing: only a damaged record brings that about."""
    exact_nanos = sum(line.exact_nanos for line in built) - lines.carried_nanos(built)
    if exact_nanos == totals.cost_nanos + totals.adjusted_nanos:
        return ""
    records_nanos = exact_nanos - totals.adjusted_nanos
    return phrase(MISFIT, name=str(invoice), lines=money.show(records_nanos), records=money.show(totals.cost_nanos))


def _number(invoice: Invoice, now: dt.datetime) -> None:
    """Give a draft the next number of the year and open it."""
    today = local_day(now, ZoneInfo(settings.SELLER["zone"]))
    invoice.number = numbering.take(numbering.INVOICES, today.year)
    invoice.status, invoice.issued_at = Status.OPEN, now
    invoice.due_on = today + dt.timedelta(days=invoice.account.due_days)
    invoice.save()
