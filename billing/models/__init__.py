"""The tables of the bill: who pays, at what price, for which use, on which invoice."""

from billing.models.accounts import Account, ApiKey
from billing.models.budgets import BudgetMonth
from billing.models.catalogue import CatalogueRow, CatalogueVersion, one_version
from billing.models.invoices import Adjustment, Invoice, InvoiceCounter, InvoiceLine
from billing.models.prices import Price
from billing.models.rollups import RollupDue, UsageRollup
from billing.models.usage import Attempt, GatewayProcess, OpenStream, StoredObject, UsageRecord

__all__ = [
    "Account",
    "Adjustment",
    "ApiKey",
    "Attempt",
    "BudgetMonth",
    "CatalogueRow",
    "CatalogueVersion",
    "GatewayProcess",
    "Invoice",
    "InvoiceCounter",
    "InvoiceLine",
    "OpenStream",
    "Price",
    "RollupDue",
    "StoredObject",
    "UsageRecord",
    "UsageRollup",
    "one_version",
]
