"""What billing's pages ask the gateway, which billing does not know: streaming answers once its app is ready.

Without an answer Redis counts as away, and no model is there or offered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from billing.reports import KeyMonth


@dataclass(frozen=True, slots=True)
class SharedUse:
    """What all gateway processes together count of a key now, as far as it has limits that they count for.

    Sums of the last minute, and in how many milliseconds nothing is left of them; requests under way; the nanos that
    those hold of the month's budget.
    """

    requests: int
    requests_reset_ms: int
    tokens: int
    tokens_reset_ms: int
    running: int
    held_nanos: int


ReadSharedUse = Callable[[Collection[KeyMonth]], Mapping[int, SharedUse] | None]
"""By key id, of months one for each key; None when Redis is away."""
ReadOffer = Callable[[], Mapping[str, frozenset[str]]]
"""Public models that have a route now -> the wire formats in which they can be asked, by name."""
ReadModels = Callable[[], Collection[str]]
"""The names of all public models, with a route or without."""


def _nobody_counts(months: Collection[KeyMonth]) -> None:
    return None


def _nothing_offered() -> Mapping[str, frozenset[str]]:
    return {}


def _no_models() -> Collection[str]:
    return ()


_shared_use: ReadSharedUse = _nobody_counts
_offer: ReadOffer = _nothing_offered
_models: ReadModels = _no_models


def answer(shared_use: ReadSharedUse, offer: ReadOffer, models: ReadModels) -> None:
    """Say who answers."""
    global _shared_use, _offer, _models
    _shared_use, _offer, _models = shared_use, offer, models


def shared_use(months: Collection[KeyMonth]) -> Mapping[int, SharedUse] | None:
    """What keys use now over all processes, by key id; None when Redis is away."""
    return _shared_use(months)


def offer() -> Mapping[str, frozenset[str]]:
    """The public models that have a route now, with the wire formats in which they can be asked."""
    return _offer()


def models() -> Collection[str]:
    """The names of all public models."""
    return _models()
