"""What must be so before anything that handles keys, credentials or bills starts."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from hopbase_site.secrets import is_fernet_key
from hopbase_site.settings import DEFAULT_ENCRYPTION_KEY, DEFAULT_SECRET

SHORTEST_SECRET = 32
"""Characters; Django's own deployment check asks for 50 of SECRET_KEY alone, `openssl rand -hex 16` gives 32."""

REMEDY = "`python manage.py make_secrets >> .env` makes new ones (DEBUG=true allows the defaults, for development only)"


def _problem(name: str, value: str, default: str) -> str | None:
    if value == default:
        return f"{name} is not set"
    if len(value) < SHORTEST_SECRET:
        return f"{name} is shorter than {SHORTEST_SECRET} characters"
    return None


def _encryption_problem(keys: list[str]) -> str | None:
    if not keys or DEFAULT_ENCRYPTION_KEY in keys:
        return "HOPBASE_ENCRYPTION_KEYS is not set"
    return _malformed(keys)


def _malformed(keys: list[str]) -> str | None:
    bad = [str(position) for position, key in enumerate(keys, start=1) if not is_fernet_key(key)]
    if not bad:
        return None
    return f"HOPBASE_ENCRYPTION_KEYS: number {', '.join(bad)} is not a Fernet key (32 bytes as URL-safe base64)"


def refuse_default_secrets() -> None:
    """Raise ImproperlyConfigured, in one line, where secrets are default, short or malformed.

    DEBUG allows the defaults.
    """
    if settings.DEBUG:
        problems = [_malformed(settings.ENCRYPTION_KEYS)]
    else:
        problems = [
            _problem("SECRET_KEY", settings.SECRET_KEY, DEFAULT_SECRET),
            _problem("HOPBASE_KEY_PEPPER", settings.KEY_PEPPER, DEFAULT_SECRET),
            _encryption_problem(settings.ENCRYPTION_KEYS),
        ]
    found = [problem for problem in problems if problem]
    if found:
        raise ImproperlyConfigured(f"{'; '.join(found)}: {REMEDY}")


def make_var_dir() -> Path:
    """HOPBASE_VAR_DIR, made for its owner alone where it is missing."""
    folder: Path = settings.VAR_DIR
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ImproperlyConfigured(
            f"HOPBASE_VAR_DIR cannot be made ({error}): choose a folder that this user may write"
        ) from None
    return folder
