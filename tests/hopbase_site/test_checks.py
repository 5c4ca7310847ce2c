"""Production refuses to start with secrets that everybody knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from hopbase_site import checks, secrets
from hopbase_site.settings import DEFAULT_ENCRYPTION_KEY, DEFAULT_SECRET


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"SECRET_KEY": DEFAULT_SECRET}, "SECRET_KEY is not set"),
        ({"KEY_PEPPER": DEFAULT_SECRET}, "HOPBASE_KEY_PEPPER is not set"),
        ({"KEY_PEPPER": "p" * 31}, "HOPBASE_KEY_PEPPER is shorter than 32 characters"),
        ({"ENCRYPTION_KEYS": [DEFAULT_ENCRYPTION_KEY]}, "HOPBASE_ENCRYPTION_KEYS is not set"),
        ({"ENCRYPTION_KEYS": []}, "HOPBASE_ENCRYPTION_KEYS is not set"),
        ({"ENCRYPTION_KEYS": [secrets.make()["HOPBASE_ENCRYPTION_KEYS"], "abc"]}, "number 2 is not a Fernet key"),
    ],
)
def test_production_refuses(settings: Any, changed: dict[str, Any], said: str) -> None:
    for name, value in changed.items():
        setattr(settings, name, value)
    with pytest.raises(ImproperlyConfigured) as refused:
        checks.refuse_default_secrets()
    assert said in str(refused.value)
    assert "make_secrets >> .env" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_made_secrets_are_accepted(settings: Any) -> None:
    made = secrets.make()
    settings.SECRET_KEY, settings.KEY_PEPPER = made["SECRET_KEY"], made["HOPBASE_KEY_PEPPER"]
    settings.ENCRYPTION_KEYS = [made["HOPBASE_ENCRYPTION_KEYS"]]
    checks.refuse_default_secrets()
    assert made != secrets.make()


def test_development_allows_defaults(settings: Any) -> None:
    settings.DEBUG, settings.SECRET_KEY, settings.KEY_PEPPER = True, DEFAULT_SECRET, DEFAULT_SECRET
    settings.ENCRYPTION_KEYS = [DEFAULT_ENCRYPTION_KEY]
    checks.refuse_default_secrets()


def test_default_encryption_key_is_usable() -> None:
    assert secrets.is_fernet_key(DEFAULT_ENCRYPTION_KEY)


def test_var_dir_is_private(settings: Any, tmp_path: Path) -> None:
    settings.VAR_DIR = tmp_path / "a" / "var"
    assert checks.make_var_dir().stat().st_mode & 0o777 == 0o700


def test_impossible_var_dir_is_one_line(settings: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings.VAR_DIR = tmp_path / "file" / "var"
    with pytest.raises(ImproperlyConfigured, match=r"HOPBASE_VAR_DIR cannot be made .*choose a folder"):
        checks.make_var_dir()
