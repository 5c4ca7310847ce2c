"""The only writer of open rows and usage records.

`entries` is what it is told, `rows` what that becomes in the tables, `groups` how a group of entries is written in one
transaction, `writer` the thread that takes them from a queue and commits them.
"""

from billing.ledger.entries import AttemptRow, OpenRow, Settlement
from billing.ledger.writer import Ledger, LedgerUnavailable

__all__ = ["AttemptRow", "Ledger", "LedgerUnavailable", "OpenRow", "Settlement"]
