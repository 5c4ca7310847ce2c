"""Whose stored objects are, and which routes may take a request that names some."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError

from billing.ledger import BroughtObjects
from streaming.errors import ApiError
from streaming.stored_objects import Maker, StoredObjects, able_routes
from tests.streaming.entries import provider, route

ACCOUNT, OTHER_ACCOUNT = 1, 2
ACME, BETA = provider(1, name="acme"), provider(2, name="beta")
SHARED = provider(3, name="common", stored_objects="shared")
FIRST, SECOND, THIRD = route(1, provider=ACME), route(2, provider=ACME, upstream_model="n"), route(3, provider=BETA)
ROUTES = [FIRST, SECOND, THIRD]
BY_SECOND = Maker(2, "acme", "n")


class Database:
    """The rows of a database, and what it was asked; `error` is raised instead of an answer."""

    def __init__(self, **rows: Maker) -> None:
        self.rows = rows
        self.asked: list[tuple[int, set[str]]] = []
        self.error: BaseException | None = None

    async def read(self, look_up: object, account_id: int, ids: Collection[str]) -> dict[str, Maker]:
        self.asked.append((account_id, set(ids)))
        if self.error is not None:
            raise self.error
        return {id: maker for id, maker in self.rows.items() if id in ids and account_id == ACCOUNT}


class World:
    """Stored objects over a database that is a dictionary, a ledger that is a list, and time that is not waited for."""

    def __init__(self, kept: int = 10, **rows: Maker) -> None:
        self.database = Database(**rows)
        self.ledger: list[BroughtObjects] = []
        self.waited: list[float] = []
        self.meanwhile: Any = lambda: None
        self.stored = StoredObjects(self._remember, self.database.read, kept=kept, sleep=self._sleep)

    def _remember(self, brought: BroughtObjects) -> Future[None]:
        self.ledger.append(brought)
        return Future()

    async def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.meanwhile()

    def bring(self, *ids: str, account: int = ACCOUNT, route: Any = SECOND) -> None:
        self.stored.brought(account, uuid.uuid4(), route, ids)


async def refused(world: World, routes: Any = ROUTES, account: int = ACCOUNT, **stored: Any) -> tuple[int, str, Any]:
    with pytest.raises(ApiError) as raised:
        await world.stored.routes_for(account, stored, routes)
    error = raised.value.error
    return error.status, error.code, error.param


async def test_own_object_stays_with_its_route() -> None:
    world = World()
    world.bring("resp_1")
    assert await world.stored.routes_for(ACCOUNT, {"previous_response_id": ("resp_1",)}, ROUTES) == [SECOND]
    assert (world.database.asked, world.waited) == ([], [])


async def test_objects_go_to_the_ledger() -> None:
    world = World()
    world.bring("resp_1", "cntr_1", "x" * 501, "nul\0")
    (brought,) = world.ledger
    assert (brought.account_id, brought.route_id, brought.provider, brought.upstream_model) == (ACCOUNT, 2, "acme", "n")
    assert list(brought.object_ids) == ["resp_1", "cntr_1"]
    world.bring("x" * 501)
    assert len(world.ledger) == 1


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("previous_response_id", "previous_response_not_found"),
        ("container", "container_not_found"),
        ("audio.id", "invalid_request_error"),
    ],
)
async def test_foreign_object_is_not_found(field: str, code: str) -> None:
    world = World()
    world.bring("theirs", account=OTHER_ACCOUNT)
    assert await refused(world, **{field: ("theirs",)}) == (400, code, field)
    world.bring("mine")
    assert await refused(world, **{field: ("mine", "nobodys")}) == (400, code, field)
    assert world.database.asked[0] == (ACCOUNT, {"theirs"})


async def test_database_knows_older_objects() -> None:
    world = World(resp_1=BY_SECOND)
    for _ in range(2):
        assert await world.stored.routes_for(ACCOUNT, {"previous_response_id": ("resp_1",)}, ROUTES) == [SECOND]
    assert world.database.asked == [(ACCOUNT, {"resp_1"})]
    assert await refused(world, account=OTHER_ACCOUNT, previous_response_id=("resp_1",)) == (
        400, "previous_response_not_found", "previous_response_id",
    )  # fmt: skip


async def test_oldest_object_leaves_memory() -> None:
    world = World(kept=3)
    world.bring("a", "b", "c")
    await world.stored.makers(ACCOUNT, ["a"])
    world.bring("d")
    assert set(await world.stored.makers(ACCOUNT, ["a", "b", "c", "d"], ())) == {"a", "c", "d"}
    assert world.database.asked == [(ACCOUNT, {"b"})]


async def test_late_commit_is_waited_for() -> None:
    """The other process has passed the answer on, and its row is committed a moment later."""
    world = World()
    world.meanwhile = lambda: world.database.rows.update(resp_1=BY_SECOND)
    assert await world.stored.routes_for(ACCOUNT, {"previous_response_id": ("resp_1",)}, ROUTES) == [SECOND]
    assert len(world.waited) == 1


async def test_object_brought_meanwhile_is_known() -> None:
    world = World()
    world.meanwhile = lambda: world.bring("resp_1")
    assert await world.stored.makers(ACCOUNT, ["resp_1"]) == {"resp_1": BY_SECOND}


async def test_shared_provider_waits_for_nothing() -> None:
    world = World()
    shared = route(4, provider=SHARED)
    stored = {"previous_response_id": ("made_elsewhere",), "conversation": ("conv_1",)}
    assert await world.stored.routes_for(ACCOUNT, stored, [FIRST, shared]) == [shared]
    assert (len(world.database.asked), world.waited) == (1, [])


@pytest.mark.parametrize("error", [OperationalError("away"), TimeoutError()])
async def test_database_away_is_503(error: Exception) -> None:
    world = World()
    world.database.error = error
    assert await refused(world, previous_response_id=("resp_1",)) == (503, "service_unavailable", None)
    world.bring("resp_1")
    assert await world.stored.routes_for(ACCOUNT, {"previous_response_id": ("resp_1",)}, ROUTES) == [SECOND]


async def test_unkeepable_ids_are_not_asked_for() -> None:
    world = World()
    for id in ("nul\0", "\ud83d", "x" * 501):
        assert (await refused(world, container=(id,)))[1] == "container_not_found"
    assert world.database.asked == []


async def test_thousands_of_ids_are_refused() -> None:
    world = World(**{f"c{n}": BY_SECOND for n in range(5000)})
    assert (await refused(world, container=tuple(world.database.rows)))[1] == "container_not_found"
    assert len(world.database.asked[0][1]) == 100


async def test_many_accounts_bring_at_once() -> None:
    world = World(kept=1000)
    for account in range(1, 200):
        world.bring("same", account=account, route=route(account, provider=ACME))
    asked = await asyncio.gather(*(world.stored.makers(account, ["same"]) for account in range(1, 200)))
    assert [found["same"].route_id for found in asked] == list(range(1, 200))


# --- which routes ---


def test_vanished_route_leaves_its_provider() -> None:
    stored, makers = {"container": ("c",)}, {"c": Maker(9, "acme", "old")}
    assert able_routes(stored, makers, ROUTES) == [FIRST, SECOND]


def test_moved_route_is_not_the_maker() -> None:
    """The route has the same number, but leads to another provider by now."""
    stored, makers = {"container": ("c",)}, {"c": Maker(3, "acme", "n")}
    assert able_routes(stored, makers, ROUTES) == [FIRST, SECOND]


@pytest.mark.parametrize("routes", [[], [THIRD], [FIRST, replace(SECOND, out_reason="status 401")]])
def test_route_that_is_out_is_503(routes: Any) -> None:
    with pytest.raises(ApiError, match="`previous_response_id`") as raised:
        able_routes({"previous_response_id": ("r",)}, {"r": BY_SECOND}, routes)
    assert (raised.value.error.code, raised.value.headers) == ("no_available_route", {"x-should-retry": "false"})
    assert "acme" not in raised.value.error.message


def test_makers_must_agree() -> None:
    stored = {"previous_response_id": ("r",), "container": ("c",)}
    makers = {"r": BY_SECOND, "c": Maker(1, "acme", "m")}
    assert able_routes(stored, makers, ROUTES) == [FIRST, SECOND]
    with pytest.raises(ApiError, match="cannot be used together") as raised:
        able_routes(stored, {**makers, "c": Maker(3, "beta", "m")}, ROUTES)
    assert raised.value.error.code == "invalid_request_error"


OTHER_FIELDS = (
    "conversation", "prompt.id", "file_id", "vector_store_ids", "connector_id", "skill_id", "item_reference",
    "previous_message_id",
)  # fmt: skip


@pytest.mark.parametrize("field", OTHER_FIELDS)
def test_field_is_for_shared_providers(field: str) -> None:
    shared = route(4, provider=SHARED)
    assert able_routes({field: ("x",)}, {}, [FIRST, shared, THIRD]) == [shared]
    with pytest.raises(ApiError, match=field) as raised:
        able_routes({field: ("x",)}, {"x": BY_SECOND}, ROUTES)
    assert (raised.value.error.code, raised.value.error.param) == ("unsupported_parameter", field)


def test_own_object_pins_shared_routes_too() -> None:
    shared = [route(number, provider=SHARED) for number in (4, 5)]
    stored = {"previous_response_id": ("r",), "file_id": ("f",)}
    assert able_routes(stored, {"r": Maker(5, "common", "m")}, [FIRST, *shared]) == [shared[1]]


def test_pinned_route_must_be_shared_for_others() -> None:
    stored = {"previous_response_id": ("r",), "file_id": ("f",)}
    with pytest.raises(ApiError, match="`file_id`"):
        able_routes(stored, {"r": BY_SECOND}, [*ROUTES, route(4, provider=SHARED)])


def test_no_route_at_all_is_not_judged() -> None:
    assert able_routes({"file_id": ("f",)}, {}, []) == []
