"""What a model reports for each token that we count, fitted from its own finished records.

Claude's tokenizer is not public: its tokens are counted as o200k's times a factor. It starts at 1.1 and is then the
median of reported / counted output of a model's last 500 records that can be compared.

**Which can.** Streams that ended by themselves, with reported usage, and with a count of their whole output; of plain
text alone (`text_only`), since thinking is billed in full but shown in part, and tools are billed with syntax that
nobody sees; and of a hundred tokens or more, so that the few which frame each answer do not weigh. `counted_output` is
what would have been billed, so each record is first freed of the factor that it was counted with.
"""

from __future__ import annotations

import datetime as dt
import logging
import statistics
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from django.db.models import QuerySet

from billing.models import CountFactor, UsageRecord, one_version

log = logging.getLogger(__name__)

SAMPLE = 500
"""The newest so many records of a model are looked at."""

LEAST_RECORDS = 100
"""Fewer prove nothing: by as many, the median of ratios that spread by a tenth is within about one per cent."""

LEAST_TOKENS = 100
LEAST_PPM, MOST_PPM = 500_000, 3_000_000
"""No tokenizer is that far from o200k: such a factor says that the provider's usage or our count is wrong."""

FINISHED = ("complete", "incomplete")


class Fit(NamedTuple):
    """A model's factor in millionths, and of how many records it is the median."""

    factor_ppm: int
    records: int


def refit(now: dt.datetime) -> int:
    """Fit every model's factor anew and keep those that changed; returns how many. Safe at any time, any number."""
    fits = {model: fit for model in sampled_models() if (fit := fit_of(model)) is not None}
    changed = _changed(fits)
    if not changed:
        return 0
    with one_version():  # whoever fits at the same time waits here, and finds what we have kept
        changed = _changed(changed)
        for model, fit in changed.items():
            CountFactor.objects.create(model=model, factor_ppm=fit.factor_ppm, records=fit.records, fitted_at=now)
    return len(changed)


def _changed(fits: dict[str, Fit]) -> dict[str, Fit]:
    kept = CountFactor.in_force()
    return {model: fit for model, fit in fits.items() if kept.get(model) != fit.factor_ppm}


def comparable_records() -> QuerySet[UsageRecord]:
    """All records that tell something of their model's factor; the first two conditions are an index's."""
    return UsageRecord.objects.filter(
        text_only=True, count_factor_ppm__isnull=False, metering="reported", ending__in=FINISHED,
        counted_output__gte=LEAST_TOKENS, output__gt=0,
    )  # fmt: skip


def sampled_models() -> Iterator[str]:
    """The models that have such records, one look into the index for each."""
    names = comparable_records().order_by("model").values_list("model", flat=True)
    name = names.first()
    while name is not None:
        yield name
        name = names.filter(model__gt=name).first()


def fit_of(model: str) -> Fit | None:
    """A model's factor by its newest records; None where these are too few or make no sense."""
    newest = comparable_records().filter(model=model).order_by("-ended_at")[:SAMPLE]
    rows = newest.values_list("output", "counted_output", "count_factor_ppm")
    ratios = [ratio_ppm(output, counted, ppm) for output, counted, ppm in rows if counted and ppm]
    if len(ratios) < LEAST_RECORDS:
        return None
    factor_ppm = median_ppm(ratios)
    if not LEAST_PPM <= factor_ppm <= MOST_PPM:
        log.error("model %s reports %d tokens per million that we count: its factor stays as it is", model, factor_ppm)
        return None
    return Fit(factor_ppm, len(ratios))


def ratio_ppm(reported: int, counted: int, counted_with_ppm: int) -> int:
    """Reported tokens per million o200k tokens, of a count that was scaled by a factor."""
    return (reported * counted_with_ppm + counted // 2) // counted


def median_ppm(ratios: Sequence[int]) -> int:
    """The middle one; of an even number, what is half-way between the middle two."""
    return (statistics.median_low(ratios) + statistics.median_high(ratios)) // 2
