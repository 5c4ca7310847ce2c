"""The admin's pages on what is billed, one module per noun, with the names of `billing.models`."""

from billing.admin import (
    accounts,
    adjustments,
    attempts,
    budgets,
    catalogue,
    invoices,
    keys,
    prices,
    rollups,
    stored_objects,
    streams,
    usage,
)

__all__ = [
    "accounts",
    "adjustments",
    "attempts",
    "budgets",
    "catalogue",
    "invoices",
    "keys",
    "prices",
    "rollups",
    "stored_objects",
    "streams",
    "usage",
]
