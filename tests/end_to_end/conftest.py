"""One installation for all of these tests: two gateways on it, one per ASGI server, and a fake provider behind them."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests import settings
from tests.conftest import postgresql_database
from tests.end_to_end import scenes
from tests.end_to_end.product import RUNNING, Gateway, Installation
from tests.end_to_end.provider import Provider

KEY_NAMES = (
    "main", "sums", "crowd", "recorded", "some-models", "other", "names", "drain", "worker", "unused", "bound",
)  # fmt: skip
KEYS = {name: f"sk-test-{name}-0123456789abcdef" for name in KEY_NAMES}
"""Customers' keys, one for each test that looks at a key's sums."""
PROVIDER_KEY = "sk-provider-7f3a9c1e5b-walrus"
PRICE = {"input": 5, "cache_read": 0.5, "cache_write": 6.25, "cache_write_1h": 10, "output": 30}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the gateways logged last is shown beside a failure."""
    report = yield
    for gateway in RUNNING if report.failed else ():
        report.sections.append((f"log of serve, {gateway.server}", gateway.log[-3000:]))
    return report


@pytest.fixture(scope="session")
def database_url() -> Iterator[str]:
    """One database for the whole installation: PostgreSQL in that run, else "" for the default file."""
    if settings.POSTGRESQL:
        yield from postgresql_database(settings.postgresql_url())
    else:
        yield ""


@pytest.fixture(scope="session")
def provider() -> Iterator[Provider]:
    with Provider(scenes.stage(scenes.recorded_models())) as running:
        yield running


@pytest.fixture(scope="session")
def installation(database_url: str, provider: Provider) -> Iterator[Installation]:
    """Migrated and configured; nothing of it is left afterwards, and nothing secret was written in between."""
    made = Installation(database_url, PROVIDER_KEY=PROVIDER_KEY)
    try:
        made.migrate()
        made.apply(configuration(provider.base_url))
        made.keep()
        yield made
        assert made.files_with({**KEYS, "the provider's key": PROVIDER_KEY}) == []
    finally:
        made.remove()


@pytest.fixture(scope="session")
def uvicorn(installation: Installation) -> Iterator[Gateway]:
    with installation.serving("uvicorn") as gateway:
        yield gateway


@pytest.fixture(scope="session")
def daphne(uvicorn: Gateway, installation: Installation) -> Iterator[Gateway]:
    """The same installation on the other server; the first one owns the embedded Valkey."""
    with installation.serving("daphne") as gateway:
        yield gateway


@pytest.fixture(scope="session", params=["uvicorn", "daphne"])
def gateway(request: pytest.FixtureRequest, installation: Installation) -> Gateway:
    """A test that asks for this runs on both servers."""
    running: Gateway = request.getfixturevalue(request.param)
    return running


@pytest.fixture(scope="session")
def openai_client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    """The official SDK, on both servers; each `OpenAI()` costs a tenth of a second, so all tests share one."""
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEYS["main"], max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture(scope="session")
def anthropic_client(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEYS["main"], max_retries=0, timeout=20) as client:
        yield client


Fresh = Callable[[str], str]


@pytest.fixture(scope="session")
def fresh() -> Fresh:
    """A model that plays a scene and that nobody has asked before, where the scene would cool its route down."""
    unused = {name: iter(range(scenes.COPIES)) for name in scenes.FRAGILE}

    def model(scene: str) -> str:
        return f"{scene}.{next(unused[scene])}" if scene in unused else scene

    return model


@pytest.fixture
def key() -> str:
    return KEYS["main"]


def configuration(base_url: str) -> dict[str, Any]:
    """Providers, models, prices and an account, as an operator's file holds them."""
    recorded = recorded_settings()
    providers = {json.dumps({}): "acme"} | {
        told: f"acme-{number}" for number, told in enumerate(sorted(set(recorded.values()) - {json.dumps({})}))
    }
    routed = {name: (providers[told], name) for name, told in recorded.items()}
    routed |= {name: ("acme", name) for name in scenes.SCENES if name != scenes.SECOND_NAME}
    routed |= {name: ("acme", name) for name in scenes.copies()}
    routed["renamed"] = ("acme", scenes.SECOND_NAME)
    return {
        "providers": [provider_entry(name, base_url, json.loads(told)) for told, name in providers.items()],
        "models": [
            {"name": name, "routes": [{"provider": through, "upstream_model": upstream}]}
            for name, (through, upstream) in routed.items()
        ],
        "prices": [price_entry(name) for name in routed],
        "accounts": [account_entry()],
    }


def recorded_settings() -> dict[str, str]:
    """Model name of a recorded stream -> the settings of its provider, as JSON."""
    found = {}
    for name, (path, _) in scenes.recorded_models().items():
        said = json.loads(path.with_suffix(".json").read_text())
        found[name] = json.dumps(said.get("settings", {}), sort_keys=True)
    return found


def provider_entry(name: str, base_url: str, more: dict[str, Any]) -> dict[str, Any]:
    wire_formats = ["chat_completions", "responses", "messages"]
    return {"name": name, "base_url": base_url, "api_key": "${PROVIDER_KEY}", "wire_formats": wire_formats, **more}


def price_entry(model: str) -> dict[str, Any]:
    return {"model": model, "effective_from": "2026-01-01T00:00:00Z", "currency": "USD", "per_million": PRICE}


def account_entry() -> dict[str, Any]:
    keys: list[dict[str, Any]] = [{"name": name, "secret": secret} for name, secret in KEYS.items()]
    next(entry for entry in keys if entry["name"] == "some-models")["models"] = ["plain", "refuses"]
    next(entry for entry in keys if entry["name"] == "bound")["allowed_ips"] = ["127.0.0.2/32"]
    return {"name": "northwind", "timezone": "Asia/Taipei", "currency": "USD", "keys": keys}
