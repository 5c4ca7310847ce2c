"""The admin's pages on what is billed, one module per noun, with the names of `billing.models`."""

from billing.admin import accounts, attempts, catalogue, invoices, keys, prices, rollups, streams, usage

__all__ = ["accounts", "attempts", "catalogue", "invoices", "keys", "prices", "rollups", "streams", "usage"]
