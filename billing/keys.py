"""API keys' secrets: made, recognised, hashed; shown once and kept only as HMACs.

A secret of ours is `sk-hb-`, 43 base62 characters (256 bits) and a 6-character checksum, so that junk and typing errors
are refused before any look-up. Preset secrets are taken as they are, within what a header can carry.
"""

from __future__ import annotations

import datetime as dt
import hmac
import re
import secrets
import string
import zlib
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.utils.timezone import now

from billing.models import Account, ApiKey, one_version
from billing.phrases import gettext_noop, phrase

PREFIX = "sk-hb-"
BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
RANDOM_LENGTH, CHECKSUM_LENGTH = 43, 6
SHORTEST, LONGEST = 20, 200
SHOWN_LENGTH = len(PREFIX) + 3

SECRET_COLUMNS = (
    "digest", "shown", "last_used_at", "previous_digest", "previous_until", "previous_shown", "previous_used_at",
)  # fmt: skip

_PRESET = re.compile(rf"[!-~]{{{SHORTEST},{LONGEST}}}", re.ASCII)
_OURS = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{RANDOM_LENGTH + CHECKSUM_LENGTH}}}", re.ASCII)

ILL_FORMED = phrase(
    gettext_noop(
        "a preset secret is %(shortest)s to %(longest)s printable ASCII characters without spaces; one that begins with"
        " %(prefix)s is taken for one made here and needs its checksum: leave the secret out to have one made"
    ),
    shortest=SHORTEST, longest=LONGEST, prefix=PREFIX,
)  # fmt: skip


def make_secret() -> str:
    """A new secret."""
    body = "".join(secrets.choice(BASE62) for _ in range(RANDOM_LENGTH))
    return f"{PREFIX}{body}{_checksum(body)}"


def is_well_formed(secret: str) -> bool:
    """Whether the secret can be a key's at all: ours by its checksum, others by their length and characters."""
    if not secret.startswith(PREFIX):
        return _PRESET.fullmatch(secret) is not None
    return _OURS.fullmatch(secret) is not None and secret.endswith(_checksum(secret[len(PREFIX) : -CHECKSUM_LENGTH]))


def digest(secret: str, pepper: str) -> str:
    """What is kept of a secret, and looked up: hex HMAC-SHA-256 under the pepper."""
    return hmac.digest(pepper.encode(), secret.encode(), "sha256").hex()


def shown(secret: str) -> str:
    """The beginning by which a key's owner knows it again; never more than a third of the secret."""
    return secret[: min(SHOWN_LENGTH, len(secret) // 3)] + "…"


def create(account: Account, name: str, secret: str | None = None, **fields: Any) -> tuple[ApiKey, str]:
    """Make a key; returns it and its secret, which is not kept.

    ValueError says what is wrong with a preset secret, ValidationError what is wrong with a field.
    """
    secret = make_secret() if secret is None else secret
    if not is_well_formed(secret):
        raise ValueError(ILL_FORMED)
    hashed = digest(secret, settings.KEY_PEPPER)
    if ApiKey.objects.filter(Q(digest=hashed) | Q(previous_digest=hashed)).exists():
        raise ValueError("this secret is another key's: choose another one")
    key = ApiKey(account=account, name=name, digest=hashed, shown=shown(secret), **fields)
    key.full_clean()
    key.save(force_insert=True)
    return key, secret


def revoke(key: ApiKey, at: dt.datetime) -> None:
    """Refuse the key from now on, for ever; the time of a first revocation stays."""
    if key.revoked_at is None:
        key.revoked_at = at
        key.save(update_fields=["revoked_at"])


class RotatedMeanwhile(ValueError):
    """The key has another secret than the one that was to be replaced."""


def rotate(key: ApiKey, grace: dt.timedelta, at: dt.datetime | None = None, *, replaced: str | None = None) -> str:
    """Give the key a new secret and return it; the old one works until `grace` after `at` (now).

    It stays the same key: its budget, usage and invoice go on. An older secret in its grace time stops at once.
    `replaced` is the digest of the secret that is to be replaced: RotatedMeanwhile where it has been already, so that
    nothing asked for once is done twice. ValueError when the key is revoked.
    """
    secret = make_secret()
    with one_version():  # takes the version's lock first, as every save does: two rotations at once wait for each other
        key.refresh_from_db()
        if key.revoked_at is not None:
            raise ValueError("a revoked key cannot be rotated: make a new one")
        if replaced is not None and key.digest != replaced:
            raise RotatedMeanwhile("the key was rotated already")
        key.previous_digest, key.previous_until = key.digest, (at or now()) + grace
        key.previous_shown, key.previous_used_at = key.shown, key.last_used_at
        key.digest, key.shown, key.last_used_at = digest(secret, settings.KEY_PEPPER), shown(secret), None
        key.save(update_fields=[*SECRET_COLUMNS])
    return secret


def end_old_secret(key: ApiKey, at: dt.datetime, *, ended: str | None = None) -> None:
    """Refuse the secret from before the last rotation from now on, though its grace time is not over.

    `ended` is the digest of the secret that is to be ended: RotatedMeanwhile where the old one is another by now.
    """
    with one_version():
        key.refresh_from_db()
        if ended is not None and key.previous_digest != ended:
            raise RotatedMeanwhile("the key was rotated: its old secret is another one")
        if key.previous_until is not None and key.previous_until > at:
            key.previous_until = at
            key.save(update_fields=["previous_until"])


def note_uses(uses: Mapping[str, dt.datetime], using: str = "default") -> None:
    """Keep when secrets were last used, by their digests; never an earlier time than is kept.

    A statement and a commit each: a gateway never holds two keys' rows while somebody changes them in another order.
    It raises no version, for the request path does not read it, and leaves no audit entry.
    """
    rows = ApiKey.objects.using(using)
    for digest, at in uses.items():
        is_newer = Q(last_used_at=None) | Q(last_used_at__lt=at)
        if rows.filter(is_newer, digest=digest).update(last_used_at=at):
            continue
        was_newer = Q(previous_used_at=None) | Q(previous_used_at__lt=at)
        rows.filter(was_newer, previous_digest=digest).update(previous_used_at=at)


def _checksum(body: str) -> str:
    """CRC-32 in base62: a checksum against accidents, not against forgers, who gain nothing by it."""
    rest, characters = zlib.crc32(body.encode()), ""
    for _ in range(CHECKSUM_LENGTH):
        rest, index = divmod(rest, len(BASE62))
        characters = BASE62[index] + characters
    return characters
