"""The database as a configuration file, without secrets: applied to the same database it changes nothing."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from django.forms.models import model_to_dict

from billing import money
from billing.models import Account, ApiKey, Price
from billing.price_spec import describe_price
from streaming.configuration.entries import LIMITS
from streaming.models import Model, Provider, Route


def describe() -> dict[str, list[dict[str, Any]]]:
    """The whole file as plain values."""
    models = Model.objects.order_by("name").prefetch_related("routes__provider")
    accounts = Account.objects.order_by("name").prefetch_related("keys")
    return {
        "providers": [_provider(row) for row in Provider.objects.order_by("name")],
        "models": [_model(row) for row in models],
        "prices": [_price(row) for row in Price.objects.order_by("model", "effective_from")],
        "accounts": [_account(row) for row in accounts],
    }


def _provider(row: Provider) -> dict[str, Any]:
    drain = {"drain_s": row.drain_s, "max_drains": row.max_drains}
    return {
        "name": row.name,
        "base_url": row.base_url,
        "auth": row.auth,
        "wire_formats": row.wire_formats,
        "on_client_left": drain if row.drain_s else "cancel",
        "stored_objects": row.stored_objects,
        "ratelimit_headers": row.ratelimit_headers,
        "reasoning_outside": row.reasoning_outside,
        **({} if row.active else {"active": False}),
    }


def _model(row: Model) -> dict[str, Any]:
    routes = sorted((route for route in row.routes.all() if route.active), key=lambda route: (route.priority, route.pk))
    return {
        "name": row.name,
        "stall_seconds": row.stall_seconds,
        "total_timeout_s": row.total_timeout_s,
        **({} if row.active else {"active": False}),
        "routes": [_route(route) for route in routes],
    }


def _route(row: Route) -> dict[str, Any]:
    return {
        "provider": row.provider.name,
        "upstream_model": row.upstream_model,
        "priority": row.priority,
        "weight": row.weight,
    }


def _price(row: Price) -> dict[str, Any]:
    spec = describe_price(model_to_dict(row))
    numbers = {name: _exact(spec[name]) for name in spec if name not in ("model", "effective_from", "currency")}
    return {**spec, "effective_from": row.effective_from.astimezone(dt.UTC), **numbers}


def _exact(value: Any) -> Any:
    """Numbers that are text, since they have places, as Decimals: the file then shows them without quotes."""
    if isinstance(value, dict):
        return {name: _exact(item) for name, item in value.items()}
    return Decimal(value) if isinstance(value, str) else value


def _account(row: Account) -> dict[str, Any]:
    billing = {
        "legal_name": row.legal_name,
        "address": row.address,
        "tax_id": row.tax_id,
        "tax_rate": _number(Decimal(row.tax_rate_ppm).scaleb(-6)),
        "due_days": row.due_days,
        "language": row.language,
    }
    return {
        "name": row.name,
        "timezone": row.timezone,
        "currency": row.currency,
        "active": row.active,
        "billing": billing,
        "keys": [_key(key) for key in sorted(row.keys.all(), key=lambda key: key.name)],
    }


def _key(row: ApiKey) -> dict[str, Any]:
    limits = {name: getattr(row, column) for name, (column, _) in LIMITS.items()}
    if row.monthly_budget_nanos is not None:
        limits["monthly_budget"] = _number(money.to_decimal(row.monthly_budget_nanos))
    return {
        "name": row.name,
        **({} if row.allowed_models is None else {"models": row.allowed_models}),
        "limits": {name: value for name, value in limits.items() if value is not None},
        "allowed_ips": row.allowed_ips,
        "expires_at": row.expires_at and row.expires_at.astimezone(dt.UTC),
        "active": row.revoked_at is None,
    }


def _number(value: Decimal) -> int | Decimal:
    """An int where it is whole, else without trailing zeros."""
    return int(value) if value == value.to_integral_value() else value.normalize()
