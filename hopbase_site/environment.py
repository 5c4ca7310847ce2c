"""Settings out of the environment or `.env`: an unreadable value names its variable and what to write."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured
from dotenv.parser import parse_stream

from billing.periods import zones

Value = TypeVar("Value")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
    "": False,
}
DATABASE_SCHEMES = {"sqlite": "sqlite3", "postgres": "postgresql", "postgresql": "postgresql"}


def load(default: Path) -> None:
    """Add what `.env` says (or the file that HOPBASE_ENV_FILE names); the environment's own values win.

    A line that is no setting stops everything: without it, another database might be taken. It may hold a secret, so no
    message repeats it.
    """
    path = Path(os.environ.get("HOPBASE_ENV_FILE") or default)
    if not path.exists():
        return
    try:
        with path.open(encoding="utf-8-sig") as lines:
            bindings = list(parse_stream(lines))
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(f"{path} cannot be read ({error}): mend the file or remove it") from None
    for name, value, original, has_error in bindings:
        if has_error or (name is not None and value is None):
            raise ImproperlyConfigured(
                f"{path}, line {original.line}: this is no setting; write NAME=value, and quotes around a value with a "
                "quotation mark or a line end"
            )
    for name, value, _, _ in bindings:
        if name is not None:
            os.environ.setdefault(name, value or "")


def _read(name: str, default: Value, parse: Callable[[str], Value], wanted: str) -> Value:
    text = os.environ.get(name)
    if text is None or (text.strip() == "" and default != ""):
        return default
    try:
        return parse(text.strip())
    except ValueError:
        raise ImproperlyConfigured(f"{name}={text!r} is not {wanted}: mend it in the environment or in .env") from None


def text(name: str, default: str, *, longest: int | None = None) -> str:
    """A setting that may be any text, of so many characters at most; empty counts as unset."""

    def parse(words: str) -> str:
        if longest is not None and len(words) > longest:
            raise ValueError
        return words

    return _read(name, default, parse, "text" if longest is None else f"a text of at most {longest} characters")


def zone(name: str) -> str:
    """A time zone; UTC by default."""

    def parse(word: str) -> str:
        if word not in zones():
            raise ValueError
        return word

    return _read(name, "UTC", parse, "a zone of the tz database, for example Asia/Taipei")


def choice(name: str, words: tuple[str, ...]) -> str:
    """One of a few words; the first is the default."""

    def parse(word: str) -> str:
        if word.lower() not in words:
            raise ValueError
        return word.lower()

    return _read(name, words[0], parse, " or ".join(words))


def flag(name: str, default: bool) -> bool:
    """true or false."""

    def parse(word: str) -> bool:
        if word.lower() not in WORDS:
            raise ValueError
        return WORDS[word.lower()]

    return _read(name, default, parse, "true or false")


def seconds(name: str, default: float) -> float:
    """A length of time above zero; the longest is eleven days, and no system call has trouble with it."""

    def parse(number: str) -> float:
        value = float(number)
        if not 0.001 <= value <= 1_000_000:  # nor has it with NaN
            raise ValueError
        return value

    return _read(name, default, parse, "a number of seconds above 0 (0.001 to 1000000), for example 10")


def count(name: str, default: int) -> int:
    """A whole number above zero."""

    def parse(number: str) -> int:
        value = int(number)
        if value < 1:
            raise ValueError
        return value

    return _read(name, default, parse, "a whole number above 0")


def months(name: str) -> int:
    """A number of months; 0, the default, is for none."""

    def parse(number: str) -> int:
        value = int(number)
        if not 0 <= value <= 1200:
            raise ValueError
        return value

    return _read(name, 0, parse, "a whole number of months, or 0")


def folder(name: str, *, needed_by: str = "") -> Path | None:
    """The absolute path of a folder, or None; `needed_by` names the setting that does not go without."""

    def parse(path: str) -> Path | None:
        if path and not Path(path).is_absolute():
            raise ValueError
        return Path(path) if path else None

    found = _read(name, None, parse, "the absolute path of a folder")
    if found is None and needed_by:
        raise ImproperlyConfigured(f"{needed_by} needs {name}, which is not set: write the absolute path of a folder")
    return found


def amount(name: str, default: Decimal) -> Decimal:
    """An amount of money in units of a currency, zero or more, exact in nine places."""

    def parse(number: str) -> Decimal:
        try:
            value = Decimal(number)
        except InvalidOperation:
            raise ValueError from None
        if not (value.is_finite() and 0 <= value < 10**9) or value != value.quantize(Decimal("1E-9")):
            raise ValueError
        return value

    return _read(name, default, parse, "an amount of 0 or more, for example 100 or 0.5")


def web_address(name: str) -> str:
    """An http(s) URL, or "". It may hold a secret, so no message repeats it."""
    text = os.environ.get(name, "").strip()
    if not text:
        return ""
    try:
        url = urlsplit(text)
        whole = url.scheme in ("http", "https") and url.hostname and url.port != 0 and not re.search("[^!-~]", text)
    except ValueError:
        whole = False
    if not whole or "@" in url.netloc:
        raise ImproperlyConfigured(
            f"{name} is no whole URL that begins with http:// or https://, without a user or password: mend it in the "
            "environment or in .env, or leave it out"
        )
    return text


def site_address(name: str, default: str) -> str:
    """An http(s) URL of a site, in the form that others are made from: no slash at its end."""
    scheme, _, rest = (web_address(name) or default).partition("://")
    return f"{scheme.lower()}://{rest}".rstrip("/")


def redis_address(name: str) -> str:
    """The URL of a Redis, or "". It may hold a password, so no message repeats it."""
    text = os.environ.get(name, "").strip()
    if not text:
        return ""
    try:
        url = urlsplit(text)
        whole = (
            url.path if url.scheme == "unix" else url.scheme in ("redis", "rediss") and url.hostname and url.port != 0
        )
    except ValueError:
        whole = False
    if not whole or url.fragment:
        raise ImproperlyConfigured(
            f"{name} cannot be read: write it as redis://:PASSWORD@HOST:PORT/0, with % escapes for special characters "
            "in the password; unset it for a Valkey in HOPBASE_VAR_DIR"
        )
    return text


def items(name: str, default: list[str]) -> list[str]:
    """Texts separated by commas."""
    return _read(name, default, lambda words: [word.strip() for word in words.split(",") if word.strip()], "a list")


def networks(name: str) -> list[Network]:
    """Networks separated by commas; none by default."""

    def parse(words: str) -> list[Network]:
        return [ipaddress.ip_network(word.strip()) for word in words.split(",") if word.strip()]

    return _read(name, [], parse, "a list of networks such as 10.0.0.0/8,fd00::/8")


def bounds(name: str, default: tuple[int, int]) -> tuple[int, int]:
    """Two whole numbers of seconds, the lower first."""

    def parse(words: str) -> tuple[int, int]:
        low, high = (int(word) for word in words.split(","))
        if not 0 < low <= high:
            raise ValueError
        return low, high

    return _read(name, default, parse, "two whole numbers, the lower first, for example 90,150")


def database(url: str) -> dict[str, Any]:
    """Django's settings for a database URL: SQLite in WAL mode, fully synchronous; PostgreSQL through a pool.

    The URL may hold a password, so no message repeats it.
    """
    scheme = url.partition("://")[0]
    if scheme not in DATABASE_SCHEMES:
        raise ImproperlyConfigured(
            "DATABASE_URL must begin with sqlite:/// or postgresql://, for example "
            "postgresql://hopbase:PASSWORD@localhost/hopbase; unset it for an SQLite file in HOPBASE_VAR_DIR"
        )
    try:
        found: dict[str, Any] = environ.Env.db_url_config(url)
    except ValueError:
        raise ImproperlyConfigured(
            "DATABASE_URL cannot be read: write it as postgresql://USER:PASSWORD@HOST:PORT/NAME, "
            "with % escapes for special characters in the password"
        ) from None
    found["CONN_MAX_AGE"] = 0
    if DATABASE_SCHEMES[scheme] == "sqlite3":
        found["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 5,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-16000;",
        }
    else:
        found["OPTIONS"] = {**found.get("OPTIONS", {}), "pool": {"min_size": 1, "max_size": 10, "timeout": 5}}
        found["OPTIONS"].setdefault("connect_timeout", 5)
    return found
