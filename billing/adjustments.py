"""Adjustments: proposed by one person, above an amount approved by another, billed by their key's next invoice.

Those of the ledger (`ledger.corrections`) need nobody's approval. Who may propose and approve is the admin's to check;
that nobody approves what they proposed is checked here, and by the database.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils.translation import gettext

from billing import money
from billing.models import Account, Adjustment, ApiKey, Invoice, UsageRecord
from billing.periods import local_day
from billing.phrases import gettext_noop, phrase

if TYPE_CHECKING:
    from django.contrib.auth.models import User

Kind, State = Adjustment.Kind, Adjustment.State
BY_HAND = (Kind.GOODWILL, Kind.CORRECTION)
CREDITS_LEFT = gettext_noop("credits were more than the invoice of %(month)s bills")
ALONE = dt.timedelta(days=30)
"""For so long what somebody made without a second person counts with what they make next."""


AGAIN = dt.timedelta(days=1)
"""For so long what is asked for `once` is known again: a second click, a form that Back brings again."""


class AdjustmentError(Exception):
    """What was asked cannot be done to this adjustment; the text says why."""


class SelfApproval(AdjustmentError):
    """Who proposed an adjustment is not the one to approve it."""


class MadeAlready(AdjustmentError):
    """The very same was asked for before; `adjustment` is what came of it."""

    def __init__(self, adjustment: Adjustment) -> None:
        super().__init__(
            gettext(
                "This adjustment was made already, and nothing was made twice. For another one like it, write a reason "
                "that tells the two apart."
            )
        )
        self.adjustment = adjustment


def claimable(period_end: dt.datetime) -> QuerySet[Adjustment]:
    """What invoices of a period that ends then bill: counts from before its end, and is on no invoice."""
    return Adjustment.objects.filter(invoice=None, effective_at__lt=period_end)


def counted() -> QuerySet[Adjustment]:
    """Those that belong to the use of their `day`, beside its records: approved, and not merely carried over."""
    return Adjustment.objects.filter(state=State.APPROVED).exclude(kind=Kind.CARRIED)


def needs_approval(amount_nanos: int, alone_nanos: int) -> bool:
    """Whether an adjustment made by hand, up or down, is for a second person: by itself, or with what its proposer
    made alone of late (`made_alone`), so that a large one is not made of small ones."""
    return abs(amount_nanos) + abs(alone_nanos) > money.parse(settings.APPROVAL_ABOVE)


def made_alone(account: Account, by: User, *, credits: bool, now: dt.datetime) -> int:
    """What this person has credited to an account, or charged it, in the last 30 days without anybody's approval."""
    own = Adjustment.objects.filter(account=account, proposed_by=by, decided_by=None, state=State.APPROVED)
    direction = Q(amount_nanos__lt=0) if credits else Q(amount_nanos__gt=0)
    recent = own.filter(direction, created_at__gt=now - ALONE)
    return int(recent.aggregate(nanos=Coalesce(Sum("amount_nanos"), 0))["nanos"])


def propose(
    key: ApiKey,
    kind: str,
    amount_nanos: int,
    reason: str,
    *,
    by: User,
    now: dt.datetime,
    record: UsageRecord | None = None,
    once: bool = False,
) -> Adjustment:
    """Make an adjustment by hand, signed, below zero for a credit. It counts at once, or once it is approved.

    `once`: MadeAlready where the same person has made the very same within a day.
    """
    if kind not in BY_HAND:
        raise AdjustmentError(
            gettext("Choose goodwill or correction: adjustments of the kind %(kind)s are the ledger's own.")
            % {"kind": kind}
        )
    if not amount_nanos or not reason.strip():
        raise AdjustmentError(gettext("An adjustment needs an amount other than zero, and a reason: write both."))
    if kind == Kind.GOODWILL and amount_nanos > 0:
        raise AdjustmentError(gettext("Goodwill is a credit: write the amount below zero."))
    if record is not None and record.api_key_id != key.pk:
        raise AdjustmentError(
            gettext("This request was made with another key: choose that key, or leave the request out.")
        )
    adjustment = Adjustment(
        account=key.account,
        api_key=key,
        record=record,
        currency=key.account.currency,
        amount_nanos=amount_nanos,
        kind=kind,
        reason=reason.strip(),
        created_at=now,
        proposed_by=by,
        state=State.PROPOSED,
    )
    with transaction.atomic():
        # One after the other for each account, so that two at once do not both look small.
        account = Account.objects.select_for_update().get(pk=key.account_id)
        if once and (before := _same_before(adjustment)) is not None:
            raise MadeAlready(before)
        if record is not None and not UsageRecord.objects.filter(pk=record.pk).exists():
            raise AdjustmentError(gettext("The record of this request was dropped: leave the request out."))
        if not needs_approval(amount_nanos, made_alone(account, by, credits=amount_nanos < 0, now=now)):
            _count_from(adjustment, now)
        adjustment.save(force_insert=True)
    return adjustment


def approve(adjustment_id: int, *, by: User, now: dt.datetime) -> Adjustment:
    """Let a proposed adjustment count from now on. SelfApproval for its proposer."""
    with transaction.atomic():
        adjustment = _proposed(adjustment_id)
        if adjustment.proposed_by_id == by.pk:
            raise SelfApproval(gettext("You proposed this; someone else must approve."))
        adjustment.decided_by, adjustment.decided_at = by, now
        _count_from(adjustment, now)
        adjustment.save()
    return adjustment


def reject(adjustment_id: int, reason: str, *, by: User, now: dt.datetime) -> Adjustment:
    """Turn a proposed adjustment down, or withdraw one's own; it stays, with the reason."""
    if not reason.strip():
        raise AdjustmentError(gettext("An adjustment is rejected for a reason: say which."))
    with transaction.atomic():
        adjustment = _proposed(adjustment_id)
        adjustment.state, adjustment.decision_reason = State.REJECTED, reason.strip()
        adjustment.decided_by, adjustment.decided_at = by, now
        adjustment.save()
    return adjustment


def carry_over(invoice: Invoice, nanos: int, now: dt.datetime) -> None:
    """Note that an invoice takes so much of its credits over to the key's next one, inside its issue's transaction.

    A pair that sums to zero: the invoice, which is still a draft, bills the one half, its successor the other.
    """
    if not nanos:
        return
    for amount_nanos, billed_by in ((nanos, invoice), (-nanos, None)):
        half = Adjustment(
            account=invoice.account,
            api_key=invoice.api_key,
            currency=invoice.currency,
            amount_nanos=amount_nanos,
            kind=Kind.CARRIED,
            reason=phrase(CREDITS_LEFT, month=f"{invoice.month:%Y-%m}"),
            created_at=now,
            invoice=billed_by,
        )
        _count_from(half, now)
        half.save(force_insert=True)


def _same_before(adjustment: Adjustment) -> Adjustment | None:
    """What this one would repeat in all that was asked for; what was rejected may be asked for again."""
    asked = ("api_key", "record", "kind", "amount_nanos", "reason", "proposed_by")
    same = Adjustment.objects.filter(**{name: getattr(adjustment, name) for name in asked})
    recent = same.filter(created_at__gt=adjustment.created_at - AGAIN).exclude(state=State.REJECTED)
    return recent.order_by("pk").last()


def _proposed(adjustment_id: int) -> Adjustment:
    adjustment = Adjustment.objects.select_for_update(of=("self",)).select_related("account").get(pk=adjustment_id)
    if adjustment.state != State.PROPOSED:
        raise AdjustmentError(
            gettext("Nothing was changed: the adjustment is %(state)s already.")
            % {"state": adjustment.get_state_display()}
        )
    return adjustment


def _count_from(adjustment: Adjustment, now: dt.datetime) -> None:
    adjustment.state, adjustment.effective_at = State.APPROVED, now
    adjustment.day = local_day(now, ZoneInfo(adjustment.account.timezone))
