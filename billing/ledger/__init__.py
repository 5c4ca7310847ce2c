"""The only writer of open rows, usage records and stored objects.

`entries` is what it is told, `rows` what that becomes in the tables, `groups` how a group of entries is written in one
transaction (`checkpoints` and `corrections` are parts of that), `writer` the thread that takes them from a queue and
commits them, `journal` where they wait on disk while the database is away.
"""

from billing.ledger.cleaning import is_object_id
from billing.ledger.entries import (
    AttemptRow,
    BroughtObjects,
    Checkpoint,
    CheckpointRow,
    OpenRow,
    ProcessRow,
    Settlement,
    Told,
)
from billing.ledger.journal import Journal
from billing.ledger.writer import Ledger, LedgerUnavailable

__all__ = [
    "AttemptRow",
    "BroughtObjects",
    "Checkpoint",
    "CheckpointRow",
    "Journal",
    "Ledger",
    "LedgerUnavailable",
    "OpenRow",
    "ProcessRow",
    "Settlement",
    "Told",
    "is_object_id",
]
