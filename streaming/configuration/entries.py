"""The configuration file as entries: every field checked on its own, every fault kept with its path. No database.

An entry's `fields` are the columns that the file names, ready for the model; what it does not name stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from billing import keys, readers
from billing.phrases import at, parted, said_by
from billing.phrases import phrase as _
from billing.price_spec import PriceFault, parse_price
from streaming.configuration import fields as read
from streaming.configuration.text import expand

Value = TypeVar("Value")

WIRE_FORMATS = ("chat_completions", "responses", "messages")
LANGUAGES = {"en": "en", "zh-hant": "zh-Hant"}
SECTIONS = ("providers", "models", "prices", "accounts")
LIMITS: dict[str, tuple[str, readers.Reader]] = {
    **{column: (column, reader) for column, reader in readers.KEY_LIMITS.items()},
    "monthly_budget": ("monthly_budget_nanos", read.amount),
}
"""Limit in the file -> column, reader."""


@dataclass
class Faults:
    """What is wrong with a file: `path: message` each."""

    lines: list[str] = field(default_factory=list)

    def add(self, path: str, message: str) -> None:
        self.lines.append(at(path, message) if path else message)


class ConfigurationFaults(ValueError):
    """The file is refused; `lines` say what is wrong, one fault each."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


@dataclass(frozen=True)
class RouteEntry:
    path: str
    provider: str
    upstream_model: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class ProviderEntry:
    path: str
    name: str
    fields: Mapping[str, Any]
    api_key: str | None = field(repr=False)


@dataclass(frozen=True)
class ModelEntry:
    """`routes` None: the file does not name them."""

    path: str
    name: str
    fields: Mapping[str, Any]
    routes: list[RouteEntry] | None


@dataclass(frozen=True)
class PriceEntry:
    path: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class KeyEntry:
    path: str
    name: str
    fields: Mapping[str, Any]
    secret: str | None = field(repr=False)
    active: bool | None


@dataclass(frozen=True)
class AccountEntry:
    path: str
    name: str
    fields: Mapping[str, Any]
    keys: list[KeyEntry]


@dataclass(frozen=True)
class Entries:
    """A whole file."""

    providers: list[ProviderEntry]
    models: list[ModelEntry]
    prices: list[PriceEntry]
    accounts: list[AccountEntry]


class _Entry:
    """One mapping of the file: hands out its fields and keeps their faults."""

    def __init__(self, value: Any, path: str, known: tuple[str, ...], faults: Faults) -> None:
        self.path, self._faults = path, faults
        self._given: Mapping[Any, Any] = value if isinstance(value, Mapping) else {}
        if not isinstance(value, Mapping):
            faults.add(path, _("must be a mapping, not %(value)s", value=readers.shown(value)))
        for name in self._given:
            if name not in known:
                faults.add(self._of(name), _("unknown field; %(known)s", known=readers.nearest(name, known)))

    def _of(self, name: object) -> str:
        """The path of a field."""
        return f"{self.path}.{name}" if self.path else str(name)

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def value(self, name: str) -> Any:
        return self._given.get(name)

    def take(self, name: str, reader: Callable[[Any], Value], default: Value) -> Value:
        """The field as its reader makes it; the default where the file does not name it, or it is faulty."""
        if name not in self._given:
            return default
        try:
            return reader(self._given[name])
        except ValueError as fault:
            self._faults.add(self._of(name), said_by(fault))
            return default

    def need(self, name: str, reader: Callable[[Any], str]) -> str:
        """The same for a text without which there is no entry: "" when it is missing or faulty."""
        if name not in self._given:
            self._faults.add(self.path, _("%(name)s is missing", name=name))
        return self.take(name, reader, "")

    def columns(self, readers: Mapping[str, tuple[str, Callable[[Any], Any]]]) -> dict[str, Any]:
        """Column -> value of the fields that the file names; `readers`: field -> column, reader."""
        missing = object()
        found = {column: self.take(name, reader, missing) for name, (column, reader) in readers.items()}
        return {column: value for column, value in found.items() if value is not missing}

    def entries(self, name: str) -> list[tuple[Any, str]]:
        """The items of a list with their paths; none where the field is absent or null."""
        items: list[Any] = self.take(name, read.listed, []) if self.value(name) is not None else []
        return [(item, f"{self._of(name)}[{position}]") for position, item in enumerate(items)]


class Reading:
    """Reads a file's value into Entries. `variables` as in `text.expand`; `stall_range` in seconds."""

    def __init__(self, variables: Mapping[str, str] | None, stall_range: tuple[int, int]) -> None:
        self._variables, self._stall_range = variables, stall_range
        self.faults = Faults()

    def file(self, value: Any) -> Entries:
        whole = _Entry({} if value is None else value, "", SECTIONS, self.faults)
        entries = Entries(
            [self._provider(item, path) for item, path in whole.entries("providers")],
            [self._model(item, path) for item, path in whole.entries("models")],
            [entry for item, path in whole.entries("prices") if (entry := self._price(item, path))],
            [self._account(item, path) for item, path in whole.entries("accounts")],
        )
        self._once(entries.providers)
        self._once(entries.models)
        self._once(entries.accounts)
        return entries

    def _entry(self, value: Any, path: str, *known: str) -> _Entry:
        return _Entry(value, path, known, self.faults)

    def _once(self, entries: list[Any]) -> None:
        seen: dict[str, str] = {}
        for entry in entries:
            if entry.name and entry.name in seen:
                what = _("%(name)s is named by %(path)s already", name=repr(entry.name), path=seen[entry.name])
                self.faults.add(f"{entry.path}.name", what)
            seen.setdefault(entry.name, entry.path)

    def _secret(self, value: Any) -> str:
        """A credential: its value never gets into a message."""
        if not isinstance(value, str) or not value:
            raise ValueError(_("must be text; put it in quotes"))
        secret = expand(value, self._variables)
        if not secret.isascii() or not secret.isprintable() or " " in secret:
            raise ValueError(
                _("has characters that cannot be sent in a header; it may have printable ASCII without spaces")
            )
        return secret

    def _provider(self, value: Any, path: str) -> ProviderEntry:
        entry = self._entry(
            value, path, "name", "base_url", "api_key", "auth", "wire_formats", "on_client_left", "stored_objects",
            "ratelimit_headers", "reasoning_outside", "active",
        )  # fmt: skip
        columns = entry.columns(
            {
                "base_url": ("base_url", read.base_url),
                "auth": ("auth", read.choice(("bearer", "x-api-key"))),
                "wire_formats": ("wire_formats", read.choices(WIRE_FORMATS, empty=False)),
                "stored_objects": ("stored_objects", read.choice(("refused", "shared"))),
                "ratelimit_headers": ("ratelimit_headers", read.choice(("pass", "hide"))),
                "reasoning_outside": ("reasoning_outside", read.choices(WIRE_FORMATS, empty=True)),
                "active": ("active", read.boolean),
            }
        )
        columns.update(self._on_client_left(entry))
        return ProviderEntry(
            path, entry.need("name", readers.text(100)), columns, entry.take("api_key", self._secret, None)
        )

    def _on_client_left(self, entry: _Entry) -> dict[str, int | None]:
        """`cancel`, or a drain with its caps: the columns."""
        given = entry.value("on_client_left")
        if "on_client_left" not in entry or given == "cancel":
            return {"drain_s": None, "max_drains": None} if given else {}
        if not isinstance(given, Mapping):
            message = _("must be cancel or {drain_s: 30, max_drains: 50}, not %(value)s", value=readers.shown(given))
            self.faults.add(f"{entry.path}.on_client_left", message)
            return {}
        drain = self._entry(given, f"{entry.path}.on_client_left", "drain_s", "max_drains")
        for name in ("drain_s", "max_drains"):
            if name not in drain:
                self.faults.add(drain.path, _("%(name)s is missing; a drain needs both caps", name=name))
        return drain.columns({name: (name, readers.DRAIN) for name in ("drain_s", "max_drains")})

    def _model(self, value: Any, path: str) -> ModelEntry:
        entry = self._entry(value, path, "name", "stall_seconds", "total_timeout_s", "routes", "active")
        name = entry.need("name", readers.MODEL_NAME)
        columns = entry.columns(
            {
                "stall_seconds": ("stall_seconds", self._stall),
                "total_timeout_s": ("total_timeout_s", readers.TOTAL_TIMEOUT_S),
                "active": ("active", read.boolean),
            }
        )
        routes = [self._route(item, at, name) for item, at in entry.entries("routes")] if "routes" in entry else None
        self._routes_once(routes or [])
        return ModelEntry(path, name, columns, routes)

    def _stall(self, value: Any) -> int:
        low, high = self._stall_range
        try:
            return readers.Whole(low, high)(value)
        except ValueError as fault:
            raise ValueError(_("%(fault)s (HOPBASE_STALL_RANGE_S)", fault=said_by(fault))) from None

    def _route(self, value: Any, path: str, model: str) -> RouteEntry:
        entry = self._entry(value, path, "provider", "upstream_model", "priority", "weight")
        columns = entry.columns({"priority": ("priority", readers.PRIORITY), "weight": ("weight", readers.WEIGHT)})
        provider = entry.need("provider", readers.text(100))
        return RouteEntry(path, provider, entry.take("upstream_model", readers.text(200), model), columns)

    def _routes_once(self, routes: list[RouteEntry]) -> None:
        seen: dict[tuple[str, str], str] = {}
        for route in routes:
            way = (route.provider, route.upstream_model)
            if way in seen:
                self.faults.add(route.path, _("is the same route as %(path)s; keep one", path=seen[way]))
            seen.setdefault(way, route.path)

    def _price(self, value: Any, path: str) -> PriceEntry | None:
        try:
            return PriceEntry(path, parse_price(value))
        except ValueError as fault:
            what = fault.what if isinstance(fault, PriceFault) else said_by(fault)
            field, what = parted(what)
            self.faults.add(f"{path}.{field}" if field else path, what)
            return None

    def _account(self, value: Any, path: str) -> AccountEntry:
        entry = self._entry(value, path, "name", "timezone", "currency", "active", "billing", "keys")
        columns = entry.columns(
            {
                "timezone": ("timezone", read.zone),
                "currency": ("currency", read.currency),
                "active": ("active", read.boolean),
            }
        )
        if entry.value("billing") is not None:
            columns.update(self._billing(entry.value("billing"), f"{path}.billing"))
        its_keys = [self._key(item, at) for item, at in entry.entries("keys")]
        self._once(its_keys)
        return AccountEntry(path, entry.need("name", readers.text(100)), columns, its_keys)

    def _billing(self, value: Any, path: str) -> dict[str, Any]:
        entry = self._entry(value, path, "legal_name", "address", "tax_id", "tax_rate", "due_days", "language")
        return entry.columns(
            {
                "legal_name": ("legal_name", readers.text(200, empty=True)),
                "address": ("address", readers.text(2_000, empty=True)),
                "tax_id": ("tax_id", readers.text(64, empty=True)),
                "tax_rate": ("tax_rate_ppm", read.tax_rate),
                "due_days": ("due_days", readers.DUE_DAYS),
                "language": ("language", _language),
            }
        )

    def _key(self, value: Any, path: str) -> KeyEntry:
        entry = self._entry(value, path, "name", "secret", "models", "limits", "allowed_ips", "expires_at", "active")
        columns = entry.columns(
            {
                "allowed_ips": ("allowed_ips", lambda given: read.networks([] if given is None else given)),
                "expires_at": ("expires_at", read.optional(read.instant)),
            }
        )
        columns["allowed_models"] = entry.take("models", read.optional(_model_names), None)
        if "limits" in entry:
            columns.update(self._limits(entry.value("limits"), f"{path}.limits"))
        name = entry.need("name", readers.text(100))
        return KeyEntry(
            path, name, columns, entry.take("secret", self._key_secret, None), entry.take("active", read.boolean, None)
        )

    def _limits(self, value: Any, path: str) -> dict[str, int | None]:
        """All four: one that is not named is no limit."""
        entry = self._entry({} if value is None else value, path, *LIMITS)
        unlimited: dict[str, int | None] = {column: None for column, _reader in LIMITS.values()}
        given = {name: (column, read.optional(partial(reader))) for name, (column, reader) in LIMITS.items()}
        return {**unlimited, **entry.columns(given)}

    def _key_secret(self, value: Any) -> str:
        secret = self._secret(value)
        if not keys.is_well_formed(secret):
            raise ValueError(
                _("has %(count)s characters and cannot be used: %(why)s", count=len(secret), why=keys.ILL_FORMED)
            )
        return secret


def _model_names(value: Any) -> list[str]:
    names = [readers.MODEL_NAME(one) for one in read.listed(value)]
    if not names:
        raise ValueError(_("names no model; leave it out to allow all, or set active: false"))
    return list(dict.fromkeys(names))


def _language(value: Any) -> str:
    found = LANGUAGES.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(_("must be en or zh-Hant, not %(value)s", value=readers.shown(value)))
    return found
