"""Invoices: drafted again and again, issued once, then only paid or made void.

A draft sums what could be claimed now. The issue claims records and adjustments by setting their invoice and builds the
lines from the claimed rows, in one transaction; so none of them is ever on two invoices, and none that is from before
the period's end is on none. No invoice is below zero: what is left of a credit goes to the next one.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Count, Q, QuerySet, Sum
from django.utils import translation

from billing import adjustments, lines, locks, money, numbering, overflow, pricing
from billing.models import Account, Adjustment, ApiKey, CreditNote, DroppedInvoice, Invoice, InvoiceLine, UsageRecord
from billing.periods import local_day, month_bounds
from billing.phrases import gettext_noop, known_again, phrase

log = logging.getLogger(__name__)

Status = Invoice.Status

Refuse = Callable[[str], None]
"""Is told why a key has no draft."""

TOGETHER = 20
"""Invoices in one transaction, where there are many: most statements are then one for all of them."""
LINE = tuple(field.attname for field in InvoiceLine._meta.concrete_fields if field.name not in ("id", "invoice"))
"""The columns by which lines are the same."""

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
NOT_KEPT = gettext_noop("%(name)s: the invoice cannot be kept: %(reason)s")
REASONS = (*ALREADY.values(), NOTHING_LEFT, UNPRICED, FOREIGN, MISFIT, NOT_KEPT, overflow.TOO_LARGE)
"""Why an invoice cannot be drafted or issued, as runs keep it."""


class InvoiceError(Exception):
    """What was asked cannot be done to this invoice; the text says why, for the operator."""


class IssueBlocked(InvoiceError):
    """Why an invoice cannot be drafted or issued yet: one sentence per reason."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


def of_month(month: dt.date) -> QuerySet[Invoice]:
    """The month's invoices, drafts included and void ones left out."""
    standing = Invoice.objects.filter(month=month.replace(day=1)).exclude(status=Status.VOID)
    return standing.order_by("account_name", "key_name", "pk")


def billed_at(model: str, instant: dt.datetime) -> str | None:
    """The number of an issued invoice that has billed a model for a time with this instant: no price begins there."""
    issued = Invoice.objects.filter(
        status__in=(Status.OPEN, Status.PAID), period_start__lte=instant, period_end__gt=instant, lines__model=model
    )
    return issued.order_by("number").values_list("number", flat=True).first()


def draft(
    month: dt.date, *, account: Account | None = None, now: dt.datetime, refuse: Refuse = log.error
) -> list[Invoice]:
    """Draft the month's invoices, or make their drafts anew: one per key with use or adjustments on no invoice yet.

    Months that have not begun in an account's zone, and keys whose invoice of the month is issued, are left alone. A
    key whose invoice the database cannot keep holds up no other: `refuse` is told of it.
    """
    drafts = []
    for payer in [account] if account else Account.objects.all():
        start, end = month_bounds(month, ZoneInfo(payer.timezone))
        if start > now:
            continue
        keys = list(_keys_to_draft(payer, month.replace(day=1), end))
        for at in range(0, len(keys), at_once()):
            drafts += _draft_each(payer, keys[at : at + at_once()], month.replace(day=1), refuse)
    return drafts


def draft_again(key_ids: Collection[int]) -> None:
    """Make the drafts of these keys anew: what they bill has changed."""
    stale = Invoice.objects.filter(api_key__in=key_ids, status=Status.DRAFT).select_related("account", "api_key")
    for invoice in stale.order_by("month", "pk"):
        _draft_each(invoice.account, [invoice.api_key], invoice.month, log.error)


def at_once() -> int:
    """How many invoices share a transaction. On SQLite all other writers wait for it: one."""
    return TOGETHER if connection.vendor == "postgresql" else 1


def issue(invoice_id: int, *, now: dt.datetime) -> Invoice:
    """Turn a draft into an invoice with a number. IssueBlocked, and nothing changed, when something is in the way."""
    return issue_together([invoice_id], now=now)[0]


def issue_together(invoice_ids: Sequence[int], *, now: dt.datetime) -> list[Invoice]:
    """The same of several, numbered in this order. Where something is in the way of one, none of them changes."""
    asked = list(Invoice.objects.filter(pk__in=invoice_ids).only("api_key", "account_name", "key_name", "month"))
    with _told_of(", ".join(map(_name, asked))), transaction.atomic():
        locks.hold_each([("invoice", invoice.api_key_id) for invoice in asked])
        found = _locked(invoice_ids)
        for invoice in found:
            if invoice.status != Status.DRAFT:
                raise IssueBlocked([phrase(ALREADY[Status(invoice.status)], number=invoice.number)])
            _copy_facts(invoice, invoice.account, invoice.api_key)
        _claim(found)
        bills = _bills(found, _claimed)
        if reasons := [reason for invoice in found for reason in _blockers(invoice, bills[_month(invoice)].totals)]:
            raise IssueBlocked(reasons)
        built = _set_sums(found, bills)
        _write_lines(built)
        for invoice, own in built:
            if misfit := _misfit(invoice, own, bills[_month(invoice)].totals):
                raise IssueBlocked([misfit])
            adjustments.carry_over(invoice, lines.carried_nanos(own), now)
        _number(found, now)  # last, since the counter stays locked until the commit
    return found


def void(invoice_id: int, reason: str, now: dt.datetime) -> Invoice:
    """Take an open invoice back: it keeps its number, and what it billed is free for another one."""
    if not reason.strip():
        raise InvoiceError("an invoice is made void for a reason: say which")
    with transaction.atomic():
        invoice = _open(invoice_id, "made void")
        if CreditNote.objects.filter(invoice=invoice).exists():
            raise InvoiceError(f"{invoice} has credit notes, which stand: credit the rest of it instead")
        if DroppedInvoice.objects.filter(invoice=invoice).exists():
            raise InvoiceError(
                f"{invoice} has records that were dropped, and could not bill them again: credit it instead"
            )
        invoice.status, invoice.void_reason, invoice.voided_at = Status.VOID, reason.strip(), now
        invoice.save(update_fields=["status", "void_reason", "voided_at"])
        for claimed in _claimed([invoice]):
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


def _claimable(found: Sequence[Invoice]) -> _Claim:
    """What invoices of one period claim: from before its end, on no invoice. No clock decides what is late."""
    key_ids, period_end = [invoice.api_key_id for invoice in found], found[0].period_end
    records = UsageRecord.objects.filter(api_key__in=key_ids, invoice=None, ended_at__lt=period_end)
    return _Claim(records, adjustments.claimable(period_end).filter(api_key__in=key_ids))


def _keys_to_draft(account: Account, month: dt.date, period_end: dt.datetime) -> Iterable[ApiKey]:
    """Keys with something to claim, and keys whose draft may have lost it."""
    used = UsageRecord.objects.filter(account=account, invoice=None, ended_at__lt=period_end)
    adjusted = adjustments.claimable(period_end).filter(account=account)
    drafted = Invoice.objects.filter(account=account, month=month, status=Status.DRAFT)
    wanted = Q()
    for rows in (used, adjusted, drafted):
        wanted |= Q(pk__in=rows.order_by().values("api_key"))
    return ApiKey.objects.filter(wanted, account=account).order_by("name", "pk")


def _draft_each(account: Account, keys: Sequence[ApiKey], month: dt.date, refuse: Refuse) -> list[Invoice]:
    """Together; where the database refuses that, key by key."""
    try:
        with _told_of(f"{account.name}/{keys[0].name} {month:%Y-%m}"):
            return _draft_keys(account, keys, month)
    except IssueBlocked as blocked:
        if len(keys) > 1:
            return [invoice for key in keys for invoice in _draft_each(account, [key], month, refuse)]
        for reason in blocked.reasons:
            refuse(reason)
        return []


@contextmanager
def _told_of(name: str) -> Iterator[None]:
    """What the database cannot keep of an invoice, as the reason why it cannot be made; around the transaction."""
    try:
        yield
    except Exception as error:
        if not overflow.is_of_data(error):
            raise
        raise IssueBlocked([phrase(NOT_KEPT, name=name, reason=overflow.reason(error))]) from error


def _draft_keys(account: Account, keys: Sequence[ApiKey], month: dt.date) -> list[Invoice]:
    """The drafts of some keys of an account, written anew; none where an invoice is issued, or nothing is left."""
    with transaction.atomic():
        locks.hold_each([("invoice", key.pk) for key in keys])
        standing = Invoice.objects.filter(api_key__in=keys, month=month).exclude(status=Status.VOID)
        known = {invoice.api_key_id: invoice for invoice in standing}
        found = []
        for key in keys:
            invoice = known.get(key.pk) or Invoice(month=month)
            if invoice.status == Status.DRAFT:
                _copy_facts(invoice, account, key)
                found.append(invoice)
        bills = _bills(found, _claimable)
        drafts = [invoice for invoice in found if bills[_month(invoice)].totals.worth_an_invoice]
        _discard(invoice for invoice in found if invoice not in drafts)
        built = _set_sums(drafts, bills)
        _save(drafts)
        _write_lines(built)
    return drafts


def _save(drafts: Iterable[Invoice]) -> None:
    fresh = []
    for invoice in drafts:
        if invoice.pk:
            invoice.save(force_update=True)
        else:
            fresh.append(invoice)
    Invoice.objects.bulk_create(fresh)


def _discard(emptied: Iterable[Invoice]) -> None:
    """Another month's invoices have claimed what these drafts stood for."""
    for invoice in emptied:
        if invoice.pk:
            invoice.lines.all().delete()
            invoice.delete()


def _locked(invoice_ids: Sequence[int]) -> list[Invoice]:
    """In the order of the ids."""
    with_owner = Invoice.objects.select_related("account", "api_key").order_by("pk")
    found = with_owner.select_for_update(of=("self",)).in_bulk(invoice_ids)
    if len(found) < len(invoice_ids):
        raise Invoice.DoesNotExist
    return [found[invoice_id] for invoice_id in invoice_ids]


def _open(invoice_id: int, act: str) -> Invoice:
    (invoice,) = _locked([invoice_id])
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


def _claim(found: Sequence[Invoice]) -> None:
    """Set the invoice of all that these claim."""
    waiting = Adjustment.objects.filter(invoice=None, api_key__in=[invoice.api_key_id for invoice in found])
    adjusted = set(waiting.values_list("api_key_id", flat=True))
    for invoice in found:
        claimable = _claimable([invoice])
        claimable.records.update(invoice=invoice)
        if invoice.api_key_id in adjusted:
            claimable.adjustments.update(invoice=invoice)


def _claimed(found: Collection[Invoice]) -> _Claim:
    return _Claim(UsageRecord.objects.filter(invoice__in=found), Adjustment.objects.filter(invoice__in=found))


@dataclass(slots=True)
class _Totals:
    """Of what an invoice bills: how many records there are, are unpriced, are in another currency; what they cost.

    `adjustments` counts those that are not merely carried over; `adjusted_nanos` is the sum of all.
    """

    records: int = 0
    unpriced: int = 0
    foreign: int = 0
    cost_nanos: int = 0
    adjustments: int = 0
    adjusted_nanos: int = 0

    @property
    def worth_an_invoice(self) -> bool:
        """A credit carried over waits for something to bill: by itself it would make an invoice of zero each month."""
        return bool(self.records or self.adjustments or self.adjusted_nanos > 0)


_Month = tuple[int, dt.date]
"""What an invoice is for: a key's month."""


class _Bill(NamedTuple):
    """What an invoice bills, as far as the database sums it."""

    totals: _Totals
    due: lines.Due


def _bills(found: Sequence[Invoice], claim_of: Callable[[Sequence[Invoice]], _Claim]) -> dict[_Month, _Bill]:
    """What each invoice bills. The queries are as many for one invoice as for all of a period."""
    periods: defaultdict[tuple[dt.datetime, dt.datetime], list[Invoice]] = defaultdict(list)
    for invoice in found:
        periods[invoice.period_start, invoice.period_end].append(invoice)
    bills: dict[_Month, _Bill] = {}
    for (period_start, _end), alike in periods.items():
        claim = claim_of(alike)
        totals = _totals(claim, {invoice.api_key_id: invoice.currency for invoice in alike})
        due = lines.due(*claim, period_start)
        for invoice in alike:
            bills[_month(invoice)] = _Bill(totals[invoice.api_key_id], due[invoice.api_key_id])
    return bills


def _month(invoice: Invoice) -> _Month:
    return invoice.api_key_id, invoice.month


def _name(invoice: Invoice) -> str:
    """A draft has no number."""
    return f"{invoice.account_name}/{invoice.key_name} {invoice.month:%Y-%m}"


def _totals(claim: _Claim, currencies: Mapping[int, str]) -> dict[int, _Totals]:
    """Of each of these keys; `currencies`: what its invoice is in."""
    found = {key_id: _Totals() for key_id in currencies}
    used = claim.records.order_by().values_list("api_key_id", "currency")
    for key_id, currency, records, unpriced, cost_nanos in used.annotate(
        all=Count("id"), unpriced=Count("id", filter=Q(unpriced=True)), nanos=Sum("cost_nanos")
    ):
        own = found[key_id]
        own.records += records
        own.unpriced += unpriced
        own.foreign += records if currency != currencies[key_id] else 0
        own.cost_nanos += cost_nanos
    adjusted = claim.adjustments.order_by().values_list("api_key_id", "currency")
    for key_id, currency, count, made, nanos in adjusted.annotate(
        all=Count("id"), made=Count("id", filter=~Q(kind=Adjustment.Kind.CARRIED)), nanos=Sum("amount_nanos")
    ):
        own = found[key_id]
        own.adjustments += made
        own.foreign += count if currency != currencies[key_id] else 0
        own.adjusted_nanos += nanos
    return found


def _blockers(invoice: Invoice, totals: _Totals) -> list[str]:
    """Why this cannot be billed, one sentence per reason."""
    name = _name(invoice)
    if not totals.worth_an_invoice:
        return [phrase(NOTHING_LEFT, name=name)]
    reasons: list[str] = []
    if totals.unpriced:
        causes = (
            _claimed([invoice]).records.filter(unpriced=True).order_by("unpriced_reason").values_list("unpriced_reason")
        )
        for cause, requests in causes.annotate(requests=Count("id")):
            reasons.append(phrase(UNPRICED, name=name, count=requests, reason=known_again(cause, pricing.REASONS)))
    if totals.foreign:
        reasons.append(phrase(FOREIGN, name=name, count=totals.foreign, currency=invoice.currency))
    return reasons


_Built = list[tuple[Invoice, list[InvoiceLine]]]


def _set_sums(found: Iterable[Invoice], bills: Mapping[_Month, _Bill]) -> _Built:
    """Each draft with the lines of its bill, and its totals set to their sums; nothing is saved."""
    built = []
    for invoice in found:
        totals, due = bills[_month(invoice)]
        with translation.override(invoice.language):
            own = lines.build(due, invoice.currency)
        places = money.currency_places(invoice.currency)
        invoice.subtotal_nanos = sum(line.amount_nanos for line in own)
        invoice.tax_nanos = money.share(invoice.subtotal_nanos, invoice.tax_rate_ppm, places)
        invoice.total_nanos = invoice.subtotal_nanos + invoice.tax_nanos
        invoice.unpriced = totals.unpriced
        built.append((invoice, own))
    return built


def _write_lines(built: _Built) -> None:
    """Replace the lines of drafts, where they are others."""
    written: defaultdict[int, list[tuple[object, ...]]] = defaultdict(list)
    kept = InvoiceLine.objects.filter(invoice__in=[invoice for invoice, _own in built])
    for invoice_id, *line in kept.order_by("invoice", "position").values_list("invoice_id", *LINE):
        written[invoice_id].append(tuple(line))
    changed = [
        (invoice, own)
        for invoice, own in built
        if written[invoice.pk] != [tuple(getattr(line, column) for column in LINE) for line in own]
    ]
    for invoice, own in changed:
        for line in own:
            line.invoice = invoice
    InvoiceLine.objects.filter(invoice__in=[invoice for invoice, _own in changed if written[invoice.pk]]).delete()
    InvoiceLine.objects.bulk_create([line for _invoice, own in changed for line in own])


def _misfit(invoice: Invoice, built: Sequence[InvoiceLine], totals: _Totals) -> str:
    """Why the lines are not what was claimed, to the nano, or nothing: only a damaged record brings that about."""
    exact_nanos = sum(line.exact_nanos for line in built) - lines.carried_nanos(built)
    if exact_nanos == totals.cost_nanos + totals.adjusted_nanos:
        return ""
    records_nanos = exact_nanos - totals.adjusted_nanos
    return phrase(MISFIT, name=str(invoice), lines=money.show(records_nanos), records=money.show(totals.cost_nanos))


def _number(found: Sequence[Invoice], now: dt.datetime) -> None:
    """Give drafts the next numbers of the year and open them."""
    today = local_day(now, ZoneInfo(settings.SELLER["zone"]))
    numbers = numbering.take_several(numbering.INVOICES, today.year, len(found))
    for invoice, number in zip(found, numbers, strict=True):
        invoice.number, invoice.status, invoice.issued_at = number, Status.OPEN, now
        invoice.due_on = today + dt.timedelta(days=invoice.account.due_days)
        invoice.save()
