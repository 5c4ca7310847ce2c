"""Providers' credentials under several keys."""

from __future__ import annotations

import pytest
from cryptography.fernet import Fernet
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from billing.models import CatalogueVersion
from streaming.credentials import CredentialUnreadable, decrypt, encrypt, rotate
from streaming.models import Provider

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()
SECRET = "sk-provider-secret"


@given(st.text(st.characters(codec="utf-8")))
def test_credential_comes_back(plain: str) -> None:
    token = encrypt(plain, [NEW])
    assert decrypt(token, [NEW]) == plain
    assert plain == "" or plain not in token or len(plain) < 4


def test_any_key_decrypts() -> None:
    assert decrypt(encrypt(SECRET, [OLD]), [NEW, OLD]) == SECRET


def test_rotation_needs_newest_only() -> None:
    token = rotate(encrypt(SECRET, [OLD]), [NEW, OLD])
    assert decrypt(token, [NEW]) == SECRET
    with pytest.raises(CredentialUnreadable):
        decrypt(token, [OLD])


@pytest.mark.parametrize("keys", [[NEW], [], ["junk"]])
def test_unreadable_names_the_remedy(keys: list[str]) -> None:
    token = encrypt(SECRET, [OLD])
    with pytest.raises(CredentialUnreadable) as raised:
        decrypt(token, keys, provider="acme-cloud")
    assert raised.value.provider == "acme-cloud"
    assert "acme-cloud" in str(raised.value)
    assert "HOPBASE_ENCRYPTION_KEYS" in str(raised.value)
    assert token not in str(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("keys", [[], ["junk"], [NEW, "c2hvcnQ="]])
def test_unusable_keys_are_explained(keys: list[str]) -> None:
    with pytest.raises(ValueError, match="HOPBASE_ENCRYPTION_KEYS"):
        encrypt(SECRET, keys)


def test_command_rotates_all(db: None, settings: object, capsys: pytest.CaptureFixture[str]) -> None:
    settings.ENCRYPTION_KEYS = [NEW, OLD]  # type: ignore[attr-defined]
    Provider.objects.create(name="acme-cloud", base_url="http://a.test", credential=encrypt(SECRET, [OLD]))
    Provider.objects.create(name="open-house", base_url="http://b.test")
    version = CatalogueVersion.current()
    call_command("rotate_credentials")
    assert decrypt(Provider.objects.get(name="acme-cloud").credential, [NEW]) == SECRET
    assert Provider.objects.get(name="open-house").credential == ""
    assert CatalogueVersion.current() > version
    assert capsys.readouterr().out == "1 of 1 credentials re-encrypted\n"


def test_command_names_unreadable(db: None, settings: object) -> None:
    settings.ENCRYPTION_KEYS = [NEW]  # type: ignore[attr-defined]
    Provider.objects.create(name="acme-cloud", base_url="http://a.test", credential=encrypt(SECRET, [OLD]))
    Provider.objects.create(name="better", base_url="http://b.test", credential=encrypt(SECRET, [NEW]))
    before = Provider.objects.get(name="better").credential
    with pytest.raises(CommandError, match="provider acme-cloud cannot be decrypted"):
        call_command("rotate_credentials")
    assert Provider.objects.get(name="better").credential != before
