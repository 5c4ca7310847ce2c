"""Catalogue entries as plain values, for tests that need no database."""

from __future__ import annotations

from typing import Any

from billing.catalogue import AccountEntry, KeyEntry
from streaming.catalogue import ModelEntry, ProviderEntry, RouteEntry

ALL_FORMATS = frozenset({"chat_completions", "responses", "messages"})


def provider(id: int = 1, **fields: Any) -> ProviderEntry:
    defaults: dict[str, Any] = {
        "id": id, "name": f"provider-{id}", "base_url": f"http://provider-{id}.test/v1", "credential": f"secret-{id}",
        "auth": "bearer", "wire_formats": ALL_FORMATS, "drain_s": None, "max_drains": None,
        "stored_objects": "refused", "ratelimit_headers": "pass", "reasoning_outside": frozenset(), "active": True,
    }  # fmt: skip
    return ProviderEntry(**{**defaults, **fields})


def route(id: int = 1, *, priority: int = 0, weight: int = 1, upstream_model: str = "m", **fields: Any) -> RouteEntry:
    return RouteEntry(id, fields.pop("provider", None) or provider(id, **fields), upstream_model, priority, weight)


def model(*routes: RouteEntry, name: str = "m", **fields: Any) -> ModelEntry:
    defaults: dict[str, Any] = {
        "name": name,
        "stall_s": 120.0,
        "total_timeout_s": 600.0,
        "created": 0,
        "routes": routes,
    }
    return ModelEntry(**{**defaults, **fields})


def key(**fields: Any) -> KeyEntry:
    account = AccountEntry(1, "northwind", "UTC", "USD", True)
    defaults: dict[str, Any] = {
        "id": 1, "name": "production", "account": account, "allowed_models": None, "allowed_ips": (),
        "expires_at": None, "revoked": False, "requests_per_minute": None, "tokens_per_minute": None,
        "concurrency": None, "monthly_budget_nanos": None, "previous_until": None,
    }  # fmt: skip
    return KeyEntry(**{**defaults, **fields})
