"""The secrets that an installation needs: made here, judged in hopbase_site.checks."""

from __future__ import annotations

import secrets

from cryptography.fernet import Fernet


def make() -> dict[str, str]:
    """New values for the three settings without a safe default, by name."""
    return {
        "SECRET_KEY": secrets.token_urlsafe(48),
        "HOPBASE_KEY_PEPPER": secrets.token_urlsafe(48),
        "HOPBASE_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
    }


def is_fernet_key(text: str) -> bool:
    """Whether Fernet takes it: 32 bytes as URL-safe base64."""
    try:
        Fernet(text)
    except ValueError:
        return False
    return True
