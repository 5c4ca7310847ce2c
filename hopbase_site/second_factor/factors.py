"""Second factors: turned on, checked, taken off; each in one transaction with its entry of the audit log."""

from __future__ import annotations

import datetime as dt
import logging
import math
from typing import TYPE_CHECKING, NamedTuple

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils.translation import gettext_noop

from billing import audit, keys
from hopbase_site.models import RecoveryCode, SecondFactor
from hopbase_site.second_factor.codes import make_recovery_codes, matching_step, plain_recovery_code
from streaming import credentials

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser

log = logging.getLogger(__name__)


class Verdict(NamedTuple):
    """Whether a code was right; how long to wait where it was not looked at."""

    passed: bool
    wait_s: int = 0


def factor_of(user: User | AnonymousUser) -> SecondFactor | None:
    """A user's second factor. Without a query where the user was read by `gate.UserBackend`."""
    return getattr(user, "second_factor", None)


@transaction.atomic
def turn_on(user: User, secret: str, typed: str, *, at: dt.datetime) -> list[str] | None:
    """With a code that shows that the app has the secret. Returns recovery codes; None: a wrong code, or on already."""
    User.objects.select_for_update().get(pk=user.pk)
    step = matching_step(secret, typed, at=at.timestamp())
    if step is None or SecondFactor.objects.filter(user=user).exists():
        return None
    encrypted = credentials.encrypt(secret, settings.ENCRYPTION_KEYS)
    factor = SecondFactor.objects.create(user=user, secret=encrypted, since=at, last_step=step)
    audit.note(user, gettext_noop("turned the second factor on"))
    return _new_codes(factor)


@transaction.atomic
def check(user: User, typed: str, *, at: dt.datetime) -> Verdict:
    """Whether this is a code of the user's app, or a recovery code; neither is right a second time."""
    factor = SecondFactor.objects.select_for_update().filter(user=user).first()
    if factor is None:
        return Verdict(passed=False)
    allowed, why = factor.verify_is_allowed()
    if not allowed:
        return Verdict(passed=False, wait_s=max(1, math.ceil((why["locked_until"] - at).total_seconds())))
    passed = _is_of_app(factor, typed, at) or _is_recovery_code(factor, typed)
    if passed:
        factor.throttle_reset(commit=False)
        factor.save()
    else:
        factor.throttle_increment()
    return Verdict(passed)


@transaction.atomic
def renew_codes(user: User) -> list[str] | None:
    """New recovery codes in the old ones' place; None where there is no second factor any more."""
    factor = SecondFactor.objects.select_for_update().filter(user=user).first()
    if factor is None:
        return None
    factor.recovery_codes.all().delete()
    audit.note(user, gettext_noop("made new recovery codes"))
    return _new_codes(factor)


def turn_off(user: User) -> bool:
    """A user's own doing, after a code. False: it was off."""
    return _remove(user, gettext_noop("turned the second factor off"))


def take_off(user: User) -> bool:
    """Somebody else's doing, for a lost phone. False: it was off."""
    return _remove(user, gettext_noop("the second factor was taken off"))


@transaction.atomic
def rotate() -> tuple[int, list[str]]:
    """Encrypt all secrets anew under the newest key: how many were, and what is the matter with the others."""
    unreadable, done = [], 0
    for factor in SecondFactor.objects.select_for_update().select_related("user"):
        secret = _secret_of(factor)
        if secret is None:
            unreadable.append(f"the second factor of {factor.user.get_username()} {UNREADABLE}")
            continue
        factor.secret = credentials.encrypt(secret, settings.ENCRYPTION_KEYS)
        factor.save(update_fields=["secret"])
        done += 1
    return done, unreadable


UNREADABLE = (
    "cannot be decrypted: put the key it was encrypted with back into HOPBASE_ENCRYPTION_KEYS, or take the factor off"
)


@transaction.atomic
def _remove(user: User, message: str) -> bool:
    count, _ = SecondFactor.objects.filter(user=user).delete()
    if count:
        audit.note(user, message)
    return bool(count)


def _is_of_app(factor: SecondFactor, typed: str, at: dt.datetime) -> bool:
    secret = _secret_of(factor)
    if secret is None:
        log.error("the second factor of user %s %s", factor.user_id, UNREADABLE)
        return False
    step = matching_step(secret, typed, at=at.timestamp(), after=factor.last_step)
    if step is None:
        return False
    factor.last_step = step
    return True


def _is_recovery_code(factor: SecondFactor, typed: str) -> bool:
    code = plain_recovery_code(typed)
    if code is None or not factor.recovery_codes.filter(digest=_digest(code)).delete()[0]:
        return False
    audit.note(factor.user, gettext_noop("used a recovery code"))
    return True


def _secret_of(factor: SecondFactor) -> str | None:
    try:
        return credentials.decrypt(factor.secret, settings.ENCRYPTION_KEYS)
    except credentials.CredentialUnreadable:
        return None


def _new_codes(factor: SecondFactor) -> list[str]:
    codes = make_recovery_codes()
    digests = (_digest(code.replace("-", "")) for code in codes)
    RecoveryCode.objects.bulk_create([RecoveryCode(factor=factor, digest=digest) for digest in digests])
    return codes


def _digest(plain: str) -> str:
    """The kind goes in too, so that it is no API key's digest."""
    return keys.digest(f"recovery code {plain}", settings.KEY_PEPPER)
