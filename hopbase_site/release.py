"""Which HopBase this is; no other place says so. The commit is filled in where `git archive` writes the file."""

from __future__ import annotations

VERSION = "0.1.0"
COMMIT = "$Format:%H$"
USER_AGENT = f"HopBase/{VERSION}"


def described() -> str:
    """The version and where it comes from."""
    return f"HopBase {VERSION} ({'a checkout' if COMMIT.startswith('$') else f'commit {COMMIT}'})"
