"""Proving an invoice: its lines, sums and document made again from the records, beside what it says. Only reads.

It does not use what built the lines. Every record is read one by one and added up here; the parts of each must sum to
its cost, and each part must follow from its quantity and its own unit price.

Records that were dropped with their month were added up the same way when they were, from the file that they are in:
those sums (`DroppedInvoice`) come in beside what is left, and the proof says which file that is.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.db.models import QuerySet

from billing import invoice_documents, money
from billing.lines import ADJUSTMENT, CARRIED_OVER
from billing.models import Adjustment, DroppedInvoice, Invoice, InvoiceDocument, InvoiceLine, UsageRecord
from billing.pricing import BASE_TIERS, MILLION
from billing.usage import BUCKETS

AT_ONCE = 20_000
"""Records that one waits for; more are read in the background."""
CHUNK = 2_000
"""Records between two words on progress."""
MOST_NAMED = 20
"""Records that are named where their amounts do not follow from their prices."""

COLUMNS = (
    "id", "request_name", "model", "metering", "service_tier", "long_context", "price_version", "unit_prices", "items",
    "cost_nanos", "unpriced", "ended_at", *BUCKETS, *(f"{bucket}_nanos" for bucket in BUCKETS),
)  # fmt: skip


class LineId(NamedTuple):
    """What tells the lines of an invoice apart."""

    bucket: str
    late: bool
    model: str
    metering: str = "none"
    service_tier: str = ""
    long_context: bool = False
    price_version: str = ""
    unit_nanos: int = 0
    per_million: bool = False


@dataclass(slots=True)
class Sum:
    quantity: int = 0
    nanos: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A line, or one of the sums: what the invoice says, and what its records come to."""

    name: str
    invoice_nanos: int
    records_nanos: int
    invoice_quantity: int = 0
    records_quantity: int = 0

    @property
    def difference_nanos(self) -> int:
        return self.records_nanos - self.invoice_nanos

    @property
    def agrees(self) -> bool:
        return self.invoice_nanos == self.records_nanos and self.invoice_quantity == self.records_quantity


@dataclass(frozen=True, slots=True)
class Hashes:
    """SHA-256 of the document: as noted when it was made, of what is kept now, of one made anew now."""

    stored: str = ""
    kept: str = ""
    anew: str = ""

    @property
    def intact(self) -> bool:
        """Whether what is kept is what was made. Another version of the software may draw another document."""
        return self.stored == self.kept


@dataclass(frozen=True, slots=True)
class Filed:
    """Those of the records that were dropped: how many, what they cost, and the file that they are in."""

    records: int
    nanos: int
    file_name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Proof:
    """`lines` are exact sums, `sums` (subtotal, tax, total) whole in the currency's places; `odd`: records, by name,
    whose amounts do not follow from their own unit prices (`odd_count` in all). `records` were read, `filed` are in
    files by now."""

    at: dt.datetime
    records: int
    unpriced: int
    lines: list[Row]
    sums: list[Row]
    odd_count: int = 0
    odd: list[str] = field(default_factory=list)
    hashes: Hashes = field(default_factory=Hashes)
    filed: list[Filed] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether all of it agrees."""
        rows = (*self.lines, *self.sums)
        return all(row.agrees for row in rows) and not self.odd_count and self.hashes.intact

    def as_json(self) -> dict[str, Any]:
        """For `InvoiceRun.result`."""
        return {**dataclasses.asdict(self), "at": self.at.isoformat()}


def read(kept: Mapping[str, Any]) -> Proof:
    """A proof from what `as_json` has made of it."""
    return Proof(
        **{
            **kept,
            "at": dt.datetime.fromisoformat(kept["at"]),
            "lines": [Row(**row) for row in kept["lines"]],
            "sums": [Row(**row) for row in kept["sums"]],
            "hashes": Hashes(**kept["hashes"]),
            "filed": [Filed(**filed) for filed in kept.get("filed", ())],
        }
    )


def is_long(invoice: Invoice) -> bool:
    """Whether so many records or lines are on it that nobody should wait for its proof."""
    return invoice_documents.is_long(invoice) or records(invoice)[: AT_ONCE + 1].count() > AT_ONCE


def records(invoice: Invoice) -> QuerySet[UsageRecord]:
    """What an invoice bills: what it has claimed, or, of a draft, would claim now. A void one has freed its records."""
    if invoice.status == Invoice.Status.DRAFT:
        return UsageRecord.objects.filter(api_key=invoice.api_key_id, invoice=None, ended_at__lt=invoice.period_end)
    return UsageRecord.objects.filter(invoice=invoice)


def adjustments(invoice: Invoice) -> QuerySet[Adjustment]:
    """The same of adjustments."""
    if invoice.status == Invoice.Status.DRAFT:
        return Adjustment.objects.filter(api_key=invoice.api_key_id, invoice=None, effective_at__lt=invoice.period_end)
    return Adjustment.objects.filter(invoice=invoice)


def prove(invoice: Invoice, *, now: dt.datetime, tell: Callable[[int, int], None] | None = None) -> Proof:
    """Make an invoice anew from its records, and lay both side by side. `tell` hears how many records are read."""
    found, filed = Counted(invoice), _filed(invoice)
    total = records(invoice).count() if tell else 0
    for record in records(invoice).only(*COLUMNS).iterator(chunk_size=CHUNK):
        found.add(record)
        if tell and found.records % CHUNK == 0:
            tell(found.records, total)
    if _filed(invoice) != filed:  # some were dropped while they were read
        return prove(invoice, now=now, tell=tell)
    for part in filed:
        found.take(part.sums)
    for made in adjustments(invoice).select_related("record"):
        found.adjust(made)
    lines = list(invoice.lines.all())
    if invoice.status == Invoice.Status.DRAFT:
        found.carry()
    return Proof(
        at=now,
        records=found.records,
        unpriced=found.unpriced,
        lines=_rows(lines, found.sums),
        sums=_sums(invoice, found.subtotal_nanos),
        odd_count=found.odd_count,
        odd=found.odd,
        hashes=hashes(invoice),
        filed=[Filed(part.records, part.cost_nanos, part.month.file_name, part.month.sha256) for part in filed],
    )


def _filed(invoice: Invoice) -> list[DroppedInvoice]:
    return list(DroppedInvoice.objects.filter(invoice=invoice, records__gt=0).select_related("month").order_by("pk"))


def hashes(invoice: Invoice) -> Hashes:
    """The document's, as stored and as it is now; empty for a draft, and where none was made yet."""
    found = InvoiceDocument.objects.filter(pk=invoice.pk).first()
    if found is None:
        return Hashes()
    anew = invoice_documents.digest(invoice_documents.preview(invoice))
    return Hashes(found.sha256, invoice_documents.digest(bytes(found.content)), anew)


class Counted:
    """Records and adjustments as they are added up: by line, and by what is rounded once."""

    def __init__(self, invoice: Invoice) -> None:
        self._start, self._places = invoice.period_start, money.currency_places(invoice.currency)
        self._issued_at = invoice.issued_at
        self.sums: dict[LineId, Sum] = {}
        self._rounded: Counter[Hashable] = Counter()
        self.records = self.unpriced = self.odd_count = self.cost_nanos = 0
        self.odd: list[str] = []

    def add(self, record: UsageRecord) -> None:
        """One record: it makes no line while it is unpriced."""
        self.records += 1
        self.cost_nanos += record.cost_nanos
        if record.unpriced:
            self.unpriced += 1
            return
        cost_nanos, follows = 0, True
        for line, quantity, nanos in _parts(record, late=record.ended_at < self._start):
            found = self.sums.setdefault(line, Sum())
            found.quantity += quantity
            found.nanos += nanos
            self._rounded[line] += nanos
            cost_nanos += nanos
            follows &= _follows(line, quantity, nanos)
        if not follows or cost_nanos != record.cost_nanos:
            self.odd_count += 1
            if len(self.odd) < MOST_NAMED:
                self.odd.append(record.request_name)

    def kept(self) -> list[list[Any]]:
        """The sums so far, as `DroppedInvoice.sums` keeps them."""
        return [[*line, found.quantity, found.nanos] for line, found in self.sums.items()]

    def take(self, kept: Sequence[Sequence[Any]]) -> None:
        """Take in what `kept` gave once."""
        for *identity, quantity, nanos in kept:
            line = LineId(*identity)
            found = self.sums.setdefault(line, Sum())
            found.quantity += quantity
            found.nanos += nanos
            self._rounded[line] += nanos

    def adjust(self, made: Adjustment) -> None:
        """One adjustment; what is carried over has no model and is of no period. Each made by hand is rounded alone."""
        if made.kind == Adjustment.Kind.CARRIED:
            line = LineId(CARRIED_OVER if self._is_taken_over(made) else ADJUSTMENT, late=False, model="")
        else:
            assert made.effective_at is not None
            model = made.record.model if made.record else ""
            line = LineId(ADJUSTMENT, late=made.effective_at < self._start, model=model)
        self.sums.setdefault(line, Sum()).nanos += made.amount_nanos
        alone = made.pk if made.kind in (Adjustment.Kind.GOODWILL, Adjustment.Kind.CORRECTION) else None
        self._rounded[line, made.kind == Adjustment.Kind.CARRIED, alone] += made.amount_nanos

    def _is_taken_over(self, made: Adjustment) -> bool:
        """Whether this is what its own issue took over to the next invoice, and not what a void one had and freed."""
        return made.amount_nanos > 0 and made.created_at == self._issued_at

    def carry(self) -> None:
        """What an issue would carry over to the next invoice, which nothing has noted for a draft."""
        if (nanos := self.subtotal_nanos) < 0:
            line = LineId(CARRIED_OVER, late=False, model="")
            self.sums[line], self._rounded[line] = Sum(nanos=-nanos), -nanos

    @property
    def subtotal_nanos(self) -> int:
        """The sum of all, each rounded once."""
        return sum(money.round_to_places(nanos, self._places) for nanos in self._rounded.values())


def _parts(record: UsageRecord, *, late: bool) -> Iterator[tuple[LineId, int, int]]:
    """What a record is made of, each with the line it belongs on: quantity and nanos."""
    tier = "default" if record.service_tier in BASE_TIERS else record.service_tier
    for bucket in BUCKETS:
        quantity, nanos = getattr(record, bucket), getattr(record, f"{bucket}_nanos")
        if quantity or nanos:
            own = LineId(
                bucket, late, record.model, record.metering, tier, record.long_context, record.price_version,
                record.unit_prices.get(bucket, 0), per_million=True,
            )  # fmt: skip
            yield own, quantity, nanos
    for item in record.items:
        line = LineId(
            item["bucket"], late, item["model"], record.metering, tier, False, item["price_version"],
            item["unit_nanos"], item["per_million"],
        )  # fmt: skip
        yield line, item["quantity"], item["amount_nanos"]


def _follows(line: LineId, quantity: int, nanos: int) -> bool:
    """Whether an amount is quantity times unit price, rounded once to the nano.

    A unit price is kept in whole nanos; where factors left a fraction of one, the amount was rated by the fraction, and
    may be off by half a nano per million tokens, besides the half that rounding the amount itself makes.
    """
    if not line.per_million:
        return nanos == quantity * line.unit_nanos
    return 2 * abs(nanos * MILLION - quantity * line.unit_nanos) <= quantity + MILLION


def _rows(lines: list[InvoiceLine], sums: Mapping[LineId, Sum]) -> list[Row]:
    """Lines in their order; several lines of adjustments to the same model are one row. Then what has no line."""
    names: dict[LineId, str] = {}
    told: dict[LineId, Sum] = {}
    for line in lines:
        key = _id(line)
        names.setdefault(key, line.description)
        found = told.setdefault(key, Sum())
        found.nanos += line.exact_nanos
        if key.bucket not in (ADJUSTMENT, CARRIED_OVER):
            found.quantity += line.quantity
    left = [key for key in sums if key not in told and (sums[key].nanos or sums[key].quantity)]
    rows = []
    for key in (*told, *left):
        says, comes = told.get(key, Sum()), sums.get(key, Sum())
        name = names.get(key) or " · ".join(filter(None, (key.model, key.bucket, key.service_tier)))
        rows.append(Row(name, says.nanos, comes.nanos, says.quantity, comes.quantity))
    return rows


def _id(line: InvoiceLine) -> LineId:
    if line.bucket in (ADJUSTMENT, CARRIED_OVER):
        return LineId(line.bucket, line.late, line.model)
    return LineId(
        line.bucket, line.late, line.model, line.metering, line.service_tier, line.long_context, line.price_version,
        line.unit_nanos, line.per_million,
    )  # fmt: skip


def _sums(invoice: Invoice, subtotal: int) -> list[Row]:
    """Subtotal, tax and total from the records, beside the invoice's."""
    tax = money.share(subtotal, invoice.tax_rate_ppm, money.currency_places(invoice.currency))
    return [
        Row("subtotal", invoice.subtotal_nanos, subtotal),
        Row("tax", invoice.tax_nanos, tax),
        Row("total", invoice.total_nanos, subtotal + tax),
    ]
