"""How the admin writes numbers, money, moments and states: the same in both languages, exact, with the zone named."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.contrib import admin
from django.db.models import Model
from django.urls import reverse
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString
from django.utils.timesince import timesince
from django.utils.timezone import now
from django.utils.translation import gettext as _

from billing.money import NANO_PLACES, NANOS, currency_places, round_to_places, show

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

UNKNOWN = "—"

Column = Callable[[object, object], SafeString]
"""A list's column: of its admin and a row."""

TONES = {
    "good": "bg-green-100 text-green-800 dark:bg-green-500/20 dark:text-green-300",
    "bad": "bg-red-100 text-red-800 dark:bg-red-500/20 dark:text-red-300",
    "warn": "bg-orange-100 text-orange-800 dark:bg-orange-500/20 dark:text-orange-300",
    "calm": "bg-base-100 text-base-700 dark:bg-base-500/20 dark:text-base-200",
    "info": "bg-blue-100 text-blue-800 dark:bg-blue-500/20 dark:text-blue-300",
}
"""A state's colour. It never stands alone: each badge has a word and an icon too."""


def number(count: int | None) -> str:
    """`1,234,567` in both languages; a dash where nobody told."""
    return UNKNOWN if count is None else f"{count:,}"


def money(nanos: int | None, currency: str, places: int | None = None) -> str:
    """`USD 1,234.57` in the currency's places, or in `places` of them; what is not zero never shows as zero."""
    if nanos is None:
        return UNKNOWN
    places = currency_places(currency) if places is None else places
    if nanos and not round_to_places(nanos, places):
        least = Decimal(1).scaleb(-places)
        return f"< {currency} {least:f}" if nanos > 0 else f"> {currency} -{least:f}"
    return f"{currency} {Decimal(show(nanos, places)):,f}"


def signed(nanos: int, currency: str, places: int | None = None) -> str:
    """An amount that is added to others, or taken off: `USD +12.50`, `USD -12.50`.

    With all its places where rounding would change it: somebody decides on it.
    """
    places = currency_places(currency) if places is None else places
    exact = nanos == round_to_places(nanos, places)
    shown = money(nanos, currency, places if exact else NANO_PLACES)
    return shown.replace(" ", " +", 1) if nanos > 0 else shown


def price_per_million(nanos: int | None, currency: str) -> str:
    """A unit price with all its digits, at least two places: `USD 0.075`."""
    if nanos is None:
        return UNKNOWN
    whole, fraction = divmod(abs(nanos), NANOS)
    return f"{currency} {'-' if nanos < 0 else ''}{whole:,}.{f'{fraction:09d}'.rstrip('0'):0<2}"


def figure(text: str) -> SafeString:
    """A number or an amount that lines up with those above and below it."""
    return format_html('<span class="hb-figure">{}</span>', text)


def number_column(field: str, title: str | _StrPromise, *, ordering: str | None = None) -> Column:
    """A list's column of a whole number."""
    return _column(lambda row: number(getattr(row, field)), title, ordering)


def money_column(field: str, title: str | _StrPromise, *, ordering: str | None = None) -> Column:
    """A list's column of nanos, in the row's currency and with all its places."""
    return _column(lambda row: money(getattr(row, field), row.currency, NANO_PLACES), title, ordering)


def _column(text: Callable[[Any], str], title: str | _StrPromise, ordering: str | None) -> Column:
    def column(model_admin: object, row: object) -> SafeString:
        return figure(text(row))

    shown: Column = admin.display(description=title, ordering=ordering)(column)
    return shown


def badge(word: Any, tone: str, icon: str, title: str = "") -> SafeString:
    """A state as word, icon and colour."""
    return format_html(
        '<span class="hb-badge {}"{}><span class="material-symbols-outlined" aria-hidden="true">{}</span>{}</span>',
        TONES[tone],
        format_html(' title="{}"', title) if title else "",
        icon,
        word,
    )


NEARLY_FULL = 80
"""Per cent of a limit from which on its bar says so."""


def limit_bar(now_text: str, limit_text: str, percent: int) -> SafeString:
    """`12 / 600` over a bar; a mark and a word where little is left."""
    near = ""
    if percent >= NEARLY_FULL:
        near = format_html(
            '<span class="material-symbols-outlined hb-near" aria-hidden="true">warning</span>'
            '<span class="sr-only">{}</span> ',
            _("near its limit:"),
        )
    return format_html(
        '<span class="hb-limit"><span class="hb-figure">{}{} / {}</span>'
        '<meter min="0" max="100" low="50" high="{}" optimum="0" value="{}" aria-label="{}"></meter></span>',
        near, now_text, limit_text, NEARLY_FULL - 1, min(percent, 100), f"{percent:,} %",
    )  # fmt: skip


def moment(when: dt.datetime | None, zone: str = "UTC") -> str:
    """`2026-11-03 14:05:09 Asia/Taipei`."""
    return UNKNOWN if when is None else f"{when.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S} {zone}"


def ago(when: dt.datetime | None, zone: str = "UTC") -> SafeString | str:
    """`12 minutes ago` over the exact moment with its zone."""
    if when is None:
        return UNKNOWN
    exact = moment(when, zone)
    if when > now():
        return format_html('<time datetime="{}" class="hb-when">{}</time>', when.isoformat(), exact)
    return format_html(
        '<time datetime="{}" class="hb-when"><span>{}</span><br>'
        '<small><span class="hb-nowrap">{}</span> {}</small></time>',
        when.isoformat(),
        passed(when),
        *exact.rsplit(" ", 1),
    )


def passed(when: dt.datetime) -> str:
    """`12 minutes ago`."""
    seconds = max(now() - when, dt.timedelta()) // dt.timedelta(seconds=1)
    length = _("%(count)s s") % {"count": seconds} if seconds < 60 else timesince(when, depth=1)
    return _("%(time)s ago") % {"time": length}


def ago_inline(when: dt.datetime, zone: str = "UTC") -> str:
    """The same within a sentence: `12 minutes ago (2026-11-03 14:05:09 Asia/Taipei)`."""
    return _("%(passed)s (%(moment)s)") % {"passed": passed(when), "moment": moment(when, zone)}


def duration(length: dt.timedelta) -> str:
    """`812 ms`, `12.3 s`, `4 min 05 s`, `2 h 03 min`."""
    milliseconds = max(0, length // dt.timedelta(milliseconds=1))
    seconds = milliseconds // 1000
    if seconds < 1:
        return _("%(count)s ms") % {"count": milliseconds}
    if seconds < 60:
        return _("%(count)s s") % {"count": f"{seconds}.{milliseconds % 1000 // 100}"}
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return _("%(minutes)s min %(seconds)s s") % {"minutes": minutes, "seconds": f"{seconds:02d}"}
    return _("%(hours)s h %(minutes)s min") % {"hours": number(minutes // 60), "minutes": f"{minutes % 60:02d}"}


def change_url(obj: Model) -> str:
    """The page of a row."""
    return reverse(f"admin:{obj._meta.app_label}_{obj._meta.model_name}_change", args=[obj.pk])


def list_url(table: type[Model], /, **query: object) -> str:
    """The list of a model, narrowed by the filters of a query."""
    url = reverse(f"admin:{table._meta.app_label}_{table._meta.model_name}_changelist")
    return f"{url}?{urlencode(query)}" if query else url


def link(url: str, text: Any) -> SafeString:
    """A link in the admin's look."""
    return format_html('<a href="{}" class="text-link">{}</a>', url, conditional_escape(text))


def code(text: str) -> SafeString:
    """An id or a wire name."""
    return format_html('<code class="hb-code">{}</code>', text) if text else SafeString(UNKNOWN)


def clipped(text: str) -> SafeString:
    """An id in a list, cut off where it is long: its row's page has it whole."""
    return format_html('<code class="hb-code hb-clip" title="{}">{}</code>', text, text)


def stacked(above: Any, below: Any) -> SafeString:
    """Two facts in one cell, the second muted."""
    return format_html('<span class="hb-stack">{}<br><span class="hb-muted">{}</span></span>', above, below)
