"""What the page of one request shows beside its fields: the cost taken apart until it adds up, attempts on a time axis,
what we counted ourselves, and what the provider said."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.admin import live
from billing.admin.attempts import outcome_badge
from billing.admin.display import UNKNOWN, change_url, duration, link, moment, money, number, price_per_million
from billing.admin.filters import BUCKET_WORDS
from billing.admin.timeline import axis
from billing.catalogue import readable_price
from billing.models import Attempt, InvoiceLine, Price, UsageRecord
from billing.money import NANO_PLACES
from billing.pricing import BASE_TIERS, NoPrice, UnitPrice, factored
from billing.usage import BUCKETS
from billing.words import stored_words

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

INPUT_BUCKETS = tuple(bucket for bucket in BUCKETS if bucket != "output")

METERING_WHY: dict[str, _StrPromise] = {
    "reported": gettext_lazy("As the provider reported it."),
    "estimated": gettext_lazy("Counted by us, as far as the provider reported nothing that could be believed."),
    "checkpoint": gettext_lazy("As of the last checkpoint before the gateway process died."),
    "none": gettext_lazy("Nothing was produced, and nothing was reported."),
}


class LineOf(NamedTuple):
    """What an invoice line and the part of a record that it sums have in common."""

    late: bool
    model: str
    per_million: bool
    bucket: str
    metering: str
    service_tier: str
    long_context: bool
    price_version: str
    unit_nanos: int


class Breakdown:
    """A record's cost in parts. Reads its price versions and its invoice's lines, each at most once."""

    def __init__(self, record: UsageRecord) -> None:
        self.record = record

    def rows(self) -> list[dict[str, Any]]:
        """The five buckets, used or not, then what else was used: server tools, other models."""
        items = list(self.record.items)
        return [*(self._bucket_row(bucket) for bucket in BUCKETS), *(self._item_row(item) for item in items)]

    def _bucket_row(self, bucket: str) -> dict[str, Any]:
        record, unit = self.record, self.record.unit_prices.get(bucket)
        quantity = getattr(record, bucket)
        amount = None if record.unpriced else getattr(record, f"{bucket}_nanos")
        total = sum(getattr(record, name) for name in INPUT_BUCKETS)
        base = self._factored(record.price_version, total).get(bucket)
        line = self._line(record.model, bucket, unit or 0, record.price_version, record.long_context, per_million=True)
        return {
            "name": BUCKET_WORDS[bucket],
            "quantity": number(quantity),
            "amount": money(amount, record.currency, NANO_PLACES),
            "line": line if quantity else UNKNOWN,
            **self._unit(unit, base),
        }

    def _item_row(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """An item as the ledger keeps it: `billing.pricing.Item` as a dict."""
        record, own = self.record, item["model"] == self.record.model
        total = sum(
            other["quantity"]
            for other in record.items
            if other["model"] == item["model"] and other["bucket"] in INPUT_BUCKETS
        )
        base = self._factored(item["price_version"], total).get(item["bucket"]) if item["per_million"] else None
        return {
            "name": BUCKET_WORDS.get(item["bucket"], item["bucket"]),
            "model": "" if own else item["model"],
            "quantity": number(item["quantity"]),
            "amount": money(None if record.unpriced else item["amount_nanos"], record.currency, NANO_PLACES),
            "each": not item["per_million"],
            "line": self._line(
                item["model"], item["bucket"], item["unit_nanos"], item["price_version"], long_context=False,
                per_million=item["per_million"],
            ),
            **self._unit(None if record.unpriced else item["unit_nanos"], base),
        }  # fmt: skip

    def _unit(self, applied: int | None, base: UnitPrice | None) -> dict[str, str]:
        """The price before its factors, the factors, and the price as applied where they change it."""
        currency = self.record.currency
        if base is None:  # of a server tool, or of a version that cannot be read any more
            return {"unit": price_per_million(applied, currency), "factors": UNKNOWN, "applied": ""}
        factors = [
            _("%(name)s × %(factor)s") % {"name": name, "factor": _plain(factor)}
            for name, factor in (
                (self.record.service_tier, base.tier),
                (_("long context"), base.long_context),
            )
            if factor != 1
        ]
        if self.record.service_tier not in BASE_TIERS and base.tier == 1:
            factors.insert(0, _("own price of tier %(name)s") % {"name": self.record.service_tier})
        changed = base.tier * base.long_context != 1
        return {
            "unit": price_per_million(base.base_nanos, currency),
            "factors": " · ".join(factors) or UNKNOWN,
            "applied": price_per_million(applied, currency) if changed else "",
        }

    # --- price versions ---

    @cached_property
    def prices(self) -> dict[str, Price]:
        """The price versions that the record was rated with, by their labels, as far as they can be found."""
        labels = {self.record.price_version, *(item["price_version"] for item in self.record.items)} - {""}
        found = {}
        for label in labels:
            if (price := _price_of(label)) is not None:
                found[label] = price
        return found

    def price_links(self) -> list[Any]:
        """Links to the price versions; the label alone where the version cannot be found."""
        labels = dict.fromkeys([self.record.price_version, *(item["price_version"] for item in self.record.items)])
        return [
            link(change_url(self.prices[label]), label) if label in self.prices else label for label in labels if label
        ]

    def _factored(self, label: str, total_input: int) -> Mapping[str, UnitPrice]:
        price = self.prices.get(label)
        if price is None:
            return {}
        try:
            return factored(readable_price(price), self.record.service_tier, total_input)
        except NoPrice:
            return {}

    # --- invoice lines ---

    @cached_property
    def lines(self) -> dict[LineOf, InvoiceLine]:
        """The lines of the record's invoice by what their parts have in common."""
        if self.record.invoice_id is None:
            return {}
        return {
            LineOf(**{name: getattr(line, name) for name in LineOf._fields}): line
            for line in InvoiceLine.objects.filter(invoice=self.record.invoice_id)
        }

    def _line(
        self, model: str, bucket: str, unit_nanos: int, price_version: str, long_context: bool, *, per_million: bool
    ) -> Any:
        record = self.record
        if record.invoice is None or record.unpriced:
            return UNKNOWN
        tier = "default" if record.service_tier in BASE_TIERS else record.service_tier
        part = LineOf(
            record.ended_at < record.invoice.period_start, model, per_million, bucket, record.metering, tier,
            long_context, price_version, unit_nanos,
        )  # fmt: skip
        line = self.lines.get(part)
        return UNKNOWN if line is None else link(change_url(line), _("line %(number)s") % {"number": line.position})


def breakdown(record: UsageRecord) -> dict[str, Any]:
    """The context of the page's own parts."""
    found = Breakdown(record)
    attempts = list(record.attempts.all())
    return {
        "record": record,
        "timings": list(_timings(record)),
        "reason": stored_words(record.reason),
        "unpriced_reason": stored_words(record.unpriced_reason),
        "stopped_by": live.stopped_by(record) if record.ending == "stopped" else "",
        "parts": found.rows(),
        "parts_total": UNKNOWN if record.unpriced else money(record.cost_nanos, record.currency, NANO_PLACES),
        "reasoning": None if record.reasoning is None else number(record.reasoning),
        "price_links": found.price_links(),
        "long_context": record.long_context,
        "counts": list(_counts(record)),
        "metering_why": METERING_WHY.get(record.metering, ""),
        "axis": axis(record, attempts),
        "attempts": [_attempt_row(attempt, record) for attempt in attempts],
        "raw_usage": json.dumps(record.raw_usage, indent=1, ensure_ascii=False) if record.raw_usage else "",
    }


def _timings(record: UsageRecord) -> Iterator[dict[str, Any]]:
    """How long it took until the first output, and in all."""
    first = None if record.first_output_at is None else record.first_output_at - record.started_at
    yield {
        "title": _("First output after"),
        "figure": UNKNOWN if first is None else duration(first),
        "note": _("Nothing was produced.") if first is None else "",
    }
    yield {
        "title": _("Took"),
        "figure": duration(record.ended_at - record.started_at),
        "note": moment(record.started_at, record.account.timezone),
    }


def _counts(record: UsageRecord) -> Iterator[dict[str, str]]:
    """What we counted beside what is billed, where we counted at all; for the meter's sake, not for the bill's."""
    pairs = (
        (_("input"), record.counted_input, sum(getattr(record, bucket) for bucket in INPUT_BUCKETS)),
        (_("output"), record.counted_output, record.output),
    )
    for name, counted, billed in pairs:
        if counted is not None:
            yield {
                "name": name,
                "counted": number(counted),
                "billed": number(billed),
                "difference": _difference(counted, billed),
            }


def _difference(counted: int, billed: int) -> str:
    """Our count against what is billed: `+1.2 %`; a dash where there is nothing to compare with."""
    if not billed:
        return UNKNOWN
    per_mille = (counted - billed) * 1000 // billed
    sign = "+" if per_mille > 0 else "−" if per_mille < 0 else ""
    return f"{sign}{abs(per_mille) // 10}.{abs(per_mille) % 10} %"


def _price_of(label: str) -> Price | None:
    """The price version of a label, `model@2026-01-01T00:00:00Z`."""
    model, _at, begin = label.rpartition("@")
    try:
        from_second = dt.datetime.fromisoformat(begin)
    except ValueError:
        return None
    until = from_second + dt.timedelta(seconds=1)
    return Price.objects.filter(model=model, effective_from__gte=from_second, effective_from__lt=until).first()


def _plain(factor: Fraction) -> str:
    """A factor as a decimal without needless zeros: `1.5`. Factors are decimals where they are entered."""
    scaled = factor * 10**6
    whole, rest = divmod(round(scaled), 10**6)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".")


def _attempt_row(attempt: Attempt, record: UsageRecord) -> dict[str, Any]:
    def after(milliseconds: int | None) -> str:
        return UNKNOWN if milliseconds is None else duration(dt.timedelta(milliseconds=milliseconds))

    return {
        "attempt": attempt,
        "reason": stored_words(attempt.reason),
        "outcome": outcome_badge(attempt.outcome),
        "began": duration(attempt.started_at - record.started_at),
        "headers": after(attempt.headers_ms),
        "first": after(attempt.first_output_ms),
        "took": after(attempt.duration_ms),
    }
