"""The audit log: who changed what, when, from what to what. Entries are only ever added: triggers see to that.

    audit.watch(ApiKey, Account)      every save of these leaves an entry, in its transaction
    with audit.acting("apply"): …     who does what follows; the admin's requests say their user

Secrets are `•••` before they get here. `QuerySet.update` and `bulk_*` leave no entry: what is watched is not written
so, but for what nobody decided (when a key was last used).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from django.db.models import Model
from django.db.models.signals import m2m_changed, post_save, pre_save

from billing.models import AuditEntry

HIDDEN = "•••"
SECRET = frozenset({"digest", "credential", "password"})
"""Columns of which only that they changed is told."""
UNTOLD = frozenset(
    {
        "id", "changed_in", "created_at", "previous_digest", "previous_shown", "last_used_at", "previous_used_at",
        "last_login", "date_joined",
    }
)  # fmt: skip
"""Columns that follow from others, or that nobody decided."""

NOTHING: tuple[Any, ...] = (None, "", [], {})

Changes = dict[str, list[Any]]
"""Column -> before, after."""


# --- who ---


class Actor(NamedTuple):
    """Who does something: a name, and the user's id where it is one."""

    name: str
    user_id: int | None = None


class _Act:
    """What somebody is doing: who, asked only once something changes, and which objects entries tell of so far."""

    def __init__(self, who: Callable[[], Actor], *, is_users: bool = False) -> None:
        self.who, self.is_users = who, is_users
        self.noted: set[tuple[str, str]] = set()


_act: ContextVar[_Act | None] = ContextVar("act", default=None)


@contextmanager
def acting(who: Callable[[], Actor] | str) -> Iterator[None]:
    """What follows is done by a user (asked when needed), or by the command or program of that name. Also a decorator.

    What a user does stays the user's, whatever programs it runs: an import of a file is not that of `apply`.
    """
    around = _act.get()
    if isinstance(who, str) and around is not None and around.is_users:
        yield
        return
    token = _act.set(_Act(who, is_users=True) if callable(who) else _Act(lambda: Actor(str(who))))
    try:
        yield
    finally:
        _act.reset(token)


def actor() -> Actor:
    """Who acts; where nobody said, the program."""
    act = _act.get()
    return act.who() if act else Actor(Path(sys.argv[0]).name or "python")


# --- what ---

_watched: set[type[Model]] = set()


def watch(*tables: type[Model]) -> None:
    """From now on every save of these models leaves an entry. For `AppConfig.ready`."""
    for table in tables:
        _watched.add(table)
        uid = f"audit {table._meta.label}"
        pre_save.connect(_before_save, sender=table, dispatch_uid=uid)
        post_save.connect(_after_save, sender=table, dispatch_uid=uid)
        for field in table._meta.many_to_many:
            m2m_changed.connect(_m2m_changed, sender=field.remote_field.through, dispatch_uid=uid)


def watched() -> frozenset[type[Model]]:
    """The models whose saves leave entries."""
    return frozenset(_watched)


def note(row: Model, message: str) -> None:
    """Note what a command or program did with an object where no watched column tells it: English, one short phrase."""
    note_each([row], message)


def note_each(rows: Iterable[Model], message: str) -> None:
    """The same of several objects, an entry for each."""
    AuditEntry.objects.bulk_create([_entry(row, AuditEntry.Action.DONE, {}, message=message) for row in rows])


def keep_admin_log(sender: type[Model], instance: Any, created: bool, raw: bool, using: str, **signal: Any) -> None:
    """A signal's receiver: an entry of Django's own log becomes one of ours, where none tells of the same act."""
    if not created or raw or instance.content_type is None:
        return
    kind = instance.content_type
    table, object_id = f"{kind.app_label}.{kind.model}", str(instance.object_id)
    if (act := _act.get()) is not None and (table, object_id) in act.noted:
        return
    AuditEntry.objects.using(using).create(
        who=instance.user.get_username(), user_id=instance.user_id, table=table, object_id=object_id,
        object_name=instance.object_repr, action=AuditEntry.Action.DONE, message=instance.change_message,
    )  # fmt: skip


def _note(row: Model, action: str, changes: Changes, *, using: str = "default") -> None:
    _entry(row, action, changes).save(using=using, force_insert=True)


def _entry(row: Model, action: str, changes: Changes, *, message: str = "") -> AuditEntry:
    by = actor()
    table, object_id = row._meta.label_lower, str(row.pk)
    if (act := _act.get()) is not None:
        act.noted.add((table, object_id))
    return AuditEntry(
        who=by.name[:150], user_id=by.user_id, table=table, object_id=object_id, object_name=str(row)[:300],
        action=action, changes=changes, message=message,
    )  # fmt: skip


def _before_save(
    sender: type[Model], instance: Any, raw: bool, using: str, update_fields: frozenset[str] | None, **signal: Any
) -> None:
    columns = [] if raw else _columns(instance, update_fields)
    instance._audit_before = columns, _stored(instance, columns, using)


def _after_save(sender: type[Model], instance: Any, created: bool, using: str, **signal: Any) -> None:
    columns, before = instance.__dict__.pop("_audit_before")
    if not columns:
        return
    after = _stored(instance, columns, using)
    changed = [column for column in columns if not _same(before.get(column), after[column], made=created)]
    if changed or created:
        changes = dict(_told(instance, column, before.get(column), after[column], using) for column in changed)
        _note(instance, AuditEntry.Action.MADE if created else AuditEntry.Action.CHANGED, changes, using=using)


def _same(before: Any, after: Any, *, made: bool) -> bool:
    """Whether there is nothing to tell: the same as before, or left empty in a new row."""
    return after in NOTHING if made else bool(before == after)


def _columns(row: Model, update_fields: frozenset[str] | None) -> list[str]:
    told = [field for field in row._meta.concrete_fields if field.name not in UNTOLD]
    return [field.attname for field in told if update_fields is None or {field.name, field.attname} & update_fields]


def _stored(row: Model, columns: list[str], using: str) -> dict[str, Any]:
    """The columns as the database has them: what a row holds in memory may be a text or an expression still."""
    if not columns or row.pk is None:
        return {}
    return type(row)._base_manager.using(using).filter(pk=row.pk).values(*columns).first() or {}


def _told(row: Model, column: str, before: Any, after: Any, using: str) -> tuple[str, list[Any]]:
    """A column's name and its values as they are kept: secrets hidden, other rows by name."""
    field = next(field for field in row._meta.concrete_fields if field.attname == column)
    if column in SECRET:
        return field.name, [HIDDEN if before else None, HIDDEN if after else None]
    if field.remote_field is not None:
        return field.name, [_name_of(field.remote_field.model, pk, using) for pk in (before, after)]
    return field.name, [before, after]


def _name_of(table: type[Model], pk: Any, using: str) -> str | None:
    row = table._base_manager.using(using).filter(pk=pk).first() if pk is not None else None
    return None if row is None else str(row)


def _m2m_changed(
    sender: type[Model], instance: Any, action: str, reverse: bool, model: type[Model], pk_set: set[Any] | None,
    using: str, **signal: Any,
) -> None:  # fmt: skip
    """A user's groups and rights, a group's rights: their names before and after."""
    if pk_set is not None and not pk_set:  # added, but they were there already
        return
    owners: list[Any] = list(model._base_manager.using(using).filter(pk__in=pk_set or ())) if reverse else [instance]
    for owner in owners:
        _note_names(owner, sender, instance.__dict__.setdefault("_audit_names", {}), action, using)


def _note_names(owner: Any, through: Any, before: dict[tuple[str, Any], list[str]], action: str, using: str) -> None:
    field = next(field.name for field in owner._meta.many_to_many if field.remote_field.through is through)
    names = sorted(
        map(str, getattr(owner, field).using(using).select_related())
    )  # a right is named after its table too
    if action.startswith("pre_"):
        before[field, owner.pk] = names
    elif (old := before.pop((field, owner.pk), names)) != names:
        _note(owner, AuditEntry.Action.CHANGED, {field: [old, names]}, using=using)
