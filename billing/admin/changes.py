"""An entry of the audit log in words: which column was what before, and is what after."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.db import models
from django.http import HttpRequest
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from billing.admin.display import ago, change_url, link, list_url, moment, number, price_per_million
from billing.admin.fields import PPM_PER_CENT, plain
from billing.audit import HIDDEN
from billing.models import ApiKey, AuditEntry, OpenStream, Price, UsageRecord
from billing.money import NANOS
from billing.usage import BUCKETS
from billing.words import stored_words

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

LONGEST = 300
"""Characters of a value that are shown; the entry itself has it whole."""

LABELS: dict[str, _StrPromise | str] = {
    "digest": gettext_lazy("secret"),
    "monthly_budget_nanos": gettext_lazy("monthly budget"),
    "tax_rate_ppm": gettext_lazy("tax rate"),
    "allowed_models": gettext_lazy("models"),
}
"""Names of columns whose own names are about how they are kept."""

OPEN_TO_ALL = {"streaming.provider": frozenset({"name"})}
"""Tables of which those who may not change them see only these columns' values: all else is the operators'."""


@dataclass(frozen=True, slots=True)
class Change:
    """A column's name and its values, for people."""

    label: str
    before: str
    after: str


def with_words(entries: list[AuditEntry], request: HttpRequest, zone: str = "UTC") -> list[Any]:
    """Give entries what the viewer may read: `when_shown`, `object_shown`, `changes_told`, `changes_shown`."""
    currencies = currencies_of(entries)
    for entry in entries:
        told: Any = entry
        told.when_shown = ago(entry.at, zone)
        told.changes_told = changes_of(entry, request, currencies.get((entry.table, entry.object_id), ""))
        told.changes_shown = changes_shown(told.changes_told, entry)
        told.object_shown = object_link(entry) if _may(request, "view", entry.table) else entry.object_name
    return entries


def history_of(row: models.Model, request: HttpRequest, *, zone: str = "UTC", most: int = 20) -> dict[str, Any]:
    """What `admin/audit_history.html` shows of an object: its newest entries, and where all of them are."""
    label = row._meta.label_lower
    entries = list(AuditEntry.objects.filter(table=label, object_id=str(row.pk))[:most])
    all_of_it = list_url(AuditEntry, table=label, object_id=row.pk)
    return {
        "history": with_words(entries, request, zone),
        "history_url": all_of_it if _may(request, "view", AuditEntry._meta.label_lower) else "",
    }


def changes_of(entry: AuditEntry, request: HttpRequest, currency: str = "") -> list[Change]:
    """What an entry tells; values that the viewer may not see are hidden. `currency` is the object's, if it has one."""
    table, readable = _table(entry.table), columns_readable(request, entry.table)
    found = []
    for column, (before, after) in entry.changes.items():
        if readable is not None and column not in readable:
            before = after = HIDDEN
        texts = (value_text(table, column, value, currency) for value in (before, after))
        found.append(Change(_label(table, column), *texts))
    return found


def columns_readable(request: HttpRequest, label: str) -> frozenset[str] | None:
    """The columns of a table whose values its pages show to the viewer; None: all of them."""
    if not _may(request, "view", label):
        return frozenset()
    return None if _may(request, "change", label) else OPEN_TO_ALL.get(label)


def currencies_of(entries: Iterable[AuditEntry]) -> dict[tuple[str, str], str]:
    """(table, object id) -> the currency of its amounts, for keys and prices: two queries at most."""
    wanted: dict[str, set[str]] = {}
    for entry in entries:
        wanted.setdefault(entry.table, set()).add(entry.object_id)
    found: dict[tuple[str, str], str] = {}
    for table, column in ((ApiKey, "account__currency"), (Price, "currency")):
        label = table._meta.label_lower
        if ids := wanted.get(label):
            rows = table._default_manager.filter(pk__in=ids).values_list("pk", column)
            found |= {(label, str(pk)): currency for pk, currency in rows}
    return found


def changes_shown(changes: Sequence[Change], entry: AuditEntry) -> SafeString:
    """The changes one below the other; of a new object what it was made with, folded where that is much."""
    if entry.action == AuditEntry.Action.DONE:
        return format_html("{}", said(entry))
    made = entry.action == AuditEntry.Action.MADE
    rows = format_html_join(
        "",
        '<li><span class="hb-muted">{}</span> {}{}</li>',
        ((capfirst(change.label), _before(change, made), change.after) for change in changes),
    )
    shown = format_html('<ul class="hb-changes">{}</ul>', rows)
    if not made:
        return shown
    if not changes:
        return format_html("{}", capfirst(_("made")))
    return format_html('<details class="hb-made"><summary>{}</summary>{}</details>', capfirst(_("made")), shown)


def _before(change: Change, made: bool) -> SafeString:
    if made:
        return SafeString("")
    arrow = format_html('<span aria-hidden="true">→</span><span class="sr-only">{}</span>', _("becomes"))
    return format_html("{} {} ", change.before, arrow)


def said(entry: AuditEntry) -> str:
    """What was done, of an entry without columns: Django's own words, or a command's."""
    if entry.message.startswith("["):
        return LogEntry(change_message=entry.message).get_change_message()
    return capfirst(stored_words(entry.message)) if entry.message else capfirst(_("changed"))


def object_link(entry: AuditEntry) -> SafeString | str:
    """The object's page. A stream that was stopped has become a request, which has the same name."""
    if entry.table == OpenStream._meta.label_lower:
        return link(list_url(UsageRecord, q=entry.object_name), entry.object_name)
    table = _table(entry.table)
    return entry.object_name if table is None else link(change_url(table(pk=entry.object_id)), entry.object_name)


def table_name(label: str) -> str:
    """A kind of object, for people."""
    table = _table(label)
    return label if table is None else capfirst(str(table._meta.verbose_name))


def value_text(table: type[models.Model] | None, column: str, value: Any, currency: str) -> str:
    """A column's value as people read it."""
    if value in (None, "", [], {}):
        return _("none")
    if value == HIDDEN:
        return HIDDEN
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, int):
        return _number_text(table, column, value, currency)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return Truncator(json.dumps(value, ensure_ascii=False)).chars(LONGEST)
    return moment(when) if (when := _moment(table, column, value)) else Truncator(str(value)).chars(LONGEST)


def _number_text(table: type[models.Model] | None, column: str, value: int, currency: str) -> str:
    if column.endswith("_nanos"):
        return f"{currency} {plain(Decimal(value) / NANOS)}".strip()
    if table is Price and column in BUCKETS:
        return price_per_million(value, currency)
    if column == "tax_rate_ppm":
        return f"{plain(Decimal(value) / PPM_PER_CENT)} %"
    return number(value)


def _moment(table: type[models.Model] | None, column: str, value: Any) -> dt.datetime | None:
    if table is None or not isinstance(_field(table, column), models.DateTimeField):
        return None
    return parse_datetime(str(value))


def _label(table: type[models.Model] | None, column: str) -> str:
    if column in LABELS:
        return str(LABELS[column])
    field = _field(table, column) if table is not None else None
    return str(getattr(field, "verbose_name", column))


def _field(table: type[models.Model], column: str) -> Any:
    return next((field for field in table._meta.get_fields() if field.name == column), None)


def _table(label: str) -> type[models.Model] | None:
    try:
        return apps.get_model(label)
    except (LookupError, ValueError):
        return None


def _may(request: HttpRequest, what: str, label: str) -> bool:
    app, _dot, name = label.partition(".")
    return bool(request.user.has_perm(f"{app}.{what}_{name}"))
