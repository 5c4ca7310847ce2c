"""Providers' credentials, encrypted in the database under HOPBASE_ENCRYPTION_KEYS (Fernet keys, newest first)."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

NO_KEYS = (
    "HOPBASE_ENCRYPTION_KEYS holds no usable key: give Fernet keys (32 bytes as URL-safe base64), newest first,"
    " separated by commas"
)

DECRYPTED: set[str] = set()
"""What this process has decrypted: whoever writes logs takes it out of them."""


class CredentialUnreadable(Exception):
    """A stored credential does not decrypt. The text names the provider and the remedy, never the credential."""

    def __init__(self, provider: str) -> None:
        super().__init__(
            f"the credential of provider {provider or '(unnamed)'} cannot be decrypted: put the key it was encrypted"
            " with back into HOPBASE_ENCRYPTION_KEYS, or enter the credential anew"
        )
        self.provider = provider


def encrypt(plain: str, keys: Sequence[str]) -> str:
    """A credential as it is kept, under the newest key; no credential stays none. ValueError: the keys are unusable."""
    return _fernet(keys).encrypt(plain.encode()).decode() if plain else ""


def decrypt(token: str, keys: Sequence[str], *, provider: str = "") -> str:
    """The credential of a provider (its name is for the error), by whichever key it was encrypted with."""
    if not token:
        return ""
    try:
        plain = _fernet(keys).decrypt(token.encode()).decode()
    except (InvalidToken, ValueError):
        raise CredentialUnreadable(provider) from None
    DECRYPTED.add(plain)
    return plain


def rotate(token: str, keys: Sequence[str], *, provider: str = "") -> str:
    """The same credential, encrypted anew under the newest key."""
    return encrypt(decrypt(token, keys, provider=provider), keys)


def _fernet(keys: Sequence[str]) -> MultiFernet:
    try:
        return MultiFernet([Fernet(key) for key in keys])
    except ValueError:
        raise ValueError(NO_KEYS) from None
