"""Closing a month: roll up, draft, see what stands against it, issue. The admin's month run and the command both do it
by these functions; none of them does harm when it is done twice, or by two at once."""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import QuerySet

from billing import audit, invoice_documents, invoices, overflow, rollups
from billing.meter_health import Readings
from billing.models import Account, Adjustment, ApiKey, Invoice, OpenStream, RollupDue, UsageRecord
from billing.periods import month_bounds, next_month
from billing.phrases import phrase

log = logging.getLogger(__name__)

Tell = Callable[[int, int], None]
"""Is told how many steps are done, and how many there are."""

ROLLED_AT_ONCE = 1_000
"""Keys' days rolled up between two words on progress."""
MOST_COUNTED = 100_000
"""Blockers are counted up to here: by then the number tells nothing new."""
JUMP_PER_CENT = 50
"""A draft that is so much more, or less, than the key's last invoice, is marked: look at it before it is issued."""


class Kind(StrEnum):
    """What stands against closing a month."""

    UNPRICED = "unpriced"
    PROPOSED = "proposed"
    STREAMS = "streams"
    JOURNALS = "journals"
    DEAD = "dead"
    ROLLUPS = "rollups"


HOLDS_UP = frozenset({Kind.UNPRICED})
"""What an issue refuses. All else only comes too late for this invoice: it is late usage on the next one, or, of
roll-ups, concerns the reports alone."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """`keys`: whose invoices it is about, as far as that is known."""

    kind: Kind
    count: int
    keys: frozenset[int] = frozenset()

    @property
    def holds_up(self) -> bool:
        return self.kind in HOLDS_UP


class DraftChanged(Exception):
    """What a draft would bill is no more what was shown of it; it stays a draft."""


@dataclass(slots=True)
class Outcome:
    """What an issue of many came to: what is issued, and what is not, with the reasons."""

    issued: list[Invoice] = field(default_factory=list)
    blocked: list[tuple[Invoice, Sequence[str]]] = field(default_factory=list)

    @property
    def reasons(self) -> list[str]:
        return [reason for _invoice, reasons in self.blocked for reason in reasons]


def say_nothing(done: int, total: int) -> None:
    """Where nobody waits to hear of progress."""


def roll_up(tell: Tell = say_nothing, refuse: invoices.Refuse = log.error) -> int:
    """Rebuild all days that are due by now; returns how many. New ones that come meanwhile are left to the next.

    `refuse` is told of each key whose days cannot be.
    """
    total = RollupDue.objects.order_by().values("api_key_id", "day").distinct().count()
    done = 0
    faults: dict[int, Exception] = {}
    while done < total and (rebuilt := rollups.rebuild_due(ROLLED_AT_ONCE, refuse=faults.__setitem__)):
        done += rebuilt
        tell(min(done, total), total)
    for key in ApiKey.objects.select_related("account").filter(pk__in=faults):
        refuse(phrase(rollups.NOT_REBUILT, name=str(key), reason=overflow.reason(faults[key.pk])))
    return done


def draft(
    month: dt.date, *, now: dt.datetime, tell: Tell = say_nothing, refuse: invoices.Refuse = log.error
) -> list[Invoice]:
    """Roll up what is due and draft the month for all accounts. Steps are days to roll up and accounts.

    `refuse` is told of each key that has no draft, or no roll-up, for what the database cannot keep.
    """
    accounts = list(Account.objects.order_by("name"))
    days = RollupDue.objects.order_by().values("api_key_id", "day").distinct().count()
    total = days + len(accounts)
    roll_up(lambda done, _total: tell(min(done, days), total), refuse)
    drafted: list[Invoice] = []
    for at, account in enumerate(accounts, start=1):
        drafted += invoices.draft(month, account=account, now=now, refuse=refuse)
        tell(days + at, total)
    return drafted


def drafts(month: dt.date) -> QuerySet[Invoice]:
    """The month's drafts, in the order in which they get their numbers."""
    return invoices.of_month(month).filter(status=Invoice.Status.DRAFT)


def issue(chosen: Sequence[Invoice], *, now: dt.datetime, tell: Tell = say_nothing) -> Outcome:
    """Issue drafts, each for itself: what is blocked stays a draft and does not hold up the others.

    What another issues in the same moment is neither issued nor blocked here: it is one set of invoices.
    """
    outcome, size = Outcome(), invoices.at_once()
    for at in range(0, len(chosen), size):
        some = chosen[at : at + size]
        _issue_some(some, now, outcome)
        tell(at + len(some), len(chosen))
    return outcome


def _issue_some(chosen: Sequence[Invoice], now: dt.datetime, outcome: Outcome) -> None:
    """Together; where something is in the way of one, one by one."""
    try:
        issued = _issue([invoice.pk for invoice in chosen], now)
    except (invoices.IssueBlocked, Invoice.DoesNotExist) as reason:
        if len(chosen) > 1:
            for invoice in chosen:
                _issue_some([invoice], now, outcome)
        elif isinstance(reason, invoices.IssueBlocked) and drafts(chosen[0].month).filter(pk=chosen[0].pk).exists():
            outcome.blocked.append((chosen[0], reason.reasons))
        # Else it is issued, or was drafted again meanwhile, with nothing left to bill.
    else:
        invoice_documents.make(issued, now=now)
        outcome.issued += issued


def issue_one(invoice_id: int, *, now: dt.datetime, seen: str | None = None, waiting: bool = False) -> Invoice:
    """Issue a draft, note it in the audit log, and make its document. IssueBlocked as `invoices.issue`.

    `seen`: `seen_of` the draft that was agreed to; DraftChanged where the issue would bill another amount. `waiting`:
    somebody waits for a page, so that a long document is left to beat.
    """
    with transaction.atomic():
        (issued,) = _issue([invoice_id], now)
        if seen not in (None, seen_of([issued])):
            raise DraftChanged
    if not (waiting and invoice_documents.is_long(issued)):
        invoice_documents.make([issued], now=now)
    return issued


def _issue(invoice_ids: Sequence[int], now: dt.datetime) -> list[Invoice]:
    with transaction.atomic():
        issued = invoices.issue_together(invoice_ids, now=now)
        audit.note_each(issued, "issued")
    return issued


def blockers(month: dt.date, readings: Readings) -> list[Blocker]:
    """What stands against closing a month now, by kind; `readings` tell of journals and processes."""
    end = next_month(month)
    found = [
        _blocker(Kind.UNPRICED, UsageRecord.objects.filter(unpriced=True, invoice=None, day__lt=end)),
        _blocker(Kind.PROPOSED, Adjustment.objects.filter(state=Adjustment.State.PROPOSED, created_at__date__lt=end)),
        _streams(month),
        Blocker(Kind.JOURNALS, readings.living_journals.entries + readings.dead_journals.entries),
        Blocker(Kind.DEAD, readings.dead if readings.dead_since else 0),
        Blocker(Kind.ROLLUPS, RollupDue.objects.filter(day__lt=end)[:MOST_COUNTED].count()),
    ]
    return [blocker for blocker in found if blocker.count]


def _blocker(kind: Kind, rows: QuerySet[UsageRecord] | QuerySet[Adjustment]) -> Blocker:
    counts = Counter(rows.order_by().values_list("api_key", flat=True)[:MOST_COUNTED])
    return Blocker(kind, counts.total(), frozenset(counts))


def _streams(month: dt.date) -> Blocker:
    """Streams that began in the month, by their accounts' zones: what they used may be of it, should they be swept."""
    keys: list[int] = []
    ends: dict[str, dt.datetime] = {}
    for key_id, zone, started_at in OpenStream.objects.values_list("api_key", "account__timezone", "started_at"):
        if zone not in ends:
            ends[zone] = month_bounds(month, ZoneInfo(zone))[1]
        if started_at < ends[zone]:
            keys.append(key_id)
    return Blocker(Kind.STREAMS, len(keys), frozenset(keys))


@dataclass(frozen=True, slots=True)
class Compared:
    """A draft beside the key's invoice of the month before; None: it had none."""

    invoice: Invoice
    before_nanos: int | None

    @property
    def jumps(self) -> bool:
        """Whether the total is JUMP_PER_CENT away from the one before, in either direction."""
        before = self.before_nanos
        if before is None:
            return False
        return abs(self.invoice.total_nanos - before) * 100 >= abs(before) * JUMP_PER_CENT and (
            self.invoice.total_nanos != before
        )


def compared(month: dt.date) -> list[Compared]:
    """The month's drafts with what each key's invoice of the month before came to."""
    before = _totals_before(month)
    return [Compared(invoice, before.get(invoice.api_key_id)) for invoice in drafts(month)]


def _totals_before(month: dt.date) -> Mapping[int, int]:
    last = (month.replace(day=1) - dt.timedelta(days=1)).replace(day=1)
    standing = invoices.of_month(last).exclude(status=Invoice.Status.DRAFT)
    return dict(standing.values_list("api_key", "total_nanos"))


def seen_of(found: Sequence[Invoice]) -> str:
    """What is shown of drafts that are to be issued, as one word: whoever confirms confirms that."""
    sums = ",".join(f"{currency}{nanos}" for currency, nanos in totals(found).items())
    return f"{len(found)}:{sums}"


def totals(found: Iterable[Invoice]) -> dict[str, int]:
    """Currency -> the sum of these invoices' totals."""
    sums: Counter[str] = Counter()
    for invoice in found:
        sums[invoice.currency] += invoice.total_nanos
    return dict(sorted(sums.items()))
