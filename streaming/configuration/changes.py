"""From entries to the database: what would change, what must not, and the change itself."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.db import models
from django.db.models import Q

from billing import invoices, keys, money
from billing.models import Account, ApiKey, Price
from billing.phrases import Phrase, at, gettext_noop, parted, phrase, said_by
from billing.phrases import phrase as _
from billing.readers import known_model, nearest
from streaming import credentials
from streaming.configuration.entries import (
    AccountEntry,
    Entries,
    Faults,
    KeyEntry,
    ModelEntry,
    PriceEntry,
    ProviderEntry,
    RouteEntry,
)
from streaming.models import Model, Provider, Route, put_back_all

HIDDEN = "•••"
NAMES = {
    "tax_rate_ppm": "billing.tax_rate",
    "allowed_models": "models",
    "monthly_budget_nanos": "limits.monthly_budget",
    **{name: f"limits.{name}" for name in ("requests_per_minute", "tokens_per_minute", "concurrency")},
    **{name: f"billing.{name}" for name in ("legal_name", "address", "tax_id", "due_days", "language")},
    **{name: f"on_client_left.{name}" for name in ("drain_s", "max_drains")},
}
"""Column -> field of the file, where they differ."""
BILLING = tuple(column for column, name in NAMES.items() if name.startswith("billing."))
PORTS = {"http": 80, "https": 443}
BECOMES = gettext_noop("%(name)s %(before)s → %(after)s")


@dataclass
class Step:
    """One row to save: what it changes, said in lines, and how; `run` may return lines of its own (a secret).

    `values`: with what a new row begins, for those who look before they agree.
    """

    lines: Sequence[str]
    run: Callable[[], list[str]]
    values: list[str] = field(default_factory=list)


@dataclass
class Plan:
    """What a file changes, in the order in which it is saved. Nothing is written before `run`."""

    now: dt.datetime
    faults: Faults
    steps: list[Step] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return [line for step in self.steps for line in step.lines]

    @property
    def in_full(self) -> list[str]:
        """The lines, and with what new rows begin."""
        return [line for step in self.steps for line in (*step.lines, *step.values)]

    def run(self) -> list[str]:
        """Save everything; returns the lines of what was done."""
        return [line for step in self.steps for line in (*step.lines, *step.run())]

    def save(self, row: models.Model, what: str, columns: Mapping[str, Any], more: Iterable[str] = ()) -> None:
        """Set the columns of a row that is there, or of a new one, and plan its saving where something changes."""
        if row.pk is None:
            for column, value in columns.items():
                setattr(row, column, value)
            lines = [at(what, _("newly created")), *(at(what, one) for one in more)]
            self.steps.append(Step(lines, _saving(row, None), _values(what, columns)))
            return
        lines, changed = [at(what, one) for one in more], []
        for column, value in columns.items():
            if (old := getattr(row, column)) != value:
                if column not in UNSAID:
                    change = _becomes(NAMES.get(column, column), _said(column, old), _said(column, value))
                    lines.append(at(what, change))
                changed.append(column)
                setattr(row, column, value)
        if changed:
            self.steps.append(Step(lines, _saving(row, changed)))


def _values(what: str, columns: Mapping[str, Any]) -> list[str]:
    told = {column: value for column, value in columns.items() if column not in UNSAID and value not in (None, "", [])}
    return [
        at(what, _becomes(NAMES.get(column, column), _said(column, None), _said(column, value)))
        for column, value in told.items()
    ]


def _becomes(name: str, before: str, after: str) -> Phrase:
    return phrase(BECOMES, name=name, before=before, after=after)


def columns_of(line: str) -> dict[str, str]:
    """A line of a plan by its parts: `what`, `field`, `before`, `after`; of no column `what` and `after` alone."""
    what, change = parted(line)
    if not isinstance(change, Phrase) or change.template != BECOMES:
        return {"what": what, "field": "", "before": "", "after": change}
    field, before, after = (change.values[name] for name in ("name", "before", "after"))
    return {"what": what, "field": field, "before": before, "after": after}


UNSAID = frozenset({"credential", "revoked_at", *keys.SECRET_COLUMNS})
"""Columns whose change is said in a line of its own."""


def _saving(row: models.Model, columns: list[str] | None) -> Callable[[], list[str]]:
    def save() -> list[str]:
        row.save(update_fields=columns) if columns else row.save(force_insert=True)
        if isinstance(row, Provider) and row.credential and columns and "credential" in columns:
            put_back_all(row)
        return []

    return save


def _said(column: str, value: Any) -> str:
    """A column's value in a line for people."""
    if value is None or value == []:
        return _("none")
    if column == "tax_rate_ppm":
        return f"{Decimal(value) / 10**6}"
    if column.endswith("_nanos") or (column in money_columns() and isinstance(value, int)):
        return money.show(value).rstrip("0").rstrip(".")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dt.datetime):
        return f"{value.astimezone(dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
    return str(value).replace("\n", " ") or _("empty")


def money_columns() -> frozenset[str]:
    """The columns of Price that are nanos per million."""
    return frozenset({"input", "cache_read", "cache_write", "cache_write_1h", "output"})


def plan(entries: Entries, faults: Faults, now: dt.datetime, *, billing_details: bool = True) -> Plan:
    """Compare a file with the database; what must not be is added to `faults`.

    `billing_details`: whether what invoices say of a customer may change.
    """
    found = Plan(now, faults)
    providers = _Providers(found).plan(entries.providers)
    known_models = _Models(found, providers).plan(entries.models)
    _plan_prices(found, entries.prices)
    _Accounts(found, known_models, billing_details=billing_details).plan(entries.accounts)
    return found


class _Providers:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rows = {row.name: row for row in Provider.objects.all()}

    def plan(self, entries: list[ProviderEntry]) -> dict[str, Provider]:
        """Returns all providers by name, those to be created too."""
        for entry in filter(lambda entry: entry.name, entries):
            row = self._rows.setdefault(entry.name, Provider(name=entry.name))
            for name in ("base_url", "wire_formats"):
                if row.pk is None and name not in entry.fields:
                    self._plan.faults.add(entry.path, _("%(name)s is missing; a new provider needs it", name=name))
            columns, lines = self._credential(row, entry)
            self._plan.save(row, _("provider %(name)s", name=entry.name), {**entry.fields, **columns}, lines)
        return self._rows

    def _credential(self, row: Provider, entry: ProviderEntry) -> tuple[dict[str, Any], list[str]]:
        """The credential as given; without one it is cleared where it would go elsewhere, or in another header."""
        if entry.api_key is not None:
            if row.credential and _decrypts_to(row, entry.api_key):
                return {}, []
            old = HIDDEN if row.credential else _("none")
            new = credentials.encrypt(entry.api_key, settings.ENCRYPTION_KEYS)
            return {"credential": new}, [_becomes("api_key", old, HIDDEN)]
        if row.pk is None:
            return {}, [_("no api_key: enter one before it is used")]
        if row.credential and _leads_elsewhere(row, entry.fields):
            return {"credential": ""}, [_("api_key cleared, since its address or auth changes: give it in the file")]
        return {}, []


def _decrypts_to(row: Provider, api_key: str) -> bool:
    try:
        return credentials.decrypt(row.credential, settings.ENCRYPTION_KEYS, provider=row.name) == api_key
    except credentials.CredentialUnreadable:
        return False  # it is entered anew


def _leads_elsewhere(row: Provider, columns: Mapping[str, Any]) -> bool:
    """Whether scheme, host, port or authentication change: the old credential must not be sent there."""
    before = (*_origin(row.base_url), row.auth)
    return before != (*_origin(columns.get("base_url", row.base_url)), columns.get("auth", row.auth))


def _origin(base_url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(base_url)
    return parts.scheme, parts.hostname, parts.port or PORTS.get(parts.scheme)


class _Models:
    def __init__(self, plan: Plan, providers: Mapping[str, Provider]) -> None:
        self._plan, self._providers = plan, providers
        self._rows = {row.name: row for row in Model.objects.all()}
        self._routes: dict[str, dict[tuple[str, str], Route]] = {}
        for route in Route.objects.select_related("model", "provider"):
            ways = self._routes.setdefault(route.model.name, {})
            ways[(route.provider.name, route.upstream_model)] = route

    def plan(self, entries: list[ModelEntry]) -> set[str]:
        """Returns the names of all models, those to be created too."""
        for entry in filter(lambda entry: entry.name, entries):
            row = self._rows.setdefault(entry.name, Model(name=entry.name))
            low, high = settings.STALL_RANGE_S
            if row.pk is None and not low <= entry.fields.get("stall_seconds", row.stall_seconds) <= high:
                message = _(
                    "stall_seconds is missing, and the default of %(usual)s is not between %(low)s and %(high)s "
                    "(HOPBASE_STALL_RANGE_S)",
                    usual=row.stall_seconds, low=low, high=high,
                )  # fmt: skip
                self._plan.faults.add(entry.path, message)
            self._plan.save(row, _("model %(name)s", name=entry.name), entry.fields)
            if entry.routes is not None:
                self._plan_routes(row, entry.routes)
        return set(self._rows)

    def _plan_routes(self, model: Model, entries: list[RouteEntry]) -> None:
        """The routes that the file names are the model's: others go out of use."""
        existing = self._routes.get(model.name, {})
        for entry in entries:
            provider = self._providers.get(entry.provider)
            if provider is None:
                if entry.provider:
                    known = nearest(entry.provider, self._providers)
                    message = _("unknown provider %(name)s; %(known)s", name=repr(entry.provider), known=known)
                    self._plan.faults.add(f"{entry.path}.provider", message)
                continue
            way = (entry.provider, entry.upstream_model)
            row = existing.get(way) or Route(model=model, provider=provider, upstream_model=entry.upstream_model)
            self._plan.save(row, _route_name(model, way), {**entry.fields, "active": True})
        named = {(entry.provider, entry.upstream_model) for entry in entries}
        for way, row in existing.items():
            if way not in named:
                self._plan.save(row, _route_name(model, way), {"active": False})


def _route_name(model: Model, way: tuple[str, str]) -> str:
    return _("route %(name)s", name=f"{model.name} → {way[0]}/{way[1]}")


def _plan_prices(plan: Plan, entries: list[PriceEntry]) -> None:
    existing = {(row.model, row.effective_from): row for row in Price.objects.all()}
    seen: dict[tuple[str, dt.datetime], str] = {}
    for entry in entries:
        moment = (entry.fields["model"], entry.fields["effective_from"])
        if moment in seen:
            message = _("is the same model and effective_from as %(path)s; keep one", path=seen[moment])
            plan.faults.add(entry.path, message)
            continue
        seen[moment] = entry.path
        row = existing.get(moment) or Price(model=moment[0], effective_from=moment[1])
        changed = [name for name, value in entry.fields.items() if row.pk is None or getattr(row, name) != value]
        if row.pk is not None and changed and row.is_used():
            message = _(
                "%(label)s has billed requests and never changes; add an entry with a new effective_from (it differs "
                "in %(columns)s)",
                label=row.label, columns=", ".join(changed),
            )  # fmt: skip
            plan.faults.add(entry.path, message)
            continue
        if changed and (number := invoices.billed_at(*moment)):
            message = _(
                "invoice %(number)s has billed this model for that time already; choose a later start", number=number
            )
            plan.faults.add(f"{entry.path}.effective_from", message)
            continue
        plan.save(row, _("price %(label)s", label=row.label), entry.fields)


class _Accounts:
    def __init__(self, plan: Plan, known_models: set[str], *, billing_details: bool) -> None:
        self._plan, self._known_models, self._billing_details = plan, known_models, billing_details
        self._rows = {row.name: row for row in Account.objects.all()}
        self._keys = {(row.account.name, row.name): row for row in ApiKey.objects.select_related("account")}

    def plan(self, entries: list[AccountEntry]) -> None:
        self._check_secrets(entries)
        for entry in filter(lambda entry: entry.name, entries):
            row = self._rows.setdefault(entry.name, Account(name=entry.name))
            self._check_locked(row, entry)
            self._check_billing(row, entry)
            self._plan.save(row, _("account %(name)s", name=entry.name), entry.fields)
            for key in filter(lambda key: key.name, entry.keys):
                self._plan_key(row, key)

    def _check_locked(self, row: Account, entry: AccountEntry) -> None:
        """Zone and currency are locked by the first request: they decide its month, and what its cost is in."""
        changed = [
            name
            for name in ("timezone", "currency")
            if name in entry.fields and getattr(row, name) != entry.fields[name]
        ]
        if row.pk is None or not changed or not row.is_used():
            return
        for name in changed:
            message = _(
                "is %(value)s for good, since the account has usage; make a new account for another one",
                value=getattr(row, name),
            )
            self._plan.faults.add(f"{entry.path}.{name}", message)

    def _check_billing(self, row: Account, entry: AccountEntry) -> None:
        """What invoices say of a customer is not for everybody to change."""
        if self._billing_details:
            return
        for column in BILLING:
            if column in entry.fields and getattr(row, column) != entry.fields[column]:
                message = _("is a billing detail, which you have no right to change; leave it out")
                self._plan.faults.add(f"{entry.path}.{NAMES[column]}", message)

    def _check_secrets(self, entries: list[AccountEntry]) -> None:
        """No two keys have one secret, in the file or in the database."""
        given = [(entry, key) for entry in entries for key in entry.keys if key.secret]
        digests = {key.path: keys.digest(key.secret or "", settings.KEY_PEPPER) for _entry, key in given}
        rows = ApiKey.objects.filter(Q(digest__in=digests.values()) | Q(previous_digest__in=digests.values()))
        owners = {digest: row for row in rows.select_related("account") for digest in (row.digest, row.previous_digest)}
        seen: dict[str, str] = {}
        for entry, key in given:
            digest = digests[key.path]
            self._check_secret(entry, key, owners.get(digest), digest, seen)
            seen.setdefault(digest, key.path)

    def _check_secret(
        self, entry: AccountEntry, key: KeyEntry, owner: ApiKey | None, digest: str, seen: Mapping[str, str]
    ) -> None:
        path = f"{key.path}.secret"
        if digest in seen:
            self._plan.faults.add(path, _("is the secret of %(path)s too; each key needs its own", path=seen[digest]))
        elif owner is not None and (owner.account.name, owner.name) != (entry.name, key.name):
            self._plan.faults.add(
                path, _("is the secret of the key %(key)s already; each key needs its own", key=str(owner))
            )
        elif owner is not None and owner.digest != digest:
            self._plan.faults.add(
                path, _("is the key's old secret, from before its rotation; give the new one, or none")
            )

    def _plan_key(self, account: Account, entry: KeyEntry) -> None:
        what = _("key %(name)s", name=f"{account.name}/{entry.name}")
        self._check_models(entry)
        row = self._keys.get((account.name, entry.name))
        if row is None:
            made = [at(what, _("newly created")), *([at(what, _("revoked"))] if entry.active is False else [])]
            self._plan.steps.append(Step(made, lambda: self._create(account, entry, what), _values(what, entry.fields)))
            return
        columns, lines = dict(entry.fields), list[str]()
        if entry.active and row.revoked_at is not None:
            message = _("the key is revoked, which is final; leave active out, or give a key with a new name")
            self._plan.faults.add(f"{entry.path}.active", message)
        if entry.active is False and row.revoked_at is None:
            columns["revoked_at"] = self._plan.now
            lines.append(_("revoked"))
        if entry.secret and keys.digest(entry.secret, settings.KEY_PEPPER) != row.digest:
            columns |= _new_secret(entry.secret)
            lines.append(_becomes("secret", HIDDEN, HIDDEN))
        self._plan.save(row, what, columns, lines)

    def _check_models(self, entry: KeyEntry) -> None:
        read = known_model(self._known_models)
        for position, name in enumerate(entry.fields["allowed_models"] or []):
            try:
                read(name)
            except ValueError as fault:
                self._plan.faults.add(f"{entry.path}.models[{position}]", said_by(fault))

    def _create(self, account: Account, entry: KeyEntry, what: str) -> list[str]:
        revoked_at = self._plan.now if entry.active is False else None
        _made, secret = keys.create(account, entry.name, entry.secret, revoked_at=revoked_at, **entry.fields)
        if entry.secret or revoked_at:
            return []
        return [at(what, _("secret %(secret)s (store it now; it is not shown again)", secret=secret))]


def _new_secret(secret: str) -> dict[str, Any]:
    """The columns of another secret; the old one stops at once, whether it was in a grace time or not."""
    none = {"last_used_at": None, "previous_until": None, "previous_shown": "", "previous_used_at": None}
    digest = keys.digest(secret, settings.KEY_PEPPER)
    return {"digest": digest, "shown": keys.shown(secret), "previous_digest": None, **none}
