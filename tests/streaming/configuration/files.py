"""Configuration files for tests."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import yaml

from streaming import configuration

VARIABLES = {"ACME_KEY": "sk-acme-1", "NORTHWIND_KEY": "sk-northwind-0123456789"}

WHOLE = """
providers:
  - name: acme
    base_url: http://127.0.0.1:9101/v1
    api_key: ${ACME_KEY}
    auth: bearer
    wire_formats: [chat_completions, responses, messages]
    on_client_left: {drain_s: 30, max_drains: 50}
    stored_objects: shared
    ratelimit_headers: hide
    reasoning_outside: [chat_completions]
models:
  - name: sol
    stall_seconds: 120
    total_timeout_s: 300
    routes:
      - {provider: acme, upstream_model: sol-large, priority: 1, weight: 3}
prices:
  - model: sol
    effective_from: 2026-01-01T00:00:00Z
    currency: USD
    per_million: {input: 5, cache_read: 0.5, cache_write: 6.25, cache_write_1h: 10, output: 0.123456789}
    tiers: {priority: 2.0, flex: {input: 2.5, output: 15}}
    long_context: {above: 272000, input: 2.0, output: 1.5}
    server_tools: {web_search: 0.01}
accounts:
  - name: northwind
    timezone: Asia/Taipei
    currency: USD
    active: true
    billing: {legal_name: Northwind Ltd, address: 1 Road, tax_id: T1, tax_rate: 0.05, due_days: 14, language: zh-Hant}
    keys:
      - name: production
        secret: ${NORTHWIND_KEY}
        models: [sol]
        limits: {requests_per_minute: 600, tokens_per_minute: 1000000, concurrency: 50, monthly_budget: 99.5}
        allowed_ips: [10.0.0.0/8]
        expires_at: 2030-01-01T00:00:00+08:00
        active: true
"""


def apply(text: str, *, dry_run: bool = False, variables: Mapping[str, str] | None = VARIABLES) -> list[str]:
    """Apply a file's text."""
    return configuration.apply(text.encode(), variables=variables, dry_run=dry_run)


def changed(path: str, value: Any) -> str:
    """The whole file with one value at a dotted path changed; `...` removes it, a new name adds it."""
    file = copy.deepcopy(yaml.load(WHOLE, yaml.BaseLoader))  # texts only: numbers stay as they were written
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place = file
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = _Raw(value)
    return yaml.dump(file, Dumper=_Dumper, sort_keys=False)


class _Raw(str):
    """A scalar, or a flow collection, written into the file as it is."""


class _Dumper(yaml.SafeDumper):
    """Writes texts without quotes, so that YAML reads them as they stood in the file."""


def _plain(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    value = yaml.compose(text)
    return value if value is not None else dumper.represent_scalar("tag:yaml.org,2002:null", "")


_Dumper.add_representer(str, _plain)
_Dumper.add_representer(_Raw, _plain)
_Dumper.ignore_aliases = lambda *arguments: True  # type: ignore[method-assign]


def faults(text: str, **options: Any) -> list[str]:
    """What is wrong with a file."""
    try:
        apply(text, **options)
    except configuration.ConfigurationFaults as refused:
        return refused.lines
    return []
