"""What the core says in English, and what rows have kept of it, in the language that is active."""

from __future__ import annotations

from django.utils.translation import gettext

from billing import adjustments, invoices, pricing, rollups, unpriced
from billing.ledger import corrections
from billing.models import Adjustment
from billing.phrases import Phrase, known_again

STORED = [
    *pricing.REASONS, *invoices.REASONS, rollups.NOT_REBUILT, *corrections.REASONS, adjustments.CREDITS_LEFT,
    unpriced.RATED,
]  # fmt: skip
"""Templates of what rows keep; `know` adds those of apps above."""


def know(*templates: str) -> None:
    """Know stored texts of these templates, too."""
    STORED.extend(templates)


def in_words(said: str) -> str:
    """A phrase in the active language; any other text as it is."""
    if not isinstance(said, Phrase):
        return said
    values = {name: in_words(value) if isinstance(value, str) else value for name, value in said.values.items()}
    return gettext(said.template) % values


def stored_words(text: str) -> str:
    """The same of a text that a row has kept, whether it holds values or not."""
    found = known_again(text, STORED)
    return in_words(found) if isinstance(found, Phrase) else gettext(text) if text else ""


def reason_words(adjustment: Adjustment) -> str:
    """Why it was made: what people wrote as they wrote it, what the ledger says in words."""
    return adjustment.reason if adjustment.kind in adjustments.BY_HAND else stored_words(adjustment.reason)
