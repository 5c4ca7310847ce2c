"""A configuration file against the database: all of it, or nothing."""

from __future__ import annotations

import datetime as dt
import io

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

from billing import invoices, keys
from billing.models import Account, ApiKey, CatalogueVersion, Price
from streaming import configuration, credentials
from streaming.models import Model, Provider, Route
from tests.billing.factories import make_record, utc
from tests.streaming.configuration.files import VARIABLES, WHOLE, apply, changed, faults
from tests.streaming.configuration.records import record

pytestmark = pytest.mark.django_db

BAD_VALUES = [
    ("providers.0.name", "''", "providers[0].name: must not be empty"),
    ("providers.0.name", "7", "providers[0].name: must be text, not 7; put it in quotes"),
    ("providers.0.base_url", "ftp://h/v1", "providers[0].base_url: must be an address such as https://"),
    ("providers.0.base_url", "http://u:hunter2@h/v1", "must not hold a user or password"),
    ("providers.0.base_url", "http://h/v1?a=1", "must not hold a query or fragment"),
    ("providers.0.base_url", "'http://h/v1#a'", "must not hold a query or fragment"),
    ("providers.0.base_url", "http://h:99999/v1", "is not a URL"),
    ("providers.0.base_url", "'http://[1/v1'", "is not a URL"),
    ("providers.0.base_url", "http:///v1", "must be an address"),
    ("providers.0.auth", "basic", "providers[0].auth: must be one of bearer, x-api-key, not 'basic'"),
    ("providers.0.wire_formats", "[chat]", "providers[0].wire_formats: must be one of chat_completions"),
    ("providers.0.wire_formats", "[]", "must name at least one of"),
    ("providers.0.wire_formats", "[messages, messages]", "names one of them twice"),
    ("providers.0.wire_formats", "messages", "must be a list, not 'messages'"),
    ("providers.0.on_client_left", "stop", "providers[0].on_client_left: must be cancel or {drain_s"),
    ("providers.0.on_client_left", "{drain_s: 30}", "providers[0].on_client_left: max_drains is missing"),
    ("providers.0.on_client_left", "{drain_s: 0, max_drains: 1}", "on_client_left.drain_s: must be between 1 and"),
    ("providers.0.stored_objects", "yes", "providers[0].stored_objects: must be one of refused, shared, not true"),
    ("providers.0.ratelimit_headers", "drop", "must be one of pass, hide"),
    ("providers.0.reasoning_outside", "[xai]", "providers[0].reasoning_outside: must be one of"),
    ("providers.0.api_key", "${NOPE}", "providers[0].api_key: the environment variable NOPE is not set"),
    ("providers.0.api_key", "${HOPBASE_KEY_PEPPER}", "is a setting of HopBase itself and is never read"),
    ("providers.0.api_key", "'a b'", "providers[0].api_key: has characters that cannot be sent in a header"),
    ("providers.0.api_key", "7", "providers[0].api_key: must be text"),
    ("providers.0.base_urls", "x", "providers[0].base_urls: unknown field; did you mean 'base_url'?"),
    ("providers.0", "7", "providers[0]: must be a mapping, not 7"),
    ("models.0.name", "'a b'", "models[0].name: 'a b' has a space in it"),
    ("models.0.stall_seconds", "20", "models[0].stall_seconds: must be between 90 and 150, not 20"),
    ("models.0.stall_seconds", "120.5", "models[0].stall_seconds: must be a whole number"),
    ("models.0.stall_seconds", "true", "models[0].stall_seconds: must be a whole number, not true"),
    ("models.0.total_timeout_s", "0", "models[0].total_timeout_s: must be between 1 and"),
    ("models.0.routes.0.provider", "acmee", "models[0].routes[0].provider: unknown provider 'acmee'; did you"),
    ("models.0.routes.0.provider", ..., "models[0].routes[0]: provider is missing"),
    ("models.0.routes.0.weight", "0", "models[0].routes[0].weight: must be between 1 and"),
    ("models.0.routes.0.prio", "1", "models[0].routes[0].prio: unknown field; did you mean 'priority'?"),
    ("models.0.routes", "[{provider: acme}, {provider: acme}]", "models[0].routes[1]: is the same route as"),
    ("prices.0.currency", "USX", "prices[0].currency: 'USX' is no ISO 4217 code"),
    ("prices.0.effective_from", "2026-01-01", "prices[0].effective_from: 2026-01-01 is not an exact instant"),
    ("prices.0.effective_from", "2026-01-01T00:00:00", "prices[0].effective_from:"),
    ("prices.0.effective_from", "2026-02-30T00:00:00Z", "prices[0].effective_from: '2026-02-30T00:00:00Z' is not an"),
    (
        "prices.0.effective_from",
        "0001-01-01T00:00:00+08:00",
        "prices[0].effective_from: 0001-01-01 00:00:00+08:00 is out",
    ),
    (
        "prices.0.effective_from",
        "0999-01-01T00:00:00Z",
        "prices[0].effective_from: 0999-01-01 00:00:00+00:00 is out of",
    ),
    ("prices.0.effective_from", "9999-12-31T23:00:00-08:00", "prices[0].effective_from: 9999-12-31 23:00:00-08:00 is"),
    ("prices.0.model", "' sol '", "prices[0].model: ' sol ' has a space or a NUL character in it"),
    ("prices.0.model", '"s\\0l"', "prices[0].model: 's\\x00l' has a space or a NUL character in it"),
    ("prices.0.tiers", "[]", "prices[0]: tiers must be a mapping"),
    ("prices.0.tiers", '{"a\\0": 1}', "prices[0].tiers: the key 'a\\x00' holds a NUL character; remove it"),
    ("prices.0.server_tools", "0", "prices[0]: server_tools must be a mapping"),
    ("prices.0.per_million", "{inputs: 5}", "prices[0].per_million: unknown key 'inputs'"),
    ("prices.0.per_million", "{input: -5}", "prices[0].per_million.input: -5 is negative"),
    ("prices.0.per_million", "{input: 0.0000000001}", "prices[0].per_million.input: 1E-10 has more than nine"),
    ("prices.0.long_context", "{above: 5}", "prices[0]"),
    ("accounts.0.timezone", "Asia/Taipeh", "accounts[0].timezone: 'Asia/Taipeh' is not a time zone"),
    ("accounts.0.timezone", "localtime", "accounts[0].timezone: 'localtime' is not a time zone"),
    ("accounts.0.timezone", "Factory", "accounts[0].timezone: 'Factory' is not a time zone"),
    ("accounts.0.currency", "usd", "accounts[0].currency: 'usd' is no currency"),
    ("accounts.0.active", "1", "accounts[0].active: must be true or false, not 1"),
    ("accounts.0.billing.tax_rate", "5", "accounts[0].billing.tax_rate: must be between 0 and 1, not 5; write"),
    ("accounts.0.billing.language", "fr", "accounts[0].billing.language: must be en or zh-Hant"),
    ("accounts.0.billing.vat", "fr", "accounts[0].billing.vat: unknown field"),
    ("accounts.0.keys.0.secret", "short", "accounts[0].keys[0].secret: has 5 characters and cannot be used"),
    ("accounts.0.keys.0.secret", f"sk-hb-{'a' * 49}", "accounts[0].keys[0].secret: has 55 characters"),
    ("accounts.0.keys.0.models", "[soll]", "accounts[0].keys[0].models[0]: unknown model 'soll'; did you mean 'sol'?"),
    ("accounts.0.keys.0.models", "[]", "accounts[0].keys[0].models: names no model"),
    ("accounts.0.keys.0.limits", "{rpm: 5}", "accounts[0].keys[0].limits.rpm: unknown field"),
    ("accounts.0.keys.0.limits", "{concurrency: 0}", "accounts[0].keys[0].limits.concurrency: must be between 1 and"),
    ("accounts.0.keys.0.limits", "{monthly_budget: -1}", "accounts[0].keys[0].limits.monthly_budget: -1 is not"),
    ("accounts.0.keys.0.allowed_ips", "[10.0.0.1/8]", "accounts[0].keys[0].allowed_ips: '10.0.0.1/8' is not a network"),
    ("accounts.0.keys.0.expires_at", "2030-01-01", "accounts[0].keys[0].expires_at: 2030-01-01 is not an exact moment"),
    (
        "accounts.0.keys.0.expires_at",
        "0001-01-01T00:00:00+08:00",
        "accounts[0].keys[0].expires_at: 0001-01-01 00:00:00",
    ),
    ("accounts.0.keys.0.expires_at", "2030-02-30T00:00:00Z", "accounts[0].keys[0].expires_at: '2030-02-30T00:00:00Z'"),
    ("accounts.0.keys.0.expires_at", "soon", "accounts[0].keys[0].expires_at: 'soon' is not a moment"),
    ("customers", "[]", "customers: unknown field"),
    ("models", "7", "models: must be a list, not 7"),
]


def rows() -> list[int]:
    return [model.objects.count() for model in (Provider, Model, Route, Price, Account, ApiKey)]


@pytest.mark.parametrize(
    ("path", "value", "said"), BAD_VALUES, ids=[f"{path} {value}" for path, value, _ in BAD_VALUES]
)
def test_bad_value_is_refused(path: str, value: object, said: str) -> None:
    found = faults(changed(path, value))
    assert any(said in line for line in found), found
    assert all("\n" not in line and "hunter2" not in line for line in found)
    assert rows() == [0] * 6


def test_every_fault_is_reported() -> None:
    bad = WHOLE.replace("auth: bearer", "auth: none").replace("USD", "USX").replace("weight: 3", "weight: x")
    assert [line.partition(": ")[0] for line in faults(bad)] == [
        "providers[0].auth", "models[0].routes[0].weight", "prices[0].currency", "accounts[0].currency",
    ]  # fmt: skip


def test_whole_file_is_kept_exactly() -> None:
    apply(WHOLE)
    provider, model, price = Provider.objects.get(), Model.objects.get(), Price.objects.get()
    assert credentials.decrypt(provider.credential, settings.ENCRYPTION_KEYS) == VARIABLES["ACME_KEY"]
    assert (provider.drain_s, provider.max_drains, provider.stored_objects) == (30, 50, "shared")
    assert (model.stall_seconds, model.total_timeout_s) == (120, 300)
    route = Route.objects.get()
    assert (route.upstream_model, route.priority, route.weight, route.active) == ("sol-large", 1, 3, True)
    assert (price.input, price.cache_read, price.output) == (5 * 10**9, 5 * 10**8, 123_456_789)
    assert price.tiers == {"priority": "2", "flex": {"input": 2_500_000_000, "output": 15 * 10**9}}
    key = ApiKey.objects.select_related("account").get()
    assert key.digest == keys.digest(VARIABLES["NORTHWIND_KEY"], settings.KEY_PEPPER)
    assert (key.monthly_budget_nanos, key.allowed_models, key.allowed_ips) == (99_500_000_000, ["sol"], ["10.0.0.0/8"])
    assert key.expires_at == dt.datetime(2029, 12, 31, 16, tzinfo=dt.UTC)
    assert (key.account.tax_rate_ppm, key.account.language, key.account.due_days) == (50_000, "zh-Hant", 14)


def test_second_apply_changes_nothing() -> None:
    apply(WHOLE)
    version = CatalogueVersion.current()
    assert apply(WHOLE) == []
    assert CatalogueVersion.current() == version


def test_file_raises_version_once() -> None:
    before = CatalogueVersion.current()
    apply(WHOLE)
    assert CatalogueVersion.current() == before + 1
    assert {row.changed_in for model in (Provider, Model, Route, Price) for row in model.objects.all()} == {before + 1}


def test_dry_run_writes_nothing() -> None:
    said = apply(WHOLE, dry_run=True)
    assert rows() == [0] * 6
    assert said == apply(WHOLE)


def test_unnamed_things_stay() -> None:
    apply(WHOLE)
    assert apply("models: [{name: sol, stall_seconds: 100}]") == ["model sol: stall_seconds 120 → 100"]
    assert rows() == [1] * 6
    assert Route.objects.get().active


def test_changes_hide_secrets() -> None:
    said = "\n".join(apply(WHOLE))
    other = {"ACME_KEY": "sk-acme-2", "NORTHWIND_KEY": "sk-northwind-9876543210"}
    said += "\n".join(apply(WHOLE, variables=other))
    assert "key northwind/production: secret ••• → •••" in said
    assert "provider acme: api_key ••• → •••" in said
    assert not any(secret in said for secret in (*VARIABLES.values(), *other.values()))


def test_routes_not_named_go_out_of_use() -> None:
    apply(WHOLE)
    said = apply("models: [{name: sol, routes: [{provider: acme, upstream_model: sol-small}]}]")
    assert said == ["route sol → acme/sol-small: newly created", "route sol → acme/sol-large: active True → False"]
    apply(WHOLE)
    assert dict(Route.objects.values_list("upstream_model", "active")) == {"sol-large": True, "sol-small": False}


@pytest.mark.parametrize(
    ("path", "value", "kept"),
    [
        ("providers.0.base_url", "http://127.0.0.1:9102/v1", False),
        ("providers.0.base_url", "https://127.0.0.1:9101/v1", False),
        ("providers.0.base_url", "http://127.0.0.2:9101/v1", False),
        ("providers.0.auth", "x-api-key", False),
        ("providers.0.base_url", "http://127.0.0.1:9101/v2", True),
        ("providers.0.stored_objects", "refused", True),
    ],
)
def test_credential_stays_where_it_goes(path: str, value: str, kept: bool) -> None:
    apply(WHOLE)
    text = (
        changed(path, value)
        .replace("api_key: ${ACME_KEY}", "active: true")
        .replace("api_key: '${ACME_KEY}'", "active: true")
    )
    said = apply(text)
    assert bool(Provider.objects.get().credential) is kept
    assert any("api_key cleared" in line for line in said) is not kept


def test_unreadable_credential_is_entered_anew() -> None:
    apply(WHOLE)
    Provider.objects.update(credential="not a token")
    assert apply(WHOLE) == ["provider acme: api_key ••• → •••"]


def test_made_secret_is_said_once() -> None:
    text = "accounts: [{name: northwind, keys: [{name: made}]}]"
    said = apply(text)
    secret = next(line for line in said if "secret" in line).split()[3]
    assert ApiKey.objects.get().digest == keys.digest(secret, settings.KEY_PEPPER)
    assert apply(text) == []


def test_absent_limits_mean_none() -> None:
    apply(WHOLE)
    said = apply(changed("accounts.0.keys.0.limits", "{concurrency: 5}"))
    assert "key northwind/production: limits.monthly_budget 99.5 → none" in said
    assert "key northwind/production: limits.concurrency 50 → 5" in said
    key = ApiKey.objects.get()
    assert (key.requests_per_minute, key.tokens_per_minute, key.monthly_budget_nanos) == (None, None, None)


def test_absent_models_mean_all() -> None:
    apply(WHOLE)
    assert apply(changed("accounts.0.keys.0.models", ...)) == ["key northwind/production: models sol → none"]
    assert ApiKey.objects.get().allowed_models is None


def test_revoking_is_final() -> None:
    apply(WHOLE)
    assert apply(changed("accounts.0.keys.0.active", "false")) == ["key northwind/production: revoked"]
    revoked_at = ApiKey.objects.get().revoked_at
    assert revoked_at is not None
    (line,) = faults(WHOLE)
    assert line.startswith("accounts[0].keys[0].active: the key is revoked, which is final;")
    assert apply(changed("accounts.0.keys.0.active", ...)) == []
    assert ApiKey.objects.get().revoked_at == revoked_at


def test_key_can_be_born_revoked() -> None:
    apply(changed("accounts.0.keys.0.active", "false"))
    assert ApiKey.objects.get().revoked_at is not None


def test_secret_belongs_to_one_key() -> None:
    apply(WHOLE)
    doubled = "[{name: a, secret: '${NORTHWIND_KEY}'}, {name: b, secret: sk-other-0123456789abc}, {name: c, secret: sk-other-0123456789abc}]"  # noqa: E501
    assert faults(f"accounts: [{{name: northwind, keys: {doubled}}}]") == [
        "accounts[0].keys[0].secret: is the secret of the key northwind/production already; each key needs its own",
        "accounts[0].keys[2].secret: is the secret of accounts[0].keys[1].secret too; each key needs its own".replace(
            ".secret too", " too"
        ),
    ]


def test_old_secret_is_refused() -> None:
    apply(WHOLE)
    keys.rotate(ApiKey.objects.get(), dt.timedelta(hours=24))
    assert faults(WHOLE) == [
        "accounts[0].keys[0].secret: is the key's old secret, from before its rotation; give the new one, or none"
    ]


def test_names_are_once_per_file() -> None:
    text = "providers: [{name: a, base_url: 'http://h', wire_formats: [messages]}]"
    text = text[:-1] + ", " + text.removeprefix("providers: [")
    assert faults(text) == ["providers[1].name: 'a' is named by providers[0] already"]


def test_new_provider_needs_an_address() -> None:
    assert faults("providers: [{name: a}]") == [
        "providers[0]: base_url is missing; a new provider needs it",
        "providers[0]: wire_formats is missing; a new provider needs it",
    ]


def test_used_price_never_changes() -> None:
    apply(WHOLE)
    record(ApiKey.objects.get(), price_version=Price.objects.get().label)
    dearer = WHOLE.replace("input: 5,", "input: 6,")
    (line,) = faults(dearer)
    assert line.startswith("prices[0]: sol@2026-01-01T00:00:00Z has billed requests and never changes; add an entry")
    assert apply(dearer.replace("2026-01-01T", "2026-02-01T")) == ["price sol@2026-02-01T00:00:00Z: newly created"]
    assert apply(WHOLE) == []


def test_price_used_by_an_item_never_changes() -> None:
    apply(WHOLE)
    record(ApiKey.objects.get(), items=[{"model": "sol", "price_version": Price.objects.get().label}])
    assert faults(WHOLE.replace("input: 5,", "input: 6,"))


def test_unused_price_may_change() -> None:
    apply(WHOLE)
    said = apply(WHOLE.replace("input: 5,", "input: 6.5,"))
    assert said == ["price sol@2026-01-01T00:00:00Z: input 5 → 6.5"]


def test_no_price_begins_within_an_issued_month() -> None:
    apply(WHOLE)
    key = ApiKey.objects.select_related("account").get()
    make_record(key, utc(2026, 11, 3), model="sol")
    (draft,) = invoices.draft(dt.date(2026, 11, 1), now=utc(2026, 12, 2))
    number = invoices.issue(draft.pk, now=utc(2026, 12, 2)).number
    said = f"invoice {number} has billed this model for that time already; choose a later start"
    within = changed("prices.0.effective_from", "2026-11-15T00:00:00Z")
    assert faults(within) == [f"prices[0].effective_from: {said}"]
    assert apply(within.replace("2026-11-15", "2026-12-15")) == ["price sol@2026-12-15T00:00:00Z: newly created"]
    assert apply(WHOLE) == []


@pytest.mark.parametrize(("name", "value"), [("timezone", "UTC"), ("currency", "EUR")])
def test_first_record_locks_the_account(name: str, value: str) -> None:
    apply(WHOLE)
    assert apply(changed(f"accounts.0.{name}", value)) != []
    apply(WHOLE)
    record(ApiKey.objects.get())
    (line,) = faults(changed(f"accounts.0.{name}", value))
    assert line.startswith(f"accounts[0].{name}: is ")
    assert "for good, since the account has usage" in line


def test_stall_default_must_be_allowed(settings: pytest.FixtureRequest) -> None:
    settings.STALL_RANGE_S = (30, 60)  # type: ignore[attr-defined]
    assert faults("models: [{name: sol}]") == [
        "models[0]: stall_seconds is missing, and the default of 120 is not between 30 and 60 (HOPBASE_STALL_RANGE_S)"
    ]


@pytest.mark.parametrize("text", ["", "{}", "models:", "accounts: []"])
def test_empty_files_change_nothing(text: str) -> None:
    assert apply(text) == []


def test_upload_expands_nothing() -> None:
    assert any("by `manage.py apply` only" in line for line in faults(WHOLE, variables=None))


# --- the commands ---


def test_export_round_trip() -> None:
    apply(WHOLE)
    apply(changed("accounts.0.keys.0.active", "false"))
    exported = configuration.export()
    assert apply(exported) == []
    assert not any(secret in exported for secret in VARIABLES.values())
    assert "sk-northwi" not in exported


def test_export_restores_what_it_describes() -> None:
    apply(WHOLE)
    exported = configuration.export()
    for path, value in (
        ("providers.0.on_client_left", "cancel"),
        ("models.0.routes.0.weight", "9"),
        ("prices.0.per_million", "{input: 7}"),
        ("accounts.0.billing.tax_rate", "0.1"),
        ("accounts.0.keys.0.limits", "{}"),
    ):
        assert apply(changed(path, value)) != []
    assert configuration.export() != exported
    apply(exported)
    assert configuration.export() == exported


def test_command_says_changes(tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "hopbase.yaml"  # type: ignore[operator]
    path.write_text(WHOLE)
    out = io.StringIO()
    call_command("apply", str(path), "--dry-run", stdout=out)
    call_command("apply", str(path), stdout=out)
    call_command("apply", str(path), stdout=out)
    lines = out.getvalue().splitlines()
    assert "7 changes would be applied" in lines
    assert "7 changes applied" in lines
    assert lines[-1] == "nothing to change"


def test_command_lists_faults(tmp_path: pytest.TempPathFactory) -> None:
    path = tmp_path / "hopbase.yaml"  # type: ignore[operator]
    path.write_text("models: [{name: a, routes: [{provider: x}]}]\nprice: []")
    with pytest.raises(CommandError) as refused:
        call_command("apply", str(path))
    assert str(refused.value).splitlines() == [
        "price: unknown field; did you mean 'prices'?",
        "error: models[0].routes[0].provider: unknown provider 'x'; there is none yet",
        "error: 2 faults; nothing was applied",
    ]
