"""Figures that no column holds, as the databases and their drivers say so."""

from __future__ import annotations

from django.db import DataError, OperationalError

from billing.phrases import gettext_noop

TOO_LARGE = gettext_noop("a sum or a unit price passes 9,223,372,036, the most that can be kept: check the prices")

OUT_OF_RANGE = "22003"
"""PostgreSQL's SQLSTATE numeric_value_out_of_range."""


def is_too_large(error: Exception) -> bool:
    """Whether a number was larger than its column, or than what SQLite sums up to."""
    if isinstance(error, DataError):
        return getattr(error.__cause__, "sqlstate", None) == OUT_OF_RANGE
    # https://sqlite.org/lang_aggfunc.html#sumunc
    summed = isinstance(error, OperationalError) and str(error) == "integer overflow"
    return summed or isinstance(error, OverflowError)  # what SQLite's driver says of a parameter


def is_of_data(error: Exception) -> bool:
    """Whether what was to be written is at fault, so that it fails again, and others beside it need not."""
    return isinstance(error, DataError) or is_too_large(error)


def reason(error: Exception) -> str:
    """Why such a thing was not written."""
    return TOO_LARGE if is_too_large(error) else str(error).strip().partition("\n")[0]
