"""Alarms: raised once however many look, told once however many tell, and tried again where nobody took them."""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings
from pytest_django import DjangoAssertNumQueries

from billing.models import ApiKey, BudgetMonth, MeterEvent
from billing.money import parse
from billing.processes import Folder
from hopbase_site.celery import app
from streaming import alarms, tasks
from streaming.alarms import GIVE_UP, LEASE, Standing, look, settle, tell, untold
from streaming.models import Alarm, Model, Provider, Route, put_back, take_out
from tests.billing.factories import make_account, make_key
from tests.streaming.receiver import Receiver, receiving

pytestmark = pytest.mark.django_db

NOW = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
QUERIES = 15


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture
def route() -> Route:
    provider = Provider.objects.create(name="acme", base_url="https://api.acme.test/v1", wire_formats=["messages"])
    return Route.objects.create(model=Model.objects.create(name="sol"), provider=provider, upstream_model="sol-2")


def refuse_a_bill() -> MeterEvent:
    hour = NOW.replace(minute=0)
    return MeterEvent.objects.create(
        kind="dropped", process=uuid.uuid4(), hour=hour, count=2, first_at=NOW, last_at=NOW
    )


def standing() -> list[str]:
    return list(Alarm.objects.filter(ended_at=None).order_by("id").values_list("subject", flat=True))


class Post:
    """Takes bodies, or answers with a failure."""

    def __init__(self, *failures: str) -> None:
        self.failures, self.bodies = list(failures), list[dict[str, Any]]()

    def __call__(self, body: bytes, delivery: str) -> str:
        self.bodies.append(json.loads(body))
        assert self.bodies[-1]["id"] == delivery
        return self.failures.pop(0) if self.failures else ""


def tell_all(post: Post, now: dt.datetime = NOW) -> None:
    for id in untold(now):
        tell(id, post, lambda: now)


# --- raising ---


def test_nothing_stands_at_first(folder: Folder, route: Route) -> None:
    look(NOW, folder=folder)
    assert (Alarm.objects.count(), untold(NOW)) == (0, [])


def test_unhealthy_meter_stands_until_it_is_well(folder: Folder) -> None:
    event = refuse_a_bill()
    for _ in range(3):
        look(NOW, folder=folder)
    alarm = Alarm.objects.get()
    assert (alarm.name, alarm.kind, alarm.raised_at, alarm.ended_at) == ("meter:dropped", "meter", NOW, None)
    assert alarm.message == "The meter is unhealthy: Bills refused by the database: 2."
    assert (alarm.details["check"], alarm.details["since"]) == ("dropped", "2026-11-30T12:00:00Z")
    event.acknowledged_at = NOW
    event.save()
    look(NOW + SECOND, folder=folder)
    assert Alarm.objects.get().ended_at == NOW + SECOND


def test_words_are_english_whatever_the_language(folder: Folder, settings: Any) -> None:
    settings.LANGUAGE_CODE = "zh-hant"
    refuse_a_bill()
    look(NOW, folder=folder)
    assert Alarm.objects.get().message.isascii()


def test_route_that_is_out_stands(folder: Folder, route: Route) -> None:
    take_out(route.pk, "401 from the provider")
    look(NOW, folder=folder)
    assert standing() == ["sol → acme/sol-2"]
    assert Alarm.objects.get().details["reason"] == "401 from the provider"
    route.refresh_from_db()
    put_back(route)
    look(NOW + SECOND, folder=folder)
    take_out(route.pk, "402 from the provider")
    look(NOW + 2 * SECOND, folder=folder)
    assert (standing(), Alarm.objects.count()) == (["sol → acme/sol-2"], 2)


def test_disabled_route_does_not_alarm(folder: Folder, route: Route) -> None:
    take_out(route.pk, "401")
    Route.objects.filter(pk=route.pk).update(active=False)
    look(NOW, folder=folder)
    assert standing() == []


def spend(key: ApiKey, units: str, month: dt.date = dt.date(2026, 11, 1)) -> None:
    BudgetMonth.objects.update_or_create(api_key=key, month=month, defaults={"spent_nanos": parse(units)})


@pytest.mark.parametrize(
    ("spent", "percent"),
    [("79.999999999", None), ("80", 80), ("99.999999999", 80), ("100", 100), ("9000000000", 100)],
)
def test_budget_alarms_at_its_shares(folder: Folder, spent: str, percent: int | None) -> None:
    key = make_key(make_account("northwind"), monthly_budget_nanos=parse("100"))
    spend(key, spent)
    look(NOW, folder=folder)
    assert [alarm.details["percent"] for alarm in Alarm.objects.all()] == ([percent] if percent else [])


def test_large_budgets_do_not_overflow(folder: Folder) -> None:
    key = make_key(make_account("northwind"), monthly_budget_nanos=2**63 - 1)
    BudgetMonth.objects.create(api_key=key, month=dt.date(2026, 11, 1), spent_nanos=2**63 - 1)
    look(NOW, folder=folder)
    assert Alarm.objects.get().details["percent"] == 100


def test_budget_alarms_once_a_month(folder: Folder) -> None:
    """Each share once, though the sum may fall again; a changed budget is another."""
    key = make_key(make_account("northwind"), monthly_budget_nanos=parse("100"))
    for spent in ("85", "75", "85", "101", "85"):
        spend(key, spent)
        look(NOW, folder=folder)
    assert [alarm.details["percent"] for alarm in Alarm.objects.order_by("id")] == [80, 100]
    key.monthly_budget_nanos = parse("50")
    key.save()
    look(NOW, folder=folder)
    assert [alarm.details["budget"] for alarm in Alarm.objects.order_by("id")][-1] == "50.000000000"


def test_budget_month_is_the_accounts_own(folder: Folder) -> None:
    key = make_key(make_account("northwind", timezone="Asia/Taipei"), monthly_budget_nanos=parse("100"))
    spend(key, "100")
    late = dt.datetime(2026, 11, 30, 15, 59, tzinfo=dt.UTC)
    look(late, folder=folder)
    assert len(standing()) == 1
    look(late + 2 * dt.timedelta(minutes=1), folder=folder)  # December in Taipei
    assert standing() == []


def test_keys_without_use_for_alarms_are_left_out(folder: Folder) -> None:
    account = make_account("northwind")
    for name, fields in (("none", {}), ("zero", {"monthly_budget_nanos": 0}), ("gone", {"revoked_at": NOW})):
        spend(make_key(account, name, **{"monthly_budget_nanos": None, **fields}), "100")
    look(NOW, folder=folder)
    assert standing() == []


def test_look_takes_few_queries(
    folder: Folder, route: Route, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for n in range(20):
        key = make_key(make_account(f"account-{n}"), monthly_budget_nanos=parse("1"))
        spend(key, "2")
    take_out(route.pk, "401")
    refuse_a_bill()
    with django_assert_max_num_queries(QUERIES):
        look(NOW, folder=folder)
    assert len(standing()) == 22


@pytest.mark.django_db(transaction=True)
def test_two_looks_raise_one_alarm(folder: Folder) -> None:
    refuse_a_bill()
    start = threading.Barrier(4)

    def at_once(_: int) -> None:
        start.wait()
        look(NOW, folder=folder)
        connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(at_once, range(4)))
    assert Alarm.objects.count() == 1


def test_slow_look_changes_nothing_newer() -> None:
    """What another look has raised or ended since this one read is not undone by it."""
    found = Standing("meter:x", Alarm.Kind.METER, "x", "x is bad")
    settle([found], NOW + SECOND)
    settle([], NOW)
    assert standing() == ["x"]
    settle([], NOW + 3 * SECOND)
    settle([found], NOW + 2 * SECOND)
    assert (standing(), Alarm.objects.count()) == ([], 1)


# --- telling ---


def raise_alarm(kind: Alarm.Kind = Alarm.Kind.METER, subject: str = "unpriced", **fields: Any) -> Alarm:
    return Alarm.objects.create(
        name=f"{kind}:{subject}", kind=kind, subject=subject, message="It is bad.", raised_at=NOW, **fields
    )


def test_alarm_is_told_once_then_its_end(settings: Any) -> None:
    settings.PUBLIC_URL = "https://hopbase.example/"
    alarm, other = raise_alarm(), raise_alarm(subject="journals")
    post = Post()
    for _ in range(3):
        tell_all(post)
    first = post.bodies[0]
    assert [body["id"] for body in post.bodies] == [f"{alarm.pk}-meter_unhealthy", f"{other.pk}-meter_unhealthy"]
    assert first == {
        "object": "alarm",
        "id": f"{alarm.pk}-meter_unhealthy",
        "event": "meter_unhealthy",
        "subject": "unpriced",
        "message": "It is bad.",
        "raised_at": "2026-11-30T12:00:00Z",
        "ended_at": None,
        "sent_at": "2026-11-30T12:00:00Z",
        "details": {},
        "link": f"https://hopbase.example/admin/streaming/alarm/{alarm.pk}/change/",
        "unhealthy": ["journals", "unpriced"],
    }
    Alarm.objects.filter(pk=alarm.pk).update(ended_at=NOW + SECOND)
    for _ in range(3):
        tell_all(post, NOW + SECOND)
    [_, _, last] = post.bodies
    assert (last["event"], last["ended_at"], last["unhealthy"]) == (
        "meter_healthy", "2026-11-30T12:00:01Z", ["journals"],
    )  # fmt: skip
    assert last["message"] == "The meter's check unpriced is good again."


def test_budgets_end_is_not_told() -> None:
    raise_alarm(Alarm.Kind.BUDGET, "northwind/production")
    post = Post()
    tell_all(post)
    Alarm.objects.update(ended_at=NOW)
    tell_all(post)
    assert [body["event"] for body in post.bodies] == ["budget_passed"]


def test_both_ends_of_a_route_are_told() -> None:
    raise_alarm(Alarm.Kind.ROUTE, "sol → acme/sol-2")
    post = Post()
    tell_all(post)
    Alarm.objects.update(ended_at=NOW)
    tell_all(post)
    assert [body["event"] for body in post.bodies] == ["route_out", "route_back"]
    assert "unhealthy" not in post.bodies[0]


def test_failure_is_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    alarm = raise_alarm()
    post = Post("status 500", "TimeoutError")
    tell_all(post)
    tell_all(post, NOW + 19 * SECOND)
    assert len(post.bodies) == 1
    tell_all(post, NOW + 20 * SECOND)
    tell_all(post, NOW + 59 * SECOND)
    assert len(post.bodies) == 2
    tell_all(post, NOW + 60 * SECOND)
    assert [body["id"] for body in post.bodies] == [f"{alarm.pk}-meter_unhealthy"] * 3
    assert (untold(NOW + LEASE), Alarm.objects.get().tries) == ([], 0)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"alarm {alarm.pk} was not delivered (status 500): tried again in 20 s",
        f"alarm {alarm.pk} was not delivered (TimeoutError): tried again in 40 s",
    ]


def test_pause_stops_growing() -> None:
    alarm = raise_alarm(tries=10_000)
    tell(alarm.pk, Post("status 500"), lambda: NOW)
    assert Alarm.objects.get().next_try_at == NOW + alarms.LONGEST_PAUSE


def test_old_news_is_not_told() -> None:
    raise_alarm()
    assert untold(NOW + GIVE_UP) == []
    assert len(untold(NOW + GIVE_UP - SECOND)) == 1


def test_trouble_that_passed_untold_is_kept_to_ourselves() -> None:
    """It began and ended between two looks of the teller; after a failed try it is told all the same."""
    alarm = raise_alarm(ended_at=NOW)
    assert untold(NOW) == []
    Alarm.objects.update(tries=1)
    post = Post()
    tell_all(post)
    tell_all(post)
    assert [body["event"] for body in post.bodies] == ["meter_unhealthy", "meter_healthy"]
    assert post.bodies[0]["id"] == f"{alarm.pk}-meter_unhealthy"


@pytest.mark.django_db(transaction=True)
def test_two_tellers_tell_once() -> None:
    alarm = raise_alarm()
    start, told = threading.Barrier(4), list[str]()

    def slow_post(body: bytes, delivery: str) -> str:
        told.append(delivery)
        threading.Event().wait(0.1)
        return ""

    def at_once(_: int) -> None:
        start.wait()
        tell(alarm.pk, slow_post, lambda: NOW)
        connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(at_once, range(4)))
    assert told == [f"{alarm.pk}-meter_unhealthy"]


def test_dead_teller_is_replaced() -> None:
    alarm = raise_alarm()

    def dies(body: bytes, delivery: str) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tell(alarm.pk, dies, lambda: NOW)
    post = Post()
    tell_all(post, NOW + LEASE - SECOND)
    assert post.bodies == []
    tell_all(post, NOW + LEASE)
    assert len(post.bodies) == 1


def test_unknown_alarm_is_no_error() -> None:
    assert not tell(10**6, Post(), lambda: NOW)


# --- the tasks ---


@pytest.fixture
def eager(settings: Any) -> Iterator[None]:
    """Tasks run where they are called, one after the other."""
    before = app.conf.task_always_eager
    app.conf.task_always_eager = True
    yield
    app.conf.task_always_eager = before


@pytest.mark.usefixtures("eager")
def test_redelivered_tasks_tell_once(receiver: Receiver, settings: Any) -> None:
    settings.ALARM_WEBHOOK_URL, settings.ALARM_WEBHOOK_SECRET = receiver.url, "s3cret-key"
    refuse_a_bill()
    assert (tasks.watch_alarms(), tasks.watch_alarms()) == (1, 0)
    alarm = Alarm.objects.get()
    assert (tasks.tell_alarm(alarm.pk), tasks.tell_alarm(alarm.pk)) == (False, False)
    assert [json.loads(body)["event"] for _, _, body in receiver.got] == ["meter_unhealthy"]


@pytest.mark.usefixtures("eager")
def test_failure_shows_no_address(receiver: Receiver, settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.ALARM_WEBHOOK_URL, settings.ALARM_WEBHOOK_SECRET = receiver.url, "s3cret-key"
    receiver.statuses = [500]
    caplog.set_level(logging.DEBUG)
    refuse_a_bill()
    tasks.watch_alarms()
    assert len(receiver.got) == 1
    assert "status 500" in caplog.text
    assert not [word for word in ("s3cret", str(receiver.port), "127.0.0.1") if word in caplog.text]


@pytest.mark.usefixtures("eager")
def test_no_webhook_is_no_failure() -> None:
    refuse_a_bill()
    with override_settings(ALARM_WEBHOOK_URL=""):
        assert tasks.watch_alarms() == 0
        assert not tasks.tell_alarm(Alarm.objects.get().pk)
    assert Alarm.objects.get().told_at is None


def test_beat_names_real_tasks() -> None:
    app.loader.import_default_modules()
    assert {entry["task"] for entry in tasks.BEAT_SCHEDULE.values()} <= set(app.tasks)


def test_beat_runs_both_apps_tasks() -> None:
    app.finalize()
    found = {entry["task"] for entry in app.conf.beat_schedule.values()}
    assert {"billing.tasks.sweep", "streaming.tasks.watch_alarms"} <= found
