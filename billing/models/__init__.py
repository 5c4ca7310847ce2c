"""The tables of the bill: who pays, at what price, for which use, on which invoice."""

from billing.models.accounts import Account, ApiKey
from billing.models.audit import AuditEntry
from billing.models.budgets import BudgetMonth
from billing.models.catalogue import CatalogueRow, CatalogueVersion, one_version
from billing.models.corrections import Adjustment, CreditNote, CreditNoteLine
from billing.models.count_factors import CountFactor
from billing.models.dropped import DroppedInvoice, DroppedMonth, DroppedRecord
from billing.models.health import FlagRollup, MeterEvent
from billing.models.invoice_runs import InvoiceRun
from billing.models.invoices import Invoice, InvoiceCounter, InvoiceDocument, InvoiceLine
from billing.models.prices import Price
from billing.models.reconciliation import (
    AttemptQuarter,
    ProviderTest,
    Reconciliation,
    ReconciliationMapping,
    ReconciliationRow,
)
from billing.models.reports import Export, SavedView
from billing.models.rollups import RollupDue, UsageDay, UsageRollup
from billing.models.shipping import RecordToShip
from billing.models.usage import Attempt, GatewayProcess, OpenStream, StoredObject, UsageRecord

__all__ = [
    "Account",
    "Adjustment",
    "ApiKey",
    "Attempt",
    "AttemptQuarter",
    "AuditEntry",
    "BudgetMonth",
    "CatalogueRow",
    "CatalogueVersion",
    "CountFactor",
    "CreditNote",
    "CreditNoteLine",
    "DroppedInvoice",
    "DroppedMonth",
    "DroppedRecord",
    "Export",
    "FlagRollup",
    "GatewayProcess",
    "Invoice",
    "InvoiceCounter",
    "InvoiceDocument",
    "InvoiceLine",
    "InvoiceRun",
    "MeterEvent",
    "OpenStream",
    "Price",
    "ProviderTest",
    "Reconciliation",
    "ReconciliationMapping",
    "ReconciliationRow",
    "RecordToShip",
    "RollupDue",
    "SavedView",
    "StoredObject",
    "UsageDay",
    "UsageRecord",
    "UsageRollup",
    "one_version",
]
