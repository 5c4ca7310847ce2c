"""Models, routes and providers in memory, and the poll that keeps them fresh."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.db import OperationalError

from billing.models import Account, CatalogueVersion
from streaming.catalogue import STALE_S, Catalogue, CataloguePoller, ModelEntry
from streaming.credentials import encrypt
from streaming.models import Model, Provider, Route

KEY = Fernet.generate_key().decode()
SECRET = "sk-provider-secret"


@pytest.fixture
def catalogue(db: None) -> Catalogue:
    return Catalogue(encryption_keys=[KEY], stall_range_s=(90, 150))


def make_provider(name: str = "acme-cloud", **fields: Any) -> Provider:
    given: dict[str, Any] = {"base_url": "http://acme.test/v1", "credential": encrypt(SECRET, [KEY])}
    return Provider.objects.create(name=name, **{**given, "wire_formats": ["responses"], **fields})


def make_route(model: Model, provider: Provider, **fields: Any) -> Route:
    return Route.objects.create(model=model, provider=provider, **{"upstream_model": "gpt-upstream", **fields})


def test_model_is_loaded_whole(catalogue: Catalogue) -> None:
    provider = make_provider(drain_s=30, max_drains=5, reasoning_outside=["chat_completions"])
    route = make_route(Model.objects.create(name="gpt"), provider, weight=3)
    assert catalogue.refresh()
    entry = catalogue.models["gpt"]
    assert (entry.stall_s, entry.total_timeout_s, entry.created) == (120, 600, 0)
    (way,) = entry.routes
    assert (way.id, way.upstream_model, way.priority, way.weight) == (route.id, "gpt-upstream", 0, 3)
    kept = way.provider
    assert (kept.id, kept.name, kept.base_url, kept.credential) == (
        provider.id, "acme-cloud", "http://acme.test/v1", SECRET,
    )  # fmt: skip
    assert (kept.auth, kept.stored_objects, kept.ratelimit_headers) == ("bearer", "refused", "pass")
    assert (kept.wire_formats, kept.reasoning_outside) == (frozenset({"responses"}), frozenset({"chat_completions"}))
    assert (kept.drain_s, kept.max_drains, kept.active) == (30, 5, True)


def test_credential_is_not_in_repr(catalogue: Catalogue) -> None:
    make_route(Model.objects.create(name="gpt"), make_provider())
    catalogue.refresh()
    assert SECRET not in repr(catalogue.models)
    assert "acme-cloud" in repr(catalogue.models)


@pytest.mark.parametrize(("seconds", "clamped"), [(5, 90), (90, 90), (120, 120), (150, 150), (999, 150)])
def test_stall_is_clamped(catalogue: Catalogue, seconds: int, clamped: int) -> None:
    Model.objects.create(name="gpt", stall_seconds=seconds)
    catalogue.refresh()
    assert catalogue.models["gpt"].stall_s == clamped


def test_routes_come_by_priority(catalogue: Catalogue) -> None:
    model, provider = Model.objects.create(name="gpt"), make_provider()
    last = make_route(model, provider, upstream_model="a", priority=2)
    first = make_route(model, provider, upstream_model="b", priority=0)
    second = make_route(model, provider, upstream_model="c", priority=0)
    catalogue.refresh()
    assert [route.id for route in catalogue.models["gpt"].routes] == [first.id, second.id, last.id]


def test_inactive_things_are_out(catalogue: Catalogue) -> None:
    model, resting = Model.objects.create(name="gpt"), Model.objects.create(name="old", active=False)
    make_route(model, make_provider(), active=False)
    make_route(model, make_provider("closed", active=False))
    make_route(resting, make_provider("other"))
    catalogue.refresh()
    assert set(catalogue.models) == {"gpt"}
    assert catalogue.models["gpt"].routes == ()


def test_refresh_takes_changes_in(catalogue: Catalogue) -> None:
    model, provider = Model.objects.create(name="gpt"), make_provider()
    route = make_route(model, provider)
    assert catalogue.refresh()
    assert not catalogue.refresh()
    provider.base_url = "http://moved.test"
    provider.save()
    assert catalogue.refresh()
    assert catalogue.models["gpt"].routes[0].provider.base_url == "http://moved.test"
    route.active = False
    route.save()
    catalogue.refresh()
    assert catalogue.models["gpt"].routes == ()


def test_readers_keep_their_snapshot(catalogue: Catalogue) -> None:
    model = Model.objects.create(name="gpt")
    catalogue.refresh()
    held = catalogue.models
    model.name = "gpt-2"
    model.save()
    catalogue.refresh()
    assert (set(held), set(catalogue.models)) == ({"gpt"}, {"gpt-2"})
    with pytest.raises(TypeError):
        held["x"] = held["gpt"]  # type: ignore[index]


def test_deleted_rows_are_forgotten(catalogue: Catalogue) -> None:
    model = Model.objects.create(name="gpt")
    route = make_route(model, make_provider())
    catalogue.refresh()
    route.delete()
    Model.objects.create(name="other")
    catalogue.refresh()
    assert catalogue.models["gpt"].routes == ()


def test_refresh_covers_billing(catalogue: Catalogue) -> None:
    from billing import keys

    account = Account.objects.create(name="northwind")
    key, secret = keys.create(account, "production")
    catalogue.refresh()
    digest = key.digest
    assert catalogue.billing.key_by_digest(digest, 0) is not None
    assert secret not in repr(catalogue.billing.key_by_digest(digest, 0))


def test_lower_version_reads_everything(catalogue: Catalogue) -> None:
    """The database was restored from a backup: its version may be lower than what we have seen."""
    model = Model.objects.create(name="gpt")
    model.save()
    catalogue.refresh()
    CatalogueVersion.objects.update(value=1)
    Model.objects.filter(id=model.id).update(name="restored", changed_in=1)
    catalogue.refresh()
    assert set(catalogue.models) == {"restored"}


def test_unreadable_provider_goes_out(catalogue: Catalogue, caplog: pytest.LogCaptureFixture) -> None:
    model = Model.objects.create(name="gpt")
    foreign = encrypt(SECRET, [Fernet.generate_key().decode()])
    lost = make_provider("lost", credential=foreign)
    make_route(model, lost)
    good = make_route(model, make_provider())
    catalogue.refresh()
    assert [route.id for route in catalogue.models["gpt"].routes] == [good.id]
    assert catalogue.unreadable == {"lost"}
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "lost" in message
    assert "HOPBASE_ENCRYPTION_KEYS" in message
    assert foreign not in message
    lost.credential = encrypt(SECRET, [KEY])
    lost.save()
    catalogue.refresh()
    assert (len(catalogue.models["gpt"].routes), catalogue.unreadable) == (2, frozenset())


class Feed:
    """Stands for a catalogue whose database may be away."""

    version = 0

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.polls = 0

    def refresh(self) -> bool:
        self.polls += 1
        if self.error:
            raise self.error
        return True


@pytest.fixture
def start_poller() -> Iterator[Callable[..., CataloguePoller]]:
    started: list[CataloguePoller] = []

    def start(catalogue: Any, **seams: Any) -> CataloguePoller:
        started.append(CataloguePoller(catalogue, **seams))
        started[-1].start()
        return started[-1]

    yield start
    for poller in started:
        poller.stop()


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + 5
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return holds()


@pytest.mark.django_db(transaction=True)
def test_poller_sees_changes(start_poller: Callable[..., CataloguePoller]) -> None:
    catalogue = Catalogue(encryption_keys=[KEY])
    poller = start_poller(catalogue, interval_s=0.05)
    assert eventually(lambda: poller.healthy)
    Model.objects.create(name="gpt")
    assert eventually(lambda: isinstance(catalogue.models.get("gpt"), ModelEntry))


def test_poller_outlives_an_outage(start_poller: Callable[..., CataloguePoller]) -> None:
    feed = Feed()
    feed.error = OperationalError("away")
    poller = start_poller(feed, interval_s=0.01)
    assert eventually(lambda: feed.polls >= 3)
    assert (poller.healthy, poller.last_error) == (False, feed.error)
    feed.error = None
    assert eventually(lambda: poller.healthy)
    assert poller.last_error is None


def test_woken_poller_polls_at_once(start_poller: Callable[..., CataloguePoller]) -> None:
    feed = Feed()
    poller = start_poller(feed, interval_s=60)
    assert eventually(lambda: feed.polls == 1)
    poller.wake()
    assert eventually(lambda: feed.polls == 2)


def test_hanging_poll_is_unhealthy() -> None:
    now = [0.0]
    poller = CataloguePoller(Feed(), clock=lambda: now[0])  # type: ignore[arg-type]
    assert not poller.healthy
    poller.poll()
    assert poller.healthy
    now[0] = STALE_S + 1
    assert not poller.healthy
