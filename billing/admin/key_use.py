"""A key's limits beside what it uses now: in the list as bars, on its page as a table with reset times."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _

from billing import present_use
from billing.admin.display import (
    UNKNOWN,
    ago,
    badge,
    change_url,
    code,
    figure,
    limit_bar,
    link,
    list_url,
    moment,
    money,
    number,
)
from billing.models import ApiKey, OpenStream
from billing.present_use import PresentUse, Use


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A line of the table on a key's page."""

    name: str
    shown: SafeString
    note: str
    resets: str


def with_use(keys: list[Any], moment_: dt.datetime) -> bool:
    """Give the keys of a page their present use, all at once; returns whether Redis told it."""
    used = present_use.of(keys, moment_)
    for key in keys:
        key.use = used[key.pk]
    return all(use.is_shared for use in used.values())


def count_shown(use: Use) -> SafeString:
    """`12 / 600`, or what is used of no limit."""
    if use.limit is None:
        return format_html('{} <span class="hb-muted">{}</span>', figure(number(use.now)), _("no limit"))
    return limit_bar(number(use.now), number(use.limit), use.percent or 0)


def spent_shown(use: Use, currency: str) -> SafeString:
    """What is spent of the month's budget."""
    spent = money(use.now, currency)
    if use.limit is None:
        return format_html('{} <span class="hb-muted">{}</span>', figure(spent), _("no limit"))
    return limit_bar(spent, money(use.limit, currency).removeprefix(f"{currency} "), use.percent or 0)


def table(key: Any) -> list[LimitRow]:
    """All four limits of a key that `with_use` has seen."""
    use: PresentUse = key.use
    currency, zone = key.account.currency, key.account.timezone
    streams = link(list_url(OpenStream, api_key=key.pk), count_shown(use.running)) if use.running.now else None
    held = _("and %(amount)s held by requests under way") % {"amount": money(use.held_nanos, currency)}
    lately = _("in the last minute")
    return [
        LimitRow(_("Requests per minute"), count_shown(use.requests), lately, _reset(use.requests, zone)),
        LimitRow(_("Tokens per minute"), count_shown(use.tokens), lately, _reset(use.tokens, zone)),
        LimitRow(_("Requests at a time"), streams or count_shown(use.running), _("under way now"), UNKNOWN),
        LimitRow(
            _("Monthly budget"),
            spent_shown(use.spent, currency),
            held if use.held_nanos else _("spent this month"),
            moment(use.spent.resets_at, zone),
        ),
    ]  # fmt: skip


def _reset(use: Use, zone: str) -> str:
    return UNKNOWN if use.limit is None or use.resets_at is None else moment(use.resets_at, zone)


@dataclass(frozen=True, slots=True)
class SecretRow:
    """A secret of a key, as far as it is known."""

    shown: SafeString
    state: SafeString
    used: Any
    until: str


def secrets_of(key: ApiKey) -> list[SecretRow]:
    """The secret of today, and the one before the last rotation as long as it is kept."""
    zone = key.account.timezone
    ended = key.revoked_at is not None
    state = badge(_("revoked"), "bad", "key_off") if ended else badge(_("works"), "good", "check_circle")
    rows = [SecretRow(code(key.shown), state, ago(key.last_used_at, zone) if key.last_used_at else _("never"), UNKNOWN)]
    if key.previous_until is not None:
        works = old_secret_works(key)
        state = badge(_("old, works still"), "warn", "timelapse") if works else badge(_("ended"), "calm", "timer_off")
        used = ago(key.previous_used_at, zone) if key.previous_used_at else _("never")
        rows.append(SecretRow(code(key.previous_shown), state, used, moment(key.previous_until, zone)))
    return rows


def old_secret_works(key: ApiKey) -> bool:
    """Whether the secret from before the last rotation still lets requests in."""
    return key.revoked_at is None and key.previous_until is not None and key.previous_until > now()


def last_used(key: ApiKey) -> dt.datetime | None:
    """When either secret was used last."""
    return max((at for at in (key.last_used_at, key.previous_used_at) if at is not None), default=None)


def context(key: Any) -> dict[str, Any]:
    """What `admin/billing/apikey/use.html` shows."""
    as_of = now()
    shared = with_use([key], as_of)
    return {
        "limits": table(key),
        "secrets": secrets_of(key),
        "shared": shared,
        "as_of": f"{as_of:%H:%M:%S} UTC",
        "account_disabled": not key.account.active,
        "account_link": link(change_url(key.account), key.account.name),
    }
