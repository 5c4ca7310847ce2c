"""Secrets: made, recognised, kept as HMACs, rotated, revoked."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac

import pytest
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from billing import keys
from billing.models import Account, ApiKey, CatalogueVersion

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
BASE62 = st.sampled_from(keys.BASE62)
PRINTABLE = st.characters(min_codepoint=33, max_codepoint=126)


@pytest.fixture
def account(db: None) -> Account:
    return Account.objects.create(name="northwind")


def test_made_secrets_are_well_formed() -> None:
    made = {keys.make_secret() for _ in range(200)}
    assert len(made) == 200
    for secret in made:
        assert len(secret) == 55
        assert secret.startswith("sk-hb-")
        assert keys.is_well_formed(secret)


@given(st.data(), st.integers(6, 54), BASE62)
def test_changed_character_is_noticed(data: st.DataObject, at: int, character: str) -> None:
    secret = keys.make_secret()
    changed = secret[:at] + character + secret[at + 1 :]
    assert keys.is_well_formed(changed) is (changed == secret)


@given(st.integers(6, 47))
def test_swapped_characters_are_noticed(at: int) -> None:
    secret = keys.make_secret()
    swapped = secret[:at] + secret[at + 1] + secret[at] + secret[at + 2 :]
    assert keys.is_well_formed(swapped) is (swapped == secret)


@given(st.text(BASE62, max_size=60))
def test_junk_in_our_form_is_refused(body: str) -> None:
    assert not keys.is_well_formed(f"sk-hb-{body}")


@given(st.text(PRINTABLE, min_size=20, max_size=200).filter(lambda secret: not secret.startswith("sk-hb-")))
def test_preset_secrets_are_taken(secret: str) -> None:
    assert keys.is_well_formed(secret)


@pytest.mark.parametrize(
    "secret", ["", "x" * 19, "x" * 201, "x" * 20 + " y", "x" * 20 + "é", "x" * 20 + "\n", "x" * 20 + "\0"]
)
def test_unfit_presets_are_refused(secret: str) -> None:
    assert not keys.is_well_formed(secret)


def test_digest_is_peppered_hmac() -> None:
    expected = hmac.new(b"pepper", b"s" * 20, hashlib.sha256).hexdigest()
    assert keys.digest("s" * 20, "pepper") == expected != keys.digest("s" * 20, "salt")


@given(st.text(PRINTABLE, min_size=20, max_size=200))
def test_shown_part_is_short(secret: str) -> None:
    beginning = keys.shown(secret)[:-1]
    assert secret.startswith(beginning)
    assert len(beginning) <= min(len(secret) / 3, 9)


def test_created_key_keeps_no_secret(account: Account) -> None:
    key, secret = keys.create(account, "production", concurrency=5)
    kept = ApiKey.objects.get(id=key.id)
    assert (kept.digest, kept.concurrency) == (keys.digest(secret, settings.KEY_PEPPER), 5)
    assert kept.shown == secret[:9] + "…"
    assert secret not in str(vars(kept))


def test_preset_secret_is_kept(account: Account) -> None:
    key, secret = keys.create(account, "production", "preset-secret-of-a-customer")
    assert secret == "preset-secret-of-a-customer"
    assert ApiKey.objects.get(digest=keys.digest(secret, settings.KEY_PEPPER)) == key


def test_bad_preset_is_explained(account: Account) -> None:
    with pytest.raises(ValueError, match="20 to 200 printable"):
        keys.create(account, "production", "short")
    with pytest.raises(ValueError, match="checksum"):
        keys.create(account, "production", "sk-hb-" + "a" * 49)


def test_secret_belongs_to_one_key(account: Account) -> None:
    key, secret = keys.create(account, "production")
    with pytest.raises(ValueError, match="another key's"):
        keys.create(account, "staging", secret)
    keys.rotate(key, dt.timedelta(hours=24))
    with pytest.raises(ValueError, match="another key's"):
        keys.create(account, "staging", secret)


def test_key_name_is_unique_in_account(account: Account) -> None:
    keys.create(account, "production")
    with pytest.raises(ValidationError):
        keys.create(account, "production")
    keys.create(Account.objects.create(name="contoso"), "production")


def test_first_revocation_stays(account: Account) -> None:
    key, _ = keys.create(account, "production")
    keys.revoke(key, NOW)
    keys.revoke(key, NOW + dt.timedelta(days=1))
    key.refresh_from_db()
    assert key.revoked_at == NOW


def test_rotation_keeps_old_secret(account: Account) -> None:
    key, old = keys.create(account, "production")
    version = CatalogueVersion.current()
    new = keys.rotate(ApiKey.objects.get(id=key.id), dt.timedelta(hours=24), NOW)
    key.refresh_from_db()
    assert (key.digest, key.shown) == (keys.digest(new, settings.KEY_PEPPER), keys.shown(new))
    assert key.previous_digest == keys.digest(old, settings.KEY_PEPPER)
    assert key.previous_until == NOW + dt.timedelta(hours=24)
    assert key.changed_in == CatalogueVersion.current() > version


def test_second_rotation_drops_first_secret(account: Account) -> None:
    key, _ = keys.create(account, "production")
    stale = ApiKey.objects.get(id=key.id)
    second = keys.rotate(key, dt.timedelta(hours=24), NOW)
    keys.rotate(stale, dt.timedelta(hours=1), NOW)
    key.refresh_from_db()
    assert key.previous_digest == keys.digest(second, settings.KEY_PEPPER)
    assert key.previous_until == NOW + dt.timedelta(hours=1)


def test_revoked_key_cannot_rotate(account: Account) -> None:
    key, _ = keys.create(account, "production")
    keys.revoke(key, NOW)
    with pytest.raises(ValueError, match="revoked"):
        keys.rotate(key, dt.timedelta(hours=24), NOW)


def test_command_prints_key_once(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("create_api_key", account="northwind", name="production")
    secret = capsys.readouterr().out.strip()
    assert ApiKey.objects.get(account=account).digest == keys.digest(secret, settings.KEY_PEPPER)


def test_command_names_the_remedy(account: Account) -> None:
    with pytest.raises(CommandError, match="no account named 'nobody': make it in the admin"):
        call_command("create_api_key", account="nobody", name="production")
    call_command("create_api_key", account="northwind", name="production")
    with pytest.raises(CommandError, match="Choose another --name"):
        call_command("create_api_key", account="northwind", name="production")
    assert ApiKey.objects.count() == 1


def test_replaced_secret_is_rotated_once(account: Account) -> None:
    key, _ = keys.create(account, "production")
    first = key.digest
    keys.rotate(key, dt.timedelta(hours=24), NOW, replaced=first)
    with pytest.raises(keys.RotatedMeanwhile):
        keys.rotate(key, dt.timedelta(hours=24), NOW, replaced=first)
    assert ApiKey.objects.get().previous_digest == first


def test_old_secret_ends_early(account: Account) -> None:
    key, _ = keys.create(account, "production")
    keys.rotate(key, dt.timedelta(days=7), NOW)
    with pytest.raises(keys.RotatedMeanwhile):
        keys.end_old_secret(key, NOW, ended=key.digest)
    keys.end_old_secret(key, NOW + dt.timedelta(hours=1), ended=key.previous_digest)
    keys.end_old_secret(key, NOW + dt.timedelta(hours=2))
    assert ApiKey.objects.get().previous_until == NOW + dt.timedelta(hours=1)


def test_use_is_kept_by_secret(account: Account) -> None:
    key, old = keys.create(account, "production")
    version, minute = CatalogueVersion.current(), dt.timedelta(minutes=1)
    keys.note_uses({key.digest: NOW})
    new = keys.rotate(ApiKey.objects.get(), dt.timedelta(hours=24), NOW)
    key.refresh_from_db()
    assert (key.last_used_at, key.previous_used_at, key.previous_shown) == (None, NOW, keys.shown(old))
    uses = {
        keys.digest(old, settings.KEY_PEPPER): NOW + minute,
        keys.digest(new, settings.KEY_PEPPER): NOW + 2 * minute,
    }
    keys.note_uses({**uses, "0" * 64: NOW})
    key.refresh_from_db()
    assert (key.previous_used_at, key.last_used_at) == (NOW + minute, NOW + 2 * minute)
    keys.note_uses({key.digest: NOW})  # another process writes what it saw earlier
    key.refresh_from_db()
    assert key.last_used_at == NOW + 2 * minute
    assert CatalogueVersion.current() == version + 1  # the rotation alone
