"""An app's secret and its codes, and recovery codes: made, drawn, read as people type them."""

from __future__ import annotations

import re
import secrets
import unicodedata
from base64 import b32decode, b32encode
from urllib.parse import quote, urlencode

import segno
from django_otp.oath import TOTP

STEP_S, DIGITS, TOLERANCE = 30, 6, 1
"""What every authenticator app can do (RFC 6238); a clock may be one step off, either way."""
SECRET_BYTES = 20
RECOVERY_CODES = 10
ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
"""Without characters that look alike; ten of these are 49 bits."""
HALF = 5


def make_secret() -> str:
    """A new secret, as base32."""
    return b32encode(secrets.token_bytes(SECRET_BYTES)).decode()


def spaced(secret: str) -> str:
    """A secret in groups of four, for those who type it."""
    return " ".join(re.findall(".{1,4}", secret))


def setup_uri(secret: str, user: str, host: str) -> str:
    """What the QR code says; `host` tells one installation from another in the app."""
    issuer = f"HopBase {host}"
    query = urlencode({"secret": secret, "issuer": issuer, "digits": DIGITS, "period": STEP_S}, quote_via=quote)
    return f"otpauth://totp/{quote(f'{issuer}:{user}')}?{query}"


def qr_code(text: str, title: str) -> str:
    """An SVG element, dark on white whatever the page's theme is."""
    drawn = segno.make(text, error="m", micro=False)
    return drawn.svg_inline(scale=4, border=4, light="#fff", title=title, svgclass="hb-qr", lineclass=None)


def matching_step(secret: str, typed: str, *, at: float, after: int = -1) -> int | None:
    """The step whose code was typed: of now (`at`, Unix time) or one beside it, and later than `after`."""
    digits = _typed(typed)
    if not re.fullmatch(rf"[0-9]{{{DIGITS}}}", digits):
        return None
    totp = TOTP(b32decode(secret), step=STEP_S, digits=DIGITS)
    totp.time = at
    return int(totp.t()) if totp.verify(int(digits), TOLERANCE, after + 1) else None


def make_recovery_codes() -> list[str]:
    """New ones, as they are shown: `ab2cd-ef3gh`."""
    return [f"{_random(HALF)}-{_random(HALF)}" for _ in range(RECOVERY_CODES)]


def plain_recovery_code(typed: str) -> str | None:
    """A recovery code however it was typed; None if it cannot be one."""
    plain = _typed(typed).lower()
    return plain if len(plain) == 2 * HALF and not set(plain) - set(ALPHABET) else None


def _typed(text: str) -> str:
    """Without what people put between; an input method's full-width digits are digits."""
    return re.sub(r"[\s\-‐‑–]", "", unicodedata.normalize("NFKC", text))


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))
